"""Moving a queue between two servers: each job arrives once and as it was, wherever the run is interrupted."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from django_delayq import Durable, conf
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads, stored_pauses
from django_delayq.core.reasons import Reason
from django_delayq.core.scripts import PACKAGES
from django_delayq.core.states import State
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.tools import exports, page_calls
from django_delayq.tools import move as moving
from django_delayq.tools import source as taking
from django_delayq.tools import target as storing
from django_delayq.tools.direct import Moving
from django_delayq.tools.imports import Importing
from django_delayq.tools.move import CannotMove, Tally
from django_delayq.tools.page_calls import Kind, MovedSchedule, OtherRun, Source
from django_delayq.tools.source import Taking
from django_delayq.tools.target import Storing
from django_delayq.transport.clients import Clients
from django_delayq.transport.run import run
from django_delayq.transport.script import load_script
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.signatures import FORMAT, Keyring
from tests.conftest import keys_of
from tests.core.rig import LEASE, OWNER, T0, Rig, names_of
from tests.core.tour import follower
from tests.queues.proxy import Proxy
from tests.replicas import QUICK, Replicated
from tests.servers import ExternalServer, Server

pytestmark = pytest.mark.redis
RUN = "r" * 12


@pytest.fixture
def target_client(
    server: Server | ExternalServer, queue_name: str
) -> Iterator["redis.Redis[bytes]"]:
    """Another server: another database of the one under test."""
    with server.client() as client:
        client.connection_pool.connection_kwargs["db"] = 1
        yield client
        if keys := keys_of(client, queue_name):
            client.delete(*keys)


@pytest.fixture(params=FrameFormat)
def frame_format(request: pytest.FixtureRequest) -> FrameFormat:
    return request.param


@pytest.fixture(params=[True, False], ids=["list", "no list"])
def insertion_list(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def source(
    client: "redis.Redis[bytes]",
    queue_name: str,
    frame_format: FrameFormat,
    insertion_list: bool,
) -> Rig:
    return Rig(
        client, queue_name, frame_format=frame_format, insertion_list=insertion_list
    )


@pytest.fixture
def target(source: Rig, target_client: "redis.Redis[bytes]") -> Rig:
    return Rig(
        target_client,
        source.keys.queue.name,
        frame_format=source.frame_format,
        insertion_list=source.insertion_list,
    )


@pytest.fixture(autouse=True)
def configure(
    request: pytest.FixtureRequest, settings: Any, queue_name: str
) -> Callable[..., None]:
    """Have the settings of this project say what the rigs do."""
    options: dict[str, Any] = {"INSERTION_LIST": False}
    if "source" in request.fixturenames:
        frame_format = request.getfixturevalue("frame_format")
        options["INSERTION_LIST"] = request.getfixturevalue("insertion_list")
        options["FRAME"] = frame_format.value

    def configure(**more: Any) -> None:
        settings.DELAYQ = {
            **settings.DELAYQ,
            "QUEUES": {queue_name: {**options, **more}},
        }

    configure()
    return configure


def queue_of(rig: Rig) -> QueueSettings:
    return conf.get_settings().queue(rig.keys.queue.name)


def moving_from(source: Rig, target: Rig, target_name: str = "") -> Moving:
    return Moving(
        source.client,
        target.client,
        queue_of(source),
        conf.get_keyring(),
        target_name=target_name,
    )


def move(source: Rig, target: Rig) -> moving.Tally:
    one = moving_from(source, target)
    one.begin()
    for _ in one.steps():
        pass
    one.end()
    return one.tally


def populate(rig: Rig, seed: int) -> list[str]:
    """Bring a queue into some state, and return the names of its jobs."""
    chance, numbers = random.Random(seed), itertools.count()
    names: list[str] = []

    def new(**options: Any) -> None:
        name = f"j{next(numbers)}"
        names.append(name)
        rig.schedule({name: chance.randrange(200)}, **options)

    def new_many() -> None:
        count = chance.randrange(1, 9)
        some = [f"j{next(numbers)}" for _ in range(count)]
        names.extend(some)
        rig.schedule({name: chance.randrange(200) for name in some})

    def offer() -> None:
        if rig.insertion_list:
            rig.java_offer(f"java{next(numbers)}", chance.randrange(200))

    def lie() -> None:
        name = f"j{next(numbers)}"
        names.append(name)
        rig.lay(name)
        rig.client.rpush(rig.keys.queue.destination, f"lying{next(numbers)}")

    def settle(act: Callable[..., object]) -> None:
        rig.now += chance.randrange(50)
        act(*rig.claim(chance.randrange(1, 4)).jobs)

    acts: list[Callable[[], object]] = [
        new,
        new_many,
        new_many,
        lambda: new(unique=f"e{next(numbers)}"),
        lambda: new(priority=chance.randrange(-5, 6)),
        offer,
        lie,
        lambda: settle(rig.retry),
        lambda: settle(rig.snooze),
        lambda: settle(rig.bury),
        lambda: settle(lambda *jobs: rig.bury(*jobs, state=State.QUARANTINED)),
        lambda: settle(rig.give_back),
        lambda: settle(rig.hold),
        lambda: settle(
            lambda *jobs: rig.hold(*jobs, task=Reason("key", "abcd"), hold_ms=None)
        ),
        lambda: settle(rig.acknowledge),
        lambda: settle(lambda *jobs: None),
        lambda: rig.transfer(),
    ]
    for _ in range(40):
        chance.choice(acts)()
    return names


def facts_of(rig: Rig, name: str) -> tuple[Any, ...]:
    """Return what the server knows of one job.

    One that is held waits for the decision of the next claim, and so does one whose lease ended long ago.
    """
    got = rig.inspect(name)
    state, score_ms = got.state, got.score_ms
    if state in (State.HELD, State.RUNNING):
        state = State.RETRYING if got.attempts + got.kills else State.DUE
        score_ms = got.start_time_ms
    return (
        state,
        score_ms,
        got.attempts,
        got.kills,
        got.start_time_ms,
        got.payload,
        got.error,
        got.unique,
        got.priority,
        got.history,
    )


def elements_of(rig: Rig) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Return what others have offered: frames with their start times, and the elements of the destination queue."""
    told = rig.state()
    frames = Counter(each for each in told.get("timeout_set", []) if "java" in each[0])
    return frames, [each for each in told.get("destination", []) if "l" in each]


@pytest.mark.parametrize("seed", range(8))
def test_everything_arrives_as_it_was(source: Rig, target: Rig, seed: int) -> None:
    names = populate(source, seed)
    known = {name: facts_of(source, name) for name in names}
    ends = {State.SUCCEEDED, State.MISSING}
    moved = {name: facts for name, facts in known.items() if facts[0] not in ends}
    others = elements_of(source)
    before = source.state()

    tally = move(source, target)

    target.now = source.now
    assert {name: facts_of(target, name) for name in moved} == moved
    assert elements_of(target) == others
    for name in ("dead", "quarantine", "unique", "retries"):
        held = before.get("held", {})
        for key, value in before.get(name, {}).items():
            assert target.state().get(name, {}).get(key) == value or key in held, name
    assert not source.state().keys() - {"unique"}
    assert tally.known == tally.shared == tally.stay == 0
    source.check()
    target.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_moved_runs_each_job_once(
    source: Rig, target: Rig, seed: int
) -> None:
    graves = (State.DEAD, State.QUARANTINED)
    states = {name: source.inspect(name).state for name in populate(source, seed)}
    runs = {
        name
        for name, state in states.items()
        if state not in (State.SUCCEEDED, State.MISSING, *graves)
    }
    ran = Counter[str]()

    move(source, target)

    for rig in (source, target):
        rig.now = source.now + 1_000_000
        while jobs := rig.claim(50).jobs:
            ran.update(job.token.rstrip("-") for job in jobs)
            rig.acknowledge(*jobs)
    assert {name: ran[name] for name in states if ran[name]} == dict.fromkeys(runs, 1)


class Cut(Exception):
    """Stands for the death of the process."""


@pytest.mark.parametrize("is_sent", [True, False], ids=["reply lost", "not sent"])
@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_dies_at_any_call_goes_on_and_ends_exact(
    source: Rig,
    target: Rig,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    is_sent: bool,
) -> None:
    names = populate(source, seed)
    source.recover(OWNER)
    known = {name: facts_of(source, name) for name in names}
    ends = {State.SUCCEEDED, State.MISSING}
    moved = {name: facts for name, facts in known.items() if facts[0] not in ends}
    others = elements_of(source)
    monkeypatch.setattr(taking, "FIRST", 5)
    monkeypatch.setattr(taking, "LEAST", 5)
    monkeypatch.setattr(taking, "MOST", 5)
    deaths, calls_left = 0, 0

    def dying(client: Any, call: Any) -> Any:
        nonlocal calls_left
        if not calls_left:
            if is_sent:
                run(client, call)
            raise Cut
        calls_left -= 1
        return run(client, call)

    for module in storing, taking:
        monkeypatch.setattr(module, "run", dying)
    for deaths in range(200):
        # Each run comes a little farther than the one before it.
        calls_left = 8 + deaths % 40
        try:
            move(source, target)
        except Cut:
            continue
        break

    assert deaths > 3
    target.now = source.now
    assert {name: facts_of(target, name) for name in moved} == moved
    assert elements_of(target) == others
    assert not source.state().keys() - {"unique"}
    source.check()
    target.check()


@pytest.fixture
def rig(client: "redis.Redis[bytes]", queue_name: str) -> Rig:
    return Rig(client, queue_name, insertion_list=False)


@pytest.fixture
def other(rig: Rig, target_client: "redis.Redis[bytes]") -> Rig:
    return Rig(target_client, rig.keys.queue.name, insertion_list=False)


def take_page(rig: Rig, page: int = 1, source: Source = Source.FRAMES) -> Any:
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.FILE))
    return rig.run(page_calls.export_page(rig.keys, source, run=RUN, page=page))


def end_page(rig: Rig, *, is_moved: bool, page: int = 1) -> int:
    return rig.run(
        page_calls.end_page(
            rig.keys,
            run=RUN,
            page=page,
            is_moved=is_moved,
            insertion_list=rig.insertion_list,
        )
    )


def test_what_is_on_its_way_is_seen_but_neither_runs_nor_changes(rig: Rig) -> None:
    rig.schedule({"a": 0}, unique="ekey")
    take_page(rig)
    rig.now = 10

    assert names_of(rig.claim()) == []
    assert rig.inspect("a").state is State.HELD
    assert rig.held_names().counts == {Reason("moving", RUN): 1}
    assert rig.cancel("a") is State.HELD
    assert rig.reschedule("a", 5)[0] is State.HELD
    assert rig.release("shop.new").released == 0
    rig.schedule({"a": 0}, again=True)
    assert rig.schedule({"b": 0}, unique="ekey")[0].holder == "a"
    assert rig.inspect("a").state is State.HELD
    rig.check()


def test_what_is_put_back_is_as_it_was(source: Rig) -> None:
    names = populate(source, 3)
    known = {name: facts_of(source, name) for name in names}
    others = elements_of(source)
    page = 0
    for each in Source:
        while take_page(source, page + 1, each).jobs:
            page += 1

    for number in range(1, page + 1):
        end_page(source, is_moved=False, page=number)
        end_page(source, is_moved=False, page=number)

    assert {name: facts_of(source, name) for name in names} == known
    assert elements_of(source) == others
    assert source.client.zcard(source.keys.moving) == 0
    assert source.client.hlen(source.keys.moving_from) == 0
    source.check()


def test_a_page_that_is_read_again_is_the_same_and_no_other_run_gets_it(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 5})
    first = take_page(rig)

    again = take_page(rig)

    assert sorted(again.jobs) == sorted(first.jobs)
    with pytest.raises(OtherRun):
        rig.run(page_calls.export_page(rig.keys, Source.FRAMES, run="x" * 12, page=1))
    with pytest.raises(OtherRun):
        rig.run(page_calls.end_page(rig.keys, run="x" * 12, page=1, is_moved=True))


def test_a_page_is_stored_once_and_in_its_order(rig: Rig, other: Rig) -> None:
    rig.schedule({"a": 0, "b": 5})
    jobs = take_page(rig).jobs

    def store(page: int) -> Any:
        return other.run(page_calls.import_page(other.keys, jobs, run=RUN, page=page))

    with pytest.raises(OtherRun, match="no page 1"):
        store(2)
    assert store(1).stored == 2
    for _ in range(2):
        other.now = 10
        got = other.claim(1).jobs
        assert len(got) == 1
        other.acknowledge(*got)
        assert store(1) is None

    assert other.claim().jobs == []


def test_a_queue_does_not_move_to_itself(rig: Rig) -> None:
    rig.schedule({"a": 0})

    with pytest.raises(CannotMove, match="to itself"):
        move(rig, rig)

    assert names_of(rig.claim()) == ["a"]
    # It may move elsewhere now, or to a file.
    take_page(rig)


def test_a_run_goes_on_towards_its_own_target_only(
    rig: Rig, other: Rig, server: Server
) -> None:
    rig.schedule({"a": 0})
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT))
    rig.run(page_calls.export_page(rig.keys, Source.FRAMES, run=RUN, page=1))

    with pytest.raises(CannotMove, match="to another server already"):
        move(rig, other)

    assert other.state() == {}
    assert rig.inspect("a").state is State.HELD


def test_a_target_that_forgets_a_run_without_pages_goes_on(
    rig: Rig, other: Rig
) -> None:
    """As one that restarts empty, or fails over; or the first command died before the target noted the run."""
    rig.schedule({"a": 0})
    moving_from(rig, other).begin()
    other.client.delete(other.keys.control)

    assert move(rig, other).moved == 1

    assert names_of(other.claim()) == ["a"]


def test_a_run_without_pages_goes_to_no_target_of_another_name(
    rig: Rig, other: Rig
) -> None:
    """The command died before the target noted the run."""
    rig.schedule({"a": 0})
    rig.run(page_calls.begin_export(rig.keys, RUN, Kind.DIRECT, "first"))

    with pytest.raises(CannotMove, match="to another server already, first"):
        moving_from(rig, other, "second").begin()

    assert other.client.hkeys(other.keys.control) == []
    moving_from(rig, other, "first").begin()


def test_a_command_that_is_refused_leaves_the_run_of_another_one_alone(
    rig: Rig, other: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun the run; before it goes on, the other one moves a page, and dies before it deletes that."""
    rig.schedule({"a": 0})

    def move_a_page() -> None:
        with monkeypatch.context() as patch:
            second = moving_from(rig, other)
            second.begin()
            patch.setattr(Taking, "delete", cut)
            with pytest.raises(Cut):
                next(second.steps())

    def cut(*_: object) -> None:
        raise Cut

    acts = [move_a_page]

    @contextmanager
    def at_source() -> Iterator[None]:
        yield
        if acts:
            acts.pop()()

    first = Moving(
        rig.client,
        other.client,
        queue_of(rig),
        conf.get_keyring(),
        at_source=at_source,
    )
    with pytest.raises(CannotMove, match="the target has 1 pages"):
        first.begin()

    move(rig, other)

    assert rig.state() == {}
    assert names_of(other.claim()) == ["a"]


def test_a_run_that_does_not_begin_leaves_nothing_on_the_target(
    rig: Rig, other: Rig
) -> None:
    rig.client.set(rig.keys.control, "of somebody else")

    with pytest.raises(ResponseError):
        moving_from(rig, other).begin()

    assert keys_of(other.client, rig.keys.queue.name) == []


def test_a_source_that_has_forgotten_a_page_gives_its_number_to_no_others(
    rig: Rig, other: Rig
) -> None:
    """As after a failover to a replica that was behind: the target would take their jobs for those it has."""
    rig.schedule({f"j{number}": 100 for number in range(300)})
    one = moving_from(rig, other)
    one.begin()
    steps, name = one.steps(), rig.keys.queue.name
    next(steps)
    before = {key: rig.client.dump(key) for key in keys_of(rig.client, name)}
    next(steps)
    rig.client.delete(*keys_of(rig.client, name))
    for key, value in before.items():
        rig.client.restore(key, 0, value)
    rig.schedule({"late": 100})

    with pytest.raises(
        CannotMove, match=r"the source knows of 1: the source has forgotten"
    ):
        move(rig, other)
    queue = queue_of(rig)
    its_run = exports.open_runs(rig.client, [queue])[queue.name]
    list(
        Taking(rig.client, queue, Tally(), its_run.kind).end_steps(
            its_run, is_moved=False
        )
    )
    move(rig, other)

    assert run(other.client, queue_reads.counts(other.keys)).jobs == 301
    assert run(rig.client, queue_reads.counts(rig.keys)).jobs == 0


def test_a_page_with_other_jobs_is_not_taken_for_the_one_of_its_number(
    rig: Rig, other: Rig
) -> None:
    def store(mark: str) -> Any:
        call = page_calls.import_page(other.keys, [], run="r", page=1, mark=mark)
        return run(other.client, call)

    assert store("one") is not None
    assert store("one") is None
    with pytest.raises(OtherRun, match="has other jobs than the page of that number"):
        store("two")


def test_a_page_of_a_source_that_forgot_is_not_taken_for_the_one_of_its_number(
    rig: Rig, other: Rig
) -> None:
    """Two commands at once, and between their pages a failover to a replica that was behind."""
    rig.schedule({f"j{number}": 100 for number in range(64)})
    first, second = moving_from(rig, other), moving_from(rig, other)
    for each in (first, second):
        each.begin()
    name = rig.keys.queue.name
    before = {key: rig.client.dump(key) for key in keys_of(rig.client, name)}
    next(first.steps())
    rig.client.delete(*keys_of(rig.client, name))
    for key, value in before.items():
        rig.client.restore(key, 0, value)
    rig.schedule({"early": 0})

    with pytest.raises(OtherRun, match="has other jobs than the page of that number"):
        next(second.steps())

    assert rig.inspect("early").state is State.HELD


def test_a_file_and_a_direct_move_exclude_each_other(rig: Rig, other: Rig) -> None:
    rig.schedule({"a": 0})
    take_page(rig)

    with pytest.raises(CannotMove, match="to a file"):
        move(rig, other)


@pytest.mark.parametrize("kind", Kind)
def test_a_queue_that_moves_away_takes_nothing_from_elsewhere(
    rig: Rig, other: Rig, kind: Kind
) -> None:
    """What it holds on its way would be taken for jobs that it has, and be deleted on both sides."""
    rig.schedule({"a": 0})
    rig.run(page_calls.begin_export(rig.keys, RUN, kind))
    taken = rig.run(
        page_calls.export_page(rig.keys, Source.FRAMES, run=RUN, page=1)
    ).jobs
    begun = moving_from(other, rig)
    other.run(page_calls.import_page(other.keys, taken, run=RUN, page=1))

    with pytest.raises(CannotMove, match="is itself being moved away"):
        begun.begin()
    call = page_calls.import_page(rig.keys, taken, run="o" * 12, page=1)
    with pytest.raises(OtherRun, match="away from the target itself"):
        rig.run(call)

    assert end_page(rig, is_moved=True) == 1
    assert end_page(rig, is_moved=True, page=0) == 0
    assert move(other, rig).moved == 1
    assert names_of(rig.claim()) == ["a"]


def test_jobs_can_be_moved_off_a_full_server(
    rig: Rig, private_server: Callable[..., Server]
) -> None:
    full = private_server(maxmemory_policy="noeviction").client()
    source = Rig(full, rig.keys.queue.name, insertion_list=False)
    source.schedule({f"j{n}": n for n in range(100)})
    full.config_set("maxmemory", 1)

    assert move(source, rig).moved == 100
    assert source.state() == {}


def test_the_source_keeps_what_is_not_as_durable_as_the_target_asks_for(
    rig: Rig, other: Rig, configure: Callable[..., None]
) -> None:
    rig.schedule({f"j{n}": n for n in range(100)})
    configure(DURABLE=Durable(replicas=1, timeout=0.05))
    one = moving_from(rig, other)
    one.begin()

    with pytest.raises(CannotMove, match="0 of 1 replicas have acknowledged"):
        list(one.steps())

    assert rig.inspect("j0").state is State.HELD
    assert rig.inspect("j99").state is State.SCHEDULED
    # Without the demand, the rest follows.
    configure()
    assert move(rig, other).moved < 100
    assert rig.state() == {}
    waits = (State.SCHEDULED, State.DUE)
    assert all(other.inspect(f"j{n}").state in waits for n in range(100))


def test_the_source_keeps_a_schedule_that_is_not_durable_yet(
    rig: Rig, other: Rig, configure: Callable[..., None]
) -> None:
    rig.client.hset(rig.keys.schedules, "stored nightly", "s")
    rig.client.zadd(rig.keys.periods, {"nightly": T0})
    configure(DURABLE=Durable(replicas=1, timeout=0.1))
    one = moving_from(rig, other)

    with pytest.raises(CannotMove, match="The source still has"):
        one.begin()

    # Set aside there, it goes on from there.
    configure()
    assert b"moving stored nightly" in rig.client.hkeys(rig.keys.schedules)
    move(rig, other)
    assert other.client.hget(other.keys.schedules, "stored nightly") == b"s"
    assert rig.client.hkeys(rig.keys.schedules) == [b"version"]


@pytest.mark.parametrize("repeats", [False, True])
def test_a_schedule_on_its_way_can_be_put_back_after_the_move_has_failed(
    rig: Rig, other: Rig, configure: Callable[..., None], repeats: bool
) -> None:
    rig.client.hset(rig.keys.schedules, "stored nightly", "s")
    rig.client.zadd(rig.keys.periods, {"nightly": T0})
    configure(DURABLE=Durable(replicas=1, timeout=0.1))
    with pytest.raises(CannotMove, match="The source still has"):
        moving_from(rig, other).begin()
    if repeats:
        # Refused before anything, it must not end the run that has the schedule either.
        other.client.hset(other.keys.control, "format", "9999")
        with pytest.raises(CannotMove):
            moving_from(rig, other).begin()

    queue = queue_of(rig)
    its_run = exports.open_runs(rig.client, [queue])[queue.name]
    taking = Taking(rig.client, queue, Tally(), its_run.kind, waits=False)
    list(taking.end_steps(its_run, is_moved=False))

    assert rig.client.hget(rig.keys.schedules, "stored nightly") == b"s"
    assert b"moving stored nightly" not in rig.client.hkeys(rig.keys.schedules)


def test_pages_whose_deletion_a_failover_has_lost_are_deleted_again(
    rig: Rig, other: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"j{n}": 1_000 for n in range(300)}
    rig.schedule(names)
    with monkeypatch.context() as patch:
        # What a replica has that lags behind by these two.
        patch.setattr(Taking, "delete", lambda *_: None)
        one = moving_from(rig, other)
        one.begin()
        steps = one.steps()
        next(steps)
        next(steps)
    held = rig.client.zcard(rig.keys.held)
    assert held > taking.FIRST

    move(rig, other)

    assert run(rig.client, queue_reads.counts(rig.keys)).jobs == 0
    assert run(other.client, queue_reads.counts(other.keys)).jobs == len(names)


def test_pages_that_only_the_replaced_server_has_are_stored_again(
    rig: Rig, private_server: Callable[..., Server]
) -> None:
    """The address of the target moves to its replica, and the old primary goes on answering on open connections."""
    pair = Replicated(private_server, 1)
    proxy = Proxy(pair.primary)
    rig.schedule({f"j{n}": n for n in range(200)})
    target = Clients.of(proxy.url).make()
    one = Moving(rig.client, target, queue_of(rig), conf.get_keyring())
    one.begin()
    steps = one.steps()
    next(steps)
    pair.wait_for_replicas()

    new = pair.promote()
    proxy.lead_to(new)
    # The new primary has to have a replica, as the old one had.
    private_server(replicaof=f"127.0.0.1 {new.port}", **QUICK)
    for _ in steps:
        pass
    one.end()

    with new.client() as client:
        moved = Rig(client, rig.keys.queue.name, insertion_list=False)
        assert len(moved.state()["timeout_set"]) == 200
    assert rig.state() == {}
    target.close()
    proxy.close()


def test_queues_with_nothing_in_them_are_not_left(rig: Rig, other: Rig) -> None:
    name = rig.keys.queue.name
    rig.schedule({"a": 0})
    assert moving.left_on(rig.client, [name]) == [name]

    move(rig, other)

    assert moving.left_on(rig.client, [name]) == []


def test_queue_is_left_until_what_it_has_for_others_is_forwarded(rig: Rig) -> None:
    name = rig.keys.queue.name
    rig.schedule({"a": 0})
    rig.acknowledge(rig.lease(), forwards=[(0, "other", follower("b"))])

    assert moving.left_on(rig.client, [name]) == [name]
    assert moving.left_of(rig.run(queue_reads.counts(rig.keys))) == 1


def test_queues_that_cannot_be_looked_at_are_left(
    rig: Rig, private_server: Callable[..., Server]
) -> None:
    client = private_server().client()
    client.set(Rig(client, "odd").keys.queue.timeout_set, "of somebody else")

    assert moving.left_on(client, ["odd", "none", "\ufffd"]) == ["odd", "\ufffd"]


def test_target_that_is_full_takes_no_part_of_a_page_and_the_rest_later(
    rig: Rig, private_server: Callable[..., Server]
) -> None:
    full = private_server(maxmemory_policy="noeviction").client()
    other = Rig(full, rig.keys.queue.name, insertion_list=False)
    rig.schedule({f"j{n}": n for n in range(100)}, size=500)
    one = moving_from(rig, other)
    one.begin()
    full.config_set("maxmemory", 1)

    with pytest.raises(OutOfMemoryError):
        list(one.steps())

    assert other.state() == {}
    full.config_set("maxmemory", 0)
    assert move(rig, other).moved == 100
    assert rig.state() == {}


def test_source_that_is_read_only_is_left_as_it_is(
    rig: Rig, other: Rig, private_server: Callable[..., Server]
) -> None:
    replica = private_server().client()
    source = Rig(replica, rig.keys.queue.name, insertion_list=False)
    source.schedule({"a": 0})
    before = source.state()
    replica.execute_command("REPLICAOF", "127.0.0.1", "1")

    with pytest.raises(ReadOnlyError):
        move(source, other)

    assert source.state() == before
    assert other.state() == {}


@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_moves_if_an_end_is_in_a_later_format(
    rig: Rig, other: Rig, side: str
) -> None:
    rig.schedule({"a": 0})
    later = rig if side == "source" else other
    later.client.hset(later.keys.control, "format", FORMAT + 1)

    told = f"of the {side} is in format {FORMAT + 1}, and this version reads format {FORMAT}"
    with pytest.raises(CannotMove, match=told):
        move(rig, other)

    later.client.hdel(later.keys.control, "format")
    assert names_of(rig.claim()) == ["a"]


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_job_that_has_given_its_unique_key_up_has_it_there_if_it_is_free(
    rig: Rig, other: Rig, is_taken: bool
) -> None:
    rig.schedule({"a": 0}, unique="ekey")
    rig.hold(rig.lease(), task=Reason("key", "key1"), hold_ms=None)
    if is_taken:
        other.schedule({"b": 0}, unique="ekey")

    tally = move(rig, other)

    assert (tally.moved, tally.shared) == (1, is_taken)
    assert other.inspect("a").unique == ("" if is_taken else "key")
    assert other.state()["unique"] == {"key": "b" if is_taken else "a"}


def test_a_job_whose_unique_key_is_taken_there_runs_without_it(
    rig: Rig, other: Rig
) -> None:
    rig.schedule({"a": 0}, unique="ekey")
    other.schedule({"b": 0}, unique="ekey")

    tally = move(rig, other)

    assert (tally.moved, tally.shared) == (1, 1)
    assert other.inspect("a").unique == ""
    assert other.state()["unique"] == {"key": "b"}
    assert rig.state() == {}
    other.check()


def test_a_job_that_the_target_has_already_is_not_stored_again(
    rig: Rig, other: Rig
) -> None:
    for each in (rig, other):
        each.schedule({"a": 0, "b": 0})

    tally = move(rig, other)

    assert (tally.moved, tally.known) == (0, 2)
    assert sorted(names_of(other.claim())) == ["a", "b"]


def test_a_queue_may_move_there_and_back_again(rig: Rig, other: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    move(rig, other)

    assert move(other, rig).moved == 2

    rig.now = 10
    assert sorted(names_of(rig.claim())) == ["a", "b"]
    assert other.state() == {}


def test_a_batch_ends_where_it_is(rig: Rig, other: Rig) -> None:
    rig.open("then")
    rig.schedule({"a": 0, "b": 0}, batch="then")
    rig.schedule({"c": 0})
    rig.close("then")

    tally = move(rig, other)

    assert tally.moved == 1
    assert tally.stay == 3
    assert sorted(names_of(rig.claim())) == ["a", "b"]


def test_pauses_and_limits_come_first_and_do_not_replace_those_of_the_target(
    rig: Rig, other: Rig
) -> None:
    keys = rig.keys
    run(rig.client, pause_calls.pause(keys, by="ann", reason="move"))
    run(rig.client, pause_calls.pause(keys, task="mail", by="ann"))
    run(other.client, pause_calls.pause(keys, task="mail", by="bob"))
    run(rig.client, limit_calls.set_limit(keys, {"concurrency": 3}, by="ann"))
    rig.schedule({"a": 0})

    move(rig, other)

    told = run(other.client, stored_pauses.pauses(keys))
    assert [(each.task, each.by) for each in told] == [(None, "ann"), ("mail", "bob")]
    (limit,) = run(other.client, limit_calls.limits(keys))
    assert (limit.set, limit.by) == ({"concurrency": 3}, "ann")


def test_a_stored_schedule_moves_with_its_state_and_its_next_occurrence(
    rig: Rig, other: Rig
) -> None:
    keys = rig.keys
    rig.client.hset(
        keys.schedules,
        mapping={"stored nightly": "s", "change nightly": "c", "state nightly": "{}"},
    )
    rig.client.zadd(keys.periods, {"nightly": T0})

    assert move(rig, other).schedules == 1

    assert other.client.hmget(
        keys.schedules, "stored nightly", "change nightly", "state nightly"
    ) == [b"s", b"c", b"{}"]
    assert other.client.zrange(keys.periods, 0, -1, withscores=True) == [
        (b"nightly", T0)
    ]
    assert set(rig.client.hkeys(keys.schedules)) == {b"version"}
    assert rig.client.exists(keys.periods) == 0


def test_a_schedule_whose_key_is_not_here_keeps_all_from_moving(
    rig: Rig, other: Rig
) -> None:
    text = Keyring(["a secret of somebody else"]).seal("schedule", b"{}")
    rig.client.hset(rig.keys.schedules, "stored nightly", text)
    rig.schedule({"a": 0})
    before = rig.state()

    with pytest.raises(CannotMove, match=r"'nightly' is signed with a key that"):
        move(rig, other)

    assert rig.state() == before
    assert other.state() == {}


def test_a_schedule_whose_key_is_not_here_is_not_imported(rig: Rig) -> None:
    text = Keyring(["a secret of somebody else"]).seal("schedule", b"{}")
    storing = Storing(rig.client, queue_of(rig), Tally(), conf.get_keyring())

    for moved in (
        MovedSchedule(text, b"", b"", b""),
        MovedSchedule(b"", text, b"", b""),
    ):
        with pytest.raises(CannotMove, match=r"SECRET_KEY_FALLBACKS, and run this"):
            storing.put("nightly", moved)

    assert rig.state() == {}


def test_a_schedule_that_was_set_aside_is_taken_up_again(rig: Rig, other: Rig) -> None:
    keys = rig.keys
    rig.client.hset(keys.schedules, "stored nightly", "s")
    taken = MovedSchedule(b"s", b"", b"", b"")
    for _ in range(2):
        assert rig.run(page_calls.take_schedule(keys, "nightly")) == taken
    assert rig.client.hexists(keys.schedules, "stored nightly") is False

    assert move(rig, other).schedules == 1

    assert other.client.hget(keys.schedules, "stored nightly") == b"s"


def test_what_runs_ends_where_it_is(
    rig: Rig, other: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.schedule({"a": 0})
    (job,) = rig.claim(lease_ms=2**40).jobs

    assert move(rig, other).moved == 0

    assert rig.acknowledge(job) == []
    assert rig.state() == other.state() == {}


def test_a_lease_that_a_gap_spares_is_not_taken_over(rig: Rig) -> None:
    """The server was away for longer than the lease, and for the minute after it; the worker is not."""
    rig.is_served = False
    rig.schedule({"a": 0})
    (job,) = rig.claim().jobs
    rig.now += 2 * LEASE + 60_000
    assert rig.claim(owner=b"owner--2").jobs == []

    assert take_page(rig, source=Source.LEASES).jobs == []

    assert rig.renew(job) == []
    rig.now += 2 * LEASE + 60_000
    rig.claim(owner=b"owner--2", limit=0)
    rig.now += LEASE
    assert len(take_page(rig, source=Source.LEASES).jobs) == 1


def test_a_worker_whose_job_has_moved_changes_nothing(rig: Rig, other: Rig) -> None:
    """Its lease ended long ago, by the clock of the server."""
    rig.schedule({"a": 0})
    (job,) = rig.claim().jobs

    assert move(rig, other).moved == 1

    assert rig.acknowledge(job) == [0]
    assert other.inspect("a").state is State.DUE


def test_other_queues_of_a_server_are_found(rig: Rig) -> None:
    rig.schedule({"a": 0})

    assert rig.keys.queue.name in moving.queues_on(rig.client)


def test_a_page_is_bounded_by_its_bytes(rig: Rig) -> None:
    rig.schedule({f"j{n}": n for n in range(30)}, size=100_000)

    taken = take_page(rig)

    assert sum(len(job.payload) for job in taken.jobs) < 700_000


def test_a_token_of_somebody_elses_element_is_no_token_of_a_job(source: Rig) -> None:
    source.client.rpush(source.keys.queue.destination, b"one", b"two")

    taken = take_page(source, source=Source.DESTINATION)

    assert [job.place for job in taken.jobs] == ["l", "l"]
    assert len({job.token for job in taken.jobs}) == 2
    assert [job.payload for job in taken.jobs] == [b"one", b"two"]
    assert source.client.llen(source.keys.queue.destination) == 0


@pytest.mark.parametrize("reaches_server", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("script", ["export_page", "import_page", "end_page"])
def test_a_call_that_is_lost_on_the_way_is_made_again(
    private_server: Callable[..., Server],
    rig: Rig,
    other: Rig,
    script: str,
    reaches_server: bool,
) -> None:
    """Both servers lie behind a line that is cut when the call comes."""
    servers = [private_server(), private_server()]
    proxies = [Proxy(server) for server in servers]
    lines = [redis.Redis.from_url(proxy.url) for proxy in proxies]
    source, target = (
        Rig(line, rig.keys.queue.name, insertion_list=False) for line in lines
    )
    source.schedule({f"j{n}": n for n in range(20)})
    load(source, target)
    sha = load_script(PACKAGES, script).sha.encode()
    proxy = proxies[script == "import_page"]
    struck = proxy.lose_reply_to(sha) if reaches_server else proxy.lose(sha)

    tally = move(source, target)

    assert struck.is_set()
    assert tally.moved + tally.known == 20
    assert len(target.state()["timeout_set"]) == 20
    assert source.state() == {}
    for line, each in zip(lines, proxies, strict=True):
        line.close()
        each.close()


def load(*rigs: Rig) -> None:
    """Have the servers know the scripts, so that each call names its own by the SHA-1."""
    for rig in rigs:
        for name in ("begin_export", "export_page", "import_page", "end_page"):
            rig.client.script_load(load_script(PACKAGES, name).source)


def test_a_lost_connection_ends_the_run_and_the_next_one_goes_on(
    rig: Rig, other: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.schedule({f"j{n}": n for n in range(20)})
    one = moving_from(rig, other)
    one.begin()

    def lost(*args: Any) -> Any:
        raise RedisConnectionError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Importing, "take_in", lost)
        with pytest.raises(RedisConnectionError):
            list(one.steps())

    assert other.state() == {}
    assert len(rig.state()["held"]) == 20
    assert move(rig, other).moved == 20
    assert rig.state() == {}
