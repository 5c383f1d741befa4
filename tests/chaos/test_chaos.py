"""Each fault once: nothing is lost that was promised, nothing begins early, and each double run has the fault for its reason."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import face
from tests.chaos.arena import Arena, Span
from tests.chaos.fault import FAULTS, NotHere
from tests.chaos.lines import append
from tests.servers import ServerUnavailable

#: Jobs a second: many faults run beside each other here.
PER_SECOND = 100


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, tmp_path: Path) -> None:
    try:
        arena, verdict = face(FAULTS[name], "valkey", tmp_path, per_second=PER_SECOND)
    except (NotHere, ServerUnavailable) as error:
        pytest.skip(str(error))
    print("\n".join(arena.evidence), verdict)
    assert arena.evidence
    assert verdict.is_clean, verdict


class Told:
    """A load that has ended, and what it was told."""

    def __init__(self, *lines: dict[str, object]) -> None:
        self._lines = lines

    def told(self, step: str | None = None) -> list[dict[str, object]]:
        return [line for line in self._lines if step in (None, line["step"])]


def told(
    step: str = "stored", *, n: int = 1, at_ms: float = 1_000.0
) -> dict[str, object]:
    return {
        "step": step,
        "n": n,
        "job": f"chaos:{n}",
        "delay_ms": 100,
        "before_ms": at_ms,
        "after_ms": at_ms + 1,
    }


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path, None, PER_SECOND)  # type: ignore[arg-type]


def ran(
    arena: Arena, at_ms: float, *, n: int = 1, steps: tuple[str, ...] = ("start", "end")
) -> None:
    for step in steps:
        append(arena.records.path, step=step, job=f"chaos:{n}", n=n, now_ms=at_ms)


def judge(arena: Arena, *lines: dict[str, object]) -> dict[str, object]:
    arena.loads = [Told(*lines)]  # type: ignore[list-item]
    verdict = arena.judge()
    found = {
        name: getattr(verdict, name)
        for name in ("lost", "early", "doubled", "ghosts", "untrue")
    }
    assert verdict.is_clean == (not any(found.values()))
    return {name: value for name, value in found.items() if value}


def test_job_that_runs_once_at_its_moment_is_clean(arena: Arena) -> None:
    ran(arena, 1_100.0)

    assert judge(arena, told()) == {}


def test_job_that_did_not_come_to_its_end_is_lost(arena: Arena) -> None:
    ran(arena, 1_100.0, steps=("start",))

    assert judge(arena, told()) == {"lost": [1]}


def test_loss_is_excused_in_its_time_only(arena: Arena) -> None:
    arena.excuses.append(Span(900.0, 1_000.0))

    assert judge(arena, told(), told(n=2, at_ms=1_000.5)) == {"lost": [2]}


def test_job_that_begins_before_its_moment_is_early(arena: Arena) -> None:
    ran(arena, 1_090.0)

    assert judge(arena, told()) == {"early": [(1, 10.0)]}


def test_moment_is_by_the_servers_clock(arena: Arena) -> None:
    arena.clocks = [(Span(0.0, 0.0), 0.0), (Span(1_040.0, 1_050.0), 60_000.0)]
    ran(arena, 1_060.0)
    ran(arena, 3_060.0, n=2)

    assert judge(arena, told(), told(n=2, at_ms=3_000.0)) == {"early": [(2, 40.0)]}


def test_second_run_needs_a_fault_for_its_reason(arena: Arena) -> None:
    arena.troubles.append(Span(3_000.0, 3_500.0))
    for n, first_ms, second_ms in ((1, 1_100.0, 1_200.0), (2, 2_900.0, 3_600.0)):
        ran(arena, first_ms, n=n)
        ran(arena, second_ms, n=n)

    assert judge(arena, told(), told(n=2)) == {"doubled": [1]}


def test_job_that_was_refused_and_ran_is_a_ghost(arena: Arena) -> None:
    ran(arena, 1_100.0)

    assert judge(arena, told("refused"), told("maybe", n=2)) == {"ghosts": [1]}


def test_answer_that_a_job_was_cancelled_is_untrue_if_it_ran(arena: Arena) -> None:
    arena.lossy.append(Span(2_000.0, 2_500.0))
    for n in (1, 2):
        ran(arena, 3_100.0, n=n)

    cancelled = told("cancelled"), told("cancelled", n=2, at_ms=2_000.0)
    assert judge(arena, *cancelled, told("cancelled", n=3)) == {"untrue": [1]}
