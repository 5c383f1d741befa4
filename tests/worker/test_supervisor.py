"""The worker as a program: processes that start, die and end."""

import os
import signal
import subprocess
import time

import pytest

from django_delayq import schedule, schedule_many
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.worker import supervisor
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import children_of, counts, is_alive, kill


@pytest.fixture
def started(program, queue_name, records):
    """Start a worker program for the test's queue and wait until it works; returns it."""

    def start(*arguments, **environment):
        worker = program("--queue", queue_name, *arguments, **environment)
        job = schedule(tasks.note.using(queue=queue_name), 0, "the worker works")
        # Settled, not only run: a process that is killed in between would leave it to be run once more.
        wait_until(
            lambda: job.refresh() is State.SUCCEEDED or not worker.is_running,
            description="the worker works",
        )
        assert worker.is_running, worker.log
        return worker

    return start


def test_sigterm_lets_running_jobs_end(started, records, queue_name):
    worker = started("--grace", "20")
    jobs = [schedule(tasks.nap.using(queue=queue_name), 0, 0.6) for _ in range(2)]
    wait_until(lambda: records.count("start") == 2, description="both run")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert records.count("end") == 2
    assert [job.refresh() for job in jobs] == [State.SUCCEEDED] * 2
    assert "stopping: running jobs have 20 s to end" in worker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_longer_than_the_grace_is_given_back(
    started, records, queue_name, number
):
    worker = started("--grace", "0.3")
    job = schedule(tasks.nap.using(queue=queue_name), 0, 60)
    other = schedule(tasks.swallow_async.using(queue=queue_name), 0, 60)
    wait_until(lambda: records.count("start") == 2, description="both run")

    begun_s = time.monotonic()
    # To the whole group, as a terminal does.
    os.killpg(worker.pid, number)

    assert worker.wait() == 0, worker.log
    assert time.monotonic() - begun_s < 40  # and not 60
    for each in (job, other):
        assert each.refresh() is State.DUE
        assert (each.attempts, each.kills) == (0, 0)
        *_, last = [line for line in worker.log.splitlines() if each.id in line]
        assert "outcome=given_back" in last


@pytest.mark.parametrize(
    ("own", "young"),
    [
        ("500", supervisor.YOUNG_OBJECTS),
        ("50000", 50_000),
        # It switches the collector off.
        ("0", 0),
    ],
)
def test_the_collector_leaves_what_was_imported_alone_and_looks_less_often(
    started, records, queue_name, own, young
):
    started(environment={"WORKER_TEST_YOUNG_OBJECTS": own})

    schedule(tasks.note_collector.using(queue=queue_name), 0)
    wait_until(lambda: records.count("collector") == 1, description="it runs")

    (found,) = records.all("collector")
    assert found["young"] == young
    # Django alone has more.
    assert found["frozen"] > 10_000


def test_a_signal_to_the_whole_group_counts_once(started, records, queue_name):
    worker = started("--grace", "20")
    job = schedule(tasks.nap.using(queue=queue_name), 0, 0.6)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    os.killpg(worker.pid, signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert job.refresh() is State.SUCCEEDED


def test_a_terminal_that_is_closed_lets_running_jobs_end(started, records, queue_name):
    worker = started("--grace", "60")
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    os.killpg(worker.pid, signal.SIGHUP)
    worker.wait_for_log("stopping: running jobs have 60 s to end")
    records.let_go()

    assert worker.wait() == 0, worker.log
    assert job.refresh() is State.SUCCEEDED
    assert job.kills == 0


def test_a_worker_under_nohup_outlives_its_terminal(started, records, queue_name):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = started()
    finally:
        signal.signal(signal.SIGHUP, before)

    os.killpg(worker.pid, signal.SIGHUP)

    schedule(tasks.note.using(queue=queue_name), 0, "later")
    wait_until(lambda: records.count("run") == 2, description="it goes on")
    first, second = records.all("run")
    assert first["pid"] == second["pid"]
    assert "stopping" not in worker.log


# Process 1 of a container.


def test_process_1_reaps_what_tasks_leave_behind_and_sees_its_own_processes_end(
    started, records, queue_name
):
    worker = started("--max-jobs", "3", environment={"WORKER_TEST_AS_INIT": "1"})

    schedule(tasks.leave_grandchildren.using(queue=queue_name), 0, 20)
    wait_until(lambda: records.count("run") == 2, description="they are there")
    schedule(tasks.note.using(queue=queue_name), 0, "the third")
    wait_until(lambda: records.count("run") == 3, description="the process is full")
    schedule(tasks.note.using(queue=queue_name), 0, "of the next process")
    wait_until(lambda: records.count("run") == 4, description="another works")
    pid = records.all("run")[3]["pid"]
    assert pid != records.all("run")[2]["pid"]
    assert kill(pid, signal.SIGKILL)

    worker.wait_for_log(f"worker process {pid} was killed by signal 9")
    wait_until(
        lambda: len(family_of(worker.pid)) == 1,
        description="one process is left, and no zombie",
    )
    assert worker.stop() == 0, worker.log


def family_of(parent):
    """Return the pids of a process's children, zombies included."""
    told = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [map(int, line.split()) for line in told.splitlines()]
    return [pid for pid, ppid in pairs if ppid == parent]


# Standard streams that nobody reads.


@pytest.mark.parametrize("where", ["closed", "full", "unread"])
def test_a_worker_goes_on_though_nothing_can_be_written(
    program, records, queue_name, where
):
    """Also when a process has died, and another is to be forked."""
    script = {
        "closed": ">&- 2>&-",
        "full": ">/dev/full 2>/dev/full",
        "unread": "> >(true) 2> >(true)",
    }
    worker = program.describe("--queue", queue_name)
    worker.command = [
        "bash",
        "-c",
        f'exec "$@" {script[where]}',
        "bash",
        *worker.command,
    ]
    # Else a stream holds nothing that could be flushed.
    worker.environment["PYTHONUNBUFFERED"] = ""
    worker.start()
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 1, description="it works")
    assert kill(records.all("run")[0]["pid"], signal.SIGKILL)
    schedule(tasks.note.using(queue=queue_name), 0, "again")
    wait_until(lambda: "again" in str(records.all("run")), description="it goes on")

    assert worker.stop() == 0


def test_a_second_signal_stops_now(started, records, queue_name):
    worker = started("--grace", "60")
    job = schedule(tasks.nap.using(queue=queue_name), 0, 60)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    worker.signal(signal.SIGTERM)
    worker.wait_for_log("stopping: running jobs have 60 s to end")
    begun_s = time.monotonic()
    # Until it is no more taken for the same one.
    wait_until(
        lambda: "stopping now" in worker.log or worker.signal(signal.SIGINT),
        description="it stops now",
    )

    assert worker.wait() == 0, worker.log
    assert time.monotonic() - begun_s < 40  # and not 60
    assert job.refresh() is State.DUE
    assert (job.attempts, job.kills) == (0, 0)


def test_signals_at_any_moment_of_the_start_end_it(program, queue_name, records):
    for i in range(4):
        worker = program("--queue", queue_name, "--processes", "2", "--grace", "5")
        # From before the handlers are there to long after the processes are.
        wait_until(
            lambda worker=worker, i=i: (
                not worker.is_running
                or (
                    len(worker.output) > 0
                    and (i < 3 or len(worker.children()) >= min(2, i - 2))
                )
            ),
            description="it has come so far",
        )
        worker.signal(signal.SIGTERM)
        assert worker.wait(60) in (0, -signal.SIGTERM), worker.log


def test_a_killed_process_is_replaced_and_what_it_ran_runs_again_at_once(
    configure, started, records, queue_name
):
    configure(worker={"LEASE": 300})
    worker = started("--processes", "2")
    jobs = schedule_many(
        tasks.hold.using(queue=queue_name).prepare(0) for _ in range(4)
    )
    wait_until(lambda: records.count("start") == 4, description="all run")
    victim = records.all("start")[0]["pid"]
    its = {line["job"] for line in records.all("start") if line["pid"] == victim}

    assert kill(victim, signal.SIGKILL)

    # The lease would have been 300 s.
    wait_until(
        lambda: records.count("start") == 4 + len(its),
        description="they run again",
        timeout=90,
    )
    records.let_go()
    again = records.all("start")[4:]
    assert {line["job"] for line in again} == its
    assert {line["kills"] for line in again} == {1}
    assert {line["attempt"] for line in again} == {1}
    wait_until(
        lambda: {job.refresh() for job in jobs} == {State.SUCCEEDED},
        description="all are done",
    )
    wait_until(lambda: len(worker.children()) == 2, description="both are there")
    assert f"worker process {victim} was killed by signal 9" in worker.log
    assert f"{len(its)} leases of a dead process are given back" in worker.log


def test_a_broken_queue_does_not_keep_the_leases_of_a_dead_process_in_others(
    configure, program, records, queue_name, client
):
    configure(worker={"LEASE": 300}, broken={})
    broken = f"{queue_name}-broken"
    client.set(get_settings().queue(broken).keys.leases, "no sorted set")
    worker = program("--queue", broken, "--queue", queue_name)
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    assert kill(records.all("start")[0]["pid"], signal.SIGKILL)

    # The lease would have been 300 s.
    wait_until(
        lambda: records.count("start") == 2, description="it runs again", timeout=90
    )
    assert records.jobs("start") == [job.id] * 2
    assert f"queue {broken}: leases of a dead process will expire" in worker.log


def test_a_job_that_kills_its_worker_is_buried_and_those_beside_it_are_not(
    started, records, queue_name
):
    started("--threads", "8")
    # They all begin together, so each crash takes all of them along.
    poison = schedule(tasks.kill_worker_together.using(queue=queue_name), 0, 5)
    innocent = schedule_many(
        tasks.be_beside.using(queue=queue_name).prepare(0, 0.5) for _ in range(5)
    )

    # Five processes start, one after the other.
    wait_until(
        lambda: poison.refresh() is State.DEAD, description="it is dead", timeout=120
    )
    wait_until(
        lambda: {job.refresh() for job in innocent} <= {State.SUCCEEDED, State.MISSING},
        description="the others are done",
        timeout=60,
    )
    assert set(records.jobs("end")) >= {job.id for job in innocent}
    assert poison.error["kind"] == "killed"
    assert poison.kills == 4


def test_processes_that_die_at_once_are_replaced_after_growing_pauses(
    started, records, queue_name
):
    # However long this machine takes to start a process, each dies soon.
    worker = started(environment={"WORKER_TEST_SOON_MS": "60000"})

    job = schedule(tasks.kill_worker.using(queue=queue_name), 0)
    wait_until(
        lambda: job.refresh() is State.DEAD, description="it is dead", timeout=120
    )

    assert records.count("run") == 1 + 4
    assert worker.log.count("the next one starts in") == 4
    assert "the next one starts in 0.4 s" in worker.log
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 6, description="it goes on")


def test_a_process_is_replaced_after_its_number_of_jobs(started, records, queue_name):
    worker = started("--max-jobs", "2")

    for i in range(1, 8):
        schedule(tasks.note.using(queue=queue_name), 0)
        wait_until(lambda i=i: records.count("run") == 1 + i, description="it has run")

    pids = [line["pid"] for line in records.all("run")]
    assert len(set(pids)) == 4
    assert "ended with" not in worker.log
    assert worker.stop() == 0


def test_a_task_that_exits_the_interpreter_costs_the_process_and_counts_as_a_kill(
    started, records, queue_name
):
    worker = started()
    job = schedule(tasks.end_process.using(queue=queue_name), 0, 0)

    wait_until(
        lambda: job.refresh() is State.DEAD, description="it is dead", timeout=120
    )

    assert job.error["kind"] == "killed"
    assert worker.is_running


def test_processes_end_when_their_supervisor_is_killed(started, records, queue_name):
    worker = started("--processes", "2", "--grace", "20")
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    children = wait_until(
        lambda: len(found := worker.children()) == 2 and found,
        description="both are there",
    )

    worker.signal(signal.SIGKILL)
    worker.wait()
    wait_until(
        lambda: worker.log.count("the supervisor has ended, so this process ends") == 2,
        description="both have noticed",
    )
    records.let_go()

    wait_until(lambda: not any(map(is_alive, children)), description="they end")
    # They were given the time to end what they ran.
    assert job.refresh() is State.SUCCEEDED


def test_a_stopped_process_loses_its_leases_and_what_it_says_later_changes_nothing(
    configure, started, records, queue_name, program
):
    configure(worker={"LEASE": 3, "PROCESSES": 1})
    first = started()
    # It is stopped in the middle of the job.
    job = schedule(tasks.stop_process.using(queue=queue_name, keep_result=60), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    (child,) = first.children()

    second = program("--queue", queue_name)
    wait_until(
        lambda: job.refresh() is State.SUCCEEDED,
        description="another has run it",
    )
    told = counts(queue_name)
    assert kill(child, signal.SIGCONT)

    first.wait_for_log("outcome=lost")
    starts = records.all("start")
    assert [line["job"] for line in starts] == [job.id] * 2
    assert starts[0]["pid"] == child
    second.wait_for_log("outcome=succeeded")
    assert "it may run elsewhere" in first.log
    assert counts(queue_name).counters == told.counters
    assert job.refresh() is State.SUCCEEDED


def test_the_result_of_a_job_can_be_awaited_from_another_process(started, queue_name):
    started()

    job = schedule(tasks.add.using(queue=queue_name), 0, 20, 22)

    assert job.wait(60) == 42


def test_burst_with_several_processes_drains_and_ends(program, records, queue_name):
    # Two threads each: six jobs that wait for a third process are on all three.
    schedule_many(
        tasks.await_processes.using(queue=queue_name).prepare(0, 3) for _ in range(6)
    )
    schedule_many(tasks.nap.using(queue=queue_name).prepare(0, 0.02) for _ in range(54))
    schedule(tasks.schedule_more.using(queue=queue_name), 0, 5)

    worker = program(
        "--queue", queue_name, "--burst", "--processes", "3", "--threads", "2"
    )

    assert worker.wait(120) == 0, worker.log
    assert records.count("end") == 60
    assert records.count("run") == 6
    assert len({line["pid"] for line in records.all()}) == 3
    assert counts(queue_name).running == 0


def test_burst_ends_even_where_a_job_kills_its_worker(program, records, queue_name):
    poison = schedule(tasks.kill_worker.using(queue=queue_name), 0)
    schedule_many(tasks.note.using(queue=queue_name).prepare(0) for _ in range(20))

    worker = program("--queue", queue_name, "--burst")

    # Five processes start, one after the other.
    assert worker.wait(120) == 0, worker.log
    assert poison.refresh() is State.DEAD
    assert counts(queue_name).counters["succeeded"] == 20


def test_a_task_that_ignores_its_time_limit_costs_its_process(
    started, records, queue_name
):
    worker = started(environment={"WORKER_TEST_STUCK_AFTER": "0.5"})
    limited = tasks.nap.using(queue=queue_name, time_limit=0.3, max_attempts=1)
    other = schedule(tasks.nap.using(queue=queue_name), 0, 1)
    job = schedule(limited, 0, 60)

    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")

    assert job.error["error"].startswith(
        "TimeLimitExceeded: tests.worker.project.tasks.nap ran longer than its time limit of 0.3 s"
    )
    assert job.attempts == 1
    # What ran beside it was let end.
    assert other.refresh() is State.SUCCEEDED
    assert records.jobs("start").count(other.id) == 1
    schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: records.count("run") == 2, description="the next process works")
    assert records.all("run")[1]["pid"] != records.all("run")[0]["pid"]
    assert "does not react to its time limit" in worker.log
    assert len(children_of(worker.pid)) == 1
