"""What is kept of a job that has ended, for as long as its result is."""

import os
import socket

import pytest

from django_delayq import Cancel, State, delayed_task, get_job, schedule
from django_delayq.conf import get_settings
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks


@delayed_task
def fail_once(key: str) -> str:
    seen.append(key)
    if len(seen) == 1:
        raise ValueError(key)
    return f"done {key}"


@delayed_task
def call_it_off() -> None:
    raise Cancel("not today")


seen: list[str] = []


def forget_end(client, job):
    """Do what 30 s do: the server forgets how the job ended."""
    client.delete(get_settings().queue(job.queue).keys.ended)


def test_job_has_succeeded_for_as_long_as_its_result_is_kept(
    work, queue_name, client
) -> None:
    task = fail_once.using(queue=queue_name, keep_result=60, backoff=tasks.AT_ONCE)
    work()
    job = schedule(task, 0, "x")
    assert job.wait(30) == "done x"
    forget_end(client, job)

    assert job.refresh() is State.SUCCEEDED
    assert get_job(job.id).refresh() is State.SUCCEEDED


@every_server
def test_record_has_call_attempts_workers_and_times(work, queue_name, client) -> None:
    seen.clear()
    task = fail_once.using(queue=queue_name, keep_result=60, backoff=tasks.AT_ONCE)
    work()
    job = schedule(task, 0, "x")
    assert job.wait(30) == "done x"
    forget_end(client, job)

    kept = get_job(job.id)

    assert kept.state is State.SUCCEEDED
    assert (kept.task, kept.args, kept.attempts, kept.kills) == (
        fail_once.name,
        ["x"],
        1,
        0,
    )
    last, first = kept.history
    assert last["kind"] == "succeeded"
    assert first["error"] == "ValueError: x"
    assert {last["worker"], first["worker"]} == {
        f"{socket.gethostname()}:{os.getpid()}"
    }
    # Each by its own estimate of the server's clock.
    assert last["began"] <= last["at"]
    assert all(isinstance(first[name], int) for name in ("began", "at"))
    assert get_job(job.id).wait(1) == "done x"


def test_record_is_there_at_once_and_goes_with_the_result(
    work, queue_name, client
) -> None:
    job = schedule(tasks.add.using(queue=queue_name, keep_result=60), 0, 1, 2)
    work()
    assert job.wait(30) == 3
    key = get_settings().queue(queue_name).keys.result(job.token)

    assert get_job(job.id).args == [1, 2]
    assert 0 < client.pttl(key) <= 60_000

    client.delete(key)
    assert get_job(job.id).task is None


def test_record_of_a_job_that_its_task_cancels_has_its_call(
    work, queue_name, client
) -> None:
    job = schedule(call_it_off.using(queue=queue_name, keep_result=60), 0)
    work()
    wait_until(lambda: job.refresh() is State.CANCELLED, description="it is cancelled")
    forget_end(client, job)

    kept = get_job(job.id)

    assert (kept.state, kept.task) == (State.CANCELLED, call_it_off.name)
    assert kept.history[0]["kind"] == "cancelled"


def test_job_that_was_discarded_is_not_dead(work, queue_name, client) -> None:
    """Its failure is kept for those who wait, and says that the job is a dead letter."""
    seen.clear()
    task = fail_once.using(queue=queue_name, keep_result=60, max_attempts=1)
    job = schedule(task, 0, "x")
    work()
    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")
    assert job.discard()

    assert get_job(job.id).state is State.DISCARDED
    forget_end(client, job)

    kept = get_job(job.id)
    assert kept.state is State.DISCARDED
    assert kept.history[0]["error"] == "ValueError: x"


def test_result_of_the_version_before_is_read(work, queue_name, client) -> None:
    job = schedule(tasks.add.using(queue=queue_name, keep_result=60), 600, 1, 2)
    keys = get_settings().queue(queue_name).keys
    job.cancel()
    forget_end(client, job)
    client.delete(keys.result(job.token))
    client.rpush(keys.result(job.token), b'{"state":"succeeded","result":3}')

    kept = get_job(job.id)

    assert (kept.state, kept.task, list(kept.history)) == (State.SUCCEEDED, None, [])


@pytest.mark.parametrize(
    "last", [b"null", b"5", b"{}", b'{"attempts":"x"}', b'{"attempts":1,"kills":0}']
)
def test_record_that_nobody_of_us_has_written_breaks_nothing(
    work, queue_name, client, last
) -> None:
    job = schedule(tasks.nothing.using(queue=queue_name), 600)
    job.cancel()
    forget_end(client, job)
    text = b'{"state":"succeeded","result":3,"last":%b}' % last
    client.rpush(
        get_settings().queue(queue_name).keys.result(job.token), text, b"", b""
    )

    assert get_job(job.id).state is State.SUCCEEDED
