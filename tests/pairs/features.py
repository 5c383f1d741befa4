"""Every feature, what it touches of a job, and how each pair of features is answered.

`test_touches.py` holds `touches` to what the scripts read and write. A pair that shares nothing is answered by that.
"""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

from django_delayq import Limit

T = TypeVar("T")

#: What a feature may touch of a job, as `touching.RESOURCE_OF` has it in detail:
#:   payload   what is stored of the call: arguments, options, followers
#:   start     when the job may begin
#:   place     where it waits
#:   slot      the room that limits have
#:   key       who holds which unique key
#:   rank      which of the jobs that are due comes first
#:   end       how the job ends, what is kept of that, and what follows
#:   schedule  what is stored of schedules
RESOURCES = ("payload", "start", "place", "slot", "key", "rank", "end", "schedule")
#: What jobs with a delay and no feature touch. Some of that are looks: whether a queue has ranks, or a limit.
PLAIN = frozenset({"start", "place", "slot", "rank", "end"})


@dataclass(frozen=True)
class Feature:
    """One feature, as small as it is: what it does beyond a job with a delay."""

    #: As the docs call it.
    name: str
    #: What it reads or writes beyond what a job with a delay does.
    touches: frozenset[str]
    #: Where it is given, if that is enough: options of the task, of the schedule, of the queue.
    task: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    queue: dict[str, Any] = field(default_factory=dict)
    #: Of features with the same choice, a job or schedule has one.
    choice: str = ""


def _touches(words: str) -> frozenset[str]:
    touched = frozenset(words.split())
    assert touched <= frozenset(RESOURCES), words
    return touched


_ALL = [
    Feature("delay", _touches("start")),
    Feature("retry", _touches("start place rank end")),
    Feature("snooze", _touches("start place rank")),
    Feature("priority", _touches("place rank"), task={"priority": 10}),
    Feature(
        "limit of a task",
        _touches("start place slot rank"),
        task={"limit": Limit("tests-pairs", concurrency=1)},
    ),
    Feature(
        "limit of a key",
        _touches("start place slot rank"),
        task={
            "limit": Limit(
                "tests-pairs", concurrency=1, key=lambda *args, **kwargs: "one"
            )
        },
    ),
    Feature(
        "rate of a task",
        _touches("start place slot"),
        task={"limit": Limit("tests-pairs", rate="1/m burst 1")},
    ),
    Feature("limit of a queue", _touches("place slot"), queue={"CONCURRENCY": 1}),
    Feature("pause", _touches("start place rank")),
    Feature("unique, keep", _touches("start place key"), task={"unique": True}),
    Feature(
        "unique, replace",
        _touches("payload start place key rank end"),
        task={"unique": True, "on_duplicate": "replace"},
    ),
    Feature(
        "unique, postpone",
        _touches("start place key rank end"),
        task={"unique": True, "on_duplicate": "postpone"},
    ),
    Feature(
        "unique, sooner",
        _touches("start place key rank end"),
        task={"unique": True, "on_duplicate": "sooner"},
    ),
    Feature(
        "unique until start",
        _touches("start place key"),
        task={"unique": True, "unique_until": "start"},
    ),
    Feature("expires", _touches("start end"), task={"expires": 60}),
    Feature("spread", _touches("start"), task={"spread": 60}),
    Feature("then", _touches("payload start place rank end")),
    Feature("on_dead", _touches("payload start place rank end")),
    Feature("batch", _touches("payload start place slot rank end")),
    Feature("once", _touches("payload end"), task={"once": True}),
    Feature("outbox", _touches("place end"), task={"outbox": True}),
    Feature(
        "catch_up one",
        _touches("payload start place rank end schedule"),
        schedule={"catch_up": "one"},
        choice="catch_up",
    ),
    Feature(
        "catch_up none",
        _touches("payload start place rank end schedule"),
        schedule={"catch_up": "none"},
        choice="catch_up",
    ),
    Feature(
        "catch_up all",
        _touches("payload start place rank end schedule"),
        schedule={"catch_up": "all"},
        choice="catch_up",
    ),
    Feature(
        "overlap=False",
        _touches("payload start place slot rank end schedule"),
        schedule={"overlap": False},
    ),
    Feature("durable", _touches(""), task={"durable": 1}),
    Feature("keep_result", _touches("end"), task={"keep_result": 60}),
    Feature("KEEP_ENDED", _touches("end"), queue={"KEEP_ENDED": 1000}),
    Feature("MAX_JOBS", _touches("place"), queue={"MAX_JOBS": 1000}),
    Feature("sensitive", _touches("payload end"), task={"sensitive": ("token",)}),
    Feature("encrypt", _touches(""), task={"encrypt": True}),
    Feature("REDISSON", _touches("payload place"), queue={"REDISSON": "3.52.0"}),
    Feature("bulk changes", _touches("start place rank end")),
]
#: By name.
FEATURES = {each.name: each for each in _ALL}

Pair = frozenset[str]


#: No call has both: a worker makes each job of a schedule, alone, for its moment.
_APART = (
    {"catch_up one", "catch_up none", "catch_up all", "overlap=False"},
    {"delay", "then", "on_dead", "batch"},
)


def pairs() -> list[Pair]:
    """Return each two features that one job, call or schedule can have."""
    left, right = _APART
    return [
        frozenset({a.name, b.name})
        for a, b in combinations(_ALL, 2)
        if not (a.choice and a.choice == b.choice)
        and not ({a.name, b.name} & left and {a.name, b.name} & right)
    ]


def shared(a: str, b: str) -> frozenset[str]:
    """Return what both features touch."""
    return FEATURES[a].touches & FEATURES[b].touches


@dataclass(frozen=True)
class Refusal:
    """The error that says that two features cannot be together."""

    #: The sentence of docs/pairs.md.
    sentence: str
    #: A part of the error's message.
    message: str
    error: str = "InvalidTask"
    #: How the two meet all the same, for docs/pairs.md; such a pair is in the model as well.
    but: str = ""


def _each(names: str, others: str, answer: T) -> dict[Pair, T]:
    """Give one answer to each pair of a feature on the left and one on the right."""
    return {
        frozenset({one, other}): answer
        for one in names.split("; ")
        for other in others.split("; ")
    }


_UNIQUE = "unique, keep; unique, replace; unique, postpone; unique, sooner; unique until start"
_CHANGING = "unique, replace; unique, postpone; unique, sooner"
_SCHEDULES = "catch_up none; catch_up one; catch_up all; overlap=False"

#: Pairs that are refused, each with a test in `test_refused.py`.
REFUSED: dict[Pair, Refusal] = {
    **_each(
        _UNIQUE,
        _SCHEDULES,
        Refusal(
            "A `unique` task cannot be periodic: the next job waits while one runs, and would find the key taken.",
            "is unique, so it cannot be periodic",
        ),
    ),
    **_each(
        "limit of a task; limit of a key; rate of a task",
        "overlap=False",
        Refusal(
            "A task with a limit cannot have a schedule with `overlap=False`, because a job has one limit.",
            "has a limit, and overlap=False would be a second one",
        ),
    ),
    **_each(
        "outbox",
        _SCHEDULES,
        Refusal(
            "A schedule takes no `outbox`: workers store its jobs, and no transaction of yours is open then. The task may have"
            " it, for your own calls.",
            "workers store the jobs of a schedule",
        ),
    ),
    **_each(
        "REDISSON",
        "priority",
        Refusal(
            "Jobs on a queue with `REDISSON` have no priority: Redisson's transfer knows none.",
            "is shared with Redisson, which has no priorities",
        ),
    ),
    **_each(
        "REDISSON",
        "encrypt",
        Refusal(
            "Jobs on a queue with `REDISSON` cannot be encrypted: Java could not read them.",
            "is shared with Redisson, and Java could not read its jobs",
        ),
    ),
    **_each(
        "REDISSON",
        "then; on_dead",
        Refusal(
            "Nothing can follow a job on a queue with `REDISSON`, because Java may take it; a job that follows another may be on"
            " such a queue.",
            "is shared with Redisson, so Java may take its jobs, and nothing would follow them",
        ),
    ),
    **_each(
        "REDISSON",
        "batch",
        Refusal(
            "A batch cannot be on a queue with `REDISSON`: Java may take its jobs, and the batch would not learn of their ends.",
            "is shared with Redisson, so Java may take its jobs, and a batch would not learn of",
        ),
    ),
    **_each(
        _CHANGING,
        "outbox",
        Refusal(
            "A call that changes the job that waits cannot go through the outbox, which may send it twice.",
            "changes a job that waits, and the outbox may send a row twice",
            but="Another call, with `outbox=False`, may change a job that came through the outbox.",
        ),
    ),
    **_each(
        _CHANGING,
        "then; on_dead",
        Refusal(
            "A job prepared with `on_duplicate` can neither follow nor be followed.",
            "its task has on_duplicate, which no job of a chain may have",
            but="A later call with `on_duplicate` may change a job that others follow, and they still follow it.",
        ),
    ),
    **_each(
        _CHANGING,
        "batch",
        Refusal(
            "A job prepared with `on_duplicate` cannot join a batch.",
            "its task has on_duplicate, so it might change a waiting job instead of being stored",
            but="A later call with `on_duplicate` may change a job of a batch, and it stays in the batch.",
        ),
    ),
}

_SHOWN = "Pages show the value that a key function returns: return a hash of a value that is sensitive."

#: Pairs that meet as intended, and not as everybody expects: a sentence of docs/pairs.md each, and a test in
#: `test_documented.py`. 20 at most.
DOCUMENTED: dict[Pair, str] = {
    frozenset(names.split("; ")): sentence
    for names, sentence in {
        "expires; snooze": "`expires` counts from the first start time: a job that snoozes for longer than that does not run any"
        " more.",
        "expires; retry": "`expires` counts from the first start time: a retry that comes later than that does not run.",
        "expires; pause": "`expires` counts during a pause: a job that is too late when the queue is resumed does not run.",
        "expires; limit of a queue": "A limit does not stop `expires`: a job that waits for room for too long does not run.",
        "expires; spread": "`expires` counts from the start time with its random wait, so it may be shorter than `spread`.",
        "expires; on_dead": 'The `on_dead` callback is scheduled only if the task has `on_expiry="dead"`, and'
        " forgotten if the job is dropped.",
        "unique until start; pause": "A worker that takes a job of a paused task frees its key and holds the job, so each later"
        " call makes another one. Pause the queue if that matters.",
        "KEEP_ENDED; sensitive": "The list of ended jobs has their errors without the sensitive values.",
        "limit of a key; sensitive": _SHOWN,
        "unique, keep; sensitive": _SHOWN,
        "MAX_JOBS; retry": "A full queue takes its own retries: only new jobs are refused.",
        "MAX_JOBS; then": "A full queue takes jobs that follow another, and then holds more than `MAX_JOBS`.",
        "spread; retry": "Only scheduling spreads: a retry has the `jitter` of its `backoff` instead.",
        "overlap=False; retry": "A retry is not dropped while another job of the schedule runs, but held until that has ended.",
        "batch; bulk changes": "A cancelled job counts as ended. `find_jobs(…)` finds callbacks too: `run_now()` starts them, and"
        " `cancel()` gives them up.",
        "batch; unique, keep": "A job that is not stored, because another holds its key, does not count: the callback may start"
        " before that other job has run. The callback itself cannot be unique.",
        "batch; outbox": "A batch does not go through the outbox: the commit sends it, whatever its tasks say.",
        "once; snooze": "Writes of a run that raises `Snooze` are rolled back; the next run does the work.",
        "durable; outbox": "The row is what is durable, so a call that writes one does not wait.",
        "durable; bulk changes": "Changes of many jobs wait for no replica and no disk.",
    }.items()
}

#: Sentences of docs/pairs.md about pairs in the model.
SURPRISING: dict[Pair, str] = {
    frozenset(names.split("; ")): sentence
    for names, sentence in {
        "priority; limit of a task": "Jobs that wait for a limit come by priority, and by start time among equals.",
        "priority; retry": "A retry keeps its priority.",
        "unique, keep; retry": "A job holds its key through all its attempts: a call between two of them makes no other job.",
        "unique until start; retry": "The key is free from the first attempt on, so a retry may run beside a newer job.",
        "unique, replace; retry": "A replaced job has all its attempts before it again.",
        "unique, replace; once": "New arguments are a run of their own: they run once, even if those before them have run.",
        "unique, keep; expires": "A job that is too late loses its key: the next call makes a new job.",
        "unique, replace; limit of a task": "A replaced job gets the limit of the new call. One that a limit holds is looked at again, and held again if that is full.",
        "MAX_JOBS; unique, keep": "A call whose key another job holds needs no room, and returns that job.",
        "MAX_JOBS; catch_up one": "Jobs of a schedule enter a full queue.",
        "MAX_JOBS; outbox": "A full queue still takes jobs from the outbox, because their transactions have been committed.",
        "pause; catch_up one": "On a paused queue, a schedule misses occurrences, and `catch_up` decides about them. A paused task"
        " does not stop its schedules: their jobs are held, and all of them run when it is resumed.",
        "limit of a task; retry": "A job that waits for its retry takes no slot, and another may go before it.",
        "rate of a task; retry": "Each attempt counts as a start, a retry too.",
        "limit of a task; bulk changes": "`run_now()` makes a held job due, and its limit still holds it.",
        "then; retry": "The `then` task waits until the job has succeeded.",
        "batch; retry": "A job that waits for its retry has not ended, and the callback waits for it.",
        "batch; then": "Jobs that follow one of a batch do not count for it.",
        "once; keep_result": "If a worker dies right after its commit, the work is done and the result is `None`.",
        "catch_up none; spread": "A job expires at the next occurrence, and its random start lies before that.",
        "bulk changes; unique, keep": "A cancelled job frees its key.",
        "REDISSON; limit of a task": "Limits bind our workers only: what Java takes is not limited.",
        "REDISSON; pause": "A pause binds our workers only: due jobs still go where Java may take them.",
        "spread; bulk changes": "Only scheduling spreads: `reschedule()` sets the time that it is given.",
    }.items()
}

#: Pairs that share nothing, and are not refused.
DISJOINT = (
    frozenset(pair for pair in pairs() if not shared(*sorted(pair))) - REFUSED.keys()
)

#: All others: the model runs them together.
MODELLED = (
    frozenset(pairs())
    - DISJOINT
    - {pair for pair, refusal in REFUSED.items() if not refusal.but}
    - DOCUMENTED.keys()
)
