"""The problems found on real servers that are set up wrongly."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.connection import AbstractConnection

from django_delayq.core import prefixes
from django_delayq.core.frame_heads import FrameHead
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.shards import Pin, pin_shards, shard_keys
from django_delayq.core.store import NewJob, Target, new_token, schedule
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.health import facts as asked
from django_delayq.health import queue_problems, server_problems
from django_delayq.health.problem import Level
from django_delayq.health.problems import find_server_problems
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.envelope import Envelope
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.wire.signatures import Keyring
from tests.conftest import keys_of
from tests.health.conftest import User
from tests.health.told import problems_of, texts
from tests.polling import wait_until
from tests.servers import Server


def test_good_server_has_no_problems(
    client: redis.Redis, queue_name: str, no_keys_left: None
) -> None:
    assert problems_of(client, queue_name) == []


def test_check_takes_a_moment(
    client: redis.Redis, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{queue_name}-{number}" for number in range(10)]
    problems_of(client, *names)
    sent: list[int] = []
    send = AbstractConnection.send_packed_command
    monkeypatch.setattr(
        AbstractConnection,
        "send_packed_command",
        lambda *args, **kwargs: (sent.append(1), send(*args, **kwargs)),
    )

    spent_s = []
    for _ in range(5):
        begun_s = time.process_time()
        problems_of(client, *names)
        spent_s.append(time.process_time() - begun_s)

    # Not by the wall's clock, which a busy machine stretches: few exchanges, and little to do between them.
    assert len(sent) / 5 <= 12
    assert min(spent_s) < 0.05


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
        (
            {"server": "redis", "version": "6.0.16"},
            "Redis 6.0.16. The oldest supported version is Redis 6.2",
        ),
        (
            {"server": "valkey", "version": "7.0.1"},
            "Valkey 7.0.1. The oldest supported version is Valkey 7.2",
        ),
        ({"server": "redis", "version": "6.2.0"}, ""),
        ({"server": "valkey", "version": "9.1.2"}, ""),
        (
            [b"server", b"redis", b"version", b"5.0.7"],
            "Redis 5.0.7. The oldest supported version is Redis 6.2",
        ),
    ],
)
def test_old_server_is_an_error(hello: Any, wanted: str) -> None:
    facts = asked.Facts()
    asked._take_hello(facts, hello)

    found = list(server_problems._version(facts))

    assert wanted in texts(found)
    assert bool(found) == bool(wanted)


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


@pytest.mark.parametrize(
    ("skew_ms", "wanted"),
    [
        (0, ""),
        (1_999, ""),
        (-1_999, ""),
        (2_000, "is 2 s ahead of this machine's clock"),
        (-90_000, "is 90 s behind this machine's clock"),
        (None, ""),
    ],
)
def test_clocks_that_differ_are_a_warning(skew_ms: int | None, wanted: str) -> None:
    found = list(server_problems.find_in_facts(asked.Facts(skew_ms=skew_ms)))

    assert wanted in texts(found)
    assert [problem.level for problem in found] == [Level.WARNING] * bool(wanted)


def test_clock_of_the_server_is_compared_with_ours(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked.ask(client).skew_ms == 0
    real = asked.epoch_ms
    monkeypatch.setattr(asked, "epoch_ms", lambda: real() - 60_000)

    skew_ms = asked.ask(client).skew_ms

    # By so much, less what the answer took.
    assert skew_ms is not None
    assert 50_000 < skew_ms <= 60_000


@pytest.mark.parametrize(
    ("used", "limit", "is_told"),
    [(89, 100, False), (90, 100, True), (99, 100, True), (90, 0, False)],
)
def test_server_that_is_nearly_out_of_memory_is_a_warning(
    used: int, limit: int, is_told: bool
) -> None:
    known = asked.Facts(used_memory=used, maxmemory=limit)

    found = list(server_problems.find_in_facts(known))

    assert (f"uses {used} bytes of {limit} (maxmemory)" in texts(found)) is is_told
    assert len(found) == is_told


def test_frames_of_another_format_are_an_error() -> None:
    late, early = (
        FrameHead(0.0, len(frame), frame)
        for frame in (pack(bytes(8), b"x" * 23, each) for each in FrameFormat)
    )
    find = queue_problems.find_other_format
    assert list(find("mail", "3.16.6", FrameFormat.BC0LC0, [early] * 50)) == []

    frames = [late] * 2 + [early] * 48
    (found,) = find("mail queue", "3.16.6", FrameFormat.BC0LC0, frames)

    assert found.level is Level.ERROR
    assert (
        "Of the next 50 frames of queue 'mail queue', 2 have a format" in found.message
    )
    assert "delayq_frames 'mail queue'" in found.hint


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


def test_commands_that_a_managed_service_has_taken_away_are_not_needed(
    private_server: Callable[..., Server],
) -> None:
    taken = ["CONFIG", "SCRIPT", "CLIENT", "KEYS", "DEBUG", "SAVE", "BGSAVE", "MODULE"]
    server = private_server(
        rename_command="\nrename-command ".join(f'{name} ""' for name in taken)
    )
    with pytest.raises(redis.ResponseError, match="unknown command"):
        server.client().config_get("maxmemory")

    found = find_server_problems(server.client(), ["q"])

    assert [each for each in found if each.level is Level.ERROR] == []


def test_service_without_eval_is_told(
    private_server: Callable[..., Server],
) -> None:
    server = private_server(rename_command='EVAL ""')

    found = find_server_problems(server.client(), ["q"])

    assert found[0].level is Level.ERROR
    assert "EVAL" in found[0].message


# Keys


@pytest.mark.parametrize(
    ("limit", "is_told"), [(9, True), (10, True), (11, False), (None, False)]
)
def test_nearly_full_queue_is_a_warning(
    client: redis.Redis, queue_name: str, limit: int | None, is_told: bool
) -> None:
    keys = DeliveryKeys.of(queue_name)
    client.rpush(keys.queue.destination, *["x"] * 4)
    client.zadd(keys.queue.timeout_set, {f"f{n}": n for n in range(5)})
    max_jobs = {} if limit is None else {queue_name: limit}

    found = find_server_problems(client, [queue_name], max_jobs=max_jobs)

    told = [
        problem
        for problem in found
        if problem.level is Level.WARNING and "MAX_JOBS" in problem.message
    ]
    assert [problem.message for problem in told] == is_told * [
        f"Queue {queue_name!r} holds 9 of {limit} jobs (MAX_JOBS). When it is full, it takes no new jobs."
    ]


@pytest.mark.parametrize(("ours", "is_told"), [(4, False), (8, True), (0, True)])
@pytest.mark.parametrize("is_empty", [False, True])
def test_another_number_of_shards_is_an_error_unless_the_queue_is_empty(
    client: redis.Redis, queue_name: str, ours: int, is_told: bool, is_empty: bool
) -> None:
    keys = DeliveryKeys.of(queue_name)
    run(client, pin_shards(keys, Pin(), Pin.new(4)))
    if not is_empty:
        client.zadd(shard_keys(keys, 3).dead, {"token": 1})

    found = find_server_problems(
        client,
        [f"{queue_name}:0"] if ours == 4 else [f"{queue_name}:0", queue_name],
        shards={queue_name: ours},
    )

    level = Level.WARNING if is_empty else Level.ERROR
    told = [each for each in found if queue_name in each.message]
    assert [each.level for each in told] == is_told * [level], told
    for problem in told:
        assert (
            f"SHARDS=4, and the settings say SHARDS={ours or None}" in problem.message
        )
        assert ("Set SHARDS to 4 again" in problem.hint) is not is_empty


def test_a_queue_that_nobody_has_used_has_any_number_of_shards(
    client: redis.Redis, queue_name: str
) -> None:
    found = find_server_problems(client, [f"{queue_name}:0"], shards={queue_name: 2})

    assert [problem for problem in found if problem.level is Level.ERROR] == []
    assert not client.exists(DeliveryKeys.of(queue_name).control)


def test_paused_queue_and_paused_task_are_warnings(
    client: redis.Redis, queue_name: str
) -> None:
    keys = DeliveryKeys.of(queue_name)
    run(client, pause_calls.pause(keys, reason="migration", by="ann"))
    run(client, pause_calls.pause(keys, task="shop.mail"))

    found = problems_of(client, queue_name)

    assert [problem.level for problem in found] == [Level.WARNING] * 2
    queue, task = found
    assert queue.message.startswith(f"Queue {queue_name} has been paused since ")
    assert queue.message.endswith(", by ann: migration.")
    assert queue.hint.endswith(f"run manage.py delayq_resume {queue_name}.")
    assert task.message.startswith(
        f"Task shop.mail on queue {queue_name} has been paused since "
    )
    assert task.hint.endswith(f"delayq_resume {queue_name} --task shop.mail.")


def test_long_insertion_list_is_a_warning(
    client: redis.Redis, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue_problems.LONG_LIST == 100_000
    monkeypatch.setattr(queue_problems, "LONG_LIST", 3)
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
    assert "2 keys of the queues hold somebody else's data" in found.message
    assert f"{queue_name} (string instead of list)" in found.message
    assert f"{keys.headers} (list instead of hash)" in found.message


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_held_for_a_key_or_a_format_that_is_not_here_is_an_error(
    client: redis.Redis, queue_name: str, count: int
) -> None:
    keys = DeliveryKeys.of(queue_name)
    reasons = [
        Reason(Kind.KEY, "abcd"),
        Reason(Kind.KEY, "efgh"),
        Reason(Kind.FORMAT, "2"),
        Reason(Kind.FORMAT, "7"),
        Reason(Kind.TASK, "shop.tasks.new"),
    ]
    for reason in reasons:
        members = {f"{reason.text}\0{n:016d}\0token{n}": 0 for n in range(count)}
        client.zadd(keys.held_tasks, members)

    found = find_server_problems(client, [queue_name], key_ids=["efgh"])

    told = {problem.message: problem for problem in found if "held" in problem.message}
    jobs, they, have = (
        ("1 job is", "it is", "it has")
        if count == 1
        else ("3 jobs are", "they are", "they have")
    )
    assert list(told) == [
        f"Queue {queue_name!r}: {jobs} held: {they} signed with key 'abcd', which this project does not have.",
        f"Queue {queue_name!r}: {jobs} held: {have} format 7, but this version of django-delayq reads format 2.",
    ]
    assert {problem.level for problem in told.values()} == {Level.ERROR}
    assert "SECRET_KEY_FALLBACKS" in next(iter(told.values())).hint
    # A caller that names no keys hears of no missing key.
    assert not any(
        "held" in problem.message
        for problem in find_server_problems(client, [queue_name])
    )


@pytest.mark.parametrize(
    ("format", "is_newer"), [("1", False), ("2", False), ("3", True), ("x", False)]
)
def test_queue_in_a_later_format_is_an_error(
    client: redis.Redis, queue_name: str, format: str, is_newer: bool
) -> None:
    client.hset(DeliveryKeys.of(queue_name).control, "format", format)

    found = texts(problems_of(client, queue_name))

    told = f"error: Queue {queue_name!r} has format 3, but this version of django-delayq reads format 2"
    assert (told in found) == is_newer


def test_jobs_of_another_project_are_told_of(
    client: redis.Redis, queue_name: str
) -> None:
    keys = DeliveryKeys.of(queue_name)
    first, second = Keyring(["first secret"]), Keyring(["second secret"])
    for keyring in (first, second, second):
        token = new_token()
        payload = envelopes.encode(Envelope("task"), token, queue_name, keyring)
        run(client, schedule(Target(keys), [NewJob(token, "+9000", "", payload)]))
    (ours,), (theirs,) = first.ids, second.ids

    found = find_server_problems(client, [queue_name], key_ids=[ours])

    (told,) = [problem for problem in found if "signed with" in problem.message]
    assert told.message == (
        f"At least 2 jobs in queue {queue_name!r} are signed with key {theirs!r}, which this project does not have."
    )
    assert told.level is Level.WARNING
    assert "set DELAYQ['PREFIX'] in one of them" in told.hint
    # No prefix goes before the name of such a queue.
    assert "A queue with REDISSON gets no prefix" in told.hint
    both = find_server_problems(client, [queue_name], key_ids=[ours, theirs])
    assert not [problem for problem in both if "signed with" in problem.message]


def test_a_prefix_that_nobody_could_have_noted_does_no_harm(
    client: redis.Redis, queue_name: str
) -> None:
    odd = f"{{{queue_name}}}x{{"
    run(client, prefixes.note_prefix(odd, "abcd"))
    before = find_server_problems(client, [queue_name], key_ids=["efgh"])

    found = find_server_problems(
        client, [queue_name], key_ids=["abcd"], prefix=f"{queue_name}-"
    )

    client.hdel(prefixes.PREFIXES, odd)
    assert found == before


def test_right_that_a_prefix_needs_is_named(
    user: Any, client: redis.Redis, queue_name: str
) -> None:
    account = user(
        f"~*{queue_name}*", "~delayq_workers*", "~delayq_orders*", "&*", "+@all"
    )

    found = find_server_problems(
        account, [queue_name], key_ids=["abcd"], prefix=f"{queue_name}-"
    )

    (told,) = [problem for problem in found if "PREFIX" in problem.message]
    assert "may not use the key delayq_prefixes:{delayq}" in told.message
    assert told.hint.endswith(" ~delayq_prefixes:{delayq}")
    # Who has no prefix needs no right for it.
    assert not [
        problem
        for problem in find_server_problems(account, [queue_name], key_ids=["abcd"])
        if "PREFIX" in problem.message
    ]
