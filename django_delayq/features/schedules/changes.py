"""Changes a schedule on the server: pauses, resumes, overrides, fires or deletes it, by its name and queue."""

from collections.abc import Sequence
from typing import Any

import msgspec

from django_delayq import conf
from django_delayq.clock import boottime_ms
from django_delayq.core import store as store_calls
from django_delayq.core import worker_code
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSchedule, ScheduleNotFound
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.calls import KEPT, Entry
from django_delayq.features.schedules.known_schedules import Found, Known, loading
from django_delayq.features.schedules.moves import found_elsewhere, loading_others
from django_delayq.features.schedules.periodic import Change
from django_delayq.features.schedules.writes import arrange, arranging
from django_delayq.jobs import shard_agreement
from django_delayq.jobs.actor import actor, checked_text
from django_delayq.jobs.draft import Draft
from django_delayq.jobs.envelope import OCCURRENCE, SCHEDULE
from django_delayq.jobs.job import Job
from django_delayq.jobs.occurrences import When
from django_delayq.logs import get_log
from django_delayq.redaction import show
from django_delayq.transport.steps import Steps

logger = get_log("django_delayq.jobs")

#: How often a change is tried while other processes change the same at the same time.
TRIES = 50


def not_found(name: str, names: Sequence[str] = ()) -> ScheduleNotFound:
    known = f"; there are {', '.join(map(repr, names[:20]))}" if names else ""
    return ScheduleNotFound(f"no schedule is named {show(name)}{known}")


def _finding(queue_name: str, name: str) -> Steps[tuple[Known, Found, bytes | str]]:
    """Return a schedule as the server knows it now; or as our code does, and then its definition to write with a change."""
    known = yield from loading(conf.get_settings().queue(queue_name))
    found = known.find(name)
    if found is not None:
        return known, found, KEPT
    queue = known.queue
    code = definitions.schedules_on(queue.name).get(name)
    moved = known.read(name)
    if moved is not None:
        raise ScheduleNotFound(
            f"schedule {name!r} has moved from queue {queue.name!r} to {moved.definition.moved_to!r}; use"
            " get_schedule(name, queue)"
        )
    if code is None:
        raise not_found(name)
    definition = msgspec.structs.replace(
        code.definition(), loaded_ms=worker_code.LoadTime().by(known.now_ms)
    )
    others = yield from loading_others(queue)
    for other, _ in found_elsewhere(others, name, definition.task):
        raise InvalidSchedule(
            f"schedule {name!r} was not changed: it moves from queue {other.queue.name!r} to {queue.name!r} when a worker"
            " with this code starts; try again then"
        )
    found = Found(queue, name, Entry(), definition, None, False)
    return known, found, definitions.sealed(queue.name, "code", name, definition)


def _changing(queue_name: str, name: str, **changed: Any) -> Steps[None]:
    """Write a change beside a definition."""
    for _ in range(TRIES):
        known, found, code = yield from _finding(queue_name, name)
        values = dict(changed)
        if "paused_ms" in values:
            values["paused_ms"] = known.now_ms if values["paused_ms"] else 0
        change = msgspec.structs.replace(found.change or Change(), **values)
        text: bytes | str = ""
        if change != Change():
            text = definitions.sealed(known.queue.name, "change", found.name, change)
        changed_found = found._replace(change=change)
        if (yield from arranging(known, changed_found, code=code, change=text)):
            return
    raise too_busy(name)


def too_busy(name: str) -> InvalidSchedule:
    return InvalidSchedule(
        f"schedule {name!r} was not changed: other changes to schedules of its queue came first each time; try again"
    )


def pausing(queue_name: str, name: str, reason: str, by: str) -> Steps[None]:
    by, reason = (
        checked_text(by or actor(), "by"),
        checked_text(reason, "reason"),
    )
    yield from _changing(queue_name, name, paused_ms=1, by=by, reason=reason)
    logger.warning(
        "schedule %s of queue %s is paused, by %s%s",
        name,
        queue_name,
        " ".join(by.split()),
        f": {' '.join(reason.split())}" if reason else "",
    )


def resuming(queue_name: str, name: str) -> Steps[None]:
    yield from _changing(queue_name, name, paused_ms=0, by="", reason="")
    logger.warning(
        "schedule %s of queue %s was resumed, by %s",
        name,
        queue_name,
        actor(),
    )


def overriding(queue_name: str, name: str, when: When | None) -> Steps[None]:
    if when is not None:
        if not isinstance(when, When):
            raise InvalidSchedule(
                f"override() takes cron(…), every(…) or None; got {show(when)}"
            )
        when.check()
    yield from _changing(
        queue_name, name, when=None if when is None else when.as_json()
    )
    logger.warning(
        "schedule %s of queue %s has %s, by %s",
        name,
        queue_name,
        "the times of its definition again" if when is None else f"the times {when}",
        actor(),
    )


def firing(queue_name: str, name: str) -> Steps[Job[Any]]:
    known, found, _ = yield from _finding(queue_name, name)
    queue, definition = known.queue, found.definition
    code = (
        None
        if found.is_stored
        else definitions.schedules_on(queue.name).get(found.name)
    )
    if code is not None:
        # No worker may have looked since somebody wrote an earlier definition back.
        definition = code.definition()
    yield from shard_agreement.agreeing_on(queue.name)
    new = definitions.extra(queue, found.name, definition, known.now_ms)
    job: Job[Any] = Job(
        queue.name,
        new.token,
        definition.task,
        definition.args,
        definition.kwargs,
        Draft(new, sent_ms=boottime_ms()),
    )
    job.options, job.priority = definition.options or None, definition.priority
    (stored,) = yield store_calls.schedule(queue.target.unlimited, [new])
    job.state, job.start_time_ms = State.SCHEDULED, stored.start_time_ms
    job.take_headers({SCHEDULE: found.name, OCCURRENCE: str(known.now_ms)})
    return job


def deleting(queue_name: str, name: str) -> Steps[bool]:
    queue = conf.get_settings().queue(queue_name)
    if name in definitions.schedules_on(queue.name):
        known = yield from loading(queue)
        entry = known.entries.get(name)
        if entry is None or entry.code or not entry.stored:
            raise InvalidSchedule(
                f"schedule {name!r} is in code, and workers would enroll it again; delete its @periodic, or pause it"
            )
    for _ in range(TRIES):
        known = yield from loading(queue)
        if name not in known.entries:
            return False
        version: int = yield arrange(
            known,
            name,
            code="",
            stored="",
            change="",
            print="",
            next_ms=None,
        )
        if version:
            logger.warning(
                "schedule %s of queue %s was deleted, by %s",
                name,
                queue.name,
                actor(),
            )
            return True
    raise too_busy(name)
