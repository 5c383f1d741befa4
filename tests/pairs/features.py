"""Every feature, what it touches of a job, and how each pair of features is answered.

`test_touches.py` holds `touches` to what the scripts read and write. A pair that shares nothing is answered by that.
"""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

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
    #: Where it is given, if that is enough: options of the task, of the call (`using`), of the schedule, of the queue.
    task: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
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
    Feature("limit of a task", _touches("place slot rank")),
    Feature("limit of a key", _touches("place slot rank")),
    Feature("rate of a task", _touches("start place slot")),
    Feature("limit of a queue", _touches("slot"), queue={"CONCURRENCY": 1}),
    Feature("pause", _touches("start place rank")),
    Feature("unique, keep", _touches("start place key"), task={"unique": True}),
    Feature(
        "unique, replace",
        _touches("payload start place key rank end"),
        task={"unique": ("key",), "on_duplicate": "replace"},
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
        "catch_up none",
        _touches("payload start place rank end schedule"),
        schedule={"catch_up": "none"},
        choice="catch_up",
    ),
    Feature(
        "catch_up one",
        _touches("payload start place rank end schedule"),
        schedule={"catch_up": "one"},
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
    Feature("REDISSON", _touches("payload place"), queue={"REDISSON": "3.52.0"}),
    Feature("bulk changes", _touches("start place rank end")),
]
#: By name.
FEATURES = {each.name: each for each in _ALL}

Pair = frozenset[str]


def pairs() -> list[Pair]:
    """Return each two features that one job, call or schedule can have."""
    return [
        frozenset({a.name, b.name})
        for a, b in combinations(_ALL, 2)
        if not (a.choice and a.choice == b.choice)
    ]


def shared(a: str, b: str) -> frozenset[str]:
    """Return what both features touch."""
    return FEATURES[a].touches & FEATURES[b].touches


@dataclass(frozen=True)
class Refusal:
    """The error that says that two features cannot be together."""

    error: str
    #: A part of its message.
    message: str
    #: When it is raised: at the decorator, the call, or by `manage.py check`.
    at: str


#: Pairs that are refused.
REFUSED: dict[Pair, Refusal] = {}

#: Pairs that meet in a way that is intended, and that a reader may not expect: a sentence of docs/pairs.md each.
DOCUMENTED: dict[Pair, str] = {}

#: Pairs that share nothing.
DISJOINT = frozenset(pair for pair in pairs() if not shared(*sorted(pair)))

#: All others: the model runs them together.
MODELLED = frozenset(pairs()) - DISJOINT - REFUSED.keys() - DOCUMENTED.keys()
