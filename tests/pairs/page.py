"""Writes docs/pairs.md from `features.py`: ``python -m tests.pairs.page``. A test fails if the page is out of date."""

from collections.abc import Iterator
from pathlib import Path

from tests.pairs.features import DOCUMENTED, FEATURES, REFUSED, SURPRISING, Pair

PAGE = Path(__file__).parents[2] / "docs" / "pairs.md"
HEAD = """\
# What happens when features meet

Most features have nothing to do with each other: use them together.
This page has the pairs that cannot be together, and those that may surprise you.
Look for your feature; each pair is under both of its features.
All other pairs do what you expect, and the tests run them.

A call that is **refused** raises.
Nothing is refused once it is stored, if code or settings change later or `delayq_import` brings it:

* On a queue that gets `REDISSON`, jobs keep their batch and what follows them.
  If Java takes such a job, nothing follows, and its batch does not end.
  Their priority may count for nothing.
* If the task of a stored schedule gets a limit, that counts instead of `overlap=False`, and the worker's log says so.
* If it becomes `unique`, the jobs of the schedule hold no key.
"""
#: By heading and the page that tells more: the features there, and how they are shown.
GROUPS: dict[tuple[str, str], dict[str, str]] = {
    ("Delay, retry and snooze", "howto/inside-a-task.md"): {
        "delay": "a delay",
        "retry": "a retry",
        "snooze": "`Snooze`",
        "spread": "`spread`",
    },
    ("Expires", "settings.md#task-options"): {"expires": "`expires`"},
    ("Priority", "howto/priorities.md"): {"priority": "a priority"},
    ("Limits", "howto/limits.md"): {
        "limit of a task": "a limit of tasks",
        "limit of a key": "a limit by key",
        "rate of a task": "a rate of tasks",
        "limit of a queue": "a limit of a queue",
    },
    ("Pause", "howto/pause.md"): {"pause": "a pause"},
    ("Unique jobs", "howto/duplicates.md"): {
        "unique, keep": "`unique`",
        "unique, replace": '`on_duplicate="replace"`',
        "unique, postpone": '`"postpone"`',
        "unique, sooner": '`"sooner"`',
        "unique until start": '`unique_until="start"`',
    },
    ("What follows a job, and batches", "howto/what-follows.md"): {
        "then": "`then`",
        "on_dead": "`on_dead`",
        "batch": "a `Batch`",
    },
    ("Outbox and once", "howto/outbox.md"): {
        "outbox": "`outbox`",
        "once": "`once`",
    },
    ("Schedules", "howto/periodic.md"): {
        "catch_up one": "a schedule",
        "catch_up none": '`catch_up="none"`',
        "catch_up all": '`catch_up="all"`',
        "overlap=False": "`overlap=False`",
    },
    ("Results, ended jobs, sensitive values", "howto/ended-jobs.md"): {
        "keep_result": "`keep_result`",
        "KEEP_ENDED": "`KEEP_ENDED`",
        "sensitive": "`sensitive`",
    },
    ("Encryption", "howto/encryption.md"): {"encrypt": "`encrypt`"},
    ("Durability", "howto/durability.md"): {"durable": "`durable`"},
    ("A full queue", "howto/limits-on-size.md#jobs-of-a-queue"): {
        "MAX_JOBS": "`MAX_JOBS`"
    },
    ("Queues shared with Java", "howto/java.md"): {"REDISSON": "`REDISSON`"},
    ("Changes of many jobs", "howto/find-jobs.md#change-many-jobs"): {
        "bulk changes": "changes of many jobs"
    },
}
SHOWN_AS = {name: shown for group in GROUPS.values() for name, shown in group.items()}


def sentences() -> dict[Pair, str]:
    """Return what the page says of each pair."""
    refused = {
        pair: f"**Refused.** {refusal.sentence} {refusal.but}".strip()
        for pair, refusal in REFUSED.items()
    }
    return {**refused, **DOCUMENTED, **SURPRISING}


def rows(group: dict[str, str]) -> Iterator[str]:
    """Yield the rows of one table, those with one sentence as one."""
    found: dict[str, list[Pair]] = {}
    for pair, sentence in sentences().items():
        if pair & group.keys():
            found.setdefault(sentence, []).append(pair)
    order = list(FEATURES)
    for sentence, pairs in found.items():
        met = frozenset[str]().union(*pairs)
        own = [name for name in order if name in met & group.keys()]
        others = [name for name in order if name in met - group.keys()]
        if not others:
            own, others = own[:1], own[1:]
        yield f"| {_list(own)} | {_list(others)} | {sentence} |"


def _list(names: list[str]) -> str:
    return ", ".join(SHOWN_AS[name] for name in names)


def written() -> str:
    """Return the page."""
    lines = [HEAD]
    for (heading, more), group in GROUPS.items():
        lines += [
            f"## {heading}",
            "",
            f"More in [{Path(more).stem.replace('-', ' ')}]({more}).",
            "",
            "| | meets | |",
            "|---|---|---|",
            *rows(group),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written())
