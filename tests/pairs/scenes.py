"""Other workers of a frozen queue, time without any, and a decorator that says which pair of features a test shows."""

from collections.abc import Callable
from datetime import timedelta

from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends
from django_delayq.core.claim import Mode
from django_delayq.testing.frozen import FrozenQueue
from django_delayq.transport.run import run
from django_delayq.worker.queue_state import QueueState
from tests.pairs.features import Pair

Test = Callable[..., None]


def hold_up(
    q: FrozenQueue, *, queue: str = "default", lease_ms: int = 600_000
) -> claim_calls.Leased:
    """Claim a job as another worker, so that it runs until `let_go`."""
    settings = get_settings().queues[queue]
    call = claim_calls.claim(
        settings.keys,
        owner=b"another-",
        request=b"request-",
        limit=1,
        lease_ms=lease_ms,
        mode=Mode.SHARED if settings.is_shared else Mode.DIRECT,
        limit_text=settings.limit_text,
    )
    # On a shared queue, the first claim transfers what the second one takes.
    reply = next(
        found for found in (run(q._client, call), run(q._client, call)) if found.jobs
    )
    if reply.limits is not None and reply.limits.has_slots:
        _state_of(q, queue).has_slots = True
    (leased,) = reply.jobs
    return leased


def let_go(q: FrozenQueue, leased: claim_calls.Leased) -> None:
    """Acknowledge such a job."""
    keys = get_settings().queues["default"].keys
    done = [lease_ends.Done(leased.token, leased.fence)]
    has_slots = _state_of(q, "default").has_slots
    assert run(q._client, lease_ends.acknowledge(keys, done, has_slots=has_slots)) == []


def _state_of(q: FrozenQueue, queue: str) -> QueueState:
    return next(each for each in q._states() if each.settings.name == queue)


def pass_by(q: FrozenQueue, **units: float) -> None:
    """Let time pass while no worker runs."""
    q._move_to(q._now_us + timedelta(**units) / timedelta(microseconds=1))


def showing(tests: dict[Pair, Test]) -> Callable[[str, str], Callable[[Test], Test]]:
    """Return a decorator that notes which pair of features a test shows."""

    def shows(one: str, other: str) -> Callable[[Test], Test]:
        def add(test: Test) -> Test:
            tests[frozenset({one, other})] = test
            return test

        return add

    return shows
