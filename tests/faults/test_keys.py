"""Keys in operation: one that goes out of use while workers run, one that is lost, and two projects on one server."""

import itertools
import threading
from io import StringIO

import pytest
from django.core import checks
from django.core.management import call_command

from django_delayq import schedule, schedule_many
from django_delayq.conf import get_keyring, get_settings
from django_delayq.core import hold as hold_calls
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import counts, delayq_environment

OLD, NEW = "the old secret of all", "the new secret of all"


@pytest.fixture
def keys_are(settings):
    """Sign with the first of some secrets, in this process."""

    def use(*secrets):
        settings.DELAYQ = {**settings.DELAYQ, "KEYS": list(secrets)}

    return use


@pytest.fixture
def start_worker(program, settings, queue_name, records):
    """Start a worker program of one process that has some secrets."""

    def start(*secrets, **environment):
        delayq = {**settings.DELAYQ, "KEYS": list(secrets)}
        # Each of them holds what is for another one, which would come for it every 5 s.
        soon = {"WORKER_TEST_LOOK_AT_HELD_MS": "100"}
        told = delayq_environment(delayq, records.path) | soon | environment
        worker = program("--queue", queue_name, "--processes", "1", environment=told)
        return worker.wait_for_processes()

    return start


def held_for(queue):
    keys = get_settings().queue(queue).keys
    return run(own_clients.of_thread(), hold_calls.held_names(keys)).counts


def is_over(queue):
    told = counts(queue)
    return not (
        told.waiting
        or told.destination
        or told.running
        or told.retrying
        or told.held
        or told.dead
        or told.quarantined
    )


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"REDISSON": "3.16.6"}, marks=pytest.mark.exhaustive)],
)
def test_key_goes_out_of_use_while_workers_run_and_jobs_are_scheduled(
    lasting, use, records, keys_are, start_worker, queue_name, options
):
    use(lasting, options)
    numbers, jobs = itertools.count(), []

    def add(count):
        # Due now, and in the next seconds.
        task = tasks.note.using(queue=queue_name)
        part = itertools.islice(numbers, count)
        jobs.extend(schedule_many(task.prepare(n % 40 / 10, n) for n in part))

    keys_are(OLD)
    add(300)
    reason = Reason(Kind.KEY, get_keyring().ids[0])
    new = start_worker(NEW)
    wait_until(
        lambda: held_for(queue_name) == {reason: 300}, description="it holds all"
    )
    old = start_worker(OLD)
    add(200)
    keys_are(NEW, OLD)
    add(200)
    scheduler = threading.Thread(target=add, args=(300,))
    scheduler.start()
    out = StringIO()

    call_command("delayq_resign", queue_name, stdout=out)

    scheduler.join()
    assert (
        f"Nothing here needs any key except {get_keyring().ids[0]!r}." in out.getvalue()
    )
    assert old.stop() == 0
    keys_are(NEW)
    wait_until(lambda: is_over(queue_name), description="it is over", timeout=120)
    assert sorted(records.jobs("run")) == sorted(job.id for job in jobs)
    assert {(line["attempt"], line["kills"]) for line in records.all()} == {(1, 0)}
    assert counts(queue_name).counters.get("quarantined", 0) == 0
    assert new.stop() == 0


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"REDISSON": "3.16.6"}, marks=pytest.mark.exhaustive)],
)
def test_jobs_of_a_lost_key_wait_for_it_and_are_seen(
    lasting, use, records, keys_are, start_worker, queue_name, options
):
    use(lasting, options)
    keys_are(OLD)
    (lost,) = get_keyring().ids
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0, n) for n in range(20)
    )
    keys_are(NEW)

    # With a handler, which gets none of them.
    handler = {"WORKER_TEST_APPS": "tests.faults.way", "WAY_TEST_QUEUE": queue_name}
    worker = start_worker(NEW, **handler)

    wait_until(
        lambda: held_for(queue_name) == {Reason(Kind.KEY, lost): 20},
        description="all are held",
    )
    later = schedule(tasks.note.using(queue=queue_name), 0, "with the key that is here")
    wait_until(lambda: records.count("run") == 1, description="others run")
    assert records.jobs("run") == [later.id]
    assert records.count("foreign") == 0
    (line,) = [line for line in worker.log.splitlines() if "ERROR" in line]
    assert f"the key {lost}" in line
    assert (
        "add it to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS" in line
    )
    # Nor is each job worth a warning.
    held = [line for line in worker.log.splitlines() if "outcome=held" in line]
    assert len(held) == 20
    assert not any(" WARNING " in line for line in held)
    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)
    (told,) = [problem for problem in found if "held" in problem.msg]
    assert told.id == "django_delayq.E010"
    assert (
        f"Queue {queue_name!r}: 20 jobs are held: they are signed with key" in told.msg
    )
    out = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("delayq_resign", queue_name, stdout=out)
    assert end.value.code == 1
    assert f"jobs that need key {lost} were not signed again" in out.getvalue()
    # Of this project's own keys none is needed for them.
    assert f"Nothing else here needs any key except {get_keyring().ids[0]!r}." in (
        out.getvalue()
    )

    # Its start says so as well.
    again = start_worker(NEW)
    again.wait_for_log(f"20 jobs are held: they are signed with key {lost!r}")
    assert again.stop() == 0
    assert worker.stop() == 0
    start_worker(OLD, NEW)

    wait_until(lambda: is_over(queue_name), description="it is over", timeout=120)
    assert sorted(records.jobs("run")) == sorted(job.id for job in [*jobs, later])
    assert {(line["attempt"], line["kills"]) for line in records.all()} == {(1, 0)}
    keys_are(NEW, OLD)
    found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)
    assert not any("held" in problem.msg for problem in found)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"REDISSON": "3.16.6"}, marks=pytest.mark.exhaustive)],
)
def test_two_projects_with_the_same_names_run_their_own_jobs(
    lasting, use, records, keys_are, start_worker, queue_name, options
):
    use(lasting, options)
    ours, theirs = "the secret of project one", "the secret of project two"
    handler = {"WORKER_TEST_APPS": "tests.faults.way", "WAY_TEST_QUEUE": queue_name}
    one, two = start_worker(ours), start_worker(theirs, **handler)
    jobs = {one: [], two: []}

    for number in range(60):
        worker = one if number % 2 else two
        keys_are(ours if number % 2 else theirs)
        task = tasks.note.using(queue=queue_name)
        jobs[worker].append(schedule(task, number % 10 / 10, number).id)

    wait_until(lambda: is_over(queue_name), description="it is over", timeout=120)
    for worker, ids in jobs.items():
        own = {*worker.children()}
        ran = [line for line in records.all("run") if line["pid"] in own]
        assert sorted(line["job"] for line in ran) == sorted(ids)
        assert {(line["attempt"], line["kills"]) for line in ran} == {(1, 0)}
    assert records.count("run") == 60
    assert records.count("foreign") == 0


def test_two_projects_with_the_same_names_have_their_unique_keys_in_common(
    lasting, keys_are, queue_name
):
    task = tasks.note.using(queue=queue_name, unique=True)
    keys_are("the secret of project one")
    first = schedule(task, 3_600)
    keys_are("the secret of project two")

    second = schedule(task, 3_600)

    assert second.id == first.id
    assert first.refresh() is State.SCHEDULED
