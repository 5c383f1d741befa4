"""Killing any process at any moment loses no job, and nothing but a kill makes one run twice."""

import itertools
import os
import random
import re
import signal
import time
from collections import defaultdict

import pytest

from django_delayq import schedule_many
from tests.polling import wait_until
from tests.servers import LASTING
from tests.worker.project import tasks
from tests.worker.workers import counts, kill, workers_of

#: The lease of these workers, s: what a killed supervisor's children held runs again after it.
LEASE_S = 5
#: How long a job may still run after a signal was sent to its process, ms: this machine may be slow to deliver.
SLACK_MS = 1_000


class Run:
    """A run of many jobs, and who was killed in it."""

    def __init__(self, program, queue, records, server):
        self._program = program
        self._queue = queue
        self._records = records
        self._server = server
        self._random = random.Random(20)
        #: Pid → from when to when it was being killed, epoch ms: once for each process that the system gave it to.
        self.killed = defaultdict(list)
        #: The same of the server, until it was there again.
        self.server_kills = []
        self.worker = None
        self.start_worker()

    def start_worker(self):
        self.worker = self._program(
            "--queue",
            self._queue,
            "--processes",
            "2",
            "--threads",
            "4",
            "--grace",
            "30",
        )

    def kill_one(self):
        """Kill a process: mostly children, sometimes the supervisor or the server, which the test starts again."""
        draw = self._random.random()
        if draw < 0.1:
            begun_ms = time.time() * 1000
            self._server.kill_and_start()
            self.server_kills.append((begun_ms, time.time() * 1000))
            return True
        if draw < 0.25:
            begun_ms = time.time() * 1000
            self.worker.signal(signal.SIGKILL)
            self.worker.wait()
            self.killed[self.worker.pid].append((begun_ms, time.time() * 1000))
            self.start_worker()
            return True
        # Those whose supervisor was killed, too.
        victims = set(workers_of(self._queue)) - {self.worker.pid}
        if not victims:
            return False
        pid = self._random.choice(sorted(victims))
        begun_ms = time.time() * 1000
        if not kill(pid, signal.SIGKILL):
            return False
        self.killed[pid].append((begun_ms, time.time() * 1000))
        return True

    def until(self, jobs, kills):
        """Kill evenly over the run, and wait for its end."""
        done = set()

        def progress(least):
            if not self.worker.is_running:
                # It finds no server where that is killed while it starts. Whoever manages processes starts it again.
                self.start_worker()
            done.update(self._records.jobs("end"))
            return len(done) >= least

        for i in range(kills):
            # At any moment: some jobs after the last kill, and not in step with anything.
            least = len(jobs) * (i + self._random.random()) / kills
            wait_until(
                lambda least=least: progress(least),
                description=f"{least:.0f} jobs have run",
                timeout=60,
            )
            wait_until(self.kill_one, description="a process is killed")
        wait_until(lambda: progress(len(jobs)), description="all have run", timeout=90)

    def unexplained(self):
        """Return the runs that no kill explains: (first, second) records of the same job."""
        starts = defaultdict(list)
        for line in self._records.all("start"):
            starts[line["job"]].append(line)
        return [
            (first, second)
            for runs in starts.values()
            for first, second in itertools.pairwise(runs)
            if not self._is_explained(first, second)
        ]

    def lost(self):
        """Return the jobs whose workers say that the lease was lost while they ran: a machine this slow starves them."""
        logs = self.worker.directory.glob("log-*")
        text = "".join(log.read_text(errors="replace") for log in logs)
        return set(re.findall(r"job=(\S+) .*outcome=lost", text))

    def _is_explained(self, first, second):
        if (
            first["job"] in self.lost()
            and second["at_ms"] - first["at_ms"] >= LEASE_S * 1000
        ):
            return True
        kills = self.killed.get(first["pid"], [])
        # A server that dies may forget its last moment, an acknowledgement or a claim.
        return any(
            first["at_ms"] <= until_ms + SLACK_MS and begun_ms <= second["at_ms"]
            for begun_ms, until_ms in kills + self.server_kills
        )


class OwnServer:
    """A server that the test kills and starts again."""

    def __init__(self, server):
        self._server = server

    def kill_and_start(self):
        self._server.kill()
        self._server.start()


class EmbeddedServer:
    """The embedded one, which its guardian starts again; where that is killed, too, a worker does."""

    def __init__(self, directory):
        self._directory = directory / ".delayq"
        self._kills = 0

    def _pid(self, name):
        try:
            return int((self._directory / f"{name}.pid").read_text() or 0)
        except FileNotFoundError:
            return 0

    def kill_and_start(self):
        self._kills += 1
        for name in ("guardian", "server") if self._kills % 3 == 0 else ("server",):
            pid = wait_until(lambda name=name: self._pid(name), description="its pid")
            kill(pid, signal.SIGKILL)


def check(run, jobs, kills, records, queue):
    run.until(jobs, kills)
    # The last kill may have taken back ends that the server had acknowledged: those jobs run again, after their leases.
    wait_until(
        lambda: (
            (told := counts(queue)) and told.waiting + told.running + told.retrying == 0
        ),
        description="all are settled",
        timeout=60,
    )
    # It may have started only just now.
    assert run.worker.stop() in (0, -signal.SIGTERM), run.worker.log

    ends = set(records.jobs("end"))
    assert {job.id for job in jobs} <= ends
    assert run.unexplained() == []
    # The kills have hit what ran.
    assert records.count("start") >= len(jobs) + kills
    assert sum(map(len, run.killed.values())) + len(run.server_kills) == kills
    told = counts(queue)
    assert (told.waiting, told.running, told.retrying) == (0, 0, 0)
    assert (told.dead, told.quarantined) == (0, 0)


def schedule_jobs(queue, count, most_ms):
    """Schedule jobs that keep two times four threads, and some coroutines, busy from the beginning to the end."""
    chosen = random.Random(10)
    sync, coroutine = (
        task.using(queue=queue)
        for task in (tasks.work_a_while, tasks.work_a_while_async)
    )
    return schedule_many(
        (coroutine if chosen.random() < 0.2 else sync).prepare(
            chosen.random(), chosen.randrange(most_ms)
        )
        for _ in range(count)
    )


@pytest.fixture
def lasting(private_server, settings, queue_name, configure):
    server = private_server(**LASTING)
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {"default": {}, queue_name: {}},
        "WORKER": {"LEASE": LEASE_S},
    }
    return OwnServer(server)


@pytest.mark.parametrize(
    ("count", "most_ms", "kills"),
    [
        pytest.param(1_000, 60, 15, id="1000-jobs"),
        pytest.param(4_000, 60, 40, id="4000-jobs", marks=pytest.mark.slow),
    ],
)
def test_killing_any_process_at_any_moment(
    lasting, program, records, queue_name, count, most_ms, kills
):
    jobs = schedule_jobs(queue_name, count, most_ms)

    run = Run(program, queue_name, records, lasting)

    check(run, jobs, kills, records, queue_name)


@pytest.mark.slow
def test_killing_any_process_of_the_embedded_server_at_any_moment(
    program, records, queue_name, settings, tmp_path
):
    settings.DEBUG = True
    settings.DELAYQ = {
        "EMBEDDED_DIR": str(tmp_path),
        "TEST": "connection",
        "QUEUES": {"default": {}, queue_name: {}},
        "WORKER": {"LEASE": LEASE_S},
    }
    os.environ["WORKER_TEST_DEBUG"] = "1"
    try:
        jobs = schedule_jobs(queue_name, 2_000, 60)
        run = Run(program, queue_name, records, EmbeddedServer(tmp_path))
        check(run, jobs, 20, records, queue_name)
    finally:
        del os.environ["WORKER_TEST_DEBUG"]
