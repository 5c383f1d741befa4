"""`pause` and `resume`: hold back a queue, or a task, for as long as something has to be mended.

This module checks the arguments, and knows the queues of a pause.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import hold as hold_calls
from django_delayq.core import stored_pauses
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.reasons import Kind, Reason
from django_delayq.exceptions import (
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
    TaskNotFound,
)
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.pauses.calls import MAX_PAUSED_TASKS
from django_delayq.jobs.actor import actor, checked_text
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.decorator import Task, name_of
from django_delayq.jobs.occurrences import in_zone
from django_delayq.jobs.shard_agreement import on_each
from django_delayq.logs import get_log
from django_delayq.redaction import show
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps
from django_delayq.wire.delay import Delay, parse_delay

logger = get_log("django_delayq.jobs")

P = TypeVar("P", bound=stored_pauses.Pause)


class Pause(stored_pauses.Pause):
    """A pause of a queue, or of one task on it; as text, one sentence with times in Django's current time zone.

    Example::

        until = {each.queue: each.until for each in paused() if each.task is None}
    """

    __slots__ = ()

    def __str__(self) -> str:
        return self.words.said_by(lambda english, _: english, _for_people)


def _for_people(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return f"{in_zone(value):%Y-%m-%d %H:%M:%S %Z}"


def _shown(until: Delay | None) -> str:
    return str(_for_people(until)) if isinstance(until, datetime) else show(until)


@performed
def pause(
    queue: str | None = None,
    *,
    task: Task | None = None,
    until: Delay | None = None,
    reason: str = "",
    by: str = "",
) -> Steps[None]:
    """Pause a queue or a task: none of its jobs start until `resume`, or until the time ``until``.

    ``pause("mail")`` pauses a queue, ``pause(task=send)`` a task on every queue in the settings, and ``pause("mail",
    task=send)`` the task on one queue. Running jobs continue. ``until`` is a number of seconds, a timedelta or an aware
    datetime, by the server's clock. A second call changes ``until`` and ``reason``. ``by`` is the name of the person
    who pauses, by default the user and host of this process.

    Example::

        pause("mail", until=timedelta(hours=2), reason="the provider is down")

    Raises:
        QueueNotFound, TaskNotFound, InvalidDelay, InvalidArguments, InvalidTask, EncodeError: nothing was paused.
        redis.exceptions.RedisError: an error of the server. A task may be paused on some of its queues.
    """
    name = None if task is None else name_of(task)
    if name is not None and not hold_calls.can_be_held(name):
        raise InvalidTask(
            f"task {show(name)} cannot be paused: its name has more than {hold_calls.MAX_HELD_NAME} bytes"
        )
    queues = _queues_of(queue, name, "pause")
    when = "" if until is None else _parse_until(until)
    by, reason = (
        checked_text(by or actor(), "by"),
        checked_text(reason, "reason"),
    )

    def change(each: QueueSettings) -> Steps[None]:
        done = yield pause_calls.pause(
            each.keys, task=name, until=when, by=by, reason=reason
        )
        if done == 0:
            raise InvalidDelay(
                f"a pause cannot end in the past: {_shown(until)} has passed, by the server's clock"
            )
        if done < 0:
            raise InvalidArguments(
                f"{MAX_PAUSED_TASKS} tasks are paused on queue {each.name!r}, and that is the most; pause the queue"
                " instead"
            )

    queues = yield from on_each(queues, change)
    found = yield stored_pauses.pauses(queues[0].keys)
    for each in found:
        if each.task == name:
            where = "" if len(queues) == 1 else _others(queues)
            logger.warning("%s%s", each, where)


apause = aperformed(pause)


@performed
def resume(queue: str | None = None, *, task: Task | None = None) -> Steps[bool]:
    """End the pause of `pause` with the same arguments; return False if nothing was paused.

    ``resume(task=send)`` ends the pauses of a task on all queues. Its held jobs become due at once, in the order of
    their start times.

    Raises:
        QueueNotFound, TaskNotFound, InvalidArguments, InvalidTask: nothing was resumed.
        redis.exceptions.RedisError: an error of the server. Call it again to resume the rest.
    """
    unknown: TaskNotFound | None = None
    name: str | None = None
    if task is not None:
        try:
            name = name_of(task)
        except TaskNotFound as error:
            # A task that has gone from the code may still be paused.
            unknown, name = error, error.task
    was_paused = False

    def change(each: QueueSettings) -> Steps[None]:
        nonlocal was_paused
        if (yield pause_calls.resume(each.keys, task=name)):
            was_paused = True
            what = f"queue {each.name}" if name is None else f"task {name}"
            where = "" if name is None else f" on queue {each.name}"
            logger.warning("%s was resumed%s, by %s", what, where, actor())
        if name is not None:
            yield from _releasing(each, name)

    queues = _queues_of(queue, name, "resume")
    yield from on_each(queues, change)
    if unknown is not None and not was_paused:
        raise unknown
    return was_paused


aresume = aperformed(resume)


@performed
def paused(queue: str | None = None) -> Steps[list[Pause]]:
    """Return the pauses of a queue and of tasks on it; by default of every queue in the settings.

    Example::

        for each in paused():
            print(each)

    Raises:
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer; ``found`` has the pauses of the others.
    """
    queues = conf.get_settings().queues_of(queue)
    answers = yield from asking(queues, map(_asking_one, queues))
    found = [Pause._make(each) for _, its in answers.of(queues) for each in its]
    return complete(merged_pauses(found), answers.missing)


apaused = aperformed(paused)


def _releasing(queue: QueueSettings, task: str) -> Steps[None]:
    """Let what the pause held run: also what an earlier call left that broke off."""
    held = Reason(Kind.PAUSED, task)
    cursor = held.text.encode()
    while True:
        reply = yield hold_calls.release(
            queue.keys,
            [held],
            limit=MAX_BATCH,
            cursor=cursor,
            name_limit=1,
            is_worker=False,
        )
        cursor = reply.cursor
        if reply.released < MAX_BATCH:
            return


def _asking_one(queue: QueueSettings) -> Steps[list[stored_pauses.Pause]]:
    found: list[stored_pauses.Pause] = yield stored_pauses.pauses(queue.keys)
    return found


def merged_pauses(pauses: Sequence[P]) -> list[P]:
    """Return pauses, where a pause of all shards of a queue is one of the queue."""
    settings = conf.get_settings()
    found: dict[tuple[str, str | None], list[P]] = {}
    for each in pauses:
        found.setdefault((settings.whole(each.queue), each.task), []).append(each)
    merged: list[P] = []
    for (name, _), several in found.items():
        parts = {part.name for part in settings.parts_of(name)}
        is_whole = {each.queue for each in several} == parts
        merged += [several[0]._replace(queue=name)] if is_whole else several
    return merged


def _queues_of(
    queue: str | None, task: str | None, verb: str
) -> Sequence[QueueSettings]:
    settings = conf.get_settings()
    if queue is None:
        if task is None:
            raise InvalidArguments(
                f"{verb}() needs the name of a queue, or task= and a task: {verb}('mail'), {verb}(task=send)"
            )
        return settings.queues_of()
    if not isinstance(queue, str):
        raise InvalidArguments(
            f"{verb}() takes the name of a queue; got {show(queue)}. For a task, say {verb}(task=…)"
        )
    return settings.queues_of(queue)


def _others(queues: Sequence[QueueSettings]) -> str:
    names = ", ".join(each.name for each in queues[1:])
    return f" (and on {names})"


def _parse_until(until: Delay) -> str:
    """Bring an end into the scripts' form, see `parse_delay`."""
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise InvalidDelay(
                f"until= takes a time in the future, with a time zone; got {show(until)}."
                " django.utils.timezone.now() has one, make_aware() adds one"
            )
    elif isinstance(until, bool) or not isinstance(
        until, int | float | Decimal | timedelta
    ):
        raise InvalidDelay(
            f"until= is a number of seconds, a timedelta or an aware datetime; got {show(until)}, of type"
            f" {type(until).__name__}"
        )
    elif _is_over(until):
        raise InvalidDelay(
            f"a pause has to be longer than 0 s; got until={show(until)}"
        )
    return parse_delay(until)


def _is_over(until: int | float | Decimal | timedelta) -> bool:
    if isinstance(until, timedelta):
        return until <= timedelta(0)
    # `parse_delay` says what is wrong with what no comparison is true of.
    return not (isinstance(until, Decimal) and until.is_nan()) and until <= 0
