"""The registry of the processes that live."""

import msgspec
import pytest

from django_delayq.core import worker_registry
from django_delayq.core.worker_registry import (
    KEPT_MS,
    RegistryKeys,
    RunningJob,
    SeenWorker,
    WorkerInfo,
)
from tests.core.rig import T0, Rig
from tests.core.tour import register, registry
from tests.wire.slots import key_slot

INFO = WorkerInfo(
    "host", 7, "1.0", 2, ["q"], 8, 100, 1, 0, [RunningJob("q", "t", "mail", 5)], 9, 10
)


def seen(rig: Rig, **options: int) -> list[SeenWorker]:
    call = worker_registry.read_workers(registry(rig), **options)
    return rig.run(call).workers


def order(rig: Rig, name: str, sealed: bytes = b"order") -> bool:
    call = worker_registry.give_order(registry(rig), name, sealed)
    given: bool = rig.run(call)
    return given


def test_keys_of_the_registry_have_these_names_for_ever_and_one_slot() -> None:
    assert RegistryKeys.of() == (
        "delayq_workers:{delayq}",
        "delayq_workers_seen:{delayq}",
        "delayq_orders:{delayq}",
    )
    assert RegistryKeys.of("shop-") == (
        "delayq_workers:{shop-delayq}",
        "delayq_workers_seen:{shop-delayq}",
        "delayq_orders:{shop-delayq}",
    )
    assert len({key_slot(key) for key in RegistryKeys.of("shop-")}) == 1


def test_process_is_read_as_it_has_registered(rig: Rig) -> None:
    rig.run(worker_registry.register(registry(rig), "a", INFO))

    assert seen(rig) == [SeenWorker("a", T0, INFO)]


def test_process_that_falls_silent_is_gone_after_thirty_seconds(rig: Rig) -> None:
    register(rig, "a")
    rig.now = KEPT_MS
    register(rig, "b")
    assert [each.id for each in seen(rig)] == ["a", "b"]

    rig.now += 1
    assert [each.id for each in seen(rig)] == ["b"]
    register(rig, "b")

    assert rig.client.hkeys(registry(rig).workers) == [b"b"]


def test_process_that_leaves_is_gone_at_once_and_its_order_with_it(rig: Rig) -> None:
    register(rig, "a")
    order(rig, "a")

    rig.run(worker_registry.unregister(registry(rig), "a"))

    assert rig.leftovers() == []


def test_time_that_lies_ahead_after_the_clock_was_set_back_is_no_life(rig: Rig) -> None:
    rig.now = 10 * KEPT_MS
    register(rig, "a")
    rig.now = 0

    assert seen(rig) == []
    register(rig, "b")

    assert rig.client.hkeys(registry(rig).workers) == [b"b"]


def test_pages_cover_all_processes(rig: Rig) -> None:
    for n in range(5):
        register(rig, f"w{n}")

    found = [seen(rig, first=first, count=2) for first in (0, 2, 4)]

    assert [[each.id for each in page] for page in found] == [
        ["w0", "w1"],
        ["w2", "w3"],
        ["w4"],
    ]


def test_full_registry_takes_no_further_process(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(worker_registry, "MOST_WORKERS", 2)
    for name in "abc":
        register(rig, name)
    register(rig, "b")

    assert [each.id for each in seen(rig)] == ["a", "b"]


def test_process_is_told_what_the_registry_knew_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = register(rig, "a")
    rig.now += 5
    second = register(rig, "a")
    rig.client.delete(*registry(rig))
    rig.now += 5
    third = register(rig, "a")
    monkeypatch.setattr(worker_registry, "MOST_WORKERS", 1)

    assert (first.before_ms, first.is_kept) == (-1, 1)
    assert (second.before_ms, second.is_kept) == (T0, 1)
    assert (third.before_ms, third.is_kept) == (-1, 1)
    assert register(rig, "b").is_kept == 0


def test_order_reaches_its_process_and_no_other(rig: Rig) -> None:
    register(rig, "a")
    register(rig, "b")

    assert order(rig, "a", b"first")
    assert order(rig, "a", b"second")

    for name, expected in (("a", b"second"), ("b", b"")):
        call = worker_registry.register(registry(rig), name, INFO)
        assert rig.run(call)[:2] == (T0, expected)


def test_order_for_a_process_that_is_gone_is_refused(rig: Rig) -> None:
    register(rig, "a")
    rig.now = KEPT_MS + 1

    assert not order(rig, "a")
    assert not order(rig, "never")
    assert not rig.client.exists(registry(rig).orders)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[1]",
        b'{"host":1,"pid":2}',
        b'{"host":"h","pid":2,"jobs":[{"queue":"q","token":"t","since_ms":1e30}]}',
        b'{"host":"\xff","pid":2}',
    ],
)
def test_what_no_version_of_ours_says_is_left_out(rig: Rig, said: bytes) -> None:
    register(rig, "a")
    register(rig, "b")
    rig.client.hset(registry(rig).workers, "a", said)

    assert [each.id for each in seen(rig)] == ["b"]


def test_what_a_later_version_says_is_read_as_far_as_this_one_knows_it(
    rig: Rig,
) -> None:
    register(rig, "a")
    later = {"host": "h", "pid": 7, "mood": "good", "queues": ["q"]}
    rig.client.hset(registry(rig).workers, "a", msgspec.json.encode(later))

    (found,) = seen(rig)

    assert found.info == WorkerInfo("h", 7, queues=["q"])
