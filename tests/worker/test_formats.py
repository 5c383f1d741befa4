"""A rolling deploy to a version that writes another format, and back: nothing lost, nothing misread, nothing run twice."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq import BlockingQueue, NewerFormat, get_job, schedule
from django_delayq.calls.running import run
from django_delayq.conf import get_settings
from django_delayq.delivery import upgrading
from django_delayq.delivery.states import State
from django_delayq.delivery.upgrading import Step
from django_delayq.jobs import formats
from django_delayq.wire import signing
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.project.scheduler import EVERY, LATER_S
from tests.worker.workers import MANAGE, ROOT, WorkerProgram, counts, delayq_environment

#: A program of the later version; its workers say what they read, and its schedulers ask what to write, often.
LATER = {"WORKER_TEST_APPS": "tests.worker.later"}
OFTEN = {"WORKER_TEST_ROUND_MS": "200", "WORKER_TEST_FORMAT_KEPT_MS": "200"}
#: Whoever goes back waits for longer than it takes any scheduler to notice.
PATIENT = {"WORKER_TEST_FORMAT_KEPT_MS": "4000"}

#: What a worker process says of a queue that it leaves alone.
SAID = (
    "is in format 3, and this version reads up to 2: it takes and moves nothing there"
)


class Scheduler:
    """A program that schedules, of one version, from `start` to `stop`."""

    def __init__(
        self, path: Path, queue: str, environment: dict[str, str], root: Path = ROOT
    ) -> None:
        self._path = path
        command = [sys.executable, "-m", "tests.worker.project.scheduler", queue]
        settings = {"DJANGO_SETTINGS_MODULE": "tests.worker.project.settings"}
        self.environment = {**os.environ, **environment, **settings}
        self._process = subprocess.Popen(
            [*command, str(path)],
            cwd=root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )

    def stored(self) -> dict[str, int]:
        """Return the number of each job that is stored, by id."""
        if not self._path.exists():
            return {}
        lines = self._path.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return {job: int(number) for job, number in whole}

    def wait_for_more(self) -> None:
        """Wait until it has scheduled some jobs that it did not think of before this."""
        before = len(self.stored())
        wait_until(
            lambda: (
                len(self.stored()) >= before + 2 * EVERY
                or self._process.poll() is not None
            ),
            description="more is scheduled",
        )
        assert self._process.poll() is None

    def stop(self) -> None:
        Path(f"{self._path}.stop").touch()
        assert self._process.wait(30) == 0

    def destroy(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def scheduler(
    configure: Any, records: Any, settings: Any, tmp_path: Path, queue_name: str
) -> Iterator[Callable[..., Scheduler]]:
    """Start programs that schedule; they end with the test."""
    started: list[Scheduler] = []

    def start(root: Path = ROOT, **environment: str) -> Scheduler:
        told = delayq_environment(settings.DELAYQ, records.path) | environment
        path = tmp_path / f"scheduled-{len(started)}"
        started.append(Scheduler(path, queue_name, told, root))
        return started[-1]

    yield start
    for each in started:
        each.destroy()


def run_command(*arguments: str, environment: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, str(MANAGE), *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_deploy_of_a_later_version_and_back_under_load(
    program, scheduler, client, records, settings, queue_name
):
    keys = get_settings().queue(queue_name).keys
    serve = ("--queue", queue_name, "--grace", "20", "--processes")

    def format_is(number: int) -> bool:
        return int(client.hget(keys.control, "format") or 1) == number

    def pids_of(worker: WorkerProgram) -> set[int]:
        return set(worker.children())

    def ran_by(pids: set[int]) -> int:
        return sum(line["pid"] in pids for line in records.all("pair"))

    def wait_until_it_runs(worker: WorkerProgram) -> None:
        pids = pids_of(worker)
        before = ran_by(pids)
        wait_until(lambda: ran_by(pids) > before, description="it runs jobs")

    # One version.
    old = program(*serve, "2", environment=OFTEN)
    old_scheduler = scheduler(**OFTEN)
    old_scheduler.wait_for_more()
    wait_until(
        lambda: sum(b"reads:" in name for name in client.hkeys(keys.control)) == 2,
        description="both processes have said what they read",
    )
    # The next comes beside it.
    new = program(*serve, "1", environment=OFTEN | LATER)
    new.wait_for_log("stays in format 2: 2 processes read no later one")
    new_scheduler = scheduler(**OFTEN, **LATER)
    new_scheduler.wait_for_more()
    wait_until_it_runs(new)
    assert format_is(2)
    # The last old worker leaves.
    assert old.stop() == 0
    wait_until(lambda: format_is(3), description="the queue is raised")
    wait_until(
        lambda: any(
            b'"mac":"3' in frame
            for frame in client.zrange(keys.queue.timeout_set, 0, -1)
        ),
        description="format 3 is written",
    )
    old_scheduler.wait_for_more()
    new_scheduler.wait_for_more()
    wait_until_it_runs(new)
    # One that comes back gets nothing, and says why.
    back = program(*serve, "1", environment=OFTEN)
    back.wait_for_log(SAID)
    its_pids = pids_of(back)
    new_scheduler.wait_for_more()
    wait_until_it_runs(new)
    assert ran_by(its_pids) == 0
    # The way back.
    told = run_command(
        *("delayq_resign", "--format", "2", queue_name),
        environment=delayq_environment(settings.DELAYQ, records.path) | LATER | PATIENT,
    )
    assert f"queue {queue_name}: from format 3 to format 2" in told
    assert format_is(2)
    back.wait_for_log(f"queue {queue_name} is claimed from again")
    new_scheduler.wait_for_more()
    assert new.stop() == 0
    new_scheduler.stop()
    old_scheduler.stop()

    stored = [*old_scheduler.stored().items(), *new_scheduler.stored().items()]
    for job, number in stored:
        if number % EVERY == 0:
            assert get_job(job).run_now()
    wait_until(lambda: records.count("pair") >= len(stored), description="all have run")
    wait_until(lambda: counts(queue_name).running == 0, description="all are settled")
    # Numbers are those of two schedulers, and a job that was misread has its arguments in reverse.
    ran = [(line["job"], *line["pair"]) for line in records.all("pair")]
    assert sorted(ran) == sorted((job, n, str(n)) for job, n in stored)
    told = counts(queue_name)
    assert (told.waiting, told.held, told.dead, told.quarantined) == (0, 0, 0, 0)
    assert back.log.count(SAID) == 1
    assert ran_by(its_pids) > 0


#: The last commit that knows only format 1.
BEFORE = "c6016b1a4ec0948129444f0b2611c83660f240f6"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A checkout of the version before format 2."""
    root = tmp_path / "before"
    root.mkdir()
    packed = subprocess.run(
        ["git", "archive", BEFORE, "django_delayq", "tests"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        pytest.skip(f"needs the history of the project: {packed.stderr.decode()}")
    subprocess.run(["tar", "-x"], input=packed.stdout, cwd=root, check=True)
    return root


@pytest.mark.slow
def test_deploy_from_the_version_before_format_2_under_load(
    program, scheduler, client, records, before, queue_name
):
    """Format 1 by the code that knew no other, which goes on scheduling after its last worker has left."""
    keys = get_settings().queue(queue_name).keys
    serve = ("--queue", queue_name, "--grace", "20", "--processes", "1")

    def format_is(number: int) -> bool:
        return int(client.hget(keys.control, "format") or 1) == number

    old = program(*serve, environment=OFTEN, root=before)
    old_scheduler = scheduler(root=before, **OFTEN)
    old_scheduler.wait_for_more()
    wait_until(
        lambda: any(b"reads:" in name for name in client.hkeys(keys.control)),
        description="it has said what it reads",
    )
    new = program(*serve, environment=OFTEN)
    new.wait_for_log("stays in format 1: 1 processes read no later one")
    new_scheduler = scheduler(**OFTEN)
    new_scheduler.wait_for_more()
    # It has no effect yet, and does no harm.
    early = tasks.pair.using(queue=queue_name, priority=50).schedule(LATER_S, -1, "-1")
    assert early.refresh() is State.SCHEDULED
    assert old.stop() == 0
    wait_until(lambda: format_is(2), description="the queue is raised")
    formats.forget()
    urgent = tasks.pair.using(queue=queue_name, priority=50)
    moved = urgent.schedule(LATER_S, -2, "-2")
    assert moved.refresh() is State.SCHEDULED
    assert moved.priority == 50
    old_scheduler.wait_for_more()
    new_scheduler.wait_for_more()
    # The old code finds, moves and cancels jobs of format 2 by their id.
    cancelled = urgent.schedule(LATER_S, -3, "-3")
    told = run_old(before, old_scheduler, moved.id, cancelled.id)
    assert told == ["True", "True"]
    back = program(*serve, environment=OFTEN, root=before)
    back.wait_for_log("is in format 2, and this version reads up to 1")
    old_scheduler.stop()
    new_scheduler.stop()
    stored = [*old_scheduler.stored().items(), *new_scheduler.stored().items()]
    stored += [(early.id, -1), (moved.id, -2)]
    for job, number in stored:
        if number < 0 or number % EVERY == 0:
            assert get_job(job).run_now()
    wait_until(lambda: records.count("pair") >= len(stored), description="all have run")
    wait_until(lambda: counts(queue_name).running == 0, description="all are settled")

    ran = [(line["job"], *line["pair"]) for line in records.all("pair")]
    assert sorted(ran) == sorted((job, n, str(n)) for job, n in stored)
    told = counts(queue_name)
    assert (told.waiting, told.held, told.dead, told.quarantined) == (0, 0, 0, 0)
    assert told.counters["cancelled"] == 1
    # The old code knows of no rank. A claim drops this one when it is due.
    assert client.zrange(keys.ranked, 0, -1) == [cancelled.token.encode()]


def run_old(root: Path, scheduler: Scheduler, moved: str, cancelled: str) -> list[str]:
    """Have the old code move one job and cancel another."""
    code = (
        "import sys, django; django.setup()\n"
        "from django_delayq import get_job, __file__ as file\n"
        f"assert file.startswith({str(root)!r}), file\n"
        "print(get_job(sys.argv[1]).reschedule(1800))\n"
        "print(get_job(sys.argv[2]).cancel())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, moved, cancelled],
        cwd=root,
        env=scheduler.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.split()


@pytest.fixture
def raise_it(client, queue_name, monkeypatch):
    """Have a later version put the queue into format 2 and back."""

    def put(format: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(signing, "FORMAT", 3)
            for step in (Step.FORCE, Step.END):
                keys = get_settings().queue(queue_name).keys
                run(client, upgrading.set_format(keys, format, step))

    return put


@pytest.mark.parametrize(
    "options", [{}, {"REDISSON": "3.27.2", "CODEC": "StringCodec"}]
)
def test_older_worker_touches_nothing_of_a_later_queue_and_goes_on_by_itself(
    configure, work, records, client, queue_name, raise_it, caplog, options
):
    configure(options)
    keys = get_settings().queue(queue_name).keys
    raise_it(3)
    jobs = [
        schedule(tasks.pair.using(queue=queue_name), 0, n, str(n)) for n in range(3)
    ]
    if options:
        client.rpush(keys.queue.destination, b"of Java")
    names = client.keys(f"*{queue_name}*")
    before = {name: client.dump(name) for name in names}

    worker = work(cap_ms=10)

    wait_until(lambda: worker.loop.turns > 20, description="it has looked often")
    assert {
        name: client.dump(name) for name in client.keys(f"*{queue_name}*")
    } == before
    assert caplog.text.count(SAID) == 1
    raise_it(2)
    wait_until(lambda: records.count("pair") == 3, description="they run")
    assert sorted(records.jobs("pair")) == sorted(job.id for job in jobs)
    assert caplog.text.count("is claimed from again") == 1


def test_what_runs_while_the_queue_is_raised_comes_to_its_end(
    configure, work, records, client, queue_name, raise_it
):
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    failing = schedule(tasks.hold_and_fail.using(queue=queue_name), 0)
    work(cap_ms=10, lease_s=6)
    wait_until(lambda: records.count("start") == 2, description="both run")
    first_end = lease_end(client, queue_name)

    raise_it(3)
    wait_until(
        lambda: lease_end(client, queue_name) > first_end, description="it is renewed"
    )
    records.let_go()

    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it is settled")
    wait_until(lambda: failing.refresh() is State.RETRYING, description="so is this")
    assert (failing.attempts, failing.kills) == (1, 0)


def lease_end(client, queue_name) -> float:
    keys = get_settings().queue(queue_name).keys
    return min(score for _, score in client.zrange(keys.leases, 0, -1, withscores=True))


def test_burst_that_cannot_read_a_queue_says_so_in_its_exit_status(
    configure, work, queue_name, raise_it
):
    raise_it(3)

    assert work(is_burst=True).join() == 1


def test_whoever_takes_from_a_later_queue_is_told(
    configure, client, queue_name, raise_it
):
    configure({"REDISSON": "3.27.2", "CODEC": "StringCodec"})
    client.rpush(get_settings().queue(queue_name).keys.queue.destination, b"text")
    raise_it(3)

    with BlockingQueue(queue_name) as blocking:
        with pytest.raises(NewerFormat, match="is in format 3, and this version reads"):
            blocking.poll(20)
        raise_it(2)
        assert blocking.poll(20) == "text"
