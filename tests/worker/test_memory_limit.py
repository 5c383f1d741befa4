"""``--max-memory``: processes that have grown are replaced, one at a time, and no job pays for it."""

import mmap
import re
import subprocess
import sys
from collections import Counter

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule, schedule_many
from django_delayq.core.states import State
from django_delayq.management.commands import delayq_worker
from django_delayq.worker import memory_limit
from django_delayq.worker.memory_limit import MemoryLimit, MemoryWatch, Meter
from django_delayq.worker.process import DONE, REPLACE_ME
from tests.polling import FakeClock, wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS, counts

MB = 2**20
REPLACED = re.compile(
    r" (\d+) INFO this process uses (\d+\.\d) MB and will be replaced: the limit is (\d+\.\d) MB, (\d+) jobs have run"
)


@pytest.fixture
def taken(monkeypatch):
    """What processes seem to take, in MB: a list of one number; measured at every tick."""
    taken = [100]
    monkeypatch.setattr(Meter, "read", lambda meter: taken[0] * MB)
    monkeypatch.setattr(memory_limit, "LOOK_EVERY_MS", 0.0)
    return taken


# Sizes.


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512 * MB),
        ("1.5GB", 1536 * MB),
        ("800M", 800 * MB),
        ("800m", 800 * MB),
        ("512 MiB", 512 * MB),
        ("0.5t", 512 * 1024 * MB),
        ("65536K", 64 * MB),
        ("536870912", 512 * MB),
        ("536870912B", 512 * MB),
        ("32MB", 32 * MB),
    ],
)
def test_sizes_are_read_as_people_write_them(
    configure, monkeypatch, capsys, text, size
):
    told = []

    class Noted:
        def __init__(self, options, *, stop_with):
            told.append(options.max_memory)

        def run(self):
            return 0

    monkeypatch.setattr(delayq_worker, "Supervisor", Noted)
    with pytest.raises(SystemExit):
        call_command("delayq_worker", "--max-memory", text)

    assert told == [size]


@pytest.mark.parametrize(
    "text",
    ["", "much", "MB", "512XB", "5 1 2MB", "1,5GB", "nan", "inf", "1e9", "9" * 400],
)
def test_what_is_no_size_is_explained(configure, text):
    message = f"{text!r} is not a size such as 512MB or 1.5GB"
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("delayq_worker", "--max-memory", text)


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("0", 0), ("31.9MB", 33449574)]
)
def test_a_size_that_no_process_fits_into_is_explained(configure, text, size):
    message = f"{text!r} is {size} bytes, and no worker process fits into less than 32MB; give a size such as 512MB"
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("delayq_worker", "--max-memory", text)


# What is measured.


@pytest.mark.skipif(
    sys.platform != "linux", reason="the most that was resident never gets less"
)
def test_what_a_process_takes_is_measured_and_what_it_shares_is_not():
    meter = Meter()
    before = meter.read()
    own = b"x" * (64 * MB)
    with_own = meter.read()
    with mmap.mmap(-1, 64 * MB) as shared:
        shared.write(own)
        with_shared = meter.read()
    del own
    after = meter.read()

    # A test process frees and takes a little meanwhile.
    assert 56 * MB < with_own - before < 72 * MB
    assert abs(with_shared - with_own) < 8 * MB
    assert abs(after - before) < 8 * MB


@pytest.mark.parametrize("status", [None, "Name:\tpython\nVmRSS:\t  100 kB\n"])
def test_where_the_system_does_not_tell_the_most_that_was_resident_counts(
    tmp_path, monkeypatch, status
):
    path = tmp_path / "status"
    if status is not None:
        path.write_text(status)
    own = Meter().read()
    monkeypatch.setattr(memory_limit, "_STATUS", str(path))

    most = Meter().read()

    assert own <= most < 100 * own


# The watch of one process.


@pytest.fixture
def watch(monkeypatch, taken):
    """Make the watch of a fresh process that has run so many jobs; returns what was called, and the clock, too."""
    monkeypatch.setattr(memory_limit, "LOOK_EVERY_MS", 1_000.0)
    clock = FakeClock(5_000.0)
    monkeypatch.setattr(memory_limit, "monotonic_ms", clock)
    retired = []

    def make(limit, jobs=70):
        watch = MemoryWatch(
            limit, jobs=lambda: jobs, retire=lambda: retired.append(taken[0])
        )
        watch.start()
        return watch, retired, clock

    return make


def test_a_process_above_its_limit_is_told_to_go_once(watch, taken, caplog):
    caplog.set_level("INFO", logger="django_delayq")
    watch, retired, clock = watch(MemoryLimit(200 * MB))

    for taken[0] in (150, 200, 201, 220):
        clock.advance(1_000)
        watch.look()

    assert retired == [201]
    assert caplog.messages == [
        "this process uses 201.0 MB and will be replaced: the limit is 200.0 MB, 70 jobs have run"
    ]


def test_it_is_measured_once_a_second(watch, taken):
    watch, retired, clock = watch(MemoryLimit(200 * MB))
    taken[0] = 300

    clock.advance(999)
    watch.look()
    assert retired == []
    clock.advance(1)
    watch.look()

    assert retired == [300]


def test_a_limit_with_room_to_grow_is_not_called_too_low(watch, taken, caplog):
    watch, _, _ = watch(MemoryLimit(125 * MB))

    assert caplog.messages == []


def test_a_limit_that_a_fresh_process_hardly_keeps_is_told_once_and_raised(
    watch, taken, caplog
):
    limit = MemoryLimit(104 * MB)
    watched, retired, clock = watch(limit)
    watch(limit)

    assert caplog.messages == [
        "--max-memory of 104.0 MB is too low: a fresh process takes 100.0 MB, so that each would be replaced after"
        " nearly every job; they are replaced above 125.0 MB instead"
    ]
    for taken[0] in (105, 125, 126):
        clock.advance(1_000)
        watched.look()
    assert retired == [126]


def test_a_limit_that_is_passed_after_few_jobs_is_told_once(watch, taken, caplog):
    limit = MemoryLimit(130 * MB)
    for _ in range(3):
        taken[0] = 100
        watched, retired, clock = watch(limit, jobs=9)
        taken[0] = 180
        clock.advance(1_000)
        watched.look()

    assert retired == [180] * 3
    assert caplog.messages == [
        "--max-memory of 130.0 MB is too low, or a task leaves much behind: a fresh process takes 100.0 MB, and"
        " 180.0 MB after 9 jobs"
    ]


@pytest.fixture
def replaced_one():
    """Make another process of the same worker take its turn; it lasts until the test ends it."""
    others = []

    def take(limit):
        # POSIX locks are those of a process: only another one can be in the way.
        code = (
            "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX);"
            "print(flush=True); sys.stdin.read()"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(limit._turn)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[limit._turn],
        )
        others.append(other)
        assert other.stdout is not None
        assert other.stdout.read(1) == b"\n"
        return other

    yield take
    for other in others:
        other.kill()
        other.communicate()


def test_a_process_waits_while_another_one_is_replaced(watch, taken, replaced_one):
    limit = MemoryLimit(200 * MB)
    watch, retired, clock = watch(limit)
    other = replaced_one(limit)
    taken[0] = 250

    clock.advance(1_000)
    watch.look()
    assert retired == []
    # However it ends.
    other.kill()
    other.wait()
    clock.advance(1_000)
    watch.look()

    assert retired == [250]


def test_a_process_far_above_its_limit_waits_for_none(watch, taken, replaced_one):
    limit = MemoryLimit(200 * MB)
    watch, retired, clock = watch(limit)
    replaced_one(limit)
    taken[0] = 251

    clock.advance(1_000)
    watch.look()

    assert retired == [251]


# A process that goes.


@every_server
def test_what_runs_ends_and_nothing_else_begins(work, records, queue_name, taken):
    # Its grace does not count: it was not told to stop.
    worker = work(
        memory_limit=MemoryLimit(200 * MB), threads=2, grace_s=0, cap_ms=NEVER_MS
    )
    jobs = [
        schedule(task.using(queue=queue_name), 0)
        for task in (tasks.hold, tasks.hold_async)
    ]
    wait_until(lambda: records.count("start") == 2, description="both run")

    taken[0] = 201
    wait_until(
        lambda: worker.loop.shutdown.is_retiring, description="it was told to go"
    )
    later = schedule(tasks.note.using(queue=queue_name), 0)
    turns = worker.loop.turns
    wait_until(lambda: worker.loop.turns > turns, description="it has seen that")
    assert worker.is_running
    records.let_go()

    assert worker.join() == REPLACE_ME
    assert [job.refresh() for job in jobs] == [State.SUCCEEDED] * 2
    assert later.refresh() is State.DUE
    assert records.count("run") == 0
    assert counts(queue_name).running == 0


def test_an_idle_process_goes_at_once(work, records, queue_name, taken):
    worker = work(memory_limit=MemoryLimit(200 * MB), cap_ms=NEVER_MS)
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(
        lambda: counts(queue_name).counters.get("succeeded"), description="it works"
    )

    taken[0] = 201

    assert worker.join() == REPLACE_ME


def test_what_was_claimed_and_not_begun_runs_before_the_end(
    work, records, queue_name, taken
):
    worker = work(memory_limit=MemoryLimit(200 * MB), threads=1)
    note = tasks.note.using(queue=queue_name)
    schedule_many(note.prepare(0) for _ in range(500))
    wait_until(lambda: records.count("run"), description="they run")

    taken[0] = 201

    assert worker.join() == REPLACE_ME
    told = counts(queue_name)
    assert told.running == 0
    assert records.count("run") == told.counters["succeeded"]
    assert len(set(records.jobs("run"))) == records.count("run")
    assert told.waiting + told.retrying == 500 - records.count("run")


def test_a_burst_goes_on_in_the_next_process(work, records, queue_name, taken):
    hold = schedule(tasks.hold.using(queue=queue_name), 0)
    schedule_many(tasks.note.using(queue=queue_name).prepare(0) for _ in range(3))
    # A burst that finds nothing ends at once, so it begins after them.
    worker = work(memory_limit=MemoryLimit(200 * MB), is_burst=True, threads=1)
    wait_until(lambda: records.count("start") == 1, description="the first one runs")

    taken[0] = 201
    wait_until(
        lambda: worker.loop.shutdown.is_retiring, description="it was told to go"
    )
    records.let_go()
    assert worker.join() == REPLACE_ME
    taken[0] = 100

    assert work(memory_limit=MemoryLimit(200 * MB), is_burst=True).join() == DONE
    assert hold.refresh() is State.SUCCEEDED
    assert records.count("run") == 3


# Programs.


def grow(queue_name, mb):
    """Schedule a job that makes its process take so much more, and keeps it."""
    return schedule(tasks.grow.using(queue=queue_name), 0, mb)


@every_server
def test_a_process_that_has_grown_is_replaced(program, records, queue_name, tmp_path):
    beats = tmp_path / "beats"
    worker = program(
        *("--queue", queue_name, "--max-memory", "200MB", "--heartbeat", str(beats))
    )
    jobs = [grow(queue_name, 50)]
    wait_until(lambda: records.count("end") == 1, description="it has grown a little")
    jobs.append(grow(queue_name, 150))

    found = wait_until(
        lambda: REPLACED.search(worker.log), description="that is noticed"
    )
    pid, taken, limit, count = found.groups()
    assert 200 < float(taken) < 400
    assert float(limit) == 200
    # It may be noticed before the server knows of the second one's end.
    assert int(count) in (1, 2)
    (child,) = wait_until(
        lambda: len(found := worker.children()) == 1 and found != [int(pid)] and found,
        description="another process",
    )
    jobs.append(grow(queue_name, 1))

    wait_until(lambda: jobs[-1].refresh() is State.SUCCEEDED, description="it works")
    assert [line["pid"] for line in records.all("end")] == [int(pid)] * 2 + [child]
    wait_until(
        lambda: (
            [path.name for path in beats.glob("*.json")] == [f"worker-{child}.json"]
        ),
        description="the new one beats, and the old one's file is gone",
    )
    assert worker.log.count("too low") == 1
    assert "ended with" not in worker.log
    assert worker.stop() == 0


def test_a_limit_that_is_too_low_is_told_once_and_the_worker_works(
    program, records, queue_name
):
    worker = program(
        *("--queue", queue_name, "--processes", "2", "--max-memory", "32MB")
    )
    children = wait_until(
        lambda: len(found := worker.children()) == 2 and found,
        description="both are there",
    )
    schedule_many(tasks.note.using(queue=queue_name).prepare(0) for _ in range(200))
    wait_until(lambda: records.count("run") == 200, description="all have run")
    found = re.search(
        r" WARNING --max-memory of 32\.0 MB is too low: a fresh process takes (\S+) MB,"
        r".* they are replaced above (\S+) MB instead",
        worker.log,
    )
    fresh, limit = map(float, found.groups())
    assert 1.2 * fresh < limit < 1.3 * fresh

    # Theirs is the raised limit, and that of their successors, which have nothing more to say.
    grow(queue_name, 100)
    before = int(
        wait_until(lambda: REPLACED.search(worker.log), description="one has grown")[1]
    )
    after = wait_until(
        lambda: len(found := worker.children()) == 2 and before not in found and found,
        description="it is replaced",
    )
    grow(queue_name, 100)
    wait_until(
        lambda: len(REPLACED.findall(worker.log)) == 2, description="another one, too"
    )

    assert set(children) & set(after) == set(children) - {before}
    assert worker.log.count("too low") == 1
    assert worker.stop() == 0


def test_one_process_at_a_time_is_replaced(program, records, queue_name):
    worker = program(
        *("--queue", queue_name, "--processes", "2", "--threads", "1"),
        *("--max-memory", "200MB"),
    )
    # Above the limit, and not far above.
    task = tasks.grow_and_hold.using(queue=queue_name)
    held = [schedule(task, 0, 220) for _ in range(2)]
    wait_until(lambda: records.count("start") == 2, description="both hold one")
    first = int(
        wait_until(lambda: REPLACED.search(worker.log), description="one has to go")[1]
    )

    # The other one still takes what comes, for longer than it takes to measure itself.
    note = tasks.note_async.using(queue=queue_name)
    schedule_many(note.prepare(0.2 * n) for n in range(20))
    wait_until(lambda: records.count("run") == 20, description="it works")
    assert first not in {line["pid"] for line in records.all("run")}
    assert len(REPLACED.findall(worker.log)) == 1
    records.let_go()
    wait_until(
        lambda: len(REPLACED.findall(worker.log)) == 2, description="it is its turn"
    )

    wait_until(
        lambda: all(job.refresh() is State.SUCCEEDED for job in held),
        description="what they held has ended",
    )
    assert worker.stop() == 0


def test_processes_that_grow_all_the_time_lose_no_job_and_run_none_twice(
    program, records, queue_name
):
    worker = program(
        *("--queue", queue_name, "--processes", "2", "--threads", "2"),
        *("--max-memory", "100MB"),
    )
    task = tasks.grow.using(queue=queue_name)
    jobs = []

    def have_changed():
        # So many that would fit into this machine if none were replaced.
        if records.count("end") >= len(jobs) - 10 and len(jobs) < 200:
            jobs.extend(schedule_many(task.prepare(0, 10, 0.1) for _ in range(20)))
        return len({line["pid"] for line in records.all("end")}) >= 6

    wait_until(have_changed, description="processes come and go", timeout=90)
    wait_until(
        lambda: counts(queue_name).counters["succeeded"] == len(jobs),
        description="all have run",
    )
    assert worker.stop() == 0

    assert Counter(records.jobs("start")) == {job.id: 1 for job in jobs}
    assert {(line["attempt"], line["kills"]) for line in records.all("end")} == {(1, 0)}
