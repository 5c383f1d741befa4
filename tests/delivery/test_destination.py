"""The destination queue, shared with Java: transfers into it, claims from it, and what was noted meanwhile."""

import pytest

from django_delayq.delivery import looking
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import State
from django_delayq.queues import scripts
from django_delayq.wire.frame import FrameFormat, unpack
from tests.delivery.bench import LEASE, T0, Bench, name_in, names_of, payload, token

# Transfer.


@pytest.mark.parametrize(
    ("now", "batch", "moved", "wait_us"),
    [
        (9, 10, [], 1_000),
        (9.999, 10, [], 1),
        (10, 10, ["a"], 10_000),
        (20, 1, ["a"], 0),
        (20, 2, ["a", "b"], 10_000),
        (30, 10, ["a", "b", "c"], -1),
    ],
)
def test_transfer_moves_what_is_due_in_order(
    bench: Bench, now: float, batch: int, moved: list[str], wait_us: int
) -> None:
    bench.schedule({"c": 30, "a": 10, "b": 20})
    bench.now = now

    assert bench.transfer(batch) == (len(moved), wait_us)

    state = bench.state()
    assert state.get("destination", []) == moved
    assert state.get("delay_queue", []) == [n for n in "cab" if n not in moved]


def test_transfer_asked_for_more_than_lua_can_unpack_loses_none(bench: Bench) -> None:
    for part in range(9):
        bench.schedule({f"j{part}-{n}": 0 for n in range(500)})

    moved = 0
    while moved < 4_500:
        moved += bench.transfer(9_000).moved

    assert len(bench.state()["destination"]) == 4_500


def test_transfer_moves_payloads_as_they_are(any_bench: Bench) -> None:
    bench = any_bench
    bodies = [b"", b"\0", bytes(range(256))]
    for body in bodies:
        bench.java_offer(body, 0)
    bench.schedule({"a": 1})
    bench.now = 1

    bench.transfer()

    assert bench.client.lrange(bench.keys.queue.destination, 0, -1) == [
        *bodies,
        payload("a"),
    ]


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED, None])
def test_frame_that_is_both_is_read_as_the_queues_format(
    any_bench: Bench, mode: Mode | None
) -> None:
    """Seventeen bytes: nothing in one format, one zero byte in the other."""
    bench = any_bench
    is_old = bench.frame_format is FrameFormat.DLC0
    body, random_id = (b"\0", b"\x08abcdefg") if is_old else (b"", b"abcdefg\x01")
    frame = bench.java_offer(body, 0, random_id=random_id)
    other = FrameFormat.BC0LC0 if is_old else FrameFormat.DLC0
    assert unpack(frame, prefer=other).payload != body

    if mode is None:
        bench.transfer()
        assert bench.client.lrange(bench.keys.queue.destination, 0, -1) == [body]
        return
    jobs = bench.claim(mode=mode).jobs or bench.claim(mode=mode).jobs
    assert [job.payload for job in jobs] == [body]


def test_transfer_keeps_to_its_bytes(bench: Bench) -> None:
    for n in range(20):
        bench.java_offer(b"%d" % n + b"." * (1 << 20), 0)

    moved = bench.transfer(100)

    assert 1 <= moved.moved <= 8
    assert moved.wait_us == 0


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_java_transfers_what_we_scheduled(
    bench: Bench, frame_format: FrameFormat
) -> None:
    bench.frame_format = frame_format
    bench.schedule({"a": 1, "b": 2})
    bench.schedule({"c": 3}, insertion_list=False)
    bench.now = 5

    assert bench.java_transfer() == 3

    assert [bench.java_take() for _ in range(4)] == ["a", "b", "c", None]
    assert bench.frames() == []
    bench.is_checked = False  # the locators wait for the sweep


def test_bad_frame_does_not_stop_a_transfer(bench: Bench) -> None:
    bench.schedule({"a": 1, "b": 3})
    bench.client.zadd(bench.keys.queue.timeout_set, {b"bad": T0 + 2})
    bench.now = 3

    assert bench.transfer() == (3, -1)

    assert bench.state()["destination"] == ["a", "b"]
    assert bench.state()["quarantine"] == {"bad": 3}


# Claims on a shared queue.


def test_shared_claim_transfers_what_is_due_and_leases_what_lay_there_before(
    bench: Bench,
) -> None:
    """Popping what the same script pushed would starve Java's blocked consumers."""
    bench.schedule({"a": 0, "b": 0})
    bench.client.rpush(bench.keys.queue.destination, b"x")

    first = bench.claim(mode=Mode.SHARED)

    assert (names_of(first), first.transferred, first.wait_us) == (["x"], 2, 0)
    assert bench.state()["destination"] == ["a", "b"]
    second = bench.claim(mode=Mode.SHARED)
    assert (names_of(second), second.transferred) == (["a", "b"], 0)
    assert bench.state() == {"leases": {"x": LEASE, "a": LEASE, "b": LEASE}}


def test_shared_claim_transfers_without_room_too(bench: Bench) -> None:
    bench.schedule({"a": 0, "b": 50})

    claimed = bench.claim(0, mode=Mode.SHARED)

    assert (claimed.jobs, claimed.transferred) == ([], 1)
    assert claimed.wait_us == 50_000
    assert bench.state()["destination"] == ["a"]


def test_shared_claim_transfers_up_to_its_limit(bench: Bench) -> None:
    bench.schedule({f"j{n}": 0 for n in range(30)})

    claimed = bench.claim(5, mode=Mode.SHARED, transfer_limit=12)

    assert (claimed.transferred, claimed.wait_us) == (12, 0)
    assert len(bench.state()["destination"]) == 12


def test_job_keeps_its_start_time_through_the_destination_queue(bench: Bench) -> None:
    bench.schedule({"a": 5})
    bench.now = 5
    bench.transfer()
    bench.now = 900

    assert bench.lease(mode=Mode.SHARED).start_time_ms == T0 + 5


def test_foreign_payload_in_the_destination_queue_was_due_when_it_was_found(
    bench: Bench,
) -> None:
    bench.now = 77.5
    bench.client.rpush(bench.keys.queue.destination, b"x")

    job = bench.lease()

    assert (job.start_time_ms, job.is_foreign) == (T0 + 77, True)


@pytest.mark.parametrize("mode", Mode)
def test_claim_takes_from_the_head_as_many_as_there_is_room_for(
    bench: Bench, mode: Mode
) -> None:
    bench.client.rpush(bench.keys.queue.destination, *[f"x{n}" for n in range(30)])

    assert names_of(bench.claim(3, mode=mode)) == ["x0", "x1", "x2"]
    assert names_of(bench.claim(20, mode=mode)) == [f"x{n}" for n in range(3, 23)]
    last = bench.claim(20, mode=mode)
    assert names_of(last) == [f"x{n}" for n in range(23, 30)]
    assert last.wait_us == LEASE * 1000


def test_direct_claim_takes_the_destination_queue_before_due_frames(
    bench: Bench,
) -> None:
    bench.schedule({"a": 0, "b": 0})
    bench.client.rpush(bench.keys.queue.destination, b"x", b"y")

    assert names_of(bench.claim(3)) == ["x", "y", "a"]


def test_claim_takes_few_payloads_of_a_megabyte_from_the_destination_queue(
    bench: Bench,
) -> None:
    for n in range(10):
        bench.client.rpush(bench.keys.queue.destination, b"%d" % n + b"." * (1 << 20))

    sizes = []
    while jobs := bench.claim(100, mode=Mode.TAKE).jobs:
        sizes.append(len(jobs))
        bench.acknowledge(*jobs)

    assert sizes == [1] * 10


@pytest.mark.parametrize("budget", [1_000, 2_500])
def test_what_is_beyond_the_budget_stays_at_the_head(bench: Bench, budget: int) -> None:
    bodies = [b"%d" % n + b"." * 999 for n in range(6)]
    bench.client.rpush(bench.keys.queue.destination, *bodies)

    got = []
    while jobs := bench.claim(mode=Mode.TAKE, byte_budget=budget).jobs:
        assert len(jobs) == -(-budget // 1_000)
        got += [job.payload for job in jobs]

    assert got == bodies


# A jammed Java delivers again.


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("life", ["leased", "retrying", "dead"])
def test_payload_whose_token_is_known_is_dropped_and_counted(
    bench: Bench, life: str, mode: Mode
) -> None:
    bench.schedule({"a": 0})
    bench.transfer()
    job = bench.lease(mode=Mode.SHARED)
    if life == "retrying":
        bench.retry(job)
    elif life == "dead":
        bench.bury(job)
    before = bench.state()
    bench.client.rpush(bench.keys.queue.destination, payload("a"), b"x", payload("a"))

    claimed = bench.claim(mode=mode)

    assert (names_of(claimed), claimed.doubles) == (["x"], 2)
    leases = before.get("leases", {}) | {"x": LEASE}
    assert bench.state() == before | {"leases": leases}
    assert bench.counters()["doubles"] == 2


def test_doubles_alone_are_dropped_too(bench: Bench) -> None:
    bench.schedule({"a": 0})
    bench.lease()
    bench.client.rpush(bench.keys.queue.destination, *[payload("a")] * 50)

    claimed = bench.claim(mode=Mode.SHARED)

    assert (claimed.jobs, claimed.doubles) == ([], 50)
    assert claimed.wait_us == LEASE * 1000
    assert "destination" not in bench.state()


@pytest.mark.parametrize("what", ["doubles", "cancelled", "moved"])
def test_thousands_that_fill_no_room_are_taken_in_bounded_calls(
    bench: Bench, what: str
) -> None:
    names = [f"j{n}" for n in range(9_000)]
    for i in range(0, len(names), 1000):
        bench.lay(*names[i : i + 1000])
    bench.client.rpush(bench.keys.queue.destination, b"last")
    if what == "doubles":
        ended = {token(name): (T0 - 5) * 8 + 1 for name in names}
        bench.client.zadd(bench.keys.ended, ended)
    else:
        note = "cancel" if what == "cancelled" else str(T0 + 50)
        bench.client.hset(
            bench.keys.notes, mapping={token(name): note for name in names}
        )

    sizes, got = [], []
    while (left := bench.client.llen(bench.keys.queue.destination)) > 0:
        claimed = bench.claim(mode=Mode.SHARED)
        got += names_of(claimed)
        sizes.append(left - bench.client.llen(bench.keys.queue.destination))

    assert got == ["last"]
    assert sizes == [2_000] * 4 + [1_001]
    assert len(bench.state().get("returned", {})) == (9_000 if what == "moved" else 0)


@pytest.mark.parametrize("what", ["doubles", "cancelled"])
def test_megabytes_that_fill_no_room_are_taken_in_small_calls(
    bench: Bench, what: str
) -> None:
    for n in range(20):
        bench.lay(f"j{n}", size=1 << 20)
        if what == "doubles":
            bench.client.zadd(bench.keys.ended, {token(f"j{n}"): T0 * 8 + 1})
        else:
            bench.client.hset(bench.keys.notes, token(f"j{n}"), "cancel")

    calls = 0
    while bench.client.llen(bench.keys.queue.destination) > 0:
        assert bench.claim(mode=Mode.SHARED).jobs == []
        calls += 1

    assert calls == 20


def test_payload_twice_in_the_destination_queue_is_leased_once(bench: Bench) -> None:
    bench.lay("a")
    bench.client.rpush(bench.keys.queue.destination, payload("a"))

    assert names_of(bench.claim(mode=Mode.TAKE)) == ["a"]


def test_redisson_jammed_by_a_frame_of_the_other_format_harms_none_of_our_jobs(
    bench: Bench,
) -> None:
    """It delivers what is due ahead of that frame again at every retry, until we have taken the frame."""
    bench.frame_format = FrameFormat.DLC0
    bench.schedule({"a": 1, "b": 2})
    bench.schedule({"c": 3}, frame_format=FrameFormat.BC0LC0)
    bench.now = 5
    for _ in range(3):
        with pytest.raises(Exception, match="unpack"):
            bench.java_transfer()
    assert bench.state()["destination"] == ["a", "b"] * 3

    first = bench.claim(mode=Mode.SHARED)
    second = bench.claim(mode=Mode.SHARED)

    assert names_of(first) == ["a", "b"]
    assert (names_of(second), second.doubles) == (["c"], 2)
    assert bench.acknowledge(*first.jobs, *second.jobs) == []
    assert bench.state() == {}


def test_foreign_elements_come_as_often_as_they_were_delivered(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x", b"x")

    assert names_of(bench.claim()) == ["x", "x"]


# Notes: jobs that lie deep in a long destination queue.


def bury_deep(bench: Bench, *names: str, unique: str = "") -> None:
    """Transfer jobs behind more payloads than a script searches."""
    bench.client.rpush(bench.keys.queue.destination, *["x"] * 1_000)
    bench.schedule(dict.fromkeys(names, 0), unique=unique)
    bench.transfer()


def claim_all(bench: Bench, mode: Mode) -> list[str]:
    names = []
    while jobs := bench.claim(500, mode=mode).jobs:
        names += [name_in(job.payload) for job in jobs]
        bench.acknowledge(*jobs)
    return [name for name in names if name != "x"]


@pytest.mark.parametrize("mode", Mode)
def test_job_noted_as_cancelled_does_not_run_and_frees_its_key(
    bench: Bench, mode: Mode
) -> None:
    bury_deep(bench, "a", unique="ek")
    bury_deep(bench, "b")

    assert bench.cancel("a") == "noted"
    assert bench.state()["notes"] == {"a": "cancel"}
    assert claim_all(bench, mode) == ["b"]

    assert bench.state() == {}
    assert bench.inspect("a").state is State.CANCELLED
    assert bench.counters()["cancelled"] == 1


def test_job_noted_as_moved_runs_at_its_new_time_with_its_first_attempt(
    bench: Bench,
) -> None:
    bury_deep(bench, "a", unique="ek")

    assert bench.reschedule("a", 700) == ("noted", 700)
    assert claim_all(bench, Mode.SHARED) == []

    assert bench.state() == {"returned": {"a": 700}, "unique": {"k": "a"}}
    bench.now = 699
    assert bench.claim().jobs == []
    bench.now = 700
    job = bench.lease()
    assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0 + 700)
    bench.acknowledge(job)
    assert bench.state() == {}


@pytest.mark.parametrize("mode", Mode)
def test_notes_are_kept_while_nobody_has_room(bench: Bench, mode: Mode) -> None:
    bury_deep(bench, "a")
    bench.cancel("a")

    bench.claim(0, mode=mode)

    assert bench.state()["notes"] == {"a": "cancel"}


def test_last_note_counts(bench: Bench) -> None:
    bury_deep(bench, "a", "b")
    bench.cancel("a")
    bench.reschedule("a", 50)
    bench.reschedule("b", 50)
    bench.cancel("b")

    assert claim_all(bench, Mode.SHARED) == []

    assert bench.state() == {"returned": {"a": 50}}


def test_note_about_a_job_that_java_took_is_forgotten_with_the_empty_queue(
    bench: Bench,
) -> None:
    bury_deep(bench, "a")
    bench.cancel("a")
    while bench.java_take():
        pass

    bench.claim(mode=Mode.SHARED)

    assert "notes" not in bench.state()
    bench.is_checked = False  # its locator waits for the sweep


@pytest.mark.parametrize("ahead", [999, 1_000])
def test_destination_queue_is_searched_to_the_thousandth_element(
    bench: Bench, ahead: int
) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["x"] * ahead)
    bench.schedule({"a": 0})
    bench.transfer()

    assert bench.cancel("a") == ("cancelled" if ahead < 1_000 else "noted")


def test_destination_queue_is_searched_through_a_megabyte_only(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, *["." * (1 << 19)] * 60)
    bench.schedule({"a": 0})
    bench.transfer()

    assert bench.cancel("a") == "noted"
    bench.is_checked = False  # too much to look through


# The same wire in other hands.


@pytest.mark.parametrize("mode", Mode)
def test_payload_that_moved_to_another_queue_runs_there(
    bench: Bench, mode: Mode
) -> None:
    """poll_last_and_offer_first_to: it has been signed for the other queue."""
    bench.schedule({"a": 0})
    other = Bench(bench.client, f"{bench.keys.queue.name}-other")
    call = scripts.withdraw(
        bench.keys,
        bench.frames(),
        request="once",
        depth=1,
        from_tail=True,
        target=other.keys,
        payload=payload("a", signature="for the other"),
        insertion_list=bench.insertion_list,
        now_us=bench.now_us,
    )
    assert bench.run(call) == [True]

    job = other.lease(mode=mode)

    assert (job.token, job.is_foreign) == (token("a"), False)
    assert other.acknowledge(job) == []
    assert other.state() == bench.state() == {}
    assert bench.inspect("a").state is State.TAKEN


@pytest.mark.parametrize("mode", Mode)
def test_job_behind_other_bytes_with_its_token_and_mac_is_no_double(
    bench: Bench, mode: Mode
) -> None:
    bench.schedule({"a": 0})
    bench.transfer()
    # Who can read the queue can write that.
    bench.client.lpush(bench.keys.queue.destination, payload("a", size=200))

    claimed = bench.claim(mode=mode)

    assert claimed.doubles == 0
    assert [job.payload for job in claimed.jobs] == [
        payload("a", size=200),
        payload("a"),
    ]
    # Python checks both, and runs the one that is signed.
    assert [job.is_foreign for job in claimed.jobs] == [False, True]
    bench.acknowledge(*claimed.jobs)


def test_bad_payload_is_no_matter_for_a_claim(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"", b"\xff\x00", b'{"delayq":"')

    claimed = bench.claim(mode=Mode.TAKE)

    assert [job.payload for job in claimed.jobs] == [b"", b"\xff\x00", b'{"delayq":"']
    assert all(job.is_foreign for job in claimed.jobs)
    assert len({job.token for job in claimed.jobs}) == 3


def test_tokens_of_foreign_payloads_are_never_the_same_twice(bench: Bench) -> None:
    tokens = set()
    for _ in range(50):
        bench.client.rpush(bench.keys.queue.destination, b"x", b"x")
        tokens |= {job.token for job in bench.claim().jobs}

    assert len(tokens) == 100


def test_counts_see_the_destination_queue(bench: Bench) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"x", b"x")

    counts = bench.run(looking.counts(bench.keys, now_us=bench.now_us))

    assert counts.destination == 2
