"""Pages and counts of a queue, and the sweep of what Java has taken."""

import pytest

from django_delayq.core import queue_reads
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.queue_reads import PREVIEW_BYTES, Counts, Page, PageRow
from django_delayq.core.states import State
from django_delayq.core.sweep import Swept
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import LEASE, T0, Rig, name_in, payload, token
from tests.core.tour import follower


def page(rig: Rig, state: State, **options: int) -> Page:
    return rig.run(queue_reads.page(rig.keys, state, **options))


def names(found: Page) -> list[str]:
    return [name_in(row.payload) for row in found.rows]


# Pages.


def test_page_of_what_waits_is_in_the_order_of_start_times(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"c": 30, "a": 10, "b": 20})

    found = page(rig, State.SCHEDULED)

    assert found == Page(
        3,
        [
            PageRow(token(name), T0 + due, 0, 0, payload(name), len(payload(name)), b"")
            for name, due in (("a", 10), ("b", 20), ("c", 30))
        ],
    )


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_page_names_foreign_elements_by_their_frames(
    rig: Rig, frame_format: FrameFormat
) -> None:
    rig.java_offer("x", 10, frame_format=frame_format, random_id=b"\0\xffabcdef")

    (row,) = page(rig, State.SCHEDULED).rows

    kind = 1 if frame_format is FrameFormat.DLC0 else 2
    assert row.token == f"f{kind}-{T0 + 10}-00ff616263646566"
    assert (row.payload, row.score_ms) == (b"x", T0 + 10)


def test_page_shows_a_bad_frame_whole_and_without_a_token(rig: Rig) -> None:
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 5})
    rig.is_checked = False

    (row,) = page(rig, State.SCHEDULED).rows

    assert (row.token, row.payload) == ("", b"bad")


def test_page_shows_a_score_that_java_made_fractional(rig: Rig) -> None:
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 5.5})
    rig.is_checked = False

    (row,) = page(rig, State.SCHEDULED).rows

    assert row.score_ms == T0 + 5


def test_page_of_the_destination_queue_is_in_its_order_without_times(
    rig: Rig,
) -> None:
    rig.lay("a")
    rig.client.rpush(rig.keys.queue.destination, b"x")

    assert page(rig, State.DUE) == Page(
        2,
        [
            PageRow(token("a"), None, 0, 0, payload("a"), len(payload("a")), b""),
            PageRow("", None, 0, 0, b"x", 1, b""),
        ],
    )


@pytest.mark.parametrize(
    ("state", "score"),
    [
        (State.RUNNING, LEASE),
        (State.RETRYING, 1_000),
        (State.DEAD, 0),
        (State.QUARANTINED, 0),
    ],
)
def test_page_of_our_sets_tells_attempts_kills_and_error(
    rig: Rig, state: State, score: int
) -> None:
    rig.schedule({"a": 0})
    rig.retry(rig.lease(), wait=0, error=b'{"error":"e"}')
    job = rig.lease()
    if state is State.RETRYING:
        rig.retry(job, error=b'{"error":"e"}')
    elif state is not State.RUNNING:
        rig.bury(job, state=state)

    found = page(rig, state)

    attempts = 1 if state is State.RUNNING else 2
    assert found.rows == [
        PageRow(
            token("a"),
            T0 + score,
            attempts,
            0,
            payload("a"),
            len(payload("a")),
            b'{"error":"e"}',
        )
    ]


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize(
    "state", [State.SCHEDULED, State.RUNNING, State.RETRYING, State.DEAD]
)
def test_pages_together_are_the_whole_from_either_end(
    rig: Rig, state: State, newest: bool
) -> None:
    for n in range(12):
        rig.schedule({f"j{n:02}": 0 if state is not State.SCHEDULED else n})
        if state is not State.SCHEDULED:
            rig.now = n
            job = rig.lease()
            if state is State.RETRYING:
                rig.retry(job)
            elif state is State.DEAD:
                rig.bury(job)

    found = [page(rig, state, first=n, count=5, newest=newest) for n in (0, 5, 10, 15)]

    assert [len(part.rows) for part in found] == [5, 5, 2, 0]
    assert {part.total for part in found} == {12}
    together = [name for part in found for name in names(part)]
    assert together == sorted(together, reverse=newest)
    assert len(set(together)) == 12


@pytest.mark.parametrize(
    "state", [State.SCHEDULED, State.DUE, State.RUNNING, State.DEAD]
)
def test_page_cuts_payloads_and_tells_their_size(rig: Rig, state: State) -> None:
    rig.schedule({"a": 0}, size=100_000)
    if state is State.DUE:
        rig.transfer()
    elif state is not State.SCHEDULED:
        job = rig.lease()
        if state is State.DEAD:
            rig.bury(job)

    (row,) = page(rig, state).rows

    assert (len(row.payload), row.payload_size) == (PREVIEW_BYTES, 100_000)
    assert row.token == token("a")


@pytest.mark.parametrize("state", [State.SCHEDULED, State.DUE, State.RUNNING])
def test_page_of_megabytes_ends_early_and_goes_on_where_it_ended(
    rig: Rig, state: State
) -> None:
    for n in range(12):
        rig.schedule({f"j{n:02}": 0}, size=1 << 20)
    if state is State.DUE:
        rig.transfer(100, byte_budget=1 << 30)
    elif state is State.RUNNING:
        rig.claim(100, byte_budget=1 << 30)

    got: list[str] = []
    while len(got) < 12:
        found = page(rig, state, first=len(got), count=50)
        assert found.total == 12
        assert 1 <= len(found.rows) <= 8
        got += names(found)

    assert got == [f"j{n:02}" for n in range(12)]


def test_page_of_nothing_is_empty(rig: Rig) -> None:
    for state in queue_reads.PAGES:
        assert page(rig, state) == Page(0, [])


def test_page_shows_a_token_whose_job_is_gone(rig: Rig) -> None:
    rig.client.zadd(rig.keys.dead, {token("a"): T0})
    rig.is_checked = False

    assert page(rig, State.DEAD).rows == [PageRow(token("a"), T0, 0, 0, b"", 0, b"")]


# Counts.


def test_counts_of_every_part(rig: Rig) -> None:
    rig.schedule({f"j{n}": 0 for n in range(10)})
    jobs = rig.claim(10).jobs
    rig.retry(*jobs[:2])
    rig.bury(*jobs[2:5])
    rig.bury(jobs[5], state=State.QUARANTINED)
    forwards = [(0, "other", follower("f")), (1, "other", follower("g"))]
    rig.acknowledge(jobs[6], jobs[7], forwards=forwards)
    rig.schedule({"due": 0, "next": 50, "later": 90})
    rig.schedule({"flat": 70}, insertion_list=False)
    rig.cancel("later")
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y")
    rig.now = 0.999

    assert rig.run(queue_reads.counts(rig.keys)) == Counts(
        waiting=3,
        due=1,
        returned=0,
        delay_queue=2,
        destination=2,
        running=2,
        retrying=2,
        held=0,
        dead=3,
        quarantined=1,
        next_ms=T0,
        now_ms=T0,
        counters={
            "offered": 14,
            "retried": 2,
            "dead": 3,
            "quarantined": 1,
            "succeeded": 2,
            "cancelled": 1,
        },
        forwards=2,
    )


def test_job_given_back_before_its_first_attempt_is_due_and_counted_so(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 5, "later": 50, "failed": 3})
    rig.now = 5
    a, failed, b = rig.claim().jobs
    rig.retry(failed, wait=0)
    rig.give_back(a, b)
    rig.now = 2

    counts = rig.run(queue_reads.counts(rig.keys))

    assert (counts.waiting, counts.due, counts.returned) == (3, 1, 2)
    assert (counts.retrying, counts.next_ms) == (1, T0)
    assert names(page(rig, State.SCHEDULED)) == ["a", "b", "later"]
    assert names(page(rig, State.SCHEDULED, newest=True)) == ["later", "b", "a"]
    assert names(page(rig, State.RETRYING)) == ["failed"]
    states = [rig.inspect(name).state for name in ("a", "b", "later", "failed")]
    assert states == ["due", "scheduled", "scheduled", "retrying"]


def test_job_moved_or_replayed_before_its_first_attempt_is_no_retry(
    rig: Rig,
) -> None:
    rig.schedule({"moved": 0, "replayed": 0, "died": 0})
    moved, replayed, _ = rig.claim().jobs
    rig.give_back(moved)
    rig.bury(replayed)
    rig.reschedule("moved", 70)
    rig.replay("replayed", when="+60")
    rig.now = LEASE
    (died,) = rig.claim(1).jobs
    rig.give_back(died)
    rig.reschedule("died", 90)

    counts = rig.run(queue_reads.counts(rig.keys))

    assert (counts.waiting, counts.due, counts.next_ms) == (2, 2, T0 + 60)
    assert counts.retrying == 1
    assert names(page(rig, State.SCHEDULED)) == ["replayed", "moved"]
    assert rig.inspect("died").state is State.RETRYING
    assert rig.inspect("died").kills == 1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pages_go_from_what_was_returned_on_to_the_frames(rig: Rig, count: int) -> None:
    rig.schedule({f"r{n}": 0 for n in range(3)})
    rig.give_back(*rig.claim().jobs)
    rig.schedule({f"w{n}": 10 + n for n in range(4)})

    got: list[str] = []
    while len(got) < 7:
        found = page(rig, State.SCHEDULED, first=len(got), count=count)
        assert found.total == 7
        got += names(found)

    assert got == ["r0", "r1", "r2", "w0", "w1", "w2", "w3"]


def test_counts_of_an_empty_queue(rig: Rig) -> None:
    found = rig.run(queue_reads.counts(rig.keys))

    assert found[:10] == (0,) * 10
    assert found.next_ms is None
    assert found.counters == {"offered": 0}


# Sweep.


def sweep_all(rig: Rig, count: int = 100) -> int:
    forgotten = cursor = 0
    while True:
        swept = rig.run(sweep_calls.sweep(rig.keys, cursor=cursor, count=count))
        forgotten, cursor = forgotten + swept.forgotten, swept.cursor
        if cursor == 0:
            return forgotten


@pytest.mark.parametrize("count", [20, 3_000])
def test_sweep_forgets_what_java_took_and_nothing_else(
    any_rig: Rig, count: int
) -> None:
    rig = any_rig
    for start in range(0, count, 500):
        waits = {f"j{n}": n for n in range(start, min(start + 500, count))}
        rig.schedule(waits)
    rig.schedule({"held": 5}, unique="ek")
    rig.now = count // 2
    while rig.java_transfer():
        pass
    while rig.client.llen(rig.keys.queue.destination) > 3:
        rig.client.lpop(rig.keys.queue.destination, 5)
    left = rig.client.llen(rig.keys.queue.destination)
    waiting = rig.client.zcard(rig.keys.queue.timeout_set)

    forgotten = sweep_all(rig)

    assert forgotten == count + 1 - left - waiting
    state = rig.state()
    assert len(state["locators"]) == left + waiting
    assert "unique" not in state


def test_sweep_of_a_queue_with_nothing_to_forget_changes_nothing(
    any_rig: Rig,
) -> None:
    rig = any_rig
    rig.schedule({"a": 5, "b": 0}, unique="")
    rig.schedule({"c": 0}, unique="ek")
    rig.transfer(1)
    before = rig.state()

    assert sweep_all(rig) == 0

    assert rig.state() == before
    assert sweep_all(Rig(rig.client, rig.keys.queue.name + "-2")) == 0


def test_sweep_waits_while_the_destination_queue_is_too_long_to_be_searched(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0})
    rig.java_transfer()
    rig.java_take()
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_001)

    assert rig.run(sweep_calls.sweep(rig.keys)).forgotten == 0
    rig.client.ltrim(rig.keys.queue.destination, 0, 999)

    assert rig.run(sweep_calls.sweep(rig.keys)) == Swept(0, 1)


def test_sweep_does_not_look_through_gigabytes(rig: Rig) -> None:
    """A thousand payloads of a megabyte would hold the server for seconds."""
    rig.schedule({"a": 0})
    rig.java_transfer()
    for _ in range(8):
        rig.client.rpush(rig.keys.queue.destination, *[b"x" * (1 << 20)] * 5)
    rig.is_checked = False

    swept = rig.run(sweep_calls.sweep(rig.keys))

    assert swept == Swept(0, 0)
    assert rig.state()["locators"] == ["a"]
