"""``python -m benchmarks.surroundings``: what do signals, middleware and contexts cost a job, and what does it cost not to
use them?

Measured without a server: the µs of processor time to prepare a job, and those of a thread from a job's lease to its
verdict. Each figure is the best of many short runs, taken in turns. With a REVISION it compares a job that uses none of
them with one of that commit, in turns as well.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import django
from django.conf import settings
from django.utils import timezone, translation

from benchmarks import bench, compare

#: Jobs in one short run.
JOBS = 400
LOCALE = "django_delayq.context.Locale"
OTEL = "django_delayq.context.otel.OpenTelemetry"
SENTRY = "django_delayq.context.sentry.Sentry"
#: What is measured: name, contexts, middleware, whether signals are heard, and the share of the traces that OpenTelemetry
#: records; None: no SDK is set up.
CASES: dict[str, tuple[list[str], list[str], bool, float | None]] = {
    "nothing": ([], [], False, None),
    "receivers of job_started and job_succeeded": ([], [], True, None),
    "a middleware that only calls": (
        [],
        ["benchmarks.surroundings.plain"],
        False,
        None,
    ),
    "Locale": ([LOCALE], [], False, None),
    "OpenTelemetry, no SDK": ([OTEL], [], False, None),
    "Sentry, no client": ([SENTRY], [], False, None),
    "all three, no SDK": ([LOCALE, OTEL, SENTRY], [], False, None),
    "OpenTelemetry, each job recorded": ([OTEL], [], False, 1.0),
    "OpenTelemetry, no job recorded": ([OTEL], [], False, 0.0),
    "Sentry, no traces": ([SENTRY], [], False, 0.0),
    "all three, each job recorded": ([LOCALE, OTEL, SENTRY], [], False, 1.0),
    "all three, no job recorded": ([LOCALE, OTEL, SENTRY], [], False, 0.0),
}


def plain(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a middleware that only calls."""
    return lambda job: call(job)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.surroundings", description=__doc__
    )
    parser.add_argument(
        "revision", nargs="?", help="a commit to compare with, or 'measure'"
    )
    parser.add_argument("--case", default="nothing", choices=CASES)
    parser.add_argument("--rounds", type=int, default=40, help="short runs of each")
    parser.add_argument("--pairs", type=int, default=5, help="processes of each")
    options = parser.parse_args()
    if options.revision == "measure":
        print(json.dumps(measure(options.case, options.rounds)))
        return
    if options.revision:
        _compare(options.revision, options.rounds, options.pairs)
        return
    best = _best([(bench.ROOT, case) for case in CASES], options.rounds, options.pairs)
    least = best[bench.ROOT, "nothing"]
    rows = []
    for case in CASES:
        prepared, attempted = best[bench.ROOT, case]
        more = prepared + attempted - sum(least)
        rows.append((case, f"{prepared:.1f}", f"{attempted:.1f}", f"{more:.1f}"))
    bench.table(("a job with", "to prepare, µs", "an attempt, µs", "more, µs"), rows)


def _compare(revision: str, rounds: int, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        earlier = compare.check_out(revision, Path(folder) / "earlier")
        best = _best([(earlier, "nothing"), (bench.ROOT, "nothing")], rounds, pairs)
        there, here = best[earlier, "nothing"], best[bench.ROOT, "nothing"]
    rows = [
        (what, f"{there[i]:.2f}", f"{here[i]:.2f}", f"{there[i] / here[i]:.3f}")
        for i, what in enumerate(("to prepare a job", "an attempt"))
    ]
    bench.table(("what, µs", revision, "here", "rate here / there"), rows)


def _best(
    cases: list[tuple[Path, str]], rounds: int, pairs: int
) -> dict[tuple[Path, str], tuple[float, float]]:
    found: dict[tuple[Path, str], list[tuple[float, float]]] = {}
    for _ in range(pairs):
        for root, case in cases:
            found.setdefault((root, case), []).append(_measured(root, case, rounds))
    return {
        key: (min(a for a, _ in each), min(b for _, b in each))
        for key, each in found.items()
    }


def _measured(root: Path, case: str, rounds: int) -> tuple[float, float]:
    told = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.surroundings", "measure"),
            *("--case", case, "--rounds", str(rounds)),
        ],
        cwd=root,
        env=bench.environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise SystemExit(f"{root}: {told.stdout}{told.stderr}")
    prepared, attempted = json.loads(told.stdout.splitlines()[-1])
    return prepared, attempted


def measure(case: str, rounds: int) -> tuple[float, float]:
    """Return the µs to prepare a job, and those of an attempt."""
    contexts, middleware, is_heard, recorded = CASES[case]
    options: dict[str, Any] = {"CONNECTION": "redis://localhost:1/0"}
    if contexts or middleware:
        options |= {"CONTEXT": contexts, "MIDDLEWARE": middleware}
    settings.configure(
        SECRET_KEY="of a benchmark",
        USE_TZ=True,
        INSTALLED_APPS=["django_delayq"],
        DELAYQ=options,
    )
    django.setup()
    logging.disable(logging.CRITICAL)
    if recorded is not None:
        _set_up_sdks(recorded)
    # As a site does for whoever asks: a context has something to find.
    translation.activate("de")
    timezone.activate(ZoneInfo("Asia/Shanghai"))
    # What follows reads the settings.
    from django_delayq import delayed_task
    from django_delayq.clock import boottime_ms
    from django_delayq.conf import get_settings
    from django_delayq.core.claim import Leased
    from django_delayq.jobs.stop import Stop
    from django_delayq.worker.attempt import Attempt
    from django_delayq.worker.thread_executor import Shared, ThreadExecutor
    from django_delayq.worker.time_limit import Timer

    @delayed_task(name="noop")
    def noop(number: int) -> None:
        """Do nothing."""

    around: dict[str, Any] = {}
    if contexts or middleware:
        from django_delayq.jobs.middleware import compose

        around["around"] = compose(get_settings())
    if is_heard:
        from django_delayq import signals

        for signal in (signals.job_started, signals.job_succeeded):
            signal.connect(lambda **named: None, weak=False)
    ended = threading.Event()
    left = 0

    def done(attempt: Attempt) -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set()

    shared = Shared(
        timer=Timer("delayq-time-limits"),
        stop=Stop(),
        done=done,
        stuck=lambda attempt: None,
        died=lambda why: None,
        found_async=lambda attempt: None,
        **around,
    )
    executor = ThreadExecutor(1, shared)
    executor.start()
    queue = get_settings().queue("default")
    prepared = attempted = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        jobs = [noop.prepare(0, number) for number in range(JOBS)]
        prepared = min(prepared, time.process_time() - begun)
        attempts = [
            Attempt(
                queue,
                Leased(job.token, 0, 0, 0, job.draft.new.payload, False, b"12345678"),
                boottime_ms() + 60_000,
                0.0,
                gates=None,
            )
            for job in jobs
        ]
        left = JOBS
        ended.clear()
        for attempt in attempts:
            executor.submit(attempt)
        begun = time.process_time()
        executor.wake()
        ended.wait()
        attempted = min(attempted, time.process_time() - begun)
    executor.stop(1.0)
    return prepared / JOBS * 1e6, attempted / JOBS * 1e6


def _set_up_sdks(recorded: float) -> None:
    import sentry_sdk
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
    from sentry_sdk.transport import Transport

    class Nowhere(Transport):
        def capture_envelope(self, envelope: object) -> None:
            """Send nothing."""

    trace.set_tracer_provider(
        TracerProvider(TraceIdRatioBased(recorded), shutdown_on_exit=False)
    )
    sentry_sdk.init(
        dsn="https://key@sentry.example/1",
        transport=Nowhere,
        default_integrations=False,
    )


if __name__ == "__main__":
    main()
