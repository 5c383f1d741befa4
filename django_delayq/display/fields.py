"""One job in full, as labels and texts, for its page and for ``delayq_jobs show``."""

from dataclasses import dataclass, replace

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import GRAVES, OVER, State
from django_delayq.display.payloads import Content
from django_delayq.display.texts import clean
from django_delayq.display.time_texts import HELD_WITHOUT_END_MS, Moment, span_text
from django_delayq.display.value_json import pretty_json
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.registry import find_task, get_handler
from django_delayq.translations import gettext, ngettext, number_text, state_label

#: What the score of a job means, by its state.
SCORE_LABELS = {
    State.SCHEDULED: gettext_lazy("Due"),
    State.DUE: gettext_lazy("Due"),
    State.RUNNING: gettext_lazy("Lease ends"),
    State.RETRYING: gettext_lazy("Next attempt"),
    State.HELD: gettext_lazy("Held until"),
    State.DEAD: gettext_lazy("Dead since"),
    State.QUARANTINED: gettext_lazy("Quarantined since"),
    State.UNKNOWN: gettext_lazy("Due"),
}
#: What a state means for whoever looks at the job.
STATE_NOTES = {
    "scheduled": gettext_lazy("Waits for its start time."),
    "due": gettext_lazy("Ready to start. No worker has taken it yet."),
    "running": gettext_lazy(
        "A worker runs it, and renews its lease as long as the worker lives."
    ),
    "lease expired": gettext_lazy(
        "Its worker did not renew the lease. The next free worker takes it."
    ),
    "retrying": gettext_lazy("Waits for its next attempt."),
    "held": gettext_lazy("Its last error says why. It runs when the reason is gone."),
    "succeeded": gettext_lazy(
        "Succeeded. The server forgets it half a minute after the end."
    ),
    "discarded": gettext_lazy("Was a dead letter or in quarantine, and was discarded."),
    "cancelled": gettext_lazy("Was cancelled."),
    "expired": gettext_lazy("Did not start in time, so it did not run."),
    "taken": gettext_lazy("Was taken from the destination queue."),
    "dead": gettext_lazy("Used all its attempts."),
    "quarantined": gettext_lazy("No worker here could read or run it."),
    "unknown": gettext_lazy(
        "In a destination queue that is too long to search, or taken by Java."
    ),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A labelled text on a job's page."""

    label: str | Promise
    value: str
    note: str | Promise = ""
    is_code: bool = False
    is_fault: bool = False


def facts_of(
    job_id: str,
    seen: Inspected,
    state: str,
    content: Content,
    queue: QueueSettings,
    batch_left: int,
) -> list[Field]:
    """Describe a job, except its arguments and its attempts.

    ``batch_left``: of how many jobs it waits for the ends, as the callback of their batch.
    """
    end = Field(gettext("ID"), clean(job_id))
    named = Field(gettext("State"), state_label(state), note_of(state, content, queue))
    if seen.state in OVER and not seen.payload:
        return [named, end]
    # The handler's own options count for a foreign payload, as they do in a worker.
    task = get_handler(queue.name) if content.is_foreign else find_task(content.task)
    return [
        *_task(content, task),
        *_life(seen, state, content, task, queue),
        *_call(seen, content),
        *_links(content, task, batch_left),
        end,
    ]


def note_of(state: str, content: Content, queue: QueueSettings) -> str:
    """Say what a state means for people who look at the job, and how long a dead or quarantined job is kept."""
    note = str(STATE_NOTES.get(state, ""))
    if state not in GRAVES:
        return note
    if state == State.DEAD:
        ttl_s, kept = queue.dead_ttl_s, gettext("for {time} at most (DEAD_TTL)")
    elif content.is_foreign:
        ttl_s = queue.quarantine_ttl_s
        kept = gettext("for {time} at most (QUARANTINE_TTL)")
    else:
        ttl_s = queue.quarantined_jobs_ttl_s
        kept = gettext("for {time} at most (QUARANTINED_JOBS_TTL)")
    if ttl_s is None:
        kept = gettext("It is kept until it is retried or discarded.")
    else:
        kept = gettext(
            "It is kept until it is retried or discarded, and {bound}.",
            bound=kept.format(time=span_text(int(ttl_s * 1_000))),
        )
    return f"{note} {kept}"


def held_until_note(seen: Inspected) -> str:
    """Say what becomes of a job that is held until a time; empty: it is held as long as it takes, or not held."""
    if seen.state is not State.HELD or seen.score_ms is None:
        return ""
    is_without_end = seen.score_ms - seen.now_ms >= HELD_WITHOUT_END_MS
    return "" if is_without_end else gettext("then it goes to quarantine")


def state_text(state: State, score_ms: int | None, now_ms: int) -> str:
    """Name a state, with what the score adds to it, as `translations.STATES` has it."""
    is_past = score_ms is not None and score_ms <= now_ms
    if state is State.SCHEDULED and is_past:
        return "due"
    if state is State.RUNNING and is_past:
        return "lease expired"
    return str(state)


def _task(content: Content, task: TaskDefinition | None) -> list[Field]:
    if content.is_foreign and content.task:
        return [
            Field(
                gettext("Task"),
                content.task,
                gettext("the handler of this queue's foreign payloads"),
            )
        ]
    if content.is_foreign:
        return [
            Field(
                gettext("Task"),
                gettext("none"),
                gettext("a foreign payload, and this queue has no handler here"),
            )
        ]
    if not content.task:
        return []
    note = gettext("from the payload, not verified") if content.is_unchecked else ""
    fields = [Field(gettext("Task"), content.task, note)]
    if task is None:
        fields.append(
            Field(
                gettext("Not found"),
                gettext("This process has no task with that name."),
                is_fault=True,
            )
        )
    return fields


def _life(
    seen: Inspected,
    state: str,
    content: Content,
    task: TaskDefinition | None,
    queue: QueueSettings,
) -> list[Field]:
    fields = [
        Field(gettext("State"), state_label(state), note_of(state, content, queue))
    ]
    if seen.score_ms and seen.state in SCORE_LABELS:
        of = Moment.of_held if seen.state is State.HELD else Moment.of
        held = _time(SCORE_LABELS[seen.state], of(seen.score_ms, seen.now_ms))
        if note := held_until_note(seen):
            held = replace(held, note=f"{held.note}; {note}")
        fields.append(held)
    if seen.start_time_ms and seen.start_time_ms != seen.score_ms:
        fields.append(
            _time(gettext("First due"), Moment.of(seen.start_time_ms, seen.now_ms))
        )
    if seen.state is State.RUNNING and seen.claimed_ms:
        since = Moment.of(seen.claimed_ms, seen.now_ms)
        fields.append(_time(gettext("Runs since"), since))
    if seen.priority:
        fields.append(
            Field(gettext("Priority"), f"{seen.priority:+d}".replace("-", "−"))
        )
    carried = (content.options or {}).get("max_attempts")
    most = carried or (task and task.options.max_attempts) or queue.max_attempts
    if task is None and not carried and not content.is_foreign:
        # Only the task's code says how many it gets.
        attempts = gettext("{count} failed", count=seen.attempts)
    else:
        attempts = gettext("{count} of {most} failed", count=seen.attempts, most=most)
    if seen.kills:
        attempts += " + " + ngettext("{number} killed", "{number} killed", seen.kills)
    fields.append(Field(gettext("Attempts"), attempts))
    return fields


def _time(label: str | Promise, moment: Moment | None) -> Field:
    assert moment is not None
    if not moment.in_full:
        return Field(label, moment.relative)
    note = gettext("{relative}, {ms} ms", relative=moment.relative, ms=str(moment.ms))
    return Field(label, moment.in_full, note)


def _call(seen: Inspected, content: Content) -> list[Field]:
    fields = []
    if content.value is not None:
        fields.append(Field(gettext("Value"), content.value, is_code=True))
    if content.fault:
        label = (
            gettext("Not checked") if content.is_unchecked else gettext("Unreadable")
        )
        fields.append(Field(label, content.fault, is_fault=True))
    if content.options:
        fields.append(
            Field(
                gettext("Options of this call"),
                pretty_json(content.options),
                is_code=True,
            )
        )
    if content.schedule:
        fields.append(Field(gettext("Schedule"), content.schedule))
    if seen.unique:
        fields.append(Field(gettext("Unique key"), clean(seen.unique)))
    return fields


def _links(
    content: Content, task: TaskDefinition | None, batch_left: int
) -> list[Field]:
    fields = []
    if task is not None and task.options.limit is not None:
        fields.append(Field(gettext("Limit"), task.options.limit.name))
    if content.then:
        fields.append(Field(gettext("Then"), content.then, is_code=True))
    if content.on_dead:
        fields.append(Field(gettext("When dead"), content.on_dead, is_code=True))
    if content.batch:
        fields.append(
            Field(
                gettext("Batch"),
                content.batch,
                gettext("starts when all jobs of the batch have ended"),
            )
        )
    if batch_left:
        fields.append(
            Field(
                gettext("Jobs of its batch"),
                number_text(batch_left),
                gettext("not ended; it starts when they have"),
            )
        )
    return fields
