"""How many bytes a script reads at most: the server copies elements to Lua before a script can know their sizes."""

from collections.abc import Callable

import pytest

from django_delayq.core import frame_heads, queue_reads
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.claim import Mode
from django_delayq.core.states import Change, State
from django_delayq.queues import queue_calls as queues_calls
from django_delayq.transport.call import Call
from tests.core.rig import Rig, locator, token

#: The budget of every call here, also of calls that have a budget of their own.
BUDGET = 1 << 20
LARGE = 300_000


def fill_destination(rig: Rig, sizes: list[int]) -> str:
    rig.client.rpush(rig.keys.queue.destination, *[b"x" * size for size in sizes])
    return rig.keys.queue.destination


def fill_timeout_set(rig: Rig, sizes: list[int]) -> str:
    for n, size in enumerate(sizes):
        rig.java_offer(b"x" * size, n)
    rig.now = len(sizes)
    return rig.keys.queue.timeout_set


def fill_delay_queue(rig: Rig, sizes: list[int]) -> str:
    fill_timeout_set(rig, sizes)
    return rig.keys.queue.delay_queue


def search(rig: Rig) -> None:
    rig.client.hset(rig.keys.locators, token("a"), locator("a"))
    assert rig.inspect("a").state in (State.UNKNOWN, State.MISSING)


def calling(make: Callable[[Rig], Call[object]]) -> Callable[[Rig], object]:
    return lambda rig: rig.run(make(rig))


READS: dict[str, tuple[Callable[[Rig, list[int]], str], Callable[[Rig], object]]] = {
    "claim from the destination queue": (
        fill_destination,
        lambda rig: rig.claim(500, mode=Mode.TAKE),
    ),
    "claim of due frames": (fill_timeout_set, lambda rig: rig.claim(500)),
    "transfer": (fill_timeout_set, lambda rig: rig.transfer(500)),
    "look for a job in the destination queue": (fill_destination, search),
    "sweep": (
        fill_destination,
        calling(lambda rig: sweep_calls.sweep(rig.keys)),
    ),
    "page of the destination queue": (
        fill_destination,
        calling(lambda rig: queue_reads.page(rig.keys, State.DUE, count=500)),
    ),
    "page of the timeout set": (
        fill_timeout_set,
        calling(lambda rig: queue_reads.page(rig.keys, State.SCHEDULED, count=500)),
    ),
    "survey of the timeout set": (
        fill_timeout_set,
        calling(
            lambda rig: frame_heads.survey(
                rig.keys, "zset", batch=500, byte_budget=BUDGET
            )
        ),
    ),
    "survey of the delay queue": (
        fill_delay_queue,
        calling(
            lambda rig: frame_heads.survey(
                rig.keys, "tail", batch=500, byte_budget=BUDGET
            )
        ),
    ),
}


def bytes_read(rig: Rig, key: str, call: Callable[[Rig], object]) -> int:
    """Make a call, and add up the elements of a list or a sorted set that its script reads.

    The head of the timeout set is read once more, for its score.
    """
    client = rig.client
    kind = client.type(key)
    elements = (
        client.lrange(key, 0, -1) if kind == b"list" else client.zrange(key, 0, -1)
    )
    seen: set[int] = set()
    with client.monitor() as monitor:
        call(rig)
        client.echo("end")
        while (entry := monitor.next_command())["command"] != "ECHO end":
            name, *args = entry["command"].split(" ")
            if name in ("LRANGE", "ZRANGE", "LINDEX") and args[0] == key:
                first, last = int(args[1]), int(args[1 if name == "LINDEX" else 2])
                assert min(first, last) >= 0
                seen.update(range(first, min(last + 1, len(elements))))
    return sum(len(elements[index]) for index in seen)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("size", [LARGE, BUDGET // 2 + 1, 3 * BUDGET])
def test_call_exceeds_its_bytes_by_one_element(rig: Rig, read: str, size: int) -> None:
    fill, call = READS[read]
    # Only twice what fits: on a slow machine, megabytes take MONITOR long.
    key = fill(rig, [size] * max(4, 2 * BUDGET // size))

    seen = bytes_read(rig, key, call)

    assert 0 < seen <= BUDGET + size + 32
    rig.is_checked = False  # these jobs have nothing but what was to be read


@pytest.mark.parametrize("read", READS)
def test_call_whose_elements_are_small_needs_few_reads(rig: Rig, read: str) -> None:
    fill, call = READS[read]
    key = fill(rig, [100] * 500)
    reads = 0

    with rig.client.monitor() as monitor:
        call(rig)
        rig.client.echo("end")
        while (entry := monitor.next_command())["command"] != "ECHO end":
            name, *args = entry["command"].split(" ")
            reads += name in ("LRANGE", "ZRANGE") and args[0] == key

    assert reads <= 70
    rig.is_checked = False


@pytest.mark.parametrize("read", READS)
def test_large_elements_behind_small_ones_are_read_a_few_at_a_time(
    rig: Rig, read: str
) -> None:
    fill, call = READS[read]
    key = fill(rig, [10] * 60 + [LARGE] * 20)

    seen = bytes_read(rig, key, call)

    # Anybody may put elements into the destination queue, so a claim reads them one at a time.
    most = 1 if read == "claim from the destination queue" else 8
    assert seen <= BUDGET + (most + 1) * LARGE
    rig.is_checked = False  # these jobs have nothing but what was to be read


@pytest.mark.parametrize("act", ["claim", "cancel"])
def test_search_for_small_frames_reads_few_of_the_huge_ones_around_them(
    rig: Rig, act: str
) -> None:
    for n in range(60):
        rig.schedule({f"large{n}": 1_000}, size=LARGE)
        if n % 20 == 10:
            rig.schedule({f"small{n}": 5})
    rig.now = 10

    def call(rig: Rig) -> None:
        if act == "claim":
            assert len(rig.claim(10).jobs) == 3
        else:
            assert rig.cancel("small10") is Change.CANCELLED

    seen = bytes_read(rig, rig.keys.queue.delay_queue, call)

    assert seen <= BUDGET + 2 * LARGE
    assert rig.client.llen(rig.keys.queue.delay_queue) == (60 if act == "claim" else 62)


def test_dead_letters_that_a_claim_makes_are_bounded_by_their_bytes(
    rig: Rig,
) -> None:
    for n in range(8):
        rig.schedule({f"j{n}": n}, size=LARGE)
    rig.now = 10
    while rig.claim(10).jobs:
        pass
    rig.recover()

    rig.claim(10, max_kills=0)

    assert rig.client.zcard(rig.keys.dead) == 4
    rig.claim(10, max_kills=0)
    assert rig.client.zcard(rig.keys.dead) == 8


def test_clearing_frees_what_fits_the_budget(rig: Rig) -> None:
    for n in range(8):
        rig.schedule({f"j{n}": n}, size=LARGE)

    assert rig.run(queues_calls.clear(rig.keys)).left == 4
    rig.is_checked = False


def test_jobs_given_back_are_read_only_where_they_go_back_to_the_list(
    rig: Rig,
) -> None:
    rig.client.rpush(rig.keys.queue.destination, b"foreign")
    rig.schedule({"a": 0})
    jobs = rig.claim().jobs
    assert [job.is_foreign for job in jobs] == [True, False]

    with rig.client.monitor() as monitor:
        rig.give_back(*jobs)
        rig.client.echo("end")
        commands = []
        while (entry := monitor.next_command())["command"] != "ECHO end":
            commands.append(entry["command"])

    read = [text for text in commands if text.startswith(("HGET ", "HMGET "))]
    assert sum(rig.keys.payloads in text for text in read) == 1
