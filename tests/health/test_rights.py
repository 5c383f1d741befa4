"""The missing rights found on real servers, for users with few rights."""

import re
import uuid
from pathlib import Path

import pytest
import redis

import django_delayq
from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends
from django_delayq.core import store as store_calls
from django_delayq.core.claim import Mode
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.store import NewJob
from django_delayq.health.problem import Level
from django_delayq.health.rights import REMOVALS, TRIES, kinds_of
from django_delayq.transport.run import run
from tests.conftest import keys_of
from tests.core.rig import payload
from tests.health.conftest import User
from tests.health.told import problems_of, texts
from tests.polling import wait_until
from tests.servers import ExternalServer, Server

#: Commands that are tried in other ways, without a key of their own or with two keys.
OTHERS = (
    "EVAL",
    "EVALSHA",
    "TIME",
    "PING",
    "BLMOVE",
    "RENAME",
    "PUBLISH",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
)
#: All that is needed for queues of any name, as docs/settings.md has it.
EVERY_COMMAND = [
    f"+{name.lower()}"
    for name in sorted({item.name for item in (*TRIES, *REMOVALS)} | set(OTHERS))
]
CHANNELS = ["resetchannels", "&redisson_delay_queue_channel:*", "&delayq_channel:*"]


REGISTERS = "~delayq_*:{delayq}"


def patterns(queue: str) -> list[str]:
    tag = DeliveryKeys.of(queue).queue.tag
    return [
        f"~{queue}",
        f"~redisson_delay_queue*:{tag}",
        f"~delayq_*:{tag}*",
        REGISTERS,
    ]


# The lists of the commands that are tried


def test_every_command_of_every_script_is_tried() -> None:
    used = set()
    for path in Path(django_delayq.__file__).parent.rglob("*.lua"):
        used |= set(re.findall(r"['\"]([A-Z]{3,})['\"]", path.read_text("utf-8")))
    used -= {"LIMIT", "WITHSCORES", "COUNT", "HEADER", "XX", "NX", "RANK", "MAXLEN"}
    tried = {item.name for item in (*TRIES, *REMOVALS)} | set(OTHERS)

    assert used - tried == set()
    assert tried - used <= {
        *("EVAL", "EVALSHA", "BLMOVE", "SUBSCRIBE", "UNSUBSCRIBE", "PING")
    }


def test_every_key_of_a_queue_is_tried() -> None:
    keys = DeliveryKeys.of("q")
    ours = {
        getattr(keys, name)
        for name in keys.__dataclass_fields__
        if name not in ("queue", "channel")
    }
    shared = {
        keys.queue.timeout_set,
        keys.queue.delay_queue,
        keys.queue.destination,
    }

    assert set(kinds_of(keys)) == ours | shared


def test_keys_hold_what_is_expected(client: redis.Redis, queue_name: str) -> None:
    keys = DeliveryKeys.of(queue_name)
    for number in range(3):
        token = "ABC"[number] * 22
        job = NewJob(token, "+0", f"e{number}", payload(token))
        run(client, store_calls.schedule(store_calls.Target(keys), [job]))
    wait_until(
        lambda: (
            run(
                client,
                claim_calls.claim(
                    keys,
                    owner=b"12345678",
                    request=uuid.uuid4().bytes[:8],
                    limit=1,
                    lease_ms=60_000,
                    mode=Mode.DIRECT,
                ),
            ).jobs
        ),
        description="a due job",
    )

    kinds = kinds_of(keys)
    seen = {
        key.decode(): client.type(key).decode() for key in keys_of(client, queue_name)
    }

    assert len(seen) >= 7
    assert seen == {key: kinds[key] for key in seen}


# On a server


def test_check_changes_nothing_that_is_there(
    client: redis.Redis, queue_name: str
) -> None:
    keys = DeliveryKeys.of(queue_name)
    for key, kind in kinds_of(keys).items():
        if kind == "list":
            client.rpush(key, "a", "b", "c")
        elif kind == "zset":
            client.zadd(key, {"a": 1, "b": 2})
        else:
            client.hset(key, mapping={"a": 1, "b": 2})
    before = {key: client.dump(key) for key in keys_of(client, queue_name)}

    assert problems_of(client, queue_name) == []

    assert {key: client.dump(key) for key in keys_of(client, queue_name)} == before


def test_user_with_these_rights_and_no_others_has_no_problems(
    user: User, queue_name: str, no_keys_left: None
) -> None:
    client = user(*patterns(queue_name), *CHANNELS, *EVERY_COMMAND, "+hello", "+info")

    assert problems_of(client, queue_name) == []


def test_user_with_these_rights_can_do_all_that_a_worker_does(
    user: User, queue_name: str
) -> None:
    client = user(*patterns(queue_name), *CHANNELS, *EVERY_COMMAND)
    keys = DeliveryKeys.of(queue_name)
    token = "x" * 22
    job = NewJob(token, "+0", "ekey", payload(token))

    run(client, store_calls.schedule(store_calls.Target(keys), [job]))
    (leased,) = wait_until(
        lambda: (
            run(
                client,
                claim_calls.claim(
                    keys,
                    owner=b"12345678",
                    request=uuid.uuid4().bytes[:8],
                    limit=5,
                    lease_ms=60_000,
                ),
            ).jobs
        ),
        description="a due job",
    )
    failed = lease_ends.Failed(token, leased.fence, "+60000", b"{}")
    assert run(client, lease_ends.retry(keys, [failed])) == []
    assert (
        run(client, change_calls.reschedule(keys, token, "+5000"))[0] == "rescheduled"
    )
    (cancel,) = change_calls.cancel_many(keys, [token])
    assert run(client, cancel) == {token: "cancelled"}


@pytest.mark.parametrize(
    "missing",
    [
        "eval",
        "evalsha",
        "time",
        "blmove",
        "publish",
        "subscribe",
        "zadd",
        "hincrby",
        "del",
        "ltrim",
        "pexpire",
    ],
)
def test_missing_command_is_named(
    user: User, client: redis.Redis, queue_name: str, missing: str
) -> None:
    limited = user("~*", "&*", "+@all", f"-{missing}")

    found = problems_of(limited, queue_name)

    (problem,) = [problem for problem in found if problem.level is Level.ERROR]
    assert f"may not use {missing.upper()}." in problem.message
    assert "no permissions" in problem.message or missing == "time"
    assert problem.hint.endswith(f" +{missing}")
    # Keys that could not be removed expire by themselves.
    wait_until(
        lambda: keys_of(client, queue_name) == [],
        description="throwaway keys expired",
    )


def test_user_without_any_right_is_told_of_all_of_them(
    user: User, queue_name: str
) -> None:
    found = problems_of(user(), queue_name)

    assert found[0].level is Level.ERROR
    for name in ("EVAL", "BLMOVE", "HDEL", "ZCARD", "PUBLISH", "SUBSCRIBE"):
        assert name in found[0].message
    assert found[-1].level is Level.INFO


@pytest.mark.parametrize("number", range(3))
def test_missing_key_pattern_is_named(user: User, queue_name: str, number: int) -> None:
    given = patterns(queue_name)
    del given[number]
    limited = user(*given, "&*", "+@all")

    found = problems_of(limited, queue_name)

    assert [problem.level for problem in found] == [Level.ERROR]
    keys = DeliveryKeys.of(queue_name)
    key = [queue_name, keys.queue.timeout_set, keys.leases][number]
    assert "may not touch the key" in found[0].message
    assert key in found[0].message or number == 2
    assert set(patterns(queue_name)) - {REGISTERS} <= set(found[0].hint.split())


def test_registry_of_workers_is_not_needed_to_run_jobs(
    user: User, client: redis.Redis, queue_name: str
) -> None:
    limited = user(*patterns(queue_name)[:-1], "&*", "+@all")

    (found,) = problems_of(limited, queue_name)

    assert found.level is Level.WARNING
    assert "no page lists the workers" in found.message
    client.execute_command(*found.hint.split())
    assert problems_of(limited, queue_name) == []


def test_pattern_of_results_is_needed_too(user: User, queue_name: str) -> None:
    keys = DeliveryKeys.of(queue_name)
    exact = [f"~{key}" for key in kinds_of(keys)]
    limited = user(*exact, "&*", "+@all")

    found = problems_of(limited, queue_name)

    assert keys.result("*") in texts(found)


def test_hint_of_the_key_problem_helps(
    user: User, client: redis.Redis, queue_name: str
) -> None:
    odd = f"{queue_name}[1]*?"
    limited = user(REGISTERS, "&*", "+@all")
    found = problems_of(limited, odd)

    client.execute_command(*found[0].hint.split())

    assert problems_of(limited, odd) == []


def test_right_to_read_alone_is_not_enough(
    user: User, client: redis.Redis, server: Server | ExternalServer, queue_name: str
) -> None:
    if server.version < (7, 0):
        pytest.skip("Redis 6.2 does not tell reading from writing")
    limited = user("%R~*", "&*", "+@all")

    found = problems_of(limited, queue_name)

    assert "may not write the keys" in texts(found)


def test_missing_channels_are_named(user: User, queue_name: str) -> None:
    limited = user("~*", "resetchannels", CHANNELS[2], "+@all")

    found = problems_of(limited, queue_name)

    assert [problem.level for problem in found] == [Level.ERROR]
    channel = DeliveryKeys.of(queue_name).queue.channel
    assert f"may not use the channel {channel}" in found[0].message
    assert found[0].hint.endswith(f" &{channel}")
    assert "start them 2 s late" in found[0].message
