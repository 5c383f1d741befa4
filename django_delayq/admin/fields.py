"""One job in full, as labels and texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from django_delayq.admin.display import Content, Failure, Moment, clean, pretty_json
from django_delayq.conf import QueueSettings
from django_delayq.delivery.looking import Inspected
from django_delayq.delivery.states import State
from django_delayq.exceptions import TaskNotFound
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.registry import get_handler, get_task

#: What the score of a job means, by its state.
_SCORE_LABELS = {
    State.SCHEDULED: "Due",
    State.DUE: "Due",
    State.RUNNING: "Lease ends",
    State.RETRYING: "Next attempt",
    State.HELD: "Held until",
    State.DEAD: "Given up",
    State.QUARANTINED: "Put aside",
    State.UNKNOWN: "Due",
}
#: In these states the server knows only that the job is over.
_OVER = frozenset(
    {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED, State.TAKEN}
)
#: What a state means for whoever looks at the job.
_STATE_NOTES = {
    "scheduled": "Waits for its start time.",
    "due": "May start now; no worker has taken it yet.",
    "running": "A worker has it, and renews its lease as long as it lives.",
    "lease expired": "Its worker did not renew the lease: the next free worker takes it.",
    "retrying": "Waits for its next attempt.",
    "held": "Its last error says why: its task is paused, and it runs when that is resumed; or its limit is full, and it runs when another has ended; or it is the callback of a batch, and runs when all jobs of that have ended; or the worker that had it knows neither its task nor its key, and it runs once one that does starts.",
    "succeeded": "Ended well. The server forgets it half a minute after the end.",
    "failed": "Was a dead letter or in quarantine, and was discarded.",
    "cancelled": "Was cancelled.",
    "expired": "Came too late to matter, and did not run.",
    "taken": "Was taken from the destination queue.",
    "dead": "Out of attempts. It is kept until it is run again or discarded.",
    "quarantined": "Nobody here could read or run it. It is kept until it is run again or discarded.",
    "unknown": "Lies in a destination queue that is too long to search, or was taken by Java.",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A labelled text on a job's page."""

    label: str
    value: str
    note: str = ""
    is_code: bool = False
    is_fault: bool = False


Section = tuple[str, list[Field]]


def sections_of(
    job_id: str,
    seen: Inspected,
    state: str,
    content: Content,
    failure: Failure | None,
    earlier: Sequence[Failure],
    queue: QueueSettings,
    batch_left: int,
) -> list[Section]:
    """Describe a job; the first section is about the job, the others about its last error and the attempts before.

    ``batch_left``: of how many jobs it waits for the ends, as the callback of their batch.
    """
    end = Field("ID", clean(job_id))
    if seen.state in _OVER:
        return [("", [Field("State", state, _STATE_NOTES.get(state, "")), end])]
    # The handler's own options count for a foreign payload, as they do in a worker.
    task = get_handler(queue.name) if content.is_foreign else _find_task(content.task)
    sections: list[Section] = [
        (
            "",
            [
                *_task(content, task),
                *_life(seen, state, content, task, queue),
                *_call(seen, content),
                *_links(content, task, batch_left),
            ],
        )
    ]
    sections[0][1].append(end)
    if failure is not None:
        sections.append(("Last error", _error(failure)))
    kept = seen.history.count(b"\n") + 1 if seen.history else 0
    # Of a long history the oldest attempts have gone; a replay counts anew, and keeps them.
    last = max(seen.attempts + seen.kills, kept) - (kept - len(earlier))
    sections += [
        (f"Attempt {number}", _error(each))
        for number, each in zip(range(last, 0, -1), earlier, strict=False)
    ]
    return sections


def _find_task(name: str) -> TaskDefinition | None:
    try:
        return get_task(name)
    except TaskNotFound:
        return None


def _task(content: Content, task: TaskDefinition | None) -> list[Field]:
    if content.is_foreign and content.task:
        return [
            Field("Task", content.task, "the handler of this queue's foreign payloads")
        ]
    if content.is_foreign:
        return [
            Field(
                "Task",
                "none",
                "a foreign payload, and this queue has no handler here",
            )
        ]
    if not content.task:
        return []
    note = (
        "as the payload says; nobody here can check it" if content.is_unchecked else ""
    )
    fields = [Field("Task", content.task, note)]
    if task is None:
        fields.append(
            Field(
                "Not found",
                "This process has no task of that name.",
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
    fields = [Field("State", state, _STATE_NOTES.get(state, ""))]
    if seen.score_ms and seen.state in _SCORE_LABELS:
        of = Moment.of_held if seen.state is State.HELD else Moment.of
        fields.append(_time(_SCORE_LABELS[seen.state], of(seen.score_ms, seen.now_ms)))
    if seen.start_time_ms and seen.start_time_ms != seen.score_ms:
        fields.append(_time("First due", Moment.of(seen.start_time_ms, seen.now_ms)))
    if seen.state is State.RUNNING and seen.claimed_ms:
        since = Moment.of(seen.claimed_ms, seen.now_ms)
        fields.append(_time("Runs since", since))
    if seen.priority:
        fields.append(Field("Priority", f"{seen.priority:+d}".replace("-", "−")))
    carried = (content.options or {}).get("max_attempts")
    most = carried or (task and task.options.max_attempts) or queue.max_attempts
    lost = f"; {seen.kills} more lost the worker" if seen.kills else ""
    fields.append(Field("Attempts", f"{seen.attempts} of {most} failed{lost}"))
    return fields


def _time(label: str, moment: Moment | None) -> Field:
    assert moment is not None
    local = f"{moment.local} {moment.zone}".strip()
    if not local:
        return Field(label, moment.relative)
    return Field(label, local, f"{moment.relative}, {moment.ms} ms")


def _call(seen: Inspected, content: Content) -> list[Field]:
    fields = []
    if content.args is not None:
        fields.append(Field("Arguments", content.args, is_code=True))
    if content.kwargs is not None:
        fields.append(Field("Keyword arguments", content.kwargs, is_code=True))
    if content.value is not None:
        fields.append(Field("Value", content.value, is_code=True))
    if content.fault:
        label = "Not checked" if content.is_unchecked else "Unreadable"
        fields.append(Field(label, content.fault, is_fault=True))
    if content.options:
        fields.append(
            Field("Options of this call", pretty_json(content.options), is_code=True)
        )
    if content.schedule:
        fields.append(Field("Schedule", content.schedule))
    if seen.unique:
        fields.append(Field("Unique key", clean(seen.unique)))
    return fields


def _links(
    content: Content, task: TaskDefinition | None, batch_left: int
) -> list[Field]:
    fields = []
    if task is not None and task.options.limit is not None:
        fields.append(Field("Limit", task.options.limit.name))
    if content.then:
        fields.append(Field("Then", content.then, is_code=True))
    if content.on_dead:
        fields.append(Field("Once dead", content.on_dead, is_code=True))
    if content.batch:
        fields.append(
            Field(
                "Batch", content.batch, "starts once all jobs of the batch have ended"
            )
        )
    if batch_left:
        fields.append(
            Field(
                "Jobs of its batch", f"{batch_left:,}", "have not ended; then it starts"
            )
        )
    return fields


def _error(failure: Failure) -> list[Field]:
    fields = [Field("Error", failure.message, is_code=True)]
    if failure.kind:
        fields.append(Field("Kind", failure.kind))
    if failure.at:
        fields.append(_time("When", failure.at))
    if failure.took_ms is not None:
        fields.append(Field("Ran for", f"{failure.took_ms / 1000:.3f} s"))
    if failure.worker:
        fields.append(Field("Worker", failure.worker))
    if failure.traceback:
        fields.append(Field("Traceback", failure.traceback, is_code=True))
    return fields
