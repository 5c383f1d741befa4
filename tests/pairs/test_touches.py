"""A feature touches what it declares in `features.py`, and nothing else.

Each scenario uses one feature, from the call to each end that matters, on a frozen queue. What it touches beyond what plain
jobs do, with a delay and no feature, is what the feature touches; `touching.py` says what counts.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq import (
    Backoff,
    Batch,
    DelayedTask,
    QueueFull,
    Retry,
    Snooze,
    current_job,
    delayed_task,
    every,
    find_jobs,
    pause,
    periodic,
    resume,
    schedule,
)
from django_delayq.jobs import outbox, prepare, registry
from django_delayq.outbox.part import OutboxPart
from django_delayq.outbox.relay import Relay
from django_delayq.testing import frozen_queue
from django_delayq.testing.frozen import FrozenQueue
from tests.pairs.features import DISJOINT, FEATURES, PLAIN
from tests.pairs.scenes import hold_up, let_go, pass_by
from tests.pairs.touching import NOON, recorded, resources_of

BACKOFF = Backoff(base=30, factor=1, jitter=0)
DELAY = 60


#: Options of all tasks, beside those of the scenario.
MORE: dict[str, Any] = {}


def task(name: str, **options: Any) -> DelayedTask[..., Any]:
    """Make a task that does what its argument says."""

    def run_it(what: str = "succeed", token: str = "") -> str:
        job = current_job()
        assert job is not None
        if what == "fail" or (what == "fail once" and not job.attempts):
            raise ValueError(f"{what} {token}")
        if what == "retry" and not job.attempts:
            raise Retry(30)
        if what == "snooze" and timezone.now() == NOON + timedelta(seconds=DELAY):
            raise Snooze(30)
        return what

    options = {"max_attempts": 1, "backoff": BACKOFF, **MORE, **options}
    return delayed_task(name=f"tests.pairs.{name}", **options)(run_it)


def live(q: FrozenQueue, of: DelayedTask[..., Any]) -> None:
    """A job that succeeds, and one that dies."""
    of.schedule(DELAY, "succeed", token="a secret")
    of.schedule(DELAY, "fail", token="a secret")
    q.advance(minutes=10)


# One scenario a feature, by its name.

SCENARIOS: dict[str, Callable[[FrozenQueue], None]] = {}


def scenario(name: str) -> Callable[[Callable[[FrozenQueue], None]], Any]:
    def add(play: Callable[[FrozenQueue], None]) -> Callable[[FrozenQueue], None]:
        SCENARIOS[name] = play
        return play

    return add


def plain(q: FrozenQueue) -> None:
    """Jobs with a delay and no feature."""
    of = task("plain")
    live(q, of)
    # By now the server may forget how they ended.
    live(q, of)


@scenario("delay")
def _delay(q: FrozenQueue) -> None:
    task("delay").schedule(5)
    q.advance(minutes=1)


@scenario("retry")
def _retry(q: FrozenQueue) -> None:
    retried = task("retry", max_attempts=2)
    for what in ("fail", "fail once", "retry"):
        retried.schedule(DELAY, what)
    q.advance(minutes=10)


@scenario("snooze")
def _snooze(q: FrozenQueue) -> None:
    task("snooze").schedule(DELAY, "snooze")
    q.advance(minutes=10)


@scenario("priority")
def _priority(q: FrozenQueue) -> None:
    live(q, task("priority", priority=10))


def limited(q: FrozenQueue, limit: str) -> None:
    of = task("limited", **FEATURES[limit].task)
    for _ in range(2):
        of.schedule(DELAY)
    # With a spread start, too.
    pass_by(q, seconds=2 * DELAY)
    q._states()[0].upkeep.begin()
    leased = hold_up(q)
    q.run_due()
    let_go(q, leased)
    q.advance(minutes=10)
    live(q, of)


@scenario("limit of a task")
def _limit_of_task(q: FrozenQueue) -> None:
    limited(q, "limit of a task")


@scenario("limit of a key")
def _limit_of_key(q: FrozenQueue) -> None:
    limited(q, "limit of a key")


@scenario("rate of a task")
def _rate(q: FrozenQueue) -> None:
    limited(q, "rate of a task")


@scenario("limit of a queue")
def _limit_of_queue(q: FrozenQueue) -> None:
    of = task("limit of queue")
    for _ in range(3):
        of.schedule(DELAY)
    # With a spread start, too.
    pass_by(q, seconds=2 * DELAY)
    leased = hold_up(q)
    q.run_due()
    let_go(q, leased)
    q.advance(minutes=10)
    live(q, of)


@scenario("pause")
def _pause(q: FrozenQueue) -> None:
    of = task("paused")
    for what in ({"queue": "default"}, {"task": of}):
        of.schedule(DELAY)
        pause(**what)
        q.advance(minutes=2)
        resume(**what)
        q.advance(minutes=2)


def unique(q: FrozenQueue, **options: Any) -> None:
    of = task("unique", unique=("what",), **options)
    of.schedule(DELAY, "succeed", token="first")
    of.schedule(DELAY + 5, "succeed", token="second")
    of.schedule(DELAY - 5, "succeed", token="third")
    pass_by(q, seconds=DELAY + 5)
    leased = hold_up(q)
    of.schedule(DELAY, "succeed", token="fourth")
    let_go(q, leased)
    q.advance(minutes=10)
    live(q, of)


@scenario("unique, keep")
def _keep(q: FrozenQueue) -> None:
    unique(q)


@scenario("unique, replace")
def _replace(q: FrozenQueue) -> None:
    unique(q, on_duplicate="replace")


@scenario("unique, postpone")
def _postpone(q: FrozenQueue) -> None:
    unique(q, on_duplicate="postpone", max_wait=3600)


@scenario("unique, sooner")
def _sooner(q: FrozenQueue) -> None:
    unique(q, on_duplicate="sooner")


@scenario("unique until start")
def _until_start(q: FrozenQueue) -> None:
    unique(q, unique_until="start")


@scenario("expires")
def _expires(q: FrozenQueue) -> None:
    for on_expiry in ("drop", "dead"):
        of = task(f"expires {on_expiry}", expires=30, on_expiry=on_expiry)
        live(q, of)
        of.schedule(DELAY)
        pass_by(q, minutes=5)
        q.run_due()


@scenario("spread")
def _spread(q: FrozenQueue) -> None:
    live(q, task("spread", spread=60))


@scenario("then")
def _then(q: FrozenQueue) -> None:
    first, next_ = task("first"), task("next")
    for queue in ("default", "other"):
        for what in ("succeed", "fail"):
            follower = next_.using(queue=queue).prepare(DELAY)
            schedule(first.prepare(DELAY, what).then(follower))
    q.advance(minutes=10)


@scenario("on_dead")
def _on_dead(q: FrozenQueue) -> None:
    first, next_ = task("first"), task("next")
    for queue in ("default", "other"):
        for what in ("succeed", "fail"):
            follower = next_.using(queue=queue).prepare(DELAY)
            schedule(first.prepare(DELAY, what).on_dead(follower))
    q.advance(minutes=10)


@scenario("batch")
def _batch(q: FrozenQueue) -> None:
    of = task("in batch")
    batch = Batch(of.prepare(DELAY))
    batch.schedule([of.prepare(DELAY, what) for what in ("succeed", "fail")])
    q.advance(minutes=10)


@scenario("once")
def _once(q: FrozenQueue) -> None:
    live(q, task("once", once=True))


@scenario("outbox")
def _outbox(q: FrozenQueue) -> None:
    of = task("outbox", outbox=True)
    with transaction.atomic():
        of.schedule(DELAY)
        of.schedule(DELAY, "fail")
    for _ in Relay("default").sweep(fresh_ms=0):
        pass
    q.advance(minutes=10)


def scheduled(q: FrozenQueue, **options: Any) -> None:
    periodic(every(60), **options)(task("periodic"))
    q.advance(minutes=3)
    pass_by(q, minutes=5)
    q.advance(minutes=3)


@scenario("catch_up none")
def _catch_up_none(q: FrozenQueue) -> None:
    scheduled(q, catch_up="none")


@scenario("catch_up one")
def _catch_up_one(q: FrozenQueue) -> None:
    scheduled(q, catch_up="one")


@scenario("catch_up all")
def _catch_up_all(q: FrozenQueue) -> None:
    scheduled(q, catch_up="all")


@scenario("overlap=False")
def _overlap(q: FrozenQueue) -> None:
    for catch_up in ("one", "all"):
        periodic(every(60), catch_up=catch_up, overlap=False)(
            task(f"periodic {catch_up}")
        )
    q.advance(minutes=3)
    pass_by(q, minutes=1)
    leased = hold_up(q)
    q.advance(minutes=2)
    let_go(q, leased)
    q.advance(minutes=10)


@scenario("durable")
def _durable(q: FrozenQueue) -> None:
    live(q, task("durable", durable=1))


@scenario("keep_result")
def _keep_result(q: FrozenQueue) -> None:
    live(q, task("keeps result", keep_result=60))


@scenario("KEEP_ENDED")
def _keep_ended(q: FrozenQueue) -> None:
    live(q, task("remembered"))


@scenario("MAX_JOBS")
def _max_jobs(q: FrozenQueue) -> None:
    of = task("one of few")
    live(q, of)
    for _ in range(2):
        of.schedule(DELAY)
    with pytest.raises(QueueFull):
        of.schedule(DELAY)
    q.advance(minutes=10)


@scenario("sensitive")
def _sensitive(q: FrozenQueue) -> None:
    live(q, task("sensitive", sensitive=("token",)))


@scenario("encrypt")
def _encrypt(q: FrozenQueue) -> None:
    live(q, task("encrypted", encrypt=True))


@scenario("REDISSON")
def _redisson(q: FrozenQueue) -> None:
    live(q, task("shared"))


@scenario("bulk changes")
def _bulk(q: FrozenQueue) -> None:
    of = task("many")

    def some(what: str = "succeed") -> Any:
        for _ in range(2):
            of.schedule(DELAY, what)
        return find_jobs(queue="default", task=of)

    some().cancel()
    some().reschedule(90)
    some().run_now()
    q.run_due()
    found = some("fail")
    q.advance(minutes=2)
    found.retry()
    q.run_due()
    found.discard()


#: Settings of the queue that a scenario needs and that are not in `FEATURES`.
QUEUES: dict[str, dict[str, Any]] = {
    "limit of a queue": {"CONCURRENCY": 1, "RATE": "1/s burst 1"},
    "MAX_JOBS": {"MAX_JOBS": 2},
}
PERIODIC = frozenset({"catch_up none", "catch_up one", "catch_up all", "overlap=False"})


@pytest.fixture(autouse=True)
def _ready(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    monkeypatch.setattr(prepare.secrets, "randbelow", lambda most: most - 1)


def touches_of(
    name: str,
    settings: Any,
    spoilt: dict[str, bytes] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> set[str]:
    """Play the scenario of a feature, or the plain one; return what it touches. ``more`` are settings of the queue."""
    queue = QUEUES.get(name, FEATURES[name].queue if name else {})
    settings.DELAYQ = {
        "QUEUES": {
            "default": {"KEEP_ENDED": 0, **more, **queue},
            "other": {"KEEP_ENDED": 0},
        },
        "OUTBOX_KEEP": 0,
    }
    with (
        registered(),
        frozen_queue(now=NOON, leave_due=True, periodic=name in PERIODIC) as q,
        recorded(["default", "other"], spoilt=spoilt) as touches,
    ):
        SCENARIOS.get(name, plain)(q)
    return touches.all


def touches_alone(name: str, settings: Any) -> frozenset[str]:
    """Do as `touches_of` for a scenario alone. It is the same each time, so a process plays it once."""
    if name not in _alone:
        _alone[name] = frozenset(touches_of(name, settings))
    return _alone[name]


_alone: dict[str, frozenset[str]] = {}


@contextmanager
def registered() -> Iterator[None]:
    """Forget the tasks of a scenario: another one makes some of the same names."""
    before = dict(registry._tasks)
    try:
        yield
    finally:
        registry._tasks.clear()
        registry._tasks.update(before)


def by_resource(touches: Set[str]) -> dict[str, list[str]]:
    """Return touches by what they belong to."""
    return {
        resource: sorted(touch for touch in touches if resource in resources_of(touch))
        for resource in frozenset().union(*map(resources_of, touches))
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", FEATURES)
def test_feature_touches_what_it_declares(name: str, settings: Any) -> None:
    beyond = touches_alone(name, settings) - touches_alone("", settings)

    touched = by_resource(beyond)

    assert touched.keys() == FEATURES[name].touches, touched


@pytest.mark.django_db(transaction=True)
def test_plain_jobs_touch_no_more_than_this(settings: Any) -> None:
    touched = by_resource(touches_of("", settings))

    assert touched.keys() == PLAIN, touched


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("played", "added"),
    [
        pytest.param(played, added, id=f"{played} + {added}")
        for pair in sorted(map(sorted, DISJOINT))
        for played, added in (pair, pair[::-1])
        if FEATURES[added].task or FEATURES[added].queue
    ],
)
def test_features_that_share_nothing_do_not_meet(
    played: str, added: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they touch what each of them touches alone."""
    alone = touches_alone("", settings)
    for name in (played, added):
        alone |= touches_alone(name, settings)

    monkeypatch.setitem(globals(), "MORE", FEATURES[added].task)
    together = touches_of(played, settings, more=FEATURES[added].queue)

    assert by_resource(together - alone).keys() == set()


def test_every_feature_has_a_scenario() -> None:
    assert SCENARIOS.keys() == FEATURES.keys()


# What the tests above notice.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("name", "script"), [("retry", "retry"), ("", "acknowledge"), ("", "store")]
)
@pytest.mark.parametrize(
    ("command", "resource"),
    [
        (b"redis.call('HGET', 'delayq_unique:{default}', 'a')", "key"),
        (b"redis.call('ZADD', 'delayq_periods:{default}', 1, 'a')", "schedule"),
    ],
)
def test_script_that_touches_a_foreign_key_is_noticed(
    name: str, script: str, command: bytes, resource: str, settings: Any
) -> None:
    touched = by_resource(touches_of(name, settings, {script: command + b"\n"}))

    (found,) = touched[resource]

    assert found.endswith(f" in {script}")


@pytest.mark.django_db(transaction=True)
def test_key_that_belongs_to_nothing_is_noticed(settings: Any) -> None:
    command = b"redis.call('HSET', 'delayq_control:{default}', 'new', 1)\n"

    touches = touches_of("", settings, {"acknowledge": command})

    with pytest.raises(KeyError, match=r"w control\.new in acknowledge"):
        by_resource(touches)
