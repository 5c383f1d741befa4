"""What a script reads at most, in bytes: a list or a sorted set is copied to Lua before anything is known of its sizes."""

from collections.abc import Callable

import pytest

from django_delayq.calls.call import Call
from django_delayq.delivery import looking, tending
from django_delayq.delivery.claiming import Mode
from django_delayq.delivery.states import Change, State
from django_delayq.queues import scripts
from django_delayq.repair import frames
from tests.delivery.bench import Bench, locator, token

#: The budget of every call here, and of those that have one of their own.
BUDGET = 1 << 20
LARGE = 300_000


def fill_destination(bench: Bench, sizes: list[int]) -> str:
    bench.client.rpush(bench.keys.queue.destination, *[b"x" * size for size in sizes])
    return bench.keys.queue.destination


def fill_timeout_set(bench: Bench, sizes: list[int]) -> str:
    for n, size in enumerate(sizes):
        bench.java_offer(b"x" * size, n)
    bench.now = len(sizes)
    return bench.keys.queue.timeout_set


def fill_delay_queue(bench: Bench, sizes: list[int]) -> str:
    fill_timeout_set(bench, sizes)
    return bench.keys.queue.delay_queue


def search(bench: Bench) -> None:
    bench.client.hset(bench.keys.locators, token("a"), locator("a"))
    assert bench.inspect("a").state in (State.UNKNOWN, State.MISSING)


def calling(make: Callable[[Bench], Call[object]]) -> Callable[[Bench], object]:
    return lambda bench: bench.run(make(bench))


READS: dict[
    str, tuple[Callable[[Bench, list[int]], str], Callable[[Bench], object]]
] = {
    "claim from the destination queue": (
        fill_destination,
        lambda bench: bench.claim(500, mode=Mode.TAKE),
    ),
    "claim of due frames": (fill_timeout_set, lambda bench: bench.claim(500)),
    "transfer": (fill_timeout_set, lambda bench: bench.transfer(500)),
    "look for a job in the destination queue": (fill_destination, search),
    "sweep": (
        fill_destination,
        calling(lambda bench: tending.sweep(bench.keys)),
    ),
    "page of the destination queue": (
        fill_destination,
        calling(lambda bench: looking.page(bench.keys, State.DUE, count=500)),
    ),
    "page of the timeout set": (
        fill_timeout_set,
        calling(lambda bench: looking.page(bench.keys, State.SCHEDULED, count=500)),
    ),
    "survey of the timeout set": (
        fill_timeout_set,
        calling(
            lambda bench: frames.survey(
                bench.keys, "zset", batch=500, byte_budget=BUDGET
            )
        ),
    ),
    "survey of the delay queue": (
        fill_delay_queue,
        calling(
            lambda bench: frames.survey(
                bench.keys, "list", batch=500, byte_budget=BUDGET
            )
        ),
    ),
}


def bytes_read(bench: Bench, key: str, call: Callable[[Bench], object]) -> int:
    """Make a call, and add up the elements of a list or a sorted set that its script reads.

    The head of the timeout set is read once more, for its score.
    """
    client = bench.client
    kind = client.type(key)
    elements = (
        client.lrange(key, 0, -1) if kind == b"list" else client.zrange(key, 0, -1)
    )
    seen: set[int] = set()
    with client.monitor() as monitor:
        call(bench)
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
def test_call_exceeds_its_bytes_by_one_element(
    bench: Bench, read: str, size: int
) -> None:
    fill, call = READS[read]
    # Twice what fits: a slow machine hears megabytes from MONITOR for long.
    key = fill(bench, [size] * max(4, 2 * BUDGET // size))

    seen = bytes_read(bench, key, call)

    assert 0 < seen <= BUDGET + size + 32
    bench.is_checked = False  # of the jobs there is only what was to be read


@pytest.mark.parametrize("read", READS)
def test_call_whose_elements_are_small_needs_few_reads(bench: Bench, read: str) -> None:
    fill, call = READS[read]
    key = fill(bench, [100] * 500)
    reads = 0

    with bench.client.monitor() as monitor:
        call(bench)
        bench.client.echo("end")
        while (entry := monitor.next_command())["command"] != "ECHO end":
            name, *args = entry["command"].split(" ")
            reads += name in ("LRANGE", "ZRANGE") and args[0] == key

    assert reads <= 70
    bench.is_checked = False


@pytest.mark.parametrize("read", READS)
def test_large_elements_behind_small_ones_are_read_a_few_at_a_time(
    bench: Bench, read: str
) -> None:
    fill, call = READS[read]
    key = fill(bench, [10] * 60 + [LARGE] * 20)

    seen = bytes_read(bench, key, call)

    # Anybody puts elements into the destination queue: a claim reads them one at a time.
    most = 1 if read == "claim from the destination queue" else 8
    assert seen <= BUDGET + (most + 1) * LARGE
    bench.is_checked = False  # of the jobs there is only what was to be read


@pytest.mark.parametrize("act", ["claim", "cancel"])
def test_search_for_small_frames_reads_few_of_the_huge_ones_around_them(
    bench: Bench, act: str
) -> None:
    for n in range(60):
        bench.schedule({f"large{n}": 1_000}, size=LARGE)
        if n % 20 == 10:
            bench.schedule({f"small{n}": 5})
    bench.now = 10

    def call(bench: Bench) -> None:
        if act == "claim":
            assert len(bench.claim(10).jobs) == 3
        else:
            assert bench.cancel("small10") is Change.CANCELLED

    seen = bytes_read(bench, bench.keys.queue.delay_queue, call)

    assert seen <= BUDGET + 2 * LARGE
    assert bench.client.llen(bench.keys.queue.delay_queue) == (
        60 if act == "claim" else 62
    )


def test_dead_letters_that_a_claim_makes_are_bounded_by_their_bytes(
    bench: Bench,
) -> None:
    for n in range(8):
        bench.schedule({f"j{n}": n}, size=LARGE)
    bench.now = 10
    while bench.claim(10).jobs:
        pass
    bench.recover()

    bench.claim(10, max_kills=0)

    assert bench.client.zcard(bench.keys.dead) == 4
    bench.claim(10, max_kills=0)
    assert bench.client.zcard(bench.keys.dead) == 8


def test_clearing_frees_what_fits_the_budget(bench: Bench) -> None:
    for n in range(8):
        bench.schedule({f"j{n}": n}, size=LARGE)

    assert bench.run(scripts.clear(bench.keys)).left == 4
    bench.is_checked = False


def test_jobs_given_back_are_read_only_where_they_go_back_to_the_list(
    bench: Bench,
) -> None:
    bench.client.rpush(bench.keys.queue.destination, b"foreign")
    bench.schedule({"a": 0})
    jobs = bench.claim().jobs
    assert [job.is_foreign for job in jobs] == [True, False]

    with bench.client.monitor() as monitor:
        bench.give_back(*jobs)
        bench.client.echo("end")
        commands = []
        while (entry := monitor.next_command())["command"] != "ECHO end":
            commands.append(entry["command"])

    read = [text for text in commands if text.startswith(("HGET ", "HMGET "))]
    assert sum(bench.keys.payloads in text for text in read) == 1
