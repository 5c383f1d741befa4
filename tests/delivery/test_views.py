"""Pages and counts of a queue, and the sweep of what Java has taken."""

import pytest

from django_delayq.delivery import looking, tending
from django_delayq.delivery.looking import PREVIEW_BYTES, Counts, Page, PageRow
from django_delayq.delivery.states import State
from django_delayq.delivery.tending import Swept
from django_delayq.wire.frame import FrameFormat
from tests.delivery.bench import LEASE, T0, Bench, name_in, payload, token


def page(bench: Bench, state: State, **options: int) -> Page:
    return bench.run(looking.page(bench.keys, state, **options))


def names(found: Page) -> list[str]:
    return [name_in(row.payload) for row in found.rows]


# Pages.


def test_page_of_what_waits_is_in_the_order_of_start_times(any_bench: Bench) -> None:
    bench = any_bench
    bench.schedule({"c": 30, "a": 10, "b": 20})

    found = page(bench, State.SCHEDULED)

    assert found == Page(
        3,
        [
            PageRow(token(name), T0 + due, 0, 0, payload(name), len(payload(name)), b"")
            for name, due in (("a", 10), ("b", 20), ("c", 30))
        ],
    )


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_page_names_foreign_elements_by_their_frames(
    bench: Bench, frame_format: FrameFormat
) -> None:
    bench.java_offer("x", 10, frame_format=frame_format, random_id=b"\0\xffabcdef")

    (row,) = page(bench, State.SCHEDULED).rows

    kind = 1 if frame_format is FrameFormat.DLC0 else 2
    assert row.token == f"f{kind}-{T0 + 10}-00ff616263646566"
    assert (row.payload, row.score_ms) == (b"x", T0 + 10)


def test_page_shows_a_bad_frame_whole_and_without_a_token(bench: Bench) -> None:
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad": T0 + 5})
    bench.is_checked = False

    (row,) = page(bench, State.SCHEDULED).rows

    assert (row.token, row.payload) == ("", b"bad")


def test_page_shows_a_score_that_java_made_fractional(bench: Bench) -> None:
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad": T0 + 5.5})
    bench.is_checked = False

    (row,) = page(bench, State.SCHEDULED).rows

    assert row.score_ms == T0 + 5


def test_page_of_the_destination_queue_is_in_its_order_without_times(
    bench: Bench,
) -> None:
    bench.lay("a")
    bench.client.rpush(bench.keys.queue.destination, b"x")

    assert page(bench, State.DUE) == Page(
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
    bench: Bench, state: State, score: int
) -> None:
    bench.schedule({"a": 0})
    bench.retry(bench.lease(), wait=0, error=b'{"error":"e"}')
    job = bench.lease()
    if state is State.RETRYING:
        bench.retry(job, error=b'{"error":"e"}')
    elif state is not State.RUNNING:
        bench.bury(job, state=state)

    found = page(bench, state)

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
    bench: Bench, state: State, newest: bool
) -> None:
    for n in range(12):
        bench.schedule({f"j{n:02}": 0 if state is not State.SCHEDULED else n})
        if state is not State.SCHEDULED:
            bench.now = n
            job = bench.lease()
            if state is State.RETRYING:
                bench.retry(job)
            elif state is State.DEAD:
                bench.bury(job)

    found = [
        page(bench, state, first=n, count=5, newest=newest) for n in (0, 5, 10, 15)
    ]

    assert [len(part.rows) for part in found] == [5, 5, 2, 0]
    assert {part.total for part in found} == {12}
    together = [name for part in found for name in names(part)]
    assert together == sorted(together, reverse=newest)
    assert len(set(together)) == 12


@pytest.mark.parametrize(
    "state", [State.SCHEDULED, State.DUE, State.RUNNING, State.DEAD]
)
def test_page_cuts_payloads_and_tells_their_size(bench: Bench, state: State) -> None:
    bench.schedule({"a": 0}, size=100_000)
    if state is State.DUE:
        bench.transfer()
    elif state is not State.SCHEDULED:
        job = bench.lease()
        if state is State.DEAD:
            bench.bury(job)

    (row,) = page(bench, state).rows

    assert (len(row.payload), row.payload_size) == (PREVIEW_BYTES, 100_000)
    assert row.token == token("a")


@pytest.mark.parametrize("state", [State.SCHEDULED, State.DUE, State.RUNNING])
def test_page_of_megabytes_ends_early_and_goes_on_where_it_ended(
    bench: Bench, state: State
) -> None:
    for n in range(12):
        bench.schedule({f"j{n:02}": 0}, size=1 << 20)
    if state is State.DUE:
        bench.transfer(100, byte_budget=1 << 30)
    elif state is State.RUNNING:
        bench.claim(100, byte_budget=1 << 30)

    got: list[str] = []
    while len(got) < 12:
        found = page(bench, state, first=len(got), count=50)
        assert found.total == 12
        assert 1 <= len(found.rows) <= 8
        got += names(found)

    assert got == [f"j{n:02}" for n in range(12)]


def test_page_of_nothing_is_empty(bench: Bench) -> None:
    for state in looking.PAGES:
        assert page(bench, state) == Page(0, [])


def test_page_shows_a_token_whose_job_is_gone(bench: Bench) -> None:
    bench.client.zadd(bench.keys.dead, {token("a"): T0})
    bench.is_checked = False

    assert page(bench, State.DEAD).rows == [PageRow(token("a"), T0, 0, 0, b"", 0, b"")]


# Counts.


def test_counts_of_every_part(bench: Bench) -> None:
    bench.schedule({f"j{n}": 0 for n in range(10)})
    jobs = bench.claim(10).jobs
    bench.retry(*jobs[:2])
    bench.bury(*jobs[2:5])
    bench.bury(jobs[5], state=State.QUARANTINED)
    bench.acknowledge(jobs[6], jobs[7])
    bench.schedule({"due": 0, "next": 50, "later": 90})
    bench.schedule({"flat": 70}, insertion_list=False)
    bench.cancel("later")
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y")
    bench.now = 0.999

    assert bench.run(looking.counts(bench.keys, now_us=bench.now_us)) == Counts(
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
    )


def test_job_given_back_before_its_first_attempt_is_due_and_counted_so(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 5, "later": 50, "failed": 3})
    bench.now = 5
    a, failed, b = bench.claim().jobs
    bench.retry(failed, wait=0)
    bench.give_back(a, b)
    bench.now = 2

    counts = bench.run(looking.counts(bench.keys, now_us=bench.now_us))

    assert (counts.waiting, counts.due, counts.returned) == (3, 1, 2)
    assert (counts.retrying, counts.next_ms) == (1, T0)
    assert names(page(bench, State.SCHEDULED)) == ["a", "b", "later"]
    assert names(page(bench, State.SCHEDULED, newest=True)) == ["later", "b", "a"]
    assert names(page(bench, State.RETRYING)) == ["failed"]
    states = [bench.inspect(name).state for name in ("a", "b", "later", "failed")]
    assert states == ["due", "scheduled", "scheduled", "retrying"]


def test_job_moved_or_replayed_before_its_first_attempt_is_no_retry(
    bench: Bench,
) -> None:
    bench.schedule({"moved": 0, "replayed": 0, "died": 0})
    moved, replayed, _ = bench.claim().jobs
    bench.give_back(moved)
    bench.bury(replayed)
    bench.reschedule("moved", 70)
    bench.replay("replayed", when="+60")
    bench.now = LEASE
    (died,) = bench.claim(1).jobs
    bench.give_back(died)
    bench.reschedule("died", 90)

    counts = bench.run(looking.counts(bench.keys, now_us=bench.now_us))

    assert (counts.waiting, counts.due, counts.next_ms) == (2, 2, T0 + 60)
    assert counts.retrying == 1
    assert names(page(bench, State.SCHEDULED)) == ["replayed", "moved"]
    assert bench.inspect("died").state is State.RETRYING
    assert bench.inspect("died").kills == 1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pages_go_from_what_was_returned_on_to_the_frames(
    bench: Bench, count: int
) -> None:
    bench.schedule({f"r{n}": 0 for n in range(3)})
    bench.give_back(*bench.claim().jobs)
    bench.schedule({f"w{n}": 10 + n for n in range(4)})

    got: list[str] = []
    while len(got) < 7:
        found = page(bench, State.SCHEDULED, first=len(got), count=count)
        assert found.total == 7
        got += names(found)

    assert got == ["r0", "r1", "r2", "w0", "w1", "w2", "w3"]


def test_counts_of_an_empty_queue(bench: Bench) -> None:
    found = bench.run(looking.counts(bench.keys, now_us=bench.now_us))

    assert found[:10] == (0,) * 10
    assert found.next_ms is None
    assert found.counters == {"offered": 0}


# Sweep.


def sweep_all(bench: Bench, count: int = 100) -> int:
    forgotten = cursor = 0
    while True:
        swept = bench.run(tending.sweep(bench.keys, cursor=cursor, count=count))
        forgotten, cursor = forgotten + swept.forgotten, swept.cursor
        if cursor == 0:
            return forgotten


@pytest.mark.parametrize("count", [20, 3_000])
def test_sweep_forgets_what_java_took_and_nothing_else(
    any_bench: Bench, count: int
) -> None:
    bench = any_bench
    for start in range(0, count, 500):
        waits = {f"j{n}": n for n in range(start, min(start + 500, count))}
        bench.schedule(waits)
    bench.schedule({"held": 5}, unique="ek")
    bench.now = count // 2
    while bench.java_transfer():
        pass
    while bench.client.llen(bench.keys.queue.destination) > 3:
        bench.client.lpop(bench.keys.queue.destination, 5)
    left = bench.client.llen(bench.keys.queue.destination)
    waiting = bench.client.zcard(bench.keys.queue.timeout_set)

    forgotten = sweep_all(bench)

    assert forgotten == count + 1 - left - waiting
    state = bench.state()
    assert len(state["locators"]) == left + waiting
    assert "unique" not in state


def test_sweep_of_a_queue_with_nothing_to_forget_changes_nothing(
    any_bench: Bench,
) -> None:
    bench = any_bench
    bench.schedule({"a": 5, "b": 0}, unique="")
    bench.schedule({"c": 0}, unique="ek")
    bench.transfer(1)
    before = bench.state()

    assert sweep_all(bench) == 0

    assert bench.state() == before
    assert sweep_all(Bench(bench.client, bench.keys.queue.name + "-2")) == 0


def test_sweep_waits_while_the_destination_queue_is_too_long_to_be_searched(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0})
    bench.java_transfer()
    bench.java_take()
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_001)

    assert bench.run(tending.sweep(bench.keys)).forgotten == 0
    bench.client.ltrim(bench.keys.queue.destination, 0, 999)

    assert bench.run(tending.sweep(bench.keys)) == Swept(0, 1)


def test_sweep_does_not_look_through_gigabytes(bench: Bench) -> None:
    """A thousand payloads of a megabyte would hold the server for seconds."""
    bench.schedule({"a": 0})
    bench.java_transfer()
    for _ in range(8):
        bench.client.rpush(bench.keys.queue.destination, *[b"x" * (1 << 20)] * 5)
    bench.is_checked = False

    swept = bench.run(tending.sweep(bench.keys))

    assert swept == Swept(0, 0)
    assert bench.state()["locators"] == ["a"]
