"""One job in full, as its page and ``delayq_jobs show`` describe it: read from the server in one or two round trips."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core import queue_reads, stored_pauses
from django_delayq.core.progress import ReadProgress, read_progress
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import OVER, State
from django_delayq.core.stored_pauses import Pause
from django_delayq.core.worker_registry import read_worker
from django_delayq.display import fields, timeline
from django_delayq.display.attempts import ShownProgress, read_attempts
from django_delayq.display.fields import Field
from django_delayq.display.payloads import Content, read_content
from django_delayq.display.texts import PAGE_CHARACTERS, clean, cut
from django_delayq.display.timeline import Event
from django_delayq.display.value_json import value_text
from django_delayq.exceptions import DecodeError
from django_delayq.features.batches import calls as batch_calls
from django_delayq.health.pause_problems import find_paused
from django_delayq.health.problem import ServerProblem
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.jobs.arguments import has_sensitive, masked_result
from django_delayq.jobs.job import Job
from django_delayq.jobs.record import Record, read_record, record_of
from django_delayq.redaction import HIDDEN
from django_delayq.translations import gettext, say_problems
from django_delayq.transport.clients import own_clients
from django_delayq.transport.exchange import Exchange
from django_delayq.transport.run import make


@dataclass(frozen=True)
class ShownJob:
    """A job as the server has it, in the words of the reader's language."""

    queue: QueueSettings
    token: str
    seen: Inspected
    #: Whether encrypted parts are shown.
    decrypts: bool
    #: The jobs of its batch that have not ended, if it is the callback of one.
    batch_left: int = 0
    #: The process that runs it, as far as that is known; or "".
    worker: str = ""
    #: The pauses of its queue, and of the queue's tasks.
    pauses: Sequence[Pause] = ()
    reported: ReadProgress | None = None
    #: Its record, if it has ended and the server keeps one.
    record: Record | None = None

    @property
    def id(self) -> str:
        return f"{self.queue.name}:{self.token}"

    @cached_property
    def job(self) -> Job[Any]:
        """Its handle, for programs, with decrypted arguments."""
        job = Job[Any](self.queue.name, self.token, None, [], {})
        job._take(self.seen)
        if self.record is not None:
            job._take_record(self.record, self.seen)
        return job

    @property
    def _kept(self) -> dict[str, Any]:
        return {} if self.record is None else self.record.body

    @property
    def _of_errors(self) -> str:
        return self.token if self.decrypts else ""

    @cached_property
    def content(self) -> Content:
        """Its call."""
        payload = self.seen.payload
        return read_content(
            payload, len(payload), self.queue, in_full=True, decrypts=self.decrypts
        )

    @cached_property
    def state(self) -> str:
        """Its state, as `fields.state_text` names it."""
        seen = self.seen
        return fields.state_text(seen.state, seen.score_ms, seen.now_ms)

    @property
    def facts(self) -> list[Field]:
        """All facts about it but its arguments and its attempts."""
        return fields.facts_of(
            self.id, self.seen, self.state, self.content, self.queue, self.batch_left
        )

    @property
    def events(self) -> list[Event]:
        """Its life, in order."""
        return timeline.events_of(
            self.seen,
            self.state,
            read_attempts(self.seen, self._of_errors),
            self.content.enqueued_ms,
            self.worker,
            fields.note_of(self.state, self.content, self.queue),
            self._of_errors,
        )

    @property
    def returned(self) -> Any:
        """Its result, without sensitive arguments of its call; None: no result is kept."""
        if isinstance(self._kept.get("encrypted"), str):
            return gettext("encrypted")
        if "result" not in self._kept:
            return None
        result = self._kept["result"]
        try:
            job = self.job
        except Exception:  # whatever a codec does: see `display.read_content`
            return HIDDEN if has_sensitive(self.seen.payload) else result
        if job.task is None and has_sensitive(self.seen.payload):
            return HIDDEN
        return masked_result(job.task, job.args, job.kwargs, result)

    @property
    def result(self) -> str:
        """Its result as text; "": no result is kept."""
        if "result" in self._kept:
            return value_text(self.returned)
        return self.returned or ""

    @property
    def error(self) -> str:
        """Why it ended without a result."""
        error = clean(self._kept.get("error") or "")
        return cut(error, PAGE_CHARACTERS)

    @property
    def paused(self) -> list[ServerProblem]:
        """The pauses that hold it back."""
        concerned = (None, self.content.task)
        pauses = [each for each in self.pauses if each.task in concerned]
        return say_problems(
            find_paused(QueueFacts(name=self.queue.name, pauses=pauses))
        )

    @property
    def progress(self) -> ShownProgress | None:
        """How far it is, if it runs and its task has said so."""
        return ShownProgress.of(self.reported, self.seen.now_ms, self._of_errors)


def look_at(queue: QueueSettings, token: str, *, decrypts: bool) -> ShownJob:
    """Ask the server about a job, and about the worker that runs it or the record that is left of it."""
    seen, pauses, left, reported = ask(
        [
            queue_reads.inspect(queue.keys, token),
            stored_pauses.pauses(queue.keys),
            batch_calls.count_left(queue.keys, token),
            read_progress(queue.keys, token),
        ],
    )
    worker, record = "", None
    if seen.worker:
        (info,) = ask([read_worker(get_settings().registry, seen.worker)])
        # The id by which its claims go is all that is known of a process that says nothing of itself.
        worker = f"{info.host}:{info.pid}" if info is not None else seen.worker
    if seen.state in OVER or seen.state is State.MISSING:
        (reply,) = ask([read_record(queue.keys, token)])
        with suppress(DecodeError):
            record = record_of(reply, token if decrypts else "")
    if record is not None:
        seen = record.over(seen)
    return ShownJob(
        queue, token, seen, decrypts, left, worker, pauses, reported, record
    )


def ask(calls: Sequence[Any]) -> list[Any]:
    """Make calls, and plain commands, in one round trip; the first error is raised.

    They only read, so those whose replies were lost are made again.
    """
    replies = make(own_clients.of_thread(), Exchange(calls, is_one=False))
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
