"""A worker that sends a row of the outbox stores the same as the caller who wrote it."""

from typing import Any

import pytest
from django.db import transaction

from django_delayq import Limit, delayed_task, schedule
from django_delayq.core.keys import DeliveryKeys
from django_delayq.jobs import outbox
from django_delayq.outbox import row_writer
from django_delayq.outbox.part import OutboxPart
from django_delayq.outbox.relay import Relay
from django_delayq.testing import frozen_queue
from tests.pairs.touching import NOON


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("follows", ["", "then", "on_dead"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 10},
        {"limit": Limit("tests-rows", concurrency=1)},
        {"unique": True},
        {"unique": True, "expires": 60, "limit": Limit("tests-rows", rate="1/m")},
    ],
)
def test_row_is_stored_as_its_caller_stores_it(
    options: Any, follows: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {"OUTBOX_KEEP": 0}
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    first = delayed_task(name="tests.pairs.first", outbox=True, **options)(lambda: None)
    last = delayed_task(name="tests.pairs.last")(lambda: None)

    def stored() -> bytes:
        with frozen_queue(now=NOON) as q:
            job = first.prepare(60)
            if follows:
                getattr(job, follows)(last.prepare(0))
            with transaction.atomic():
                schedule(job)
            for _ in Relay("default").sweep(fresh_ms=0, by_hand=True):
                pass
            locators = q.server.keyspace.keys[
                DeliveryKeys.of("default").locators.encode()
            ]
            # What it keeps beside its payload stands behind its place.
            return locators[job.id.partition(":")[2].encode()][21:]

    by_caller = stored()
    monkeypatch.setattr(row_writer._Hook, "send", lambda self: None)

    assert stored() == by_caller
