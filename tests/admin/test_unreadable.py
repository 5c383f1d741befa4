"""The admin's pages of a queue in which somebody has written what no script of ours would: shown, and no error page."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import Client

from django_delayq import DecodeError, InvalidSettings, cron, delayed_task, get_job
from django_delayq.core.states import State
from django_delayq.core.worker_registry import RegistryKeys
from django_delayq.features.schedules.api import store_schedule
from django_delayq.jobs.workers import workers
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_job_admin import content_of


@delayed_task(name="admin.unreadable.nothing")
def nothing() -> None: ...


STATES = tuple(
    state.value
    for state in (
        State.SCHEDULED,
        State.DUE,
        State.RUNNING,
        State.RETRYING,
        State.DEAD,
        State.QUARANTINED,
    )
)
GARBAGE = [b"", b"short", b"\xff" * 40, b"{}"]


def look_at_everything(browser: Client, queue: Queue, *tokens: str) -> None:
    assert browser.get(url("changelist")).status_code == 200
    for state in STATES:
        page = browser.get(url("queue", queue.name), {"state": state})
        assert page.status_code == 200
        for row, _ in page.context["rows"]:
            if row.token:
                response = browser.get(url("job", queue.name, row.token))
                assert response.status_code in (200, 404)
    for token in tokens:
        assert browser.get(url("job", queue.name, token)).status_code in (200, 404)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_headers_locators_errors_and_counters_that_cannot_be_read(
    browser: Client, queue: Queue, client: redis.Redis, garbage: bytes
) -> None:
    tokens = [
        queue.schedule(),
        queue.running().token,
        queue.retrying(),
        queue.dead(),
        queue.quarantined(b"x"),
    ]
    keys = queue.keys
    for key in (keys.headers, keys.locators, keys.errors):
        client.hset(key, mapping=dict.fromkeys(tokens, garbage))
    client.hset(
        keys.counters, mapping=dict.fromkeys(("number", "dead", b"\xff", ""), garbage)
    )

    look_at_everything(browser, queue, *tokens)

    page = browser.get(url("queue", queue.name), {"state": "dead"})
    assert [row.token for row, _ in page.context["rows"]] == [tokens[3]]
    for token in tokens[1:4]:
        assert browser.get(url("job", queue.name, token)).status_code == 200


@pytest.mark.parametrize("score", ["inf", "-inf", 1e300, -1e300, 2**53, -1, 1.5])
def test_times_that_are_none(
    browser: Client, queue: Queue, client: redis.Redis, score: object
) -> None:
    tokens = [
        queue.running().token,
        queue.retrying(),
        queue.dead(),
        queue.quarantined(b"x"),
    ]
    keys = queue.keys
    sets = keys.leases, keys.retries, keys.dead, keys.quarantine
    for key, token in zip(sets, tokens, strict=True):
        client.zadd(key, {token: score})
    queue.schedule()
    (frame,) = client.zrange(keys.queue.timeout_set, 0, 0)
    client.zadd(keys.queue.timeout_set, {frame: score, b"no frame": score})

    look_at_everything(browser, queue, *tokens)


def test_tokens_and_payloads_that_are_none(
    browser: Client, queue: Queue, client: redis.Redis
) -> None:
    keys = queue.keys
    for key in (keys.leases, keys.retries, keys.dead, keys.quarantine, keys.returned):
        client.zadd(key, {b"\xff/..": 5, b"": 5, b"a b": 5})
    client.zadd(keys.queue.timeout_set, {b"": 5})
    client.rpush(keys.queue.destination, b"", b"\xff")

    look_at_everything(browser, queue)


@pytest.mark.parametrize(
    "said",
    [
        {"uptime_ms": -(10**15)},
        {"uptime_ms": -(2**63)},
        {"uptime_ms": 2**63 - 1},
        {"jobs": [{"queue": "QUEUE", "token": ""}]},
        {"jobs": [{"queue": "QUEUE", "token": "t", "since_ms": -1}]},
    ],
)
def test_worker_that_says_what_no_worker_says_is_left_out(
    browser: Client, queue: Queue, said: dict[str, object]
) -> None:
    info = {"host": "forged", "pid": 1, "queues": [queue.name], **said}
    text = json.dumps(info).replace("QUEUE", queue.name)
    living.serve(queue)
    now_s, _ = queue.client.time()
    queue.client.zadd(RegistryKeys.of().workers_seen, {"forged": now_s * 1000})
    queue.client.hset(RegistryKeys.of().workers, "forged", text)

    for page in ("changelist", "overview_data", "workers"):
        response = browser.get(url(page))
        assert response.status_code == 200
        assert "forged" not in response.content.decode()
    assert [each.host for each in workers(queue.name)] == ["web1"]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "5",
        "{}",
        '{"state": ["dead"]}',
        '{"state": "strange"}',
        '{"state": "succeeded", "result": "\xff"}'.encode("latin-1"),
    ],
)
def test_record_that_no_version_of_ours_has_written(
    browser: Client, queue: Queue, text: str | bytes
) -> None:
    token = "R" * 22
    payload = queue.payload(token, "shop.tasks.unknown", 5)
    queue.client.rpush(queue.keys.result(token), text, payload, b'{"at":"x"}\n[\n')

    assert browser.get(url("job", queue.name, token)).status_code == 404
    page = browser.post(url("schedule_again", queue.name, token), follow=True)
    assert page.status_code == 404
    with pytest.raises(
        DecodeError, match="the stored result or error of a job cannot be"
    ):
        get_job(f"{queue.name}:{token}")


@pytest.mark.parametrize(
    "last", ['{"attempts": "1", "kills": [2]}', '{"attempts": 1e30}', "5", "[]"]
)
def test_record_whose_last_attempt_cannot_be_read_is_shown_without(
    browser: Client, queue: Queue, last: str
) -> None:
    token = "R" * 22
    text = f'{{"state": "succeeded", "result": 4711, "last": {last}}}'
    payload = queue.payload(token, "shop.tasks.unknown", 5)
    queue.client.rpush(queue.keys.result(token), text, payload, b"")

    page = browser.get(url("job", queue.name, token))

    assert page.status_code == 200
    assert "4711" in content_of(page)


@pytest.mark.parametrize("score", ["inf", 1e300, 1e15, -1e300])
def test_schedule_whose_moment_is_none(
    browser: Client, queue: Queue, score: object
) -> None:
    store_schedule("forged", nothing, cron("0 9 * * *"), queue=queue.name)
    queue.client.zadd(queue.keys.periods, {"forged": score})

    for page in (url("schedules", queue.name), url("tasks")):
        response = browser.get(page)
        assert response.status_code == 200
        assert nothing.name in content_of(response)


KEYS: dict[str, Callable[[Queue], str]] = {
    "timeout set": lambda queue: queue.keys.queue.timeout_set,
    "delay queue": lambda queue: queue.keys.queue.delay_queue,
    "destination queue": lambda queue: queue.keys.queue.destination,
    **{
        name: lambda queue, name=name: getattr(queue.keys, name)  # type: ignore[misc]
        for name in (
            "locators",
            "headers",
            "payloads",
            "errors",
            "leases",
            "retries",
            "returned",
            "dead",
            "quarantine",
            "ended",
            "counters",
        )
    },
}


@pytest.mark.parametrize("key", KEYS)
def test_key_of_another_type_is_said_where_it_matters(
    browser: Client, queue: Queue, client: redis.Redis, key: str
) -> None:
    token = queue.dead()
    name = KEYS[key](queue)
    client.delete(name)
    client.set(name, "another application's")

    assert browser.get(url("changelist")).status_code == 200
    for state in STATES:
        page = browser.get(url("queue", queue.name), {"state": state})
        assert page.status_code == 200 or "WRONGTYPE" in page.content.decode()
        assert page.status_code in (200, 503)
    job = browser.get(url("job", queue.name, token))
    assert job.status_code in (200, 404, 503)


def test_result_of_a_job_whose_codec_is_not_ready_is_shown(
    browser: Client, queue: Queue, settings: Any
) -> None:
    class Broken:
        name = "Broken"

        def encode(self, value: object) -> bytes:
            raise NotImplementedError

        def decode(self, payload: bytes) -> object:
            raise InvalidSettings("no such library")

    token = "R" * 22
    settings.DELAYQ["QUEUES"][queue.name] = {"CODEC": Broken(), "REDISSON": "3.16.6"}
    text = '{"state": "succeeded", "result": 4711}'
    queue.client.rpush(queue.keys.result(token), text, b"strange", b"")

    page = browser.get(url("job", queue.name, token))

    assert page.status_code == 200
    assert "4711" in content_of(page)
