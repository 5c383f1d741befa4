"""A process that leases jobs can run them, or ends: what tasks do to their worker, on real processes."""

import json
import os
import signal
import time

import pytest

from django_delayq import schedule, schedule_many
from django_delayq.core.states import State
from django_delayq.worker.operating_system import RETURNED
from tests.faults.able import tasks as able
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts

APP = {"WORKER_TEST_APPS": "tests.faults.able"}


@pytest.fixture
def start_worker(program, queue_name):
    """Start a worker program that knows the tasks of this family."""

    def start(*arguments, **environment):
        return program("--queue", queue_name, *arguments, environment=APP | environment)

    return start


def ended(job):
    return job.refresh() in (State.SUCCEEDED, State.DEAD)


# Children of a task.


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("multiprocessing", signal.SIGTERM),
        ("subprocess", signal.SIGTERM),
        ("interrupt", signal.SIGINT),
    ],
)
def test_a_task_ends_its_child_and_not_its_worker(
    start_worker, records, queue_name, kind, number
):
    worker = start_worker()
    bystander = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="another job runs")
    children = worker.children()

    job = schedule(able.fork_and_terminate.using(queue=queue_name), 0, kind)
    wait_until(lambda: ended(job), description="it has ended")
    records.let_go()
    wait_until(lambda: ended(bystander), description="the other has ended")

    assert [line["code"] for line in records.all("end")[:1]] == [-number]
    assert records.count("start") == 2
    assert worker.children() == children
    assert "stopping" not in worker.log


def test_a_task_may_use_a_pool_of_processes(start_worker, records, queue_name):
    worker = start_worker()

    job = schedule(able.use_pool.using(queue=queue_name), 0)
    wait_until(lambda: ended(job), description="it has ended")

    assert job.state is State.SUCCEEDED, worker.log
    assert records.all("end")[0]["values"] == [1, 2, 3]
    assert records.count("start") == 1


@pytest.mark.parametrize("task", [able.fork, able.fork_async])
@pytest.mark.parametrize(
    ("how", "status"),
    [("_exit", 5), ("exit", RETURNED), ("raise", RETURNED), ("return", RETURNED)],
)
@pytest.mark.parametrize(
    "time_limit", [None, pytest.param(60, marks=pytest.mark.exhaustive)]
)
def test_a_forked_child_ends_with_its_task_and_leaves_the_job_to_its_parent(
    start_worker,
    records,
    queue_name,
    task,
    how,
    status,
    time_limit,
):
    worker = start_worker("--threads", "1")
    job = schedule(task.using(queue=queue_name, time_limit=time_limit), 0, how)
    # Waits in the same executor while the child comes back out of its task.
    others = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0) for _ in range(5)
    )

    wait_until(lambda: ended(job), description="it has ended")
    wait_until(lambda: all(map(ended, others)), description="the others have ended")

    assert job.state is State.SUCCEEDED, worker.log
    assert [line["status"] for line in records.all("end")] == [status], worker.log
    assert records.count("start") == 1
    assert records.count("run") == 5
    assert len({line["pid"] for line in records.all()}) == 1
    assert len(worker.children()) == 1


# What a task raises.


@pytest.mark.parametrize("task", [able.raise_odd, able.raise_odd_async])
@pytest.mark.parametrize("name", able.ODD)
def test_nothing_an_exception_does_costs_more_than_its_attempt(
    start_worker,
    records,
    queue_name,
    task,
    name,
):
    worker = start_worker("--threads", "2")
    # More than there are threads.
    jobs = schedule_many(
        task.using(queue=queue_name).prepare(0, name) for _ in range(5)
    )

    wait_until(lambda: all(map(ended, jobs)), description="all have ended")
    after = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ended(after), description="the worker goes on")

    assert {job.state for job in jobs} == {State.DEAD}, worker.log
    assert all(job.error["error"].startswith(name) for job in jobs)
    assert {job.attempts for job in jobs} == {1}
    assert "will be replaced" not in worker.log
    assert "ended with" not in worker.log


def test_a_handler_of_the_log_that_raises_ends_nothing(
    start_worker, records, queue_name
):
    log = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"chat": {"class": "tests.faults.able.logs.Chat"}},
        "loggers": {"django_delayq": {"handlers": ["chat"], "level": "INFO"}},
    }
    worker = start_worker(WORKER_TEST_LOGGING=json.dumps(log))
    bystander = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="another job runs")

    job = schedule(able.raise_odd.using(queue=queue_name), 0, "Endless")
    after = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ended(job) and ended(after), description="both have ended")
    records.let_go()
    wait_until(lambda: ended(bystander), description="the other has ended")

    assert worker.stop() == 0
    assert bystander.state is State.SUCCEEDED
    assert records.count("start") == 1
    # What no handler took is said all the same.
    assert f"job={job.id}" in worker.log


def test_a_loop_that_begins_no_coroutine_ends_its_process(
    start_worker, records, queue_name
):
    worker = start_worker()
    schedule(able.refuse_tasks.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it has run")

    job = schedule(tasks.note_async.using(queue=queue_name), 0)
    wait_until(lambda: ended(job), description="another process runs it")

    assert job.state is State.SUCCEEDED
    assert len({line["pid"] for line in records.all()}) == 2
    assert "the event loop starts no tasks: RuntimeError" in worker.log


@pytest.mark.parametrize("how", ["gather", "create_task", "interrupt"])
def test_a_coroutine_of_a_task_that_exits_ends_no_event_loop(
    start_worker,
    records,
    queue_name,
    how,
):
    worker = start_worker()
    bystander = schedule(tasks.hold_async.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="another job runs")

    job = schedule(able.child_exits.using(queue=queue_name), 0, how)
    wait_until(lambda: ended(job), description="it has ended")
    records.let_go()
    wait_until(lambda: ended(bystander), description="the other has ended")

    assert job.state is (State.DEAD if how == "gather" else State.SUCCEEDED)
    assert bystander.state is State.SUCCEEDED
    assert records.count("start") == 2
    assert len({line["pid"] for line in records.all()}) == 1
    assert "the worker continues" in worker.log


def test_a_task_that_stops_the_event_loop_stops_nothing(
    start_worker, records, queue_name
):
    start_worker()

    job = schedule(able.stop_loop.using(queue=queue_name), 0)

    wait_until(lambda: ended(job), description="it has ended")
    assert records.count("end") == 1


# What dies all the same.


@pytest.mark.parametrize("task", [able.break_loop, able.break_thread])
def test_a_process_whose_executor_died_is_replaced_and_counts_a_kill(
    start_worker,
    records,
    queue_name,
    task,
):
    worker = start_worker("--threads", "2", "--grace", "60")
    bystander = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="another job runs")

    job = schedule(task.using(queue=queue_name), 0)
    worker.wait_for_log("this process cannot continue and will be replaced")
    # What runs beside it is let end.
    records.let_go()
    wait_until(lambda: ended(bystander), description="the other has ended")
    wait_until(lambda: ended(job), description="it has run again", timeout=90)

    starts = records.all("start")
    assert [line["kills"] for line in starts if line["job"] == job.id] == [0, 1]
    assert records.jobs("start").count(bystander.id) == 1
    assert "ended with status 76; its leases are given back" in worker.log
    assert counts(queue_name).running == 0


def test_a_process_that_gets_no_thread_for_its_loop_gives_its_jobs_back(
    start_worker,
    records,
    queue_name,
):
    worker = start_worker()
    schedule(able.use_up_threads.using(queue=queue_name), 0)
    wait_until(lambda: records.count("end") == 1, description="there are no threads")

    job = schedule(tasks.note_async.using(queue=queue_name), 0)
    wait_until(lambda: ended(job), description="another process has run it")

    assert records.all("run")[0]["kills"] == 0
    assert records.all("run")[0]["pid"] != records.all("end")[0]["pid"]
    assert "the event loop: can't start new thread" in worker.log


def test_a_process_whose_interpreter_is_kept_by_c_code_is_killed(
    start_worker, records, queue_name, lasting, use
):
    use(lasting, LEASE=2)
    worker = start_worker("--threads", "2", ABLE_LISTEN_MS="500")
    job = schedule(able.keep_interpreter.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    after = schedule(tasks.note.using(queue=queue_name), 0)

    wait_until(lambda: ended(after), description="the worker goes on", timeout=90)
    wait_until(lambda: ended(job), description="it has run again")

    starts = records.all("start")
    assert len({line["pid"] for line in starts}) == len(starts) >= 2
    assert "a task is in C code that does not let go of the interpreter" in worker.log
    assert worker.stop() == 0


def test_a_process_that_is_stopped_is_not_taken_for_one_without_a_pulse(
    start_worker, records, queue_name, lasting, use
):
    use(lasting, LEASE=2)
    worker = start_worker(ABLE_LISTEN_MS="200")
    job = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ended(job), description="it works")
    (child,) = worker.children()

    os.kill(child, signal.SIGSTOP)
    end_s = time.monotonic() + 8
    wait_until(lambda: time.monotonic() > end_s, description="a lease and more")
    os.kill(child, signal.SIGCONT)

    after = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ended(after), description="it works again")
    assert worker.children() == [child], worker.log


def test_a_process_that_no_signal_reaches_any_more_is_replaced(
    start_worker, records, queue_name
):
    worker = start_worker()
    schedule(able.close_pipes.using(queue=queue_name), 0)
    worker.wait_for_log("signals are not heard", timeout=120)

    job = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: ended(job), description="the next process works")

    assert records.all("run")[0]["pid"] != records.all("end")[0]["pid"]
    assert worker.stop() == 0
    assert "does not end" not in worker.log


# The supervisor.


def test_what_a_dead_process_held_is_given_back_before_the_next_one_finds_nothing_due(
    start_worker, records, queue_name
):
    poison = schedule(tasks.kill_worker.using(queue=queue_name), 0)
    others = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0) for _ in range(5)
    )

    worker = start_worker("--burst", ABLE_SLOW_RECOVERY="1")

    assert worker.wait(120) == 0, worker.log
    assert poison.refresh() is State.DEAD
    # How each ended is not known for so long as this may have taken.
    assert {job.id for job in others} <= set(records.jobs("run"))
    told = counts(queue_name)
    assert (told.waiting, told.running, told.retrying) == (0, 0, 0), worker.log
    assert told.counters["succeeded"] == len(others)


def test_signals_of_one_moment_are_one(start_worker, records, queue_name):
    worker = start_worker("--grace", "60")
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    # Stopped, so that it finds both at once, however long this machine takes to send them.
    worker.signal(signal.SIGSTOP)
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGCONT)
    worker.wait_for_log("stopping: running jobs have 60 s to end")
    records.let_go()

    assert worker.wait() == 0, worker.log
    assert job.refresh() is State.SUCCEEDED
    assert "stopping now" not in worker.log


@pytest.mark.parametrize("what", ["ABLE_FAILING_FORKS", "ABLE_FAILING_PULSES"])
def test_a_fork_that_fails_is_tried_again_and_costs_no_healthy_process(
    start_worker, records, queue_name, what
):
    worker = start_worker("--processes", "2", **{what: "2,3,4"})
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    first = records.all("start")[0]["pid"]

    wait_until(lambda: len(worker.children()) == 2, description="both are there")
    records.let_go()
    wait_until(lambda: ended(job), description="it has ended")

    assert first in worker.children()
    assert records.count("start") == 1
    assert worker.log.count("cannot start a worker process, trying again in") == 3
    assert "trying again in 0.4 s: [Errno 11]" in worker.log
    assert worker.stop() == 0


# Leases.


def test_a_worker_that_is_cut_off_notices_and_its_task_can(
    start_worker, records, queue_name, proxy, use, lasting
):
    use(proxy.url, LEASE=4)
    cut_off = start_worker()
    job = schedule(able.check_until_told.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")

    use(lasting, LEASE=4)
    start_worker()
    proxy.is_refusing = True
    proxy.cut()

    wait_until(lambda: records.count("lost") == 1, description="it is lost")
    wait_until(lambda: records.count("start") == 2, description="another has it")
    records.let_go()
    wait_until(lambda: ended(job), description="another has run it")
    assert len({line["pid"] for line in records.all("start")}) == 2
    # Its end changes nothing, not even when the server is back.
    proxy.is_refusing = False
    cut_off.wait_for_log("outcome=lost")
    assert "leases cannot be renewed, again in 500 ms" in cut_off.log
    assert job.refresh() is State.SUCCEEDED


def test_a_process_that_was_stopped_notices_that_its_leases_are_over(
    start_worker, records, queue_name, use, lasting
):
    use(lasting, LEASE=4)
    stopped = start_worker()
    job = schedule(able.check_until_told.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    (child,) = stopped.children()

    os.kill(child, signal.SIGSTOP)
    start_worker()
    wait_until(lambda: records.count("start") == 2, description="another has it")
    records.let_go()
    wait_until(lambda: ended(job), description="another has run it")
    assert records.count("lost") == 0
    os.kill(child, signal.SIGCONT)

    wait_until(lambda: records.count("lost") == 1, description="it is lost")
    stopped.wait_for_log("outcome=lost")
    assert len({line["pid"] for line in records.all("start")}) == 2
    # It was not stuck: it was not let run.
    assert stopped.children() == [child]
    assert "will be replaced" not in stopped.log
