"""The verdicts on an attempt, and what a task cannot ask for by what it returns or raises."""

import asyncio
import re
from enum import StrEnum
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.exception_text import class_name

#: In one tuple, as every value that a function returns is compared with it.
_NEVER_RETURNED = (GeneratorType, AsyncGeneratorType, Decision)


class Verdict(StrEnum):
    """The outcome of a leased job, in the words of the log."""

    SUCCEED = "succeeded"
    RETRY = "retrying"
    #: The task asked for it: the job runs again later, and nothing is counted.
    SNOOZE = "snoozed"
    #: The task asked for it.
    CANCEL = "cancelled"
    BURY = "dead"
    QUARANTINE = "quarantined"
    #: The job was too late to begin.
    EXPIRE = "expired"
    #: The job waits for what its `Hold` names.
    HOLD = "held"
    #: The job was not run, and nothing is counted.
    GIVE_BACK = "given_back"
    #: The job has run before.
    DROP = "double"


def mistake_in(value: object) -> str | None:
    """Say what a function returned by mistake: what runs only once somebody awaits it or loops over it, or a decision."""
    if isinstance(value, CoroutineType):
        # Otherwise Python would warn that it was never awaited; our own message says so.
        value.close()
        kind = "a coroutine"
    elif isinstance(value, _NEVER_RETURNED):
        if isinstance(value, Decision):
            return f"a {class_name(value)}, which decides nothing unless it is raised"
        kind = "a generator"
    elif hasattr(type(value), "__await__") and not isinstance(value, asyncio.Future):
        # A future is not lazy: what it stands for runs by itself.
        kind = f"an awaitable {type(value).__name__}"
    else:
        return None
    return (
        f"{kind}, whose body has not run, and nobody runs it. A decorator around an async def has to be async def"
        " itself, and await it; elsewhere, await or loop over what you return"
    )


def is_when(when: object) -> bool:
    # A subclass may have put anything there, and a script would stop halfway at what is no number.
    return isinstance(when, str) and re.fullmatch(r"[+=][0-9]{1,16}", when) is not None


def says_no_delay(decision: Decision) -> InvalidTask:
    name = class_name(decision)
    return InvalidTask(
        f"{name} says no delay: let its __init__ call super().__init__(delay), and leave `when` alone"
    )
