"""Schedules that somebody writes back as they were: what people have replaced, deleted or paused stays so."""

import logging
from datetime import timedelta

import pytest

from django_delayq import (
    InvalidSchedule,
    ScheduleNotFound,
    every,
    get_job,
    get_schedule,
    get_schedules,
    store_schedule,
)
from django_delayq.conf import get_keyring, get_settings
from django_delayq.features.schedules import periodic as definitions
from django_delayq.jobs import registry
from django_delayq.tools.page_calls import end_schedule
from django_delayq.tools.source import schedules_of, take_schedule
from django_delayq.transport.run import run
from django_delayq.wire.signatures import SEAL_LENGTH
from tests.worker.test_periodic import (
    NEVER,
    Clock,
    keys_of,
    later,
    make,
    waiting_occurrences,
)

HOURLY, DAILY = every(timedelta(hours=1)), every(timedelta(days=1))


class Thief:
    """Somebody with all commands on the server, who has read it before."""

    def __init__(self, client, queue):
        self.client, self.key = client, keys_of(queue).schedules
        self.read = client.hgetall(self.key)

    def write_back(self, *fields):
        """Write fields as they were read, or delete those that were not there."""
        for field in fields:
            was = self.read.get(field.encode())
            if was is None:
                self.client.hdel(self.key, field)
            else:
                self.client.hset(self.key, field, was)
        self.client.hincrby(self.key, "version", 1)


@pytest.fixture
def seen(caplog):
    caplog.set_level(logging.INFO, "django_delayq")
    return caplog


@pytest.fixture
def task(configure, queue_name):
    return make(queue_name, NEVER)


@pytest.fixture
def worker(client, task, queue_name):
    worker = Clock(client, queue_name)
    worker.turn()
    return worker


def names(queue):
    return [each.name for each in get_schedules(queue)]


def of_earlier(client, queue):
    """Make the texts as the version before registers has written them."""
    key, keyring = keys_of(queue).schedules, get_keyring()
    for field, text in client.hgetall(key).items():
        kind, _, name = field.decode().partition(" ")
        if kind in ("code", "stored", "change"):
            body = definitions.unsealed(queue, kind, name, text).lstrip()
            place = definitions._place(queue, kind, name)
            client.hset(key, field, keyring.seal(place, body))
    client.hdel(key, *registers(client, queue))


def registers(client, queue):
    fields = client.hkeys(keys_of(queue).schedules)
    return [field for field in fields if field.startswith(b"register ")]


def test_replaced_schedule_does_not_come_back(client, worker, task, seen, queue_name):
    store_schedule("shop", task, HOURLY, queue=queue_name, args=["before"])
    thief = Thief(client, queue_name)
    store_schedule("shop", task, NEVER, queue=queue_name, args=["now"], replace=True)

    thief.write_back("stored shop", "state shop")
    client.zadd(keys_of(queue_name).periods, {"shop": 1_000})
    worker.turn()

    assert names(queue_name) == ["beat"]
    assert "schedule 'shop' is ignored (stored): it is not what was stored last" in (
        seen.text
    )
    # Whoever meant it stores it again.
    store_schedule("shop", task, DAILY, queue=queue_name, replace=True)
    worker.turn()
    assert get_schedule("shop", queue_name).when == DAILY


def test_deleted_schedule_does_not_come_back(client, worker, task, queue_name):
    stored = store_schedule("shop", task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    stored.delete()
    before = waiting_occurrences(client, queue_name)

    thief.write_back("stored shop", "state shop")
    worker.turn()

    assert names(queue_name) == ["beat"]
    assert waiting_occurrences(client, queue_name) == before


@pytest.mark.parametrize("is_stored", [True, False])
def test_pause_is_not_undone(client, worker, task, seen, queue_name, is_stored):
    name = "shop" if is_stored else "beat"
    if is_stored:
        store_schedule(name, task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    get_schedule(name, queue_name).pause(reason="inventory")

    thief.write_back(f"change {name}", f"state {name}")
    worker.turn()

    schedule = get_schedule(name, queue_name)
    assert (schedule.is_paused, schedule.next_occurrence) == (True, None)
    assert "are not what was written last" in schedule.paused_reason
    assert f"schedule '{name}' rests" in seen.text
    resumed = schedule.resume()
    assert not resumed.is_paused
    assert resumed.next_occurrence is not None


def test_pause_holds_when_the_definition_in_code_is_deleted_with_it(
    client, worker, queue_name
):
    get_schedule("beat", queue_name).pause()
    thief = Thief(client, queue_name)
    thief.read = {}

    thief.write_back("change beat", "code beat", "state beat")
    worker.turn()

    assert get_schedule("beat", queue_name).is_paused
    assert waiting_occurrences(client, queue_name) == []


def test_pause_outlives_a_definition_in_code_that_is_deleted(
    client, worker, queue_name
):
    get_schedule("beat", queue_name).pause()

    client.hdel(keys_of(queue_name).schedules, "code beat")
    client.hincrby(keys_of(queue_name).schedules, "version", 1)
    worker.turn()

    assert get_schedule("beat", queue_name).is_paused
    assert waiting_occurrences(client, queue_name) == []


def test_other_times_of_before_do_not_come_back(client, worker, queue_name):
    get_schedule("beat", queue_name).override(HOURLY)
    thief = Thief(client, queue_name)
    get_schedule("beat", queue_name).override(DAILY)

    thief.write_back("change beat")
    worker.turn()

    schedule = get_schedule("beat", queue_name)
    assert (schedule.when, schedule.is_paused) == (NEVER, True)


def test_fired_schedule_has_the_arguments_of_the_code_of_today(
    client, configure, queue_name
):
    def define(value):
        registry._tasks.clear()
        make(queue_name, NEVER, args=[value])

    define("before")
    Clock(client, queue_name).turn()
    text = client.hget(keys_of(queue_name).schedules, "code beat")
    define("today")

    client.hset(keys_of(queue_name).schedules, "code beat", text)

    job = get_schedule("beat", queue_name).fire()
    assert get_job(job.id).args == ["today"]


def test_key_rotation_signs_nothing_anew_that_was_written_back(
    client, configure, worker, task, settings, queue_name
):
    settings.SECRET_KEY = "old"
    store_schedule("shop", task, HOURLY, queue=queue_name)
    get_schedule("beat", queue_name).override(HOURLY)
    thief = Thief(client, queue_name)
    store_schedule("shop", task, NEVER, queue=queue_name, replace=True)
    store_schedule("kept", task, NEVER, queue=queue_name)
    get_schedule("beat", queue_name).override(DAILY)
    thief.write_back("stored shop", "change beat")

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    Clock(client, queue_name).turn()
    settings.SECRET_KEY_FALLBACKS = []

    assert names(queue_name) == ["beat", "kept"]
    assert get_schedule("beat", queue_name).is_paused
    texts = client.hgetall(keys_of(queue_name).schedules)
    assert texts[b"stored shop"] == thief.read[b"stored shop"]
    assert texts[b"change beat"] == thief.read[b"change beat"]


def test_schedules_of_an_earlier_version_go_on_and_get_a_register(
    client, worker, task, seen, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    get_schedule("beat", queue_name).pause()
    of_earlier(client, queue_name)
    before = {each.name: each for each in get_schedules(queue_name)}
    thief = Thief(client, queue_name)

    Clock(client, queue_name).turn()

    assert {each.name: each for each in get_schedules(queue_name)} == before
    assert len(registers(client, queue_name)) == 1
    assert "ignored" not in seen.text
    # Nobody gets back to the time without one.
    get_schedule("shop", queue_name).delete()
    key = keys_of(queue_name).schedules
    client.hdel(key, *registers(client, queue_name))
    thief.write_back("stored shop")
    Clock(client, queue_name).turn()
    assert names(queue_name) == ["beat"]


def test_first_change_of_schedules_of_an_earlier_version_keeps_the_others(
    client, worker, task, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    store_schedule("other", task, HOURLY, queue=queue_name)
    of_earlier(client, queue_name)

    get_schedule("shop", queue_name).pause()

    assert names(queue_name) == ["beat", "other", "shop"]
    assert len(registers(client, queue_name)) == 1


def test_text_that_an_earlier_version_signs_anew_still_holds(
    client, worker, task, queue_name
):
    """A worker of that version takes the space away, and signs what it has decoded."""
    store_schedule("shop", task, HOURLY, queue=queue_name)
    key = keys_of(queue_name).schedules
    text = client.hget(key, "stored shop")
    body = definitions._encoder.encode(
        definitions.definitions.decode(text[SEAL_LENGTH:])
    )
    place = definitions._place(queue_name, "stored", "shop")
    client.hset(key, "stored shop", get_keyring().seal(place, body))
    client.hincrby(key, "version", 1)

    worker.turn()

    assert names(queue_name) == ["beat", "shop"]
    assert definitions.is_registered(client.hget(key, "stored shop"))


def test_deleted_register_brings_nothing_back(client, worker, task, queue_name):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    client.hdel(keys_of(queue_name).schedules, *registers(client, queue_name))
    client.hincrby(keys_of(queue_name).schedules, "version", 1)

    worker.turn()

    assert names(queue_name) == ["beat"]
    store_schedule("shop", task, HOURLY, queue=queue_name, replace=True)
    assert names(queue_name) == ["beat", "shop"]


def test_process_without_the_key_of_the_register_does_not_take_its_place(
    client, configure, task, settings, queue_name
):
    plain = configure()
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}
    Clock(client, queue_name).turn()
    settings.DELAYQ = {**plain, "KEYS": ["the key of today", "the key of before"]}
    store_schedule("shop", task, HOURLY, queue=queue_name)
    key = keys_of(queue_name).schedules
    Clock(client, queue_name).turn()
    assert len(registers(client, queue_name)) == 1
    code = client.hget(key, "code beat")
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}
    body = definitions.Definition("tests.beat", NEVER.as_json())
    client.hset(key, "code late", definitions.sealed(queue_name, "code", "late", body))

    with pytest.raises(InvalidSchedule, match="a key that this process does not have"):
        store_schedule("other", task, HOURLY, queue=queue_name)

    settings.DELAYQ = {**plain, "KEYS": ["the key of today"]}
    assert client.hget(key, "code beat") == code
    assert "shop" in names(queue_name)


def test_projects_that_share_a_queue_have_a_register_each(
    client, configure, task, settings, queue_name
):
    plain = configure()
    for project in ("one", "two"):
        settings.DELAYQ = {**plain, "KEYS": [f"the secret of project {project}"]}
        store_schedule(project, task, HOURLY, queue=queue_name)
    assert len(registers(client, queue_name)) == 2

    for project in ("one", "two"):
        settings.DELAYQ = {**plain, "KEYS": [f"the secret of project {project}"]}
        assert project in names(queue_name)


def test_no_change_is_lost_while_some_processes_have_only_the_key_of_before(
    client, configure, task, settings, queue_name
):
    plain = configure()
    before, both = ["the key of before"], ["the key of today", "the key of before"]
    settings.DELAYQ = {**plain, "KEYS": before}
    Clock(client, queue_name).turn()
    store_schedule("shop", task, HOURLY, queue=queue_name)
    for keys, number in ((both, 1), (before, 2), (before, 3), (both, 4)):
        settings.DELAYQ = {**plain, "KEYS": keys}
        store_schedule(f"more {number}", task, HOURLY, queue=queue_name)
    get_schedule("shop", queue_name).override(DAILY)
    settings.DELAYQ = {**plain, "KEYS": before}
    get_schedule("more 3", queue_name).override(DAILY)

    settings.DELAYQ = {**plain, "KEYS": both}
    Clock(client, queue_name).turn()

    assert {each.name: each.when for each in get_schedules(queue_name)} == {
        "beat": NEVER,
        "shop": DAILY,
        "more 1": HOURLY,
        "more 2": HOURLY,
        "more 3": DAILY,
        "more 4": HOURLY,
    }
    assert not any(each.is_paused for each in get_schedules(queue_name))


def test_schedule_of_a_process_with_only_the_key_of_before_holds_when_all_is_signed_anew(
    client, configure, task, settings, queue_name
):
    plain = configure()
    before, both = ["the key of before"], ["the key of today", "the key of before"]
    settings.DELAYQ = {**plain, "KEYS": before}
    store_schedule("shop", task, HOURLY, queue=queue_name)
    settings.DELAYQ = {**plain, "KEYS": both}
    Clock(client, queue_name).turn()
    settings.DELAYQ = {**plain, "KEYS": before}
    store_schedule("late", task, HOURLY, queue=queue_name)

    settings.DELAYQ = {**plain, "KEYS": both}

    assert names(queue_name) == ["beat", "late", "shop"]


def test_earlier_register_beside_the_present_one_holds_nothing(
    client, configure, task, settings, queue_name
):
    plain = configure()
    settings.DELAYQ = {**plain, "KEYS": ["the key of before"]}
    store_schedule("shop", task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    before = [each.decode() for each in registers(client, queue_name)]
    settings.DELAYQ = {**plain, "KEYS": ["the key of today", "the key of before"]}
    get_schedule("shop", queue_name).delete()

    thief.write_back(*before, "stored shop")

    assert "shop" not in names(queue_name)
    settings.DELAYQ = {**plain, "KEYS": ["the key of before", "the key of today"]}
    assert "shop" not in names(queue_name)


def test_register_is_signed_anew_though_an_earlier_key_comes_back(
    client, configure, worker, task, settings, queue_name, monkeypatch
):
    plain = configure()
    both = ["the key of today", "the key of before"]
    settings.DELAYQ = {**plain, "KEYS": both}
    store_schedule("shop", task, HOURLY, queue=queue_name)
    worker = Clock(client, queue_name)
    worker.turn()
    settings.DELAYQ = {**plain, "KEYS": both[::-1]}
    store_schedule("other", task, HOURLY, queue=queue_name)
    settings.DELAYQ = {**plain, "KEYS": both}

    worker.periods._sign_ms = 0.0
    worker.turn()

    settings.DELAYQ = {**plain, "KEYS": both[:1]}
    assert {"shop", "other"} <= set(names(queue_name))


def test_new_schedule_has_nothing_of_an_earlier_one_of_its_name(
    client, worker, task, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name).pause()
    client.hdel(keys_of(queue_name).schedules, "stored shop", "change shop")

    stored = store_schedule("shop", task, HOURLY, queue=queue_name)

    assert not stored.is_paused


def test_what_was_written_back_does_not_move_to_another_server(
    client, worker, task, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    store_schedule("kept", task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    store_schedule("shop", task, NEVER, queue=queue_name, replace=True)
    thief.write_back("stored shop")
    queue = get_settings().queue(queue_name)

    there = schedules_of(client, queue)

    assert there.stored == ["kept"]
    assert take_schedule(client, queue, "shop", there) is None
    assert take_schedule(client, queue, "kept", there) is not None


def test_text_that_is_set_aside_by_somebody_else_does_not_move(
    client, worker, task, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    store_schedule("shop", task, NEVER, queue=queue_name, replace=True)
    queue, key = get_settings().queue(queue_name), keys_of(queue_name).schedules
    client.hset(key, "moving stored shop", thief.read[b"stored shop"])

    there = schedules_of(client, queue)

    assert take_schedule(client, queue, "shop", there) is None
    assert get_schedule("shop", queue_name).when == NEVER


def test_moved_schedule_does_not_come_back_where_it_was(
    client, worker, task, queue_name
):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    thief = Thief(client, queue_name)
    queue = get_settings().queue(queue_name)
    assert take_schedule(client, queue, "shop", schedules_of(client, queue))
    # While it is under way, it may be taken back.
    worker.turn()
    run(client, end_schedule(queue.keys, "shop", is_moved=True))
    worker.turn()

    thief.write_back("stored shop", "state shop")
    worker.turn()

    with pytest.raises(ScheduleNotFound):
        get_schedule("shop", queue_name)


def test_schedule_that_is_taken_back_goes_on(client, worker, task, queue_name):
    store_schedule("shop", task, HOURLY, queue=queue_name)
    queue = get_settings().queue(queue_name)
    assert take_schedule(client, queue, "shop", schedules_of(client, queue))
    worker.turn()

    run(client, end_schedule(queue.keys, "shop", is_moved=False))
    worker.turn()

    assert get_schedule("shop", queue_name).when == HOURLY


def test_pause_outlives_a_definition_on_a_queue_that_the_schedule_has_left(
    client, configure, worker, settings, queue_name, monkeypatch
):
    other = f"{queue_name}-other"
    plain = configure()
    settings.DELAYQ = {**plain, "QUEUES": {**plain["QUEUES"], other: {}}}
    thief = Thief(client, queue_name)
    registry._tasks.clear()
    later(monkeypatch)
    make(other, NEVER)
    there = Clock(client, other)
    there.turn()
    get_schedule("beat", other).pause(reason="no")

    thief.write_back("code beat")
    client.hdel(keys_of(other).schedules, "code beat")
    client.hincrby(keys_of(other).schedules, "version", 1)
    there.turn()

    schedule = get_schedule("beat", other)
    assert (schedule.is_paused, schedule.paused_reason) == (True, "no")
    assert waiting_occurrences(client, other) == []
