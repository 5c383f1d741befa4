"""A search through the places of a queue: what it finds, what it reads, and what it promises while the queue lives on."""

import random
from collections import Counter

import pytest

from django_delayq.core import change as change_calls
from django_delayq.core import search_calls
from django_delayq.core.search_calls import Found, Window
from django_delayq.core.states import Change, State
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import T0, Rig, name_in, payload, token


def names(found: list[Found]) -> list[str]:
    return [name_in(one.payload) for one in found]


# What is found.


def test_each_state_has_its_jobs(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({name: 0 for name in ("running", "retrying", "held", "dead", "bad")})
    jobs = {name_in(job.payload): job for job in rig.claim(10).jobs}
    rig.retry(jobs["retrying"], wait=70, error=b'{"error":"it broke"}')
    rig.hold(jobs["held"])
    rig.bury(jobs["dead"])
    rig.bury(jobs["bad"], state=State.QUARANTINED)
    rig.schedule({"given back": 0, "put off": 0})
    rig.give_back(*rig.claim(10).jobs)
    rig.reschedule("put off", 90)
    rig.lay("lying")
    rig.schedule({"due": 0, "scheduled": 50})

    found = {state: names(rig.search(state)) for state in State}

    assert {state: sorted(told) for state, told in found.items() if told} == {
        # Their boundaries are compared by whoever asks; see `first_place`.
        State.SCHEDULED: ["due", "given back", "put off", "scheduled"],
        State.DUE: ["due", "given back", "lying"],
        State.RUNNING: ["running"],
        State.RETRYING: ["retrying"],
        State.HELD: ["held"],
        State.DEAD: ["dead"],
        State.QUARANTINED: ["bad"],
    }
    states = {name_in(one.payload): one.state for one in rig.search()}
    assert states == {
        "due": State.DUE,
        "scheduled": State.SCHEDULED,
        "given back": State.DUE,
        "put off": State.SCHEDULED,
        "lying": State.DUE,
        "running": State.RUNNING,
        "retrying": State.RETRYING,
        "held": State.HELD,
        "dead": State.DEAD,
        "bad": State.QUARANTINED,
    }


def test_found_job_is_what_a_look_by_its_id_shows(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"failed": 0}, unique="efailed")
    rig.retry(rig.lease(), wait=70, error=b'{"error":"it broke"}')
    rig.schedule({"waits": 50}, unique="ekey")
    rig.schedule({"runs": 0}, unique="eruns")
    rig.lease()
    rig.lay("lying")

    found = rig.search()

    assert len(found) == 4
    for one in found:
        seen = rig.inspect(name_in(one.payload))
        assert (one.state, one.payload, one.error, one.unique) == (
            seen.state,
            seen.payload,
            seen.error,
            seen.unique,
        )
        assert (one.attempts, one.kills) == (seen.attempts, seen.kills)
        assert one.token == token(name_in(one.payload))
        waits = seen.state in (State.SCHEDULED, State.RETRYING)
        assert one.due_ms == (seen.score_ms if waits else seen.start_time_ms)


@pytest.mark.parametrize("frame_format", FrameFormat)
def test_elements_of_others_have_the_names_by_which_they_are_cancelled(
    rig: Rig, frame_format: FrameFormat
) -> None:
    rig.java_offer("x", 10, frame_format=frame_format)
    rig.client.rpush(rig.keys.queue.destination, b"lying")

    waits, lying = rig.search()

    assert rig.run(
        search_calls.search(
            rig.keys, search_calls.first_place([State.DUE], now_ms=T0), payload_bytes=3
        )
    ).found == [lying._replace(payload=b"lyi")]
    assert (waits.payload, waits.due_ms, lying.token, lying.due_ms) == (
        b"x",
        T0 + 10,
        "",
        None,
    )
    (call,) = change_calls.cancel_many(rig.keys, [waits.token])
    assert rig.run(call) == {waits.token: Change.CANCELLED}


def test_members_that_are_no_frames_and_scores_that_are_no_times_are_found(
    rig: Rig,
) -> None:
    rig.is_checked = False
    scores = {b"bad": 5, b"never": float("inf"), b"ever": float("-inf"), b"half": 7.5}
    rig.client.zadd(rig.keys.queue.timeout_set, scores)
    rig.client.zadd(rig.keys.retries, {b"\xff\xfe": T0})

    found = rig.search(count=1)

    told = {one.payload: (one.token, one.due_ms) for one in found}
    assert told == {
        b"bad": ("", 5),
        b"never": ("", None),
        b"ever": ("", None),
        b"half": ("", 7),
        b"": ("\ufffd\ufffd", T0),
    }


def test_payload_that_only_says_that_it_is_a_job_is_not_that_job(rig: Rig) -> None:
    rig.is_checked = False
    rig.schedule({"a": 10})
    forged = payload("a", signature="somebody")
    rig.client.rpush(rig.keys.queue.destination, forged)
    rig.java_offer(payload("a"), 10)

    tokens = [one.token for one in rig.search()]

    assert len(tokens) == 3
    assert tokens.count(token("a")) == 1


def test_copy_of_a_job_that_waits_elsewhere_has_no_name(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({"a": 10})
    rig.client.rpush(rig.keys.queue.destination, payload("a"))

    waits, copy = rig.search()

    assert (waits.token, copy.token, copy.due_ms) == (token("a"), "", None)


def test_job_that_java_has_transferred_keeps_its_name(rig: Rig) -> None:
    rig.schedule({"a": 10})
    rig.now = 11
    rig.java_transfer()

    (lying,) = rig.search()

    assert (lying.place, lying.token, lying.due_ms) == (
        "destination",
        token("a"),
        T0 + 10,
    )


# What is read.


def test_window_seeks_by_start_time(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({f"j{n:02}": n for n in range(50)})
    rig.now = 1_000

    found = rig.search(State.DUE, window=Window(T0 + 20, T0 + 22), count=2)

    assert names(found) == ["j20", "j21", "j22"]
    assert [Window(T0 + 20, T0 + 22).has(one.due_ms) for one in found] == [1, 1, 0]


def test_empty_window_reads_nothing(rig: Rig) -> None:
    rig.schedule({"a": 5})

    place = search_calls.first_place(
        [State.SCHEDULED], Window(T0 + 9, T0 + 5), now_ms=T0
    )

    assert place.is_at_end


def test_call_ends_early_with_the_element_that_exceeds_its_bytes(any_rig: Rig) -> None:
    rig = any_rig
    rig.schedule({f"j{n}": n for n in range(6)}, size=3_000)
    rig.lay("l1", "l2", "l3", size=3_000)
    place = search_calls.first_place(
        [State.DUE, State.SCHEDULED, State.RUNNING], now_ms=T0
    )
    rig.now = 0

    sizes, found = [], []
    while not place.is_at_end:
        call = search_calls.search(
            rig.keys,
            place,
            byte_budget=5_000,
            payload_bytes=10_000,
            frame_format=rig.frame_format,
        )
        page = rig.run(call)
        place = page.place
        found += page.found
        sizes.append(len(page.found))

    assert max(sizes) == 2
    assert Counter(names(found)) == Counter(
        [*(f"j{n}" for n in range(6)), "l1", "l2", "l3"]
    )


# While the queue lives on.


def test_job_that_stays_is_found_once_whatever_comes_and_goes(any_rig: Rig) -> None:
    """In each round, jobs that are to stay lie between others that move in every way between two calls."""
    rig = any_rig
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    rig.now = 1_000
    for round_ in range(12):
        stay = [f"s{round_}-{n}" for n in range(40)]
        move = [f"m{round_}-{n}" for n in range(60)]
        waits = {name: dice.choice([5, 6, 7, 7, 7]) for name in [*stay, *move]}
        mixed = list(waits)
        dice.shuffle(mixed)
        rig.schedule({name: 100_000 + waits[name] for name in mixed})
        place = search_calls.first_place([State.SCHEDULED, State.RETRYING], now_ms=0)
        found: list[str] = []
        fresh = 0
        while not place.is_at_end:
            page = rig.search_from(place, count=dice.choice([1, 2, 7]))
            found += names(page.found)
            place = page.place
            for _ in range(3):
                way = dice.choice("cra")
                if way == "a":
                    fresh += 1
                    rig.schedule({f"n{round_}-{fresh}": 100_000 + dice.randrange(12)})
                elif move:
                    name = move.pop(dice.randrange(len(move)))
                    if way == "c":
                        rig.cancel(name)
                    else:
                        rig.reschedule(name, 100_000 + dice.randrange(12))
        counted = Counter(found)
        assert {name: counted[name] for name in stay} == dict.fromkeys(stay, 1), seed
        for name in [*stay, *move, *set(found)]:
            rig.cancel(name)
        for one in rig.search():
            rig.cancel(name_in(one.payload))


def test_element_of_the_destination_queue_is_found_once_while_its_head_is_taken(
    rig: Rig,
) -> None:
    rig.is_checked = False
    dice = random.Random(3)
    queue = rig.keys.queue.destination
    for equal in (False, True):
        rig.client.delete(queue)
        rig.lay(*(f"j{n:03}" for n in range(200)))
        if equal:
            for n in range(0, 200, 5):
                rig.client.linsert(queue, "BEFORE", payload(f"j{n:03}"), "tick")
        taken = 0
        place = search_calls.first_place([State.DUE], now_ms=T0)
        found: list[str] = []
        while not place.is_at_end:
            page = rig.search_from(place, count=dice.choice([2, 3, 8]))
            found += [name for name in names(page.found) if name != "tick"]
            place = page.place
            for _ in range(dice.randrange(4)):
                taken += (rig.java_take() or "").startswith("j")
            rig.client.rpush(queue, payload(f"new{len(found)}"))
            if dice.random() < 0.5:
                # A worker gives it back at the head.
                rig.client.lpush(queue, b"back")
        left = [f"j{n:03}" for n in range(taken, 200)]
        counted = Counter(found)
        assert {counted[name] for name in left} == {1}


def test_found_elements_of_the_destination_queue_are_taken_out_as_the_search_goes(
    rig: Rig,
) -> None:
    rig.lay(*(f"j{n:02}" for n in range(40)))
    place = search_calls.first_place([State.DUE], now_ms=T0)
    found: list[str] = []
    while not place.is_at_end:
        page = rig.search_from(place, count=7)
        place = page.place
        found += names(page.found)
        for name in names(page.found):
            if int(name[1:]) % 3:
                rig.cancel(name)

    assert sorted(found) == [f"j{n:02}" for n in range(40)]


def test_walk_goes_on_behind_a_member_that_has_gone(rig: Rig) -> None:
    rig.schedule({f"j{n}": 5 for n in range(9)})
    place = search_calls.first_place([State.SCHEDULED], now_ms=0)

    page = rig.search_from(place, count=4)
    for name in names(page.found):
        rig.cancel(name)
    rest = rig.search_from(page.place, count=9)

    assert names(page.found + rest.found) == [f"j{n}" for n in range(9)]
