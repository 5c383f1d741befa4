"""What a queue remembers of the jobs that ended last."""

import weakref
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from asgiref.sync import async_to_sync
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    Cancel,
    InvalidSearch,
    QueueNotFound,
    State,
    aended_jobs,
    delayed_task,
    ended_jobs,
    schedule,
    schedule_many,
)
from django_delayq.backoff import Backoff
from django_delayq.conf import get_settings
from django_delayq.core.claim import Leased
from django_delayq.features.ended import worker as ended_worker
from django_delayq.features.ended.calls import EndRecord, note_ended
from django_delayq.features.ended.worker import EndedReport
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.process import DONE
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS


@delayed_task
def call_it_off() -> None:
    raise Cancel("not today")


def ends(queue, count):
    """Return the jobs that a queue remembers once there are so many, the newest first."""
    wait_until(
        lambda: len(ended_jobs(queue)) >= count,
        description=f"{count} ended jobs are remembered",
    )
    found = ended_jobs(queue)
    assert len(found) == count
    return found


def keys_of(queue):
    return get_settings().queue(queue).keys


@every_server
def test_job_that_succeeded_is_remembered_with_its_task_and_its_times(
    work, queue_name
) -> None:
    before = datetime.now(UTC)
    job = schedule(tasks.nap.using(queue=queue_name), 0, 0.05)
    work()

    (ended,) = ends(queue_name, 1)

    assert ended.id == job.id
    assert ended.queue == queue_name
    assert ended.task == tasks.nap.name
    assert ended.outcome is State.SUCCEEDED
    assert ended.attempts == 1
    assert ended.error == ""
    assert ended.duration_ms is not None
    assert ended.duration_ms >= 50
    assert ended.lateness_ms is not None
    assert ended.lateness_ms >= 0
    assert before - timedelta(seconds=1) < ended.ended_at
    assert ended.ended_at < datetime.now(UTC) + timedelta(seconds=1)


def test_job_that_failed_for_good_is_remembered_with_the_first_line_of_its_error(
    work, queue_name
) -> None:
    task = tasks.fail.using(queue=queue_name, max_attempts=2, backoff=tasks.AT_ONCE)
    job = schedule(task, 0)
    work()

    (ended,) = ends(queue_name, 1)

    assert (ended.id, ended.outcome, ended.attempts) == (job.id, State.DEAD, 2)
    assert ended.error == "Wrong: as told"
    assert ended.lateness_ms is not None


def test_expired_cancelled_and_quarantined_jobs_are_remembered(
    work, queue_name
) -> None:
    late = tasks.note.using(queue=queue_name, expires=0.001)
    stopped = call_it_off.using(queue=queue_name)
    jobs = [
        schedule(late, datetime.now(UTC) - timedelta(hours=1)),
        schedule(stopped, 0),
    ]
    waiting = schedule(tasks.note.using(queue=queue_name), 60)
    assert waiting.cancel()
    work()

    found = {ended.id: ended for ended in ends(queue_name, 3)}

    expired, cancelled = (found[job.id] for job in jobs)
    assert (expired.outcome, expired.attempts) == (State.EXPIRED, 0)
    assert expired.duration_ms is None
    assert "too late to matter" in expired.error
    assert (cancelled.outcome, cancelled.attempts) == (State.CANCELLED, 1)
    assert cancelled.error == "not today"
    assert found[waiting.id].outcome is State.CANCELLED
    assert found[waiting.id].task == tasks.note.name


def test_job_that_retries_or_snoozes_is_not_remembered_before_its_end(
    work, queue_name, records
) -> None:
    schedule(tasks.fail.using(queue=queue_name, backoff=Backoff(base=600)), 0)
    schedule(tasks.note.using(queue=queue_name), 0)
    work()

    (ended,) = ends(queue_name, 1)

    assert ended.task == tasks.note.name


def test_nothing_is_remembered_of_a_queue_that_keeps_none(
    work, configure, queue_name, records
) -> None:
    configure({"KEEP_ENDED": 0})
    schedule_many([tasks.note.using(queue=queue_name).prepare(0, n) for n in range(10)])
    worker = work(is_burst=True)
    wait_until(lambda: not worker.is_running, description="the worker has ended")
    schedule(tasks.note.using(queue=queue_name), 60).cancel()

    assert records.count("run") == 10
    assert ended_jobs(queue_name) == []


def test_worker_that_ends_writes_what_it_has_not_written(
    work, queue_name, records, monkeypatch
) -> None:
    monkeypatch.setattr(ended_worker, "RECORD_AFTER_MS", 600_000)
    schedule_many([tasks.note.using(queue=queue_name).prepare(0, n) for n in range(10)])
    worker = work(is_burst=True)
    wait_until(lambda: not worker.is_running, description="the worker has ended")

    assert len(ended_jobs(queue_name)) == 10


def test_idle_worker_writes_without_being_woken_by_another_job(
    work, queue_name
) -> None:
    work(cap_ms=NEVER_MS)
    job = schedule(tasks.nothing.using(queue=queue_name), 0)

    (ended,) = ends(queue_name, 1)

    assert ended.id == job.id


def test_queue_remembers_its_last_jobs_and_no_more(
    work, configure, queue_name, records, client
) -> None:
    configure({"KEEP_ENDED": 5})
    task = tasks.note.using(queue=queue_name)
    schedule_many([task.prepare(0, n) for n in range(50)])
    worker = work(is_burst=True, threads=1)
    wait_until(lambda: not worker.is_running, description="the worker has ended")

    assert client.llen(keys_of(queue_name).last_ended) == 5
    last = {line["job"] for line in records.all("run")[-5:]}
    assert {ended.id for ended in ended_jobs(queue_name)} == last


def test_list_of_another_type_stops_no_job(work, queue_name, records, client) -> None:
    client.set(keys_of(queue_name).last_ended, "mine")
    task = tasks.note.using(queue=queue_name)
    schedule_many([task.prepare(0, n) for n in range(10)])
    worker = work(is_burst=True)
    wait_until(lambda: not worker.is_running, description="the worker has ended")

    assert records.count("run") == 10
    assert worker.status == DONE
    assert client.get(keys_of(queue_name).last_ended) == b"mine"


def test_limit_and_queue_are_checked(queue_name, configure) -> None:
    configure()
    for limit in (0, -1, 1.5, True, "5", None):
        with pytest.raises(InvalidSearch, match="limit="):
            ended_jobs(queue_name, limit=limit)
    with pytest.raises(QueueNotFound):
        ended_jobs("no such queue")


def test_newest_of_all_queues_come_first_and_pages_join(
    queue_name, configure, settings, monkeypatch
) -> None:
    configure(other={})
    monkeypatch.setattr("django_delayq.features.ended.api.ENDED_BATCH", 3)
    keys = [keys_of(queue_name), keys_of(f"{queue_name}-other")]
    for n in range(20):
        end = EndRecord(f"{n:022}", "shop.mail", State.DEAD, 1_000 + n)
        run(own_clients.of_thread(), note_ended(keys[n % 2], [end], keep=100))

    # Another test's worker may have ended a job of queue default here.
    queues = {queue_name: {}, f"{queue_name}-other": {}}
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": queues}
    found = ended_jobs()

    assert [int(job.id[-22:]) for job in found] == [*range(19, -1, -1)]
    assert [int(job.id[-22:]) for job in ended_jobs(limit=7)] == [*range(19, 12, -1)]
    assert len(ended_jobs(queue_name, limit=7)) == 7
    assert async_to_sync(aended_jobs)(queue_name, limit=7) == ended_jobs(
        queue_name, limit=7
    )


def attempts_of(queue_name, count, *, size=100):
    settings = get_settings().queue(queue_name)
    made = []
    for n in range(count):
        leased = Leased(
            f"{n:022d}", 0, 0, 1_700_000_000_000, b"x" * size, False, b"request."
        )
        attempt = Attempt(settings, leased, 0.0, 1_700_000_000_000.0)
        attempt.verdict, attempt.unknown_task = Verdict.SUCCEED, "shop.tasks.pay"
        attempt.started_ms, attempt.ended_ms = float(n), float(n + 1)
        made.append(attempt)
    return made


class Asked:
    """In place of a line: keeps the calls, and answers with an error if there is one."""

    def __init__(self):
        self.calls, self.error = [], None

    def ask(self, call):
        self.calls.append(call)
        return self

    def finish(self):
        if self.error:
            raise self.error

    def tokens(self):
        """Return the tokens in the last call."""
        _, *records = self.calls[-1].args
        return [int(msgspec.msgpack.decode(record)[0]) for record in records]


def test_process_holds_no_more_attempts_than_a_queue_remembers_and_one_call_more(
    configure, queue_name
) -> None:
    configure({"KEEP_ENDED": 5})
    line = Asked()
    noted = EndedReport(line)
    attempts = attempts_of(queue_name, 12)
    gone = [weakref.ref(attempt) for attempt in attempts[:6]]
    for start in range(0, 12, 3):
        noted.note(attempts[start : start + 3])
    attempts.clear()

    assert [ref() for ref in gone] == [None] * 6
    noted.tell()
    assert line.tokens() == [7, 8, 9, 10, 11]


def test_ends_that_the_server_did_not_get_are_written_again_before_the_newer_ones(
    configure, queue_name
) -> None:
    configure({"KEEP_ENDED": 5})
    line = Asked()
    noted = EndedReport(line)
    attempts = attempts_of(queue_name, 8)
    noted.note(attempts[:4])
    noted.tell()
    line.error = RedisConnectionError("away")
    noted.learn()
    line.error = None
    noted.note(attempts[4:6])
    noted.tell()
    noted.learn()

    assert line.tokens() == [1, 2, 3, 4, 5]
    assert not noted.has_told
    noted.tell()
    assert len(line.calls) == 2


def test_ends_with_large_payloads_are_written_at_once(configure, queue_name) -> None:
    configure({})
    noted = EndedReport(Asked())
    noted.note(attempts_of(queue_name, 3, size=1 << 20))
    later_ms = noted.due_ms
    noted.note(attempts_of(queue_name, 2, size=1 << 20))

    assert later_ms > noted.due_ms == 0.0
