"""Entries that nobody of us would write, in every key that a worker's account may write: each costs itself alone.

Nested values, long numbers, other types and what is no UTF-8 stand in the place of, and beside, what a filled queue has.
Then every page, every command and a worker go on. The keys come from the code, so a new one is tested at once. Without
``--all``, one key of each type is.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.test import Client

from django_delayq import (
    delayed_task,
    ended_jobs,
    get_job,
    get_schedule,
    get_schedules,
    limits,
    paused,
    resume,
    schedule,
)
from django_delayq.conf import get_settings
from django_delayq.core import keys as delivery_keys
from django_delayq.core import worker_registry as registry_keys
from django_delayq.core.prefixes import PREFIXES
from django_delayq.core.queue_reads import PAGES
from django_delayq.core.worker_registry import RegistryKeys
from django_delayq.display.overview import look as see
from django_delayq.jobs.workers import workers
from django_delayq.wire import queue_keys as wire_keys
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.test_layout import fill
from tests.management.conftest import Call, call
from tests.metrics.conftest import TOKEN
from tests.polling import wait_until
from tests.worker.workers import InlineWorker

__all__ = ["call"]

DEEP = b"[" * 3_000 + b"]" * 3_000
HIGH = b'{"a":' * 3_000 + b"1" + b"}" * 3_000
#: As deep as msgspec still reads.
STEEP = b"[" * 600 + b"]" * 600
LONG = b"9" * 5_000
TEXTS = {
    "deep": DEEP,
    "high": HIGH,
    "steep": STEEP,
    "long": LONG,
    "20 digits": b"9" * 20,
    "float": b"1e400",
    "nan": b"nan",
    "negative": b"-1",
    "half": rb'"\ud800"',
    "bytes": b"\xff\xfe",
    "empty": b"",
    "list": b"[]",
    "object": b"{}",
    "escape": b'"\x1b[31m\xc2\x9b\xe2\x80\xae"',
}
#: What stands in a JSON object in the place of each of its values, as JSON.
VALUES = [
    DEEP,
    HIGH,
    STEEP,
    LONG,
    b"9" * 4_000,
    b"1e308",
    b"-1e308",
    b"null",
    b'"x"',
    b"[1]",
    b"true",
    b"-5",
]
SCORES = ["inf", "-inf", 1e300, -1e300, 2**53, -1, 1.5]


@delayed_task(name="admin.hostile.work")
def work() -> None: ...


def kinds() -> dict[str, str]:
    """Return the type of each of our keys, and Redisson's, by field, as the comment above it says."""
    found = {}
    for module, name in (
        (delivery_keys, "DeliveryKeys"),
        (registry_keys, "RegistryKeys"),
        (wire_keys, "QueueKeys"),
    ):
        source = inspect.getsource(getattr(module, name))
        comment = ""
        for line in source.splitlines():
            if line.strip().startswith("#:"):
                comment += line
            elif field := re.match(r"    (\w+): str\b", line):
                kind = re.search(r"\b(HASH|ZSET|LIST|[Cc]hannel|channel)\b", comment)
                found[field[1]] = kind[1].upper() if kind else ""
                comment = ""
            else:
                comment = ""
    return found


def entries(queue: Queue) -> dict[str, tuple[str, str]]:
    """Return the kind and the name of each key, by field."""
    registry = RegistryKeys.of()
    found = {}
    for field, kind in kinds().items():
        for keys in (queue.keys, queue.keys.queue, registry):
            if hasattr(keys, field):
                found[field] = kind, getattr(keys, field)
                break
    return {
        field: (kind, key)
        for field, (kind, key) in found.items()
        if kind in ("HASH", "ZSET", "LIST")
    } | {"prefixes": ("HASH", PREFIXES)}


#: Those that hold the most kinds of values, for each type of key.
FIRST = {"workers", "ended", "last_ended"}
FIELDS = [
    pytest.param(field, marks=[] if field in FIRST else [pytest.mark.exhaustive])
    for field in (
        *(field for field, kind in kinds().items() if kind in ("HASH", "ZSET", "LIST")),
        "prefixes",
    )
]


def spoilt(value: bytes) -> Iterator[bytes]:
    """Yield a value with each of its parts replaced, if it is JSON or MessagePack, and with a part too many."""
    at = value.find(b"{")
    for start in {0, max(0, at)}:
        try:
            found = json.loads(value[start:])
        except ValueError:
            continue
        if isinstance(found, dict):
            yield value[:start] + b'{"zz":' + DEEP + b"," + value[start + 1 :].lstrip()
            for name in found:
                for other in VALUES:
                    marked = json.dumps({**found, name: "@@"}).encode()
                    yield value[:start] + marked.replace(b'"@@"', other)
    try:
        packed = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return
    if isinstance(packed, list):
        yield msgspec.msgpack.encode([*packed[:-1], float("nan")])
        for i in range(len(packed)):
            for other in (2**63, float("nan"), 1e308, "x", [1], None, -5):
                yield msgspec.msgpack.encode([*packed[:i], other, *packed[i + 1 :]])
        size = len(packed)
        yield bytes([0x90 + min(15, size + 1)]) + value[1:] + b"\x91" * 3_000 + b"\x01"


def passes(client: redis.Redis, kind: str, key: str) -> Iterator[None]:
    """Spoil a key in several ways, one after the other."""
    if kind == "HASH":
        known = client.hgetall(key)
        for text in TEXTS.values():
            client.hset(key, mapping={text[:500]: text, **dict.fromkeys(known, text)})
            yield
        client.delete(key)
        parts = {field: list(spoilt(value)) for field, value in known.items()}
        for n in range(max(map(len, parts.values()), default=0)):
            values = {
                field: found[n] if n < len(found) else known[field]
                for field, found in parts.items()
            }
            client.hset(key, mapping=values)
            yield
    elif kind == "ZSET":
        for score in SCORES:
            members = [*client.zrange(key, 0, -1), *(t[:500] for t in TEXTS.values())]
            client.zadd(key, dict.fromkeys(members, score))
            yield
    else:
        for value in client.lrange(key, 0, -1):
            for other in spoilt(value):
                client.rpush(key, other)
        client.rpush(key, *TEXTS.values())
        yield


def look(name: str) -> None:
    """Ask for everything that a queue tells."""
    paused(name)
    limits(name)
    get_schedules(name)
    workers()
    ended_jobs(name)
    see([get_settings().queue(name)])


def look_at_pages(browser: Client, name: str, tokens: dict[str, str]) -> None:
    addresses = [
        url(page) for page in ("changelist", "overview_data", "workers", "tasks")
    ]
    addresses += [
        f"{url('search')}?{query}"
        for query in ("text=shop", "task=shop.tasks.send_reminder", "state=dead")
    ]
    addresses += [url(page, name) for page in ("schedules", "limits", "pause")]
    addresses += [f"{url('queue', name)}?state={state}" for state in (*PAGES, "ended")]
    addresses += [url("job", name, token) for token in tokens.values()]
    addresses.append("/delayq/metrics")
    for address in addresses:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        page = browser.get(address, headers=headers, follow=True)
        assert page.status_code in (200, 404), address
        assert page.status_code == 200 or "%3A" in address or ":" in address, address


def look_with_commands(call: Call, name: str) -> None:
    for command in (
        "delayq_status",
        "delayq_status --json",
        "delayq_jobs list",
        "delayq_jobs list --json",
        "delayq_schedules",
        "delayq_schedules --json",
        "delayq_health",
        "delayq_resign",
        f"delayq_frames {name}",
        "check --deploy",
    ):
        said = call(*command.split())
        assert "unrecognized arguments" not in said.err


@pytest.fixture
def filled(queue: Queue, settings: Any) -> dict[str, str]:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKENS": [TOKEN]}
    return fill(queue, queue)


@pytest.mark.parametrize("field", FIELDS)
def test_an_entry_costs_itself_alone(
    field: str,
    browser: Client,
    queue: Queue,
    client: redis.Redis,
    call: Call,
    filled: dict[str, str],
) -> None:
    kind, key = entries(queue)[field]
    kept = client.dump(key)
    try:
        for _ in passes(client, kind, key):
            look(queue.name)
        look_at_pages(browser, queue.name, filled)
        look_with_commands(call, queue.name)
    finally:
        client.delete(key)
        if kept is not None and queue.name not in key:
            client.restore(key, 0, kept)


NESTED = {"deep": DEEP, "high": HIGH}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
def test_what_is_whole_is_seen_beside_what_is_not(
    browser: Client,
    queue: Queue,
    client: redis.Redis,
    filled: dict[str, str],
    text: bytes,
) -> None:
    registry, keys = RegistryKeys.of(), queue.keys
    whole = {each.id: each for each in workers(queue.name)}
    known = len(ended_jobs(queue.name))
    living.serve(queue, host="forged")
    forged = f"{queue.name}-forged-4711"
    said = client.hget(registry.workers, forged)
    assert said is not None
    client.hset(registry.workers, forged, b'{"zz":' + text + b"," + said[1:])
    client.hset(keys.schedules, "state heartbeat", b'{"zz":' + text + b"}")
    client.rpush(keys.last_ended, text)

    # From Python 3.13 on, what nobody asks for is passed over, however deep it is.
    assert {each.id for each in workers(queue.name)} - {forged} == set(whole)
    assert {each.name for each in get_schedules(queue.name)} == {
        "heartbeat",
        "nightly-statements-of-every-customer",
    }
    assert len(ended_jobs(queue.name)) == known
    for page in ("changelist", "workers"):
        shown = browser.get(url(page)).content.decode()
        assert "web2" in shown


def test_a_version_of_many_digits_keeps_no_schedule_from_changing(
    queue: Queue, client: redis.Redis, filled: dict[str, str]
) -> None:
    client.hset(queue.keys.schedules, "version", LONG)

    get_schedule("heartbeat", queue.name).resume()

    assert not get_schedule("heartbeat", queue.name).is_paused
    assert len(client.hget(queue.keys.schedules, "version") or b"") == 16


def test_a_worker_runs_jobs_beside_hostile_entries(
    queue: Queue, client: redis.Redis, filled: dict[str, str]
) -> None:
    for kind, key in entries(queue).values():
        for name, text in TEXTS.items():
            if kind == "HASH":
                client.hset(key, mapping={f"zz {name}": text, text[:500]: text})
            elif kind == "ZSET":
                client.zadd(key, {text[:500]: 1.0, f"zz {name}": 2**60})
            else:
                client.rpush(key, text)
    client.hset(queue.keys.schedules, "version", LONG)
    client.hset(queue.keys.schedules, "state heartbeat", DEEP)
    resume(queue.name)
    worker = InlineWorker([queue.name]).start()
    try:
        job = schedule(work.using(queue=queue.name), 0)

        wait_until(
            lambda: get_job(job.id).state == "succeeded", description="it has run"
        )
    finally:
        worker.stop(grace_s=0)
        for name in ("workers", "workers_seen", "orders", "prefixes"):
            client.delete(entries(queue)[name][1])


def test_an_import_refuses_a_nested_line(
    call: Call, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "export"
    for text in TEXTS.values():
        file.write_bytes(
            b'{"is":"begin","version":1,"copy":false,"zz":' + text + b"}\n"
        )

        said = call("delayq_import", file)

        assert said.status != 0
        assert (
            "line 1 is not of a file of delayq_export" in said.err
            or "ends after line 1" in said.err
        )
