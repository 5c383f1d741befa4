"""What is found out about real servers that are set up wrongly, by users who may do little."""

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import django_delayq
from django_delayq.calls.running import run
from django_delayq.delivery import changing, claiming, settling, storing
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.storing import NewJob
from django_delayq.health import problems
from django_delayq.health.problems import (
    OTHERS,
    REMOVALS,
    TRIES,
    Level,
    ServerProblem,
    find_server_problems,
    kinds_of,
)
from tests.conftest import keys_of
from tests.delivery.rig import payload
from tests.polling import takes_less_than, wait_until
from tests.servers import ExternalServer, Server

User = Callable[..., redis.Redis]
#: All that is needed for queues of any name, as docs/settings.md has it.
EVERY_COMMAND = [
    f"+{name.lower()}"
    for name in sorted({item.name for item in (*TRIES, *REMOVALS)} | set(OTHERS))
]
CHANNELS = ["resetchannels", "&redisson_delay_queue_channel:*", "&delayq_channel:*"]


def problems_of(client: redis.Redis, *queues: str) -> list[ServerProblem]:
    """Return what is found, but for what the servers of the tests are made like."""
    found = find_server_problems(client, queues)
    usual = "The append-only file is off"
    return [problem for problem in found if not problem.message.startswith(usual)]


def texts(problems: list[ServerProblem]) -> str:
    return "\n".join(f"{p.level}: {p.message} | {p.hint}" for p in problems)


@pytest.fixture
def user(server: Server | ExternalServer, client: redis.Redis) -> Iterator[User]:
    """Make a user with these rights alone, and return a client of it."""
    names = []

    def make(*rules: str) -> redis.Redis:
        name = f"user-{uuid.uuid4().hex[:8]}"
        names.append(name)
        client.execute_command("ACL", "SETUSER", name, "on", ">pw", *rules)
        return server.client(username=name, password="pw")

    yield make
    for name in names:
        client.execute_command("ACL", "DELUSER", name)


def patterns(queue: str) -> list[str]:
    tag = DeliveryKeys.of(queue).queue.tag
    return [f"~{queue}", f"~redisson_delay_queue*:{tag}", f"~delayq_*:{tag}*"]


# The lists of what is tried


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
        run(client, storing.schedule(keys, [job]))
    wait_until(
        lambda: (
            run(
                client,
                claiming.claim(
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


# Servers


def test_good_server_has_no_problems(
    client: redis.Redis, queue_name: str, no_keys_left: None
) -> None:
    assert problems_of(client, queue_name) == []


def test_check_takes_a_moment(client: redis.Redis, queue_name: str) -> None:
    names = [f"{queue_name}-{number}" for number in range(10)]
    problems_of(client, *names)

    assert takes_less_than(0.05, lambda: problems_of(client, *names), tries=20)


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


def test_server_alone_can_be_asked(client: redis.Redis) -> None:
    assert problems_of(client) == []


def test_server_that_does_not_answer_is_no_problem_but_an_error() -> None:
    client = redis.Redis(unix_socket_path="/dev/null/nobody")

    with pytest.raises(redis.ConnectionError):
        find_server_problems(client, ["q"])


def test_wrong_password_is_no_problem_but_an_error(
    private_server: Callable[..., Server],
) -> None:
    server = private_server(requirepass="secret")

    with pytest.raises(redis.AuthenticationError):
        find_server_problems(server.client(), ["q"])


@pytest.mark.parametrize(
    ("hello", "wanted"),
    [
        ({"server": "redis", "version": "6.0.16"}, "Redis 6.0.16; Redis 6.2 is"),
        ({"server": "valkey", "version": "7.0.1"}, "Valkey 7.0.1; Valkey 7.2 is"),
        ({"server": "redis", "version": "6.2.0"}, ""),
        ({"server": "valkey", "version": "9.1.2"}, ""),
        ([b"server", b"redis", b"version", b"5.0.7"], "Redis 5.0.7; Redis 6.2 is"),
    ],
)
def test_old_server_is_an_error(hello: Any, wanted: str) -> None:
    facts = problems._Facts()
    problems._take_hello(facts, hello)

    found = list(problems._version(facts))

    assert wanted in texts(found)
    assert bool(found) == bool(wanted)


def test_valkey_is_not_taken_for_the_redis_it_claims_to_be(
    client: redis.Redis, server: Server | ExternalServer
) -> None:
    facts = problems._ask(client)

    assert facts.version == server.version
    assert (facts.product == "Valkey") == (server.kind == "valkey")
    assert facts.role == "primary"


@pytest.mark.parametrize(
    ("policy", "maxmemory", "level"),
    [
        ("allkeys-lru", "100mb", Level.ERROR),
        ("allkeys-random", "0", Level.WARNING),
        ("volatile-ttl", "100mb", Level.WARNING),
        ("volatile-lru", "0", None),
        ("noeviction", "100mb", None),
    ],
)
def test_policy_that_drops_jobs_is_told(
    private_server: Callable[..., Server],
    policy: str,
    maxmemory: str,
    level: Level | None,
) -> None:
    server = private_server(maxmemory=maxmemory, maxmemory_policy=policy)

    found = problems_of(server.client(), "q")

    assert [problem.level for problem in found] == ([level] if level else [])
    if level is not None:
        assert repr(policy) in found[0].message
        assert "noeviction" in found[0].hint
    if level is Level.ERROR:
        assert "104,857,600 bytes" in found[0].message


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"appendonly": "yes"}, None),
        ({"appendonly": "no", "save": ""}, "all jobs are lost"),
        ({"appendonly": "no", "save": "900 1"}, "last snapshot (save '900 1')"),
    ],
)
def test_persistence_that_is_off_is_a_warning(
    private_server: Callable[..., Server], options: dict[str, str], wanted: str | None
) -> None:
    found = find_server_problems(private_server(**options).client(), ["q"])

    assert [problem.level for problem in found] == [Level.WARNING] * bool(wanted)
    assert (wanted or "") in texts(found)


def test_replica_is_an_error(private_server: Callable[..., Server]) -> None:
    primary, replica = private_server(), private_server()
    client = replica.client()
    client.replicaof("127.0.0.1", primary.port)
    wait_until(
        lambda: client.info("replication")["master_link_status"] == "up",
        description="the replica follows",
        timeout=30,
    )

    (found,) = problems_of(client, "q")

    assert found.level is Level.ERROR
    assert "is a replica" in found.message
    assert "primary" in found.hint


def test_replica_that_tells_nothing_is_found_by_what_it_refuses(
    private_server: Callable[..., Server],
) -> None:
    primary, replica = private_server(), private_server()
    admin = replica.client()
    rules = ["on", ">pw", "~*", "&*", "+@all", "-info", "-config", "-hello"]
    admin.execute_command("ACL", "SETUSER", "app", *rules)
    admin.replicaof("127.0.0.1", primary.port)
    client = replica.client(username="app", password="pw", protocol=2)

    found = problems_of(client, "q")

    assert found[0].level is Level.ERROR
    assert "is a replica" in found[0].message


def test_full_server_is_a_warning(private_server: Callable[..., Server]) -> None:
    server = private_server(maxmemory="1kb", maxmemory_policy="noeviction")

    found = problems_of(server.client(), "q")

    assert [problem.level for problem in found] == [Level.WARNING]
    assert "at its maxmemory" in found[0].message
    assert "of 1,024" in found[0].message
    assert keys_of(server.client(), "q") == []


def test_server_that_refuses_writes_is_an_error(
    private_server: Callable[..., Server],
) -> None:
    server = private_server(min_replicas_to_write="1")

    found = problems_of(server.client(), "q")

    assert found[0].level is Level.ERROR
    assert "Not enough good replicas" in texts(found)


def test_scripts_that_may_not_write_after_the_clock_are_an_error(
    private_server: Callable[..., Server], server_kind: str
) -> None:
    if server_kind != "redis6":
        pytest.skip("newer servers have no lua-replicate-commands any more")
    server = private_server(lua_replicate_commands="no")

    (found,) = problems_of(server.client(), "q")

    assert found.level is Level.ERROR
    assert "lua-replicate-commands is 'no'" in found.message


# Rights


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

    run(client, storing.schedule(keys, [job]))
    (leased,) = wait_until(
        lambda: (
            run(
                client,
                claiming.claim(
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
    failed = settling.Failed(token, leased.fence, 60_000, b"{}")
    assert run(client, settling.retry(keys, [failed])) == []
    assert run(client, changing.reschedule(keys, token, "+5000"))[0] == "rescheduled"
    assert run(client, changing.cancel(keys, token)) == "cancelled"


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
    # What could not be removed goes by itself.
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
    assert set(patterns(queue_name)) <= set(found[0].hint.split())


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
    limited = user("~nothing", "&*", "+@all")
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


@pytest.mark.parametrize("rules", [["-info"], ["-config"], ["-info", "-config"]])
def test_what_a_managed_service_hides_is_said(
    user: User, queue_name: str, rules: list[str]
) -> None:
    found = find_server_problems(user("~*", "&*", "+@all", *rules), [queue_name])

    hidden = [problem for problem in found if problem.level is Level.INFO]
    if len(rules) == 2:
        (problem,) = hidden
        assert "maxmemory-policy" in problem.message
        assert "append-only file" in problem.message
    else:
        assert hidden == []
        assert "append-only file is off" in texts(found)


# Keys


def test_long_insertion_list_is_a_warning(
    client: redis.Redis, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems.LONG_LIST == 100_000
    monkeypatch.setattr(problems, "LONG_LIST", 3)
    key = DeliveryKeys.of(queue_name).queue.delay_queue
    client.rpush(key, "a", "b", "c")
    assert problems_of(client, queue_name) == []
    client.rpush(key, "d")

    (found,) = problems_of(client, queue_name)

    assert found.level is Level.WARNING
    assert "holds 4 frames" in found.message
    assert f"['QUEUES']['{queue_name}']['INSERTION_LIST'] to False" in found.hint


def test_data_of_somebody_else_is_an_error(
    client: redis.Redis, queue_name: str
) -> None:
    keys = DeliveryKeys.of(queue_name)
    client.set(queue_name, "cached page")
    client.rpush(keys.headers, "a")

    (found,) = problems_of(client, queue_name)

    assert found.level is Level.ERROR
    assert "2 keys of the queues hold data of somebody else" in found.message
    assert f"{queue_name} (string instead of list)" in found.message
    assert f"{keys.headers} (list instead of hash)" in found.message


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_held_for_a_key_or_a_format_that_is_not_here_is_an_error(
    client: redis.Redis, queue_name: str, count: int
) -> None:
    keys = DeliveryKeys.of(queue_name)
    names = ["key abcd", "key efgh", "format 1", "format 7", "shop.tasks.new"]
    for name in names:
        members = {f"{name}\0{n:016d}\0token{n}": 0 for n in range(count)}
        client.zadd(keys.held_tasks, members)

    found = find_server_problems(client, [queue_name], key_ids=["efgh"])

    told = {problem.message: problem for problem in found if "held" in problem.message}
    jobs = "1 job is held" if count == 1 else "3 jobs are held"
    assert list(told) == [
        f"Queue {queue_name!r}: {jobs}, written in format '7', which this version does not read.",
        f"Queue {queue_name!r}: {jobs}, signed with the key 'abcd', which this project does not have.",
    ]
    assert {problem.level for problem in told.values()} == {Level.ERROR}
    assert "SECRET_KEY_FALLBACKS" in list(told.values())[1].hint
    # Who does not say which keys there are is told of none.
    assert not any(
        "held" in problem.message
        for problem in find_server_problems(client, [queue_name])
    )


@pytest.mark.parametrize(
    ("format", "is_newer"), [("1", False), ("2", True), ("x", False)]
)
def test_queue_in_a_later_format_is_an_error(
    client: redis.Redis, queue_name: str, format: str, is_newer: bool
) -> None:
    client.hset(DeliveryKeys.of(queue_name).control, "format", format)

    found = texts(problems_of(client, queue_name))

    assert (f"error: Queue {queue_name!r} is in format 2" in found) == is_newer
    assert ("delayq_resign --format 1" in found) == is_newer
