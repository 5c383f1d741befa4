from dataclasses import fields

import pytest

from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import EncodeError
from tests.wire.slots import key_slot

OWN = {
    "locators": "delayq_locators:{q}",
    "headers": "delayq_headers:{q}",
    "payloads": "delayq_payloads:{q}",
    "errors": "delayq_errors:{q}",
    "notes": "delayq_notes:{q}",
    "unique": "delayq_unique:{q}",
    "claims": "delayq_claims:{q}",
    "control": "delayq_control:{q}",
    "counters": "delayq_counters:{q}",
    "leases": "delayq_leases:{q}",
    "retries": "delayq_retries:{q}",
    "returned": "delayq_returned:{q}",
    "held": "delayq_held:{q}",
    "held_tasks": "delayq_held_tasks:{q}",
    "moving": "delayq_moving:{q}",
    "moving_from": "delayq_moving_from:{q}",
    "dead": "delayq_dead:{q}",
    "quarantine": "delayq_quarantine:{q}",
    "ended": "delayq_ended:{q}",
    "last_ended": "delayq_last_ended:{q}",
    "sent": "delayq_sent:{q}",
    "forwards": "delayq_forwards:{q}",
    "ranked": "delayq_ranked:{q}",
    "schedules": "delayq_schedules:{q}",
    "periods": "delayq_periods:{q}",
    "slots": "delayq_slots:{q}",
    "paces": "delayq_paces:{q}",
    "batches": "delayq_batches:{q}",
    "minute": "delayq_minute:{q}",
    "minutes": "delayq_minutes:{q}",
    "hour": "delayq_hour:{q}",
    "hours": "delayq_hours:{q}",
    "totals": "delayq_totals:{q}",
    "progress": "delayq_progress:{q}",
    "channel": "delayq_channel:{q}",
}


def test_our_keys_have_these_names_for_ever() -> None:
    keys = DeliveryKeys.of("q")

    assert {
        field.name: getattr(keys, field.name)
        for field in fields(keys)
        if field.name != "queue"
    } == OWN
    assert keys.result("t0ken") == "delayq_result:{q}:t0ken"


@pytest.mark.parametrize("name", ["q", "app:q", "{app}:q", "a{b}c"])
def test_every_key_of_a_queue_lies_in_the_slot_of_its_destination_queue(
    name: str,
) -> None:
    keys = DeliveryKeys.of(name)
    ours = [getattr(keys, field) for field in OWN]

    slots = {key_slot(key) for key in [*ours, keys.result("t0ken")]}

    assert slots == {key_slot(keys.queue.destination)}


def test_a_name_that_redisson_could_not_use_is_refused() -> None:
    with pytest.raises(EncodeError, match="slots"):
        DeliveryKeys.of("x}y")


def test_keys_of_a_name_are_made_once() -> None:
    assert DeliveryKeys.of("q") is DeliveryKeys.of("q")
