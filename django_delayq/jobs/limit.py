"""`Limit`: how many jobs of a task run at a time, and how often one starts; for all of them, or by a key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django_delayq.core.rates import (
    MOST_AT_A_TIME,
    RATE_WANTED,
    is_concurrency,
    is_rate,
)
from django_delayq.exceptions import InvalidArguments, InvalidTask
from django_delayq.redaction import show

#: The longest name of a limit, and the longest key, bytes: together they name what jobs are held for.
MAX_LIMIT_NAME = 64
MAX_LIMIT_KEY = 128


@dataclass(frozen=True)
class Limit:
    """A limit for `delayed_task`. Tasks whose limits have the same name share one limit; each queue counts separately.

    Example::

        @delayed_task(limit=Limit("crm", concurrency=2, rate="10/s", key=lambda tenant_id: tenant_id))
        def sync(tenant_id): ...

    Raises:
        InvalidTask: it limits nothing, or an argument is wrong.
    """

    #: Without spaces.
    name: str
    #: Jobs that run at a time.
    concurrency: int | None = None
    #: How often a job starts, such as "10/m".
    rate: str | None = None
    #: Is called with the arguments of the job and returns a string or a whole number; the limit counts for each of them.
    key: Callable[..., str | int] | None = None

    def __post_init__(self) -> None:
        if not is_limit_name(self.name):
            raise InvalidTask(
                f"Limit(name={show(self.name)}): give text of 1 to {MAX_LIMIT_NAME} bytes, without spaces"
            )
        for name, is_good, wanted in (
            (
                "concurrency",
                is_concurrency,
                f"a whole number, 1 to {MOST_AT_A_TIME:,}",
            ),
            ("rate", is_rate, RATE_WANTED),
            ("key", callable, "a function of the arguments"),
        ):
            value = getattr(self, name)
            if value is not None and not is_good(value):
                raise InvalidTask(
                    f"Limit({self.name!r}, {name}={show(value)}): give {wanted}"
                )
        if self.concurrency is None and self.rate is None:
            raise InvalidTask(
                f"Limit({self.name!r}) limits nothing: give concurrency=, rate=, or both"
            )

    def of_call(self, task: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Return the limit of one call as `tail_of` takes it.

        Raises:
            InvalidArguments: the key function returned what cannot be a key. Its own errors pass through, with a note.
        """
        if self.key is None:
            return f"{self.name}\0"
        try:
            key = self.key(*args, **kwargs)
        except Exception as error:
            error.add_note(
                f"django-delayq: the key of limit {self.name!r} of {task!r} raised this; nothing was scheduled"
            )
            raise
        text = str(key) if type(key) is int else key
        if not isinstance(text, str) or not _is_key(text):
            raise InvalidArguments(
                f"the key of limit {self.name!r} of {task!r} is {show(key)}; return a whole number, or a string of 1 to"
                f" {MAX_LIMIT_KEY} bytes without a zero byte, such as an id"
            )
        return f"{self.name}\0{text}"


def is_limit_name(name: object) -> bool:
    """Return whether this can be the name of a limit."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and not any(map(str.isspace, name))
        and 0 < _size(name) <= MAX_LIMIT_NAME
    )


def _is_key(text: str) -> bool:
    return "\0" not in text and 0 < _size(text) <= MAX_LIMIT_KEY


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        # Half a surrogate pair cannot be sent.
        return 0
