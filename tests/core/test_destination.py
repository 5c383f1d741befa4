"""The destination queue, shared with Java: transfers into it, claims from it, and notes about jobs in it."""

import pytest

from django_delayq.core import queue_reads
from django_delayq.core.claim import Mode
from django_delayq.core.states import State
from django_delayq.queues import queue_calls as queues_calls
from django_delayq.wire.frame import FrameFormat, unpack
from tests.core.rig import LEASE, T0, Rig, name_in, names_of, payload, token

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
    rig: Rig, now: float, batch: int, moved: list[str], wait_us: int
) -> None:
    rig.schedule({"c": 30, "a": 10, "b": 20})
    rig.now = now

    assert rig.transfer(batch) == (len(moved), wait_us)

    state = rig.state()
    assert state.get("destination", []) == moved
    assert state.get("delay_queue", []) == [n for n in "cab" if n not in moved]


def test_transfer_asked_for_more_than_lua_can_unpack_loses_none(rig: Rig) -> None:
    for part in range(9):
        rig.schedule({f"j{part}-{n}": 0 for n in range(500)})

    moved = 0
    while moved < 4_500:
        moved += rig.transfer(9_000).moved

    assert len(rig.state()["destination"]) == 4_500


def test_transfer_moves_payloads_as_they_are(any_rig: Rig) -> None:
    rig = any_rig
    bodies = [b"", b"\0", bytes(range(256))]
    for body in bodies:
        rig.java_offer(body, 0)
    rig.schedule({"a": 1})
    rig.now = 1

    rig.transfer()

    assert rig.client.lrange(rig.keys.queue.destination, 0, -1) == [
        *bodies,
        payload("a"),
    ]


@pytest.mark.parametrize("mode", [Mode.DIRECT, Mode.SHARED, None])
def test_frame_that_is_both_is_read_as_the_queues_format(
    any_rig: Rig, mode: Mode | None
) -> None:
    """Seventeen bytes are an empty payload in one format, and one zero byte in the other."""
    rig = any_rig
    is_old = rig.frame_format is FrameFormat.DLC0
    body, random_id = (b"\0", b"\x08abcdefg") if is_old else (b"", b"abcdefg\x01")
    frame = rig.java_offer(body, 0, random_id=random_id)
    other = FrameFormat.BC0LC0 if is_old else FrameFormat.DLC0
    assert unpack(frame, prefer=other).payload != body

    if mode is None:
        rig.transfer()
        assert rig.client.lrange(rig.keys.queue.destination, 0, -1) == [body]
        return
    jobs = rig.claim(mode=mode).jobs or rig.claim(mode=mode).jobs
    assert [job.payload for job in jobs] == [body]


def test_transfer_keeps_to_its_bytes(rig: Rig) -> None:
    for n in range(20):
        rig.java_offer(b"%d" % n + b"." * (1 << 20), 0)

    moved = rig.transfer(100)

    assert 1 <= moved.moved <= 8
    assert moved.wait_us == 0


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_java_transfers_what_we_scheduled(rig: Rig, frame_format: FrameFormat) -> None:
    rig.frame_format = frame_format
    rig.schedule({"a": 1, "b": 2})
    rig.schedule({"c": 3}, insertion_list=False)
    rig.now = 5

    assert rig.java_transfer() == 3

    assert [rig.java_take() for _ in range(4)] == ["a", "b", "c", None]
    assert rig.frames() == []
    rig.is_checked = False  # the locators wait for the sweep


def test_bad_frame_does_not_stop_a_transfer(rig: Rig) -> None:
    rig.schedule({"a": 1, "b": 3})
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 2})
    rig.now = 3

    assert rig.transfer() == (3, -1)

    assert rig.state()["destination"] == ["a", "b"]
    assert rig.state()["quarantine"] == {"bad": 3}


# Claims on a shared queue.


def test_shared_claim_transfers_what_is_due_and_leases_what_lay_there_before(
    rig: Rig,
) -> None:
    """Popping what the same script pushed would starve Java's blocked consumers."""
    rig.schedule({"a": 0, "b": 0})
    rig.client.rpush(rig.keys.queue.destination, b"x")

    first = rig.claim(mode=Mode.SHARED)

    assert (names_of(first), first.transferred, first.wait_us) == (["x"], 2, 0)
    assert rig.state()["destination"] == ["a", "b"]
    second = rig.claim(mode=Mode.SHARED)
    assert (names_of(second), second.transferred) == (["a", "b"], 0)
    assert rig.state() == {"leases": {"x": LEASE, "a": LEASE, "b": LEASE}}


def test_shared_claim_transfers_without_room_too(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 50})

    claimed = rig.claim(0, mode=Mode.SHARED)

    assert (claimed.jobs, claimed.transferred) == ([], 1)
    assert claimed.wait_us == 50_000
    assert rig.state()["destination"] == ["a"]


def test_shared_claim_transfers_up_to_its_limit(rig: Rig) -> None:
    rig.schedule({f"j{n}": 0 for n in range(30)})

    claimed = rig.claim(5, mode=Mode.SHARED, transfer_limit=12)

    assert (claimed.transferred, claimed.wait_us) == (12, 0)
    assert len(rig.state()["destination"]) == 12


def test_job_keeps_its_start_time_through_the_destination_queue(rig: Rig) -> None:
    rig.schedule({"a": 5})
    rig.now = 5
    rig.transfer()
    rig.now = 900

    assert rig.lease(mode=Mode.SHARED).start_time_ms == T0 + 5


def test_foreign_payload_in_the_destination_queue_was_due_when_it_was_found(
    rig: Rig,
) -> None:
    rig.now = 77.5
    rig.client.rpush(rig.keys.queue.destination, b"x")

    job = rig.lease()

    assert (job.start_time_ms, job.is_foreign) == (T0 + 77, True)


@pytest.mark.parametrize("mode", Mode)
def test_claim_takes_from_the_head_as_many_as_there_is_room_for(
    rig: Rig, mode: Mode
) -> None:
    rig.client.rpush(rig.keys.queue.destination, *[f"x{n}" for n in range(30)])

    assert names_of(rig.claim(3, mode=mode)) == ["x0", "x1", "x2"]
    assert names_of(rig.claim(20, mode=mode)) == [f"x{n}" for n in range(3, 23)]
    last = rig.claim(20, mode=mode)
    assert names_of(last) == [f"x{n}" for n in range(23, 30)]
    assert last.wait_us == LEASE * 1000


def test_direct_claim_takes_the_destination_queue_before_due_frames(
    rig: Rig,
) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.client.rpush(rig.keys.queue.destination, b"x", b"y")

    assert names_of(rig.claim(3)) == ["x", "y", "a"]


def test_claim_takes_few_payloads_of_a_megabyte_from_the_destination_queue(
    rig: Rig,
) -> None:
    for n in range(10):
        rig.client.rpush(rig.keys.queue.destination, b"%d" % n + b"." * (1 << 20))

    sizes = []
    while jobs := rig.claim(100, mode=Mode.TAKE).jobs:
        sizes.append(len(jobs))
        rig.acknowledge(*jobs)

    assert sizes == [1] * 10


@pytest.mark.parametrize("budget", [1_000, 2_500])
def test_what_is_beyond_the_budget_stays_at_the_head(rig: Rig, budget: int) -> None:
    bodies = [b"%d" % n + b"." * 999 for n in range(6)]
    rig.client.rpush(rig.keys.queue.destination, *bodies)

    got = []
    while jobs := rig.claim(mode=Mode.TAKE, byte_budget=budget).jobs:
        assert len(jobs) == -(-budget // 1_000)
        got += [job.payload for job in jobs]

    assert got == bodies


# A jammed Java delivers again.


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("life", ["leased", "retrying", "dead"])
def test_payload_whose_token_is_known_is_dropped_and_counted(
    rig: Rig, life: str, mode: Mode
) -> None:
    rig.schedule({"a": 0})
    rig.transfer()
    job = rig.lease(mode=Mode.SHARED)
    if life == "retrying":
        rig.retry(job)
    elif life == "dead":
        rig.bury(job)
    before = rig.state()
    rig.client.rpush(rig.keys.queue.destination, payload("a"), b"x", payload("a"))

    claimed = rig.claim(mode=mode)

    assert (names_of(claimed), claimed.doubles) == (["x"], 2)
    leases = before.get("leases", {}) | {"x": LEASE}
    assert rig.state() == before | {"leases": leases}
    assert rig.counters()["doubles"] == 2


def test_doubles_alone_are_dropped_too(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.lease()
    rig.client.rpush(rig.keys.queue.destination, *[payload("a")] * 50)

    claimed = rig.claim(mode=Mode.SHARED)

    assert (claimed.jobs, claimed.doubles) == ([], 50)
    assert claimed.wait_us == LEASE * 1000
    assert "destination" not in rig.state()


@pytest.mark.parametrize("what", ["doubles", "cancelled", "moved"])
def test_thousands_that_fill_no_room_are_taken_in_bounded_calls(
    rig: Rig, what: str
) -> None:
    names = [f"j{n}" for n in range(9_000)]
    for i in range(0, len(names), 1000):
        rig.lay(*names[i : i + 1000])
    rig.client.rpush(rig.keys.queue.destination, b"last")
    if what == "doubles":
        ended = {token(name): (T0 - 5) * 8 + 1 for name in names}
        rig.client.zadd(rig.keys.ended, ended)
    else:
        note = "cancel" if what == "cancelled" else str(T0 + 50)
        rig.client.hset(rig.keys.notes, mapping={token(name): note for name in names})

    sizes, got = [], []
    while (left := rig.client.llen(rig.keys.queue.destination)) > 0:
        claimed = rig.claim(mode=Mode.SHARED)
        got += names_of(claimed)
        sizes.append(left - rig.client.llen(rig.keys.queue.destination))

    assert got == ["last"]
    assert sizes == [2_000] * 4 + [1_001]
    assert len(rig.state().get("returned", {})) == (9_000 if what == "moved" else 0)


@pytest.mark.parametrize("what", ["doubles", "cancelled"])
def test_megabytes_that_fill_no_room_are_taken_in_small_calls(
    rig: Rig, what: str
) -> None:
    for n in range(20):
        rig.lay(f"j{n}", size=1 << 20)
        if what == "doubles":
            rig.client.zadd(rig.keys.ended, {token(f"j{n}"): T0 * 8 + 1})
        else:
            rig.client.hset(rig.keys.notes, token(f"j{n}"), "cancel")

    calls = 0
    while rig.client.llen(rig.keys.queue.destination) > 0:
        assert rig.claim(mode=Mode.SHARED).jobs == []
        calls += 1

    assert calls == 20


def test_payload_twice_in_the_destination_queue_is_leased_once(rig: Rig) -> None:
    rig.lay("a")
    rig.client.rpush(rig.keys.queue.destination, payload("a"))

    assert names_of(rig.claim(mode=Mode.TAKE)) == ["a"]


def test_redisson_jammed_by_a_frame_of_the_other_format_harms_none_of_our_jobs(
    rig: Rig,
) -> None:
    """At every retry it delivers again what is due before that frame, until we have taken the frame."""
    rig.frame_format = FrameFormat.DLC0
    rig.schedule({"a": 1, "b": 2})
    rig.schedule({"c": 3}, frame_format=FrameFormat.BC0LC0)
    rig.now = 5
    for _ in range(3):
        with pytest.raises(Exception, match="unpack"):
            rig.java_transfer()
    assert rig.state()["destination"] == ["a", "b"] * 3

    first = rig.claim(mode=Mode.SHARED)
    second = rig.claim(mode=Mode.SHARED)

    assert names_of(first) == ["a", "b"]
    assert (names_of(second), second.doubles) == (["c"], 2)
    assert rig.acknowledge(*first.jobs, *second.jobs) == []
    assert rig.state() == {}


def test_foreign_elements_come_as_often_as_they_were_delivered(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x", b"x")

    assert names_of(rig.claim()) == ["x", "x"]


# Notes: jobs that lie deep in a long destination queue.


def bury_deep(rig: Rig, *names: str, unique: str = "") -> None:
    """Transfer jobs behind more payloads than a script searches."""
    rig.client.rpush(rig.keys.queue.destination, *["x"] * 1_000)
    rig.schedule(dict.fromkeys(names, 0), unique=unique)
    rig.transfer()


def claim_all(rig: Rig, mode: Mode) -> list[str]:
    names = []
    while jobs := rig.claim(500, mode=mode).jobs:
        names += [name_in(job.payload) for job in jobs]
        rig.acknowledge(*jobs)
    return [name for name in names if name != "x"]


@pytest.mark.parametrize("mode", Mode)
def test_job_noted_as_cancelled_does_not_run_and_frees_its_key(
    rig: Rig, mode: Mode
) -> None:
    bury_deep(rig, "a", unique="ek")
    bury_deep(rig, "b")

    assert rig.cancel("a") == "noted"
    assert rig.state()["notes"] == {"a": "cancel"}
    assert claim_all(rig, mode) == ["b"]

    assert rig.state() == {}
    assert rig.inspect("a").state is State.CANCELLED
    assert rig.counters()["cancelled"] == 1


def test_job_noted_as_moved_runs_at_its_new_time_with_its_first_attempt(
    rig: Rig,
) -> None:
    bury_deep(rig, "a", unique="ek")

    assert rig.reschedule("a", 700) == ("noted", 700)
    assert claim_all(rig, Mode.SHARED) == []

    assert rig.state() == {"returned": {"a": 700}, "unique": {"k": "a"}}
    rig.now = 699
    assert rig.claim().jobs == []
    rig.now = 700
    job = rig.lease()
    assert (job.attempts, job.kills, job.start_time_ms) == (0, 0, T0 + 700)
    rig.acknowledge(job)
    assert rig.state() == {}


@pytest.mark.parametrize("mode", Mode)
def test_notes_are_kept_while_nobody_has_room(rig: Rig, mode: Mode) -> None:
    bury_deep(rig, "a")
    rig.cancel("a")

    rig.claim(0, mode=mode)

    assert rig.state()["notes"] == {"a": "cancel"}


def test_last_note_counts(rig: Rig) -> None:
    bury_deep(rig, "a", "b")
    rig.cancel("a")
    rig.reschedule("a", 50)
    rig.reschedule("b", 50)
    rig.cancel("b")

    assert claim_all(rig, Mode.SHARED) == []

    assert rig.state() == {"returned": {"a": 50}}


def test_note_about_a_job_that_java_took_is_forgotten_with_the_empty_queue(
    rig: Rig,
) -> None:
    bury_deep(rig, "a")
    rig.cancel("a")
    while rig.java_take():
        pass

    rig.claim(mode=Mode.SHARED)

    assert "notes" not in rig.state()
    rig.is_checked = False  # its locator waits for the sweep


@pytest.mark.parametrize("ahead", [999, 1_000])
def test_destination_queue_is_searched_to_the_thousandth_element(
    rig: Rig, ahead: int
) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["x"] * ahead)
    rig.schedule({"a": 0})
    rig.transfer()

    assert rig.cancel("a") == ("cancelled" if ahead < 1_000 else "noted")


def test_destination_queue_is_searched_through_a_megabyte_only(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, *["." * (1 << 19)] * 60)
    rig.schedule({"a": 0})
    rig.transfer()

    assert rig.cancel("a") == "noted"
    rig.is_checked = False  # too much to look through


# The same wire in other hands.


@pytest.mark.parametrize("mode", Mode)
def test_payload_that_moved_to_another_queue_runs_there(rig: Rig, mode: Mode) -> None:
    """poll_last_and_offer_first_to has signed it for the other queue."""
    rig.schedule({"a": 0})
    other = Rig(rig.client, f"{rig.keys.queue.name}-other")
    call = queues_calls.withdraw(
        rig.keys,
        rig.frames(),
        request="once",
        depth=1,
        from_tail=True,
        target=other.keys,
        payload=payload("a", signature="for the other"),
        insertion_list=rig.insertion_list,
    )
    assert rig.run(call) == [True]

    job = other.lease(mode=mode)

    assert (job.token, job.is_foreign) == (token("a"), False)
    assert other.acknowledge(job) == []
    assert other.state() == rig.state() == {}
    assert rig.inspect("a").state is State.TAKEN


@pytest.mark.parametrize("mode", Mode)
def test_job_behind_other_bytes_with_its_token_and_mac_is_no_double(
    rig: Rig, mode: Mode
) -> None:
    rig.schedule({"a": 0})
    rig.transfer()
    # Anybody who can read the queue can write that.
    rig.client.lpush(rig.keys.queue.destination, payload("a", size=200))

    claimed = rig.claim(mode=mode)

    assert claimed.doubles == 0
    assert [job.payload for job in claimed.jobs] == [
        payload("a", size=200),
        payload("a"),
    ]
    # Python checks both, and runs only the one that is signed.
    assert [job.is_foreign for job in claimed.jobs] == [False, True]
    rig.acknowledge(*claimed.jobs)


def test_bad_payload_is_no_matter_for_a_claim(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"", b"\xff\x00", b'{"delayq":"')

    claimed = rig.claim(mode=Mode.TAKE)

    assert [job.payload for job in claimed.jobs] == [b"", b"\xff\x00", b'{"delayq":"']
    assert all(job.is_foreign for job in claimed.jobs)
    assert len({job.token for job in claimed.jobs}) == 3


def test_tokens_of_foreign_payloads_are_never_the_same_twice(rig: Rig) -> None:
    tokens = set()
    for _ in range(50):
        rig.client.rpush(rig.keys.queue.destination, b"x", b"x")
        tokens |= {job.token for job in rig.claim().jobs}

    assert len(tokens) == 100


def test_counts_see_the_destination_queue(rig: Rig) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"x", b"x")

    counts = rig.run(queue_reads.counts(rig.keys))

    assert counts.destination == 2
