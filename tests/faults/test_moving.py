"""A queue moves to another server while workers run on both, and its mover is killed again and again: each job runs once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import conf, get_job, schedule_many
from django_delayq.transport.clients import own_clients
from tests import forked
from tests.faults.ledger import Ledger
from tests.polling import wait_until
from tests.servers import LASTING, Server
from tests.worker.project import tasks
from tests.worker.records import Records
from tests.worker.workers import ROOT, counts, delayq_environment

KILLS = 30
#: Jobs that come due while the queue moves, and jobs that do not.
SOON, LATER, AT_LAST = 600, 3_000, 20
SOON_S, LATER_S = 6.0, 3_600


@pytest.fixture
def start_mover(
    settings: Any, records: Records, queue_name: str
) -> Iterator[Callable[[str, str], "subprocess.Popen[str]"]]:
    """Start a program that moves the test's queue, once its input says so."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, target: str) -> "subprocess.Popen[str]":
        delayq = {**settings.DELAYQ, "CONNECTION": target}
        command = [sys.executable, "-m", "tests.worker.project.mover"]
        environment = {
            **os.environ,
            **delayq_environment(delayq, records.path),
            "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
        }
        each = forked.Popen(
            [*command, source, queue_name, str(KILLS)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(each)
        return each

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_mover_that_is_killed_thirty_times_loses_and_doubles_nothing(
    lasting: Server,
    use: Any,
    private_server: Callable[..., Server],
    programs: Callable[..., Any],
    ledger: Ledger,
    start_mover: Callable[[str, str], "subprocess.Popen[str]"],
    queue_name: str,
) -> None:
    target = private_server(**LASTING)
    programs(1)
    programs(1, connection=target.socket_url)
    mover = start_mover(lasting.socket_url, target.socket_url)
    task = tasks.note.using(queue=queue_name)
    later = schedule_many(task.prepare(LATER_S, "later") for _ in range(LATER))
    soon = schedule_many(task.prepare(n * SOON_S / SOON, str(n)) for n in range(SOON))
    ledger.wait_for_starts(1)

    out, err = mover.communicate("go\n", timeout=240)

    assert mover.returncode == 0, err
    assert int(out) == KILLS, err
    use(target)
    # However slow the mover was: something runs on the target as well.
    at_last = [get_job(job.id) for job in later[:AT_LAST]]
    assert [job.reschedule(0) for job in at_last] == [True] * AT_LAST
    wait_until(
        lambda: len({run.job for run in ledger.runs()}) == SOON + AT_LAST,
        description="all that was due has run",
        timeout=60,
    )
    wait_until(
        lambda: counts(queue_name).jobs == LATER - AT_LAST,
        description="the rest waits there",
    )
    assert ledger.repeated() == {}
    assert {run.job for run in ledger.runs()} == {job.id for job in [*soon, *at_last]}
    # On both servers, or the test has not seen a move.
    assert len({run.pid for run in ledger.runs()}) == 2
    keys = conf.get_settings().queue(queue_name).keys
    left = lasting.client()
    assert left.exists(keys.held, keys.moving, keys.payloads, keys.locators) == 0
    assert own_clients.of_thread().exists(keys.moving) == 0
