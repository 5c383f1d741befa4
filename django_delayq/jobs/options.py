"""The options of a task, set by the decorator and changed for single calls."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypedDict, cast

from django.db import DEFAULT_DB_ALIAS

from django_delayq.backoff import Backoff
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core.durability import (
    DURABLE_WANTED,
    Durability,
    as_durable,
    is_durability,
)
from django_delayq.exceptions import InvalidSettings, InvalidTask
from django_delayq.jobs.limit import Limit
from django_delayq.redaction import show
from django_delayq.suggestions import suggestion
from django_delayq.wire.encryption import MISSING, has_library

Seconds = float | timedelta


@dataclass(frozen=True)
class Commit:
    """The commit that sends a job, if a transaction is open."""

    #: Alias of the database.
    using: str
    #: Whether the job is a row of the transaction.
    in_outbox: bool = False
    #: Whether a task or a call asks for it. False: the setting alone does, and then an event loop sends at once.
    is_written: bool = False


OnDuplicate = Literal["keep", "replace", "postpone", "sooner"]
ExceptionClasses = type[BaseException] | tuple[type[BaseException], ...]
#: All that `on_duplicate` may be.
_ON_DUPLICATE = (
    "keep",
    "replace",
    "postpone",
    "sooner",
    ("replace", "postpone"),
    ("replace", "sooner"),
)


# The fields of `TaskOptions` by who takes them, so that type checkers and editors know the keyword arguments.


class SharedOptions(TypedDict, total=False):
    """Options that Django's tasks also have; see `django_delayq.backend`."""

    max_attempts: int | None
    backoff: Backoff | None
    time_limit: Seconds | None
    unique: bool | tuple[str, ...] | Callable[..., str]
    unique_until: Literal["end", "start"]
    on_duplicate: OnDuplicate | tuple[OnDuplicate, ...]
    max_wait: Seconds | None
    expires: Seconds | None
    on_expiry: Literal["drop", "dead"]
    spread: Seconds | None
    durable: Durability | None


class _CommonOptions(SharedOptions, total=False):
    priority: int
    keep_result: Seconds | None
    on_commit: bool | str | None
    outbox: bool | None


class CallOptions(_CommonOptions, total=False):
    """Options that `DelayedTask.using` and schedules can change."""

    queue: str


class HandlerOptions(_CommonOptions, total=False):
    """Options of `queue_handler`, in addition to queue and name."""

    retry_on: ExceptionClasses
    no_retry_on: ExceptionClasses
    once: bool | str


class DecoratorOptions(CallOptions, HandlerOptions, total=False):
    """Options of `delayed_task`, in addition to a name: every field of `TaskOptions`."""

    limit: Limit | None
    sensitive: tuple[str, ...]
    encrypt: bool


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of a task. None means the value in the queue's settings."""

    #: Queue of its jobs, one of DELAYQ["QUEUES"].
    queue: str = "default"
    #: Attempts before a job becomes a dead letter, the first one included.
    max_attempts: int | None = None
    #: Waits between attempts.
    backoff: Backoff | None = None
    #: Exceptions after which a job is retried.
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    #: Exceptions among ``retry_on`` after which a job is not retried.
    no_retry_on: tuple[type[BaseException], ...] = ()
    #: Time limit of one attempt.
    time_limit: Seconds | None = None
    #: Allow one waiting or running job for each unique key. The key is made of all arguments (True), of the named
    #: parameters, or by a function of the arguments.
    unique: bool | tuple[str, ...] | Callable[..., str] = False
    #: When the job frees its unique key: at its "end" or at its "start".
    unique_until: Literal["end", "start"] = "end"
    #: Effect of a call on a waiting job with the same unique key: "keep" the job; "replace" its arguments; "postpone"
    #: it to the later start time; or start it "sooner", at the earlier one. ("replace", "postpone") does both.
    on_duplicate: OnDuplicate | tuple[OnDuplicate, ...] = "keep"
    #: Longest time that calls can postpone a job, counted from the first call.
    max_wait: Seconds | None = None
    #: Time after the start time when a job expires: it is then too late, and does not start.
    expires: Seconds | None = None
    #: Effect of ``expires``: "drop" the job, or make it a "dead" letter.
    on_expiry: Literal["drop", "dead"] = "drop"
    #: Priority among the due jobs of the queue, −100 to 100; higher comes first. Not for queues shared with Redisson.
    priority: int = 0
    #: Limit on how many of its jobs run at a time, or how often one starts.
    limit: Limit | None = None
    #: Names of parameters whose values are hidden in pages, logs, errors and reprs.
    sensitive: tuple[str, ...] = ()
    #: Encrypt arguments, results, errors and progress on the server. It needs django-delayq[encryption].
    encrypt: bool = False
    #: Time to keep the result for `Job.wait`; None: the result is not kept.
    keep_result: Seconds | None = None
    #: A random wait, up to this long, is added to each delay, so that many jobs of one time do not begin together.
    spread: Seconds | None = None
    #: In a transaction, send the job after its commit: True for the default database, or a database alias. False sends
    #: it at once.
    on_commit: bool | str | None = None
    #: Write the job as a row of the caller's transaction, so that both are committed together. `on_commit` names the
    #: database. It needs the app django_delayq.outbox.
    outbox: bool | None = None
    #: Replicas and disks that must have a job before the call that stores it returns: a number of replicas, "disk", or
    #: a `Durable`; False: none.
    durable: Durability | None = None
    #: Run the task in a transaction with a row of the job's id, so that its changes in that database happen once: True
    #: for the default database, or a database alias. It needs the app django_delayq.outbox.
    once: bool | str = False

    def __post_init__(self) -> None:
        check = _Checker()
        check(
            isinstance(self.queue, str) and self.queue != "",
            "queue",
            self.queue,
            "the name of a queue",
        )
        check(
            self.max_attempts is None
            or (_is_int(self.max_attempts) and self.max_attempts >= 1),
            "max_attempts",
            self.max_attempts,
            "a whole number, 1 or more",
        )
        check(
            self.backoff is None or isinstance(self.backoff, Backoff),
            "backoff",
            self.backoff,
            "a Backoff(base=…, factor=…, max=…, jitter=…)",
        )
        for name in ("retry_on", "no_retry_on"):
            value = getattr(self, name)
            if isinstance(value, type):
                value = (value,)
                object.__setattr__(self, name, value)
            check(
                isinstance(value, tuple)
                and all(
                    isinstance(item, type) and issubclass(item, BaseException)
                    for item in value
                ),
                name,
                value,
                "an exception class or a tuple of them",
            )
        check(
            self.sensitive == () or _is_names(self.sensitive),
            "sensitive",
            self.sensitive,
            "a tuple of parameter names, such as ('token',)",
        )
        check(isinstance(self.encrypt, bool), "encrypt", self.encrypt, "True or False")
        if self.encrypt and not has_library():
            raise InvalidTask(f"encrypt=True: {MISSING}")
        for name in ("time_limit", "expires", "keep_result", "spread", "max_wait"):
            value = getattr(self, name)
            check(
                value is None or seconds(value) is not None,
                name,
                value,
                "seconds above 0 or a timedelta",
            )
        check(
            isinstance(self.unique, bool)
            or callable(self.unique)
            or _is_names(self.unique),
            "unique",
            self.unique,
            "True, a tuple of parameter names, or a function of the arguments",
        )
        if self.durable is not None:
            check_durable(self.durable)
        if self.durable:
            object.__setattr__(self, "durable", as_durable(self.durable))
        check(
            self.unique_until in ("end", "start"),
            "unique_until",
            self.unique_until,
            "'end' or 'start'",
        )
        check(
            _is_on_duplicate(self.on_duplicate),
            "on_duplicate",
            self.on_duplicate,
            "'keep', 'replace', 'postpone', 'sooner', ('replace', 'postpone') or ('replace', 'sooner')",
        )
        if self.on_duplicate != "keep" and not self.unique:
            raise InvalidTask(
                f"on_duplicate={self.on_duplicate!r}: without unique= no job is a duplicate of another; give unique= as"
                " well, or on_duplicate='keep'"
            )
        if self.max_wait is not None and "postpone" not in self.duplicates:
            raise InvalidTask(
                f"max_wait={show(self.max_wait)}: it bounds how long calls may postpone a job, and"
                f" on_duplicate={self.on_duplicate!r} postpones none; give on_duplicate='postpone' or"
                " ('replace', 'postpone'), or no max_wait"
            )
        check(
            self.on_expiry in ("drop", "dead"),
            "on_expiry",
            self.on_expiry,
            "'drop' or 'dead'",
        )
        check(
            is_priority(self.priority),
            "priority",
            self.priority,
            PRIORITY_WANTED,
        )
        check(
            self.limit is None or isinstance(self.limit, Limit),
            "limit",
            self.limit,
            "a Limit('name', concurrency=…, rate=…, key=…)",
        )
        check(
            self.on_commit is None or isinstance(self.on_commit, bool | str),
            "on_commit",
            self.on_commit,
            "True, False or a database alias",
        )
        check(
            self.outbox is None or isinstance(self.outbox, bool),
            "outbox",
            self.outbox,
            "True or False; on_commit names the database",
        )
        if self.outbox:
            if self.on_commit is False:
                raise InvalidTask(
                    "outbox=True, on_commit=False: a row is sent after its commit; leave on_commit out, or give outbox=False"
                    " to send at once"
                )
            self.check_outbox()
        check(
            isinstance(self.once, bool | str) and self.once != "",
            "once",
            self.once,
            "True, False or a database alias",
        )

    def check_outbox(self) -> None:
        """Make sure that jobs with these options can be rows of the outbox.

        Raises:
            InvalidTask: they change other jobs, and a row that is sent twice would do so twice.
        """
        if self.duplicates:
            raise InvalidTask(
                f"on_duplicate={self.on_duplicate!r} changes a job that waits, and the outbox may send a row twice, which"
                " would undo later changes: give outbox=False, or on_duplicate='keep'"
            )

    @property
    def duplicates(self) -> tuple[OnDuplicate, ...]:
        """All that a call does to the job that holds its key; empty: it keeps that job as it is."""
        what = self.on_duplicate
        if what == "keep":
            return ()
        return what if isinstance(what, tuple) else (what,)

    @cached_property
    def is_plain(self) -> bool:
        """Whether a job is its call and its start time, and nothing beside."""
        return (
            self.spread is None
            and not self.unique
            and not self.priority
            and self.limit is None
            and self.durable is None
        )

    def changed(self, **options: Any) -> "TaskOptions":
        """Return a copy with some options changed.

        Raises:
            InvalidTask: an option is unknown, or cannot have this value.
        """
        known = [item.name for item in fields(self)]
        if unknown := set(options) - set(known):
            raise InvalidTask(
                f"unknown task option {min(unknown)!r}; known are {', '.join(known)}, and name for the decorator."
                + suggestion(min(unknown), known)
            )
        return replace(self, **options)

    #: Options that a single call may change; then its payload carries them.
    CARRIED = (
        "max_attempts",
        "backoff",
        "time_limit",
        "expires",
        "on_expiry",
        "keep_result",
    )

    def carried(self, base: "TaskOptions") -> dict[str, Any] | None:
        """Return the options that differ from the task's own, as JSON for the envelope."""
        differing: dict[str, Any] = {}
        for name in self.CARRIED:
            value = getattr(self, name)
            if value != getattr(base, name):
                if isinstance(value, Backoff):
                    value = [value.base, value.factor, value.max, value.jitter]
                elif (
                    name in ("time_limit", "expires", "keep_result")
                    and value is not None
                ):
                    value = seconds(value)
                differing[name] = value
        return differing or None

    def with_carried(self, carried: dict[str, Any]) -> "TaskOptions":
        """Return a copy with the options that an envelope carries.

        Raises:
            InvalidTask, InvalidSettings: the envelope carries values that we never write.
        """
        options = {
            name: value for name, value in carried.items() if name in self.CARRIED
        }
        if options.get("backoff") is not None:
            try:
                base, factor, longest, jitter = options["backoff"]
            except (TypeError, ValueError):
                raise InvalidSettings(
                    f"backoff {show(options['backoff'])} is not four numbers"
                ) from None
            options["backoff"] = Backoff(
                base=base, factor=factor, max=longest, jitter=jitter
            )
        return self.changed(**options)


def commit_of(options: TaskOptions, *, on_commit: bool, outbox: bool) -> Commit | None:
    """Return the commit that sends jobs; None: they are sent at once.

    ``on_commit`` and ``outbox`` are what the settings say.

    Raises:
        InvalidTask: OUTBOX makes them rows, which they cannot be.
    """
    written = options.on_commit
    in_outbox = options.outbox
    if in_outbox is None:
        in_outbox = outbox and written is not False
    if in_outbox:
        options.check_outbox()
    elif not (on_commit if written is None else written):
        return None
    return Commit(
        written if isinstance(written, str) else DEFAULT_DB_ALIAS,
        in_outbox,
        is_written=in_outbox or bool(written),
    )


#: The lowest and the highest priority, as Django's tasks have them.
LOWEST, HIGHEST = -100, 100
PRIORITY_WANTED = f"a whole number from {LOWEST} to {HIGHEST}"


def is_priority(value: object) -> bool:
    return _is_int(value) and LOWEST <= cast(int, value) <= HIGHEST


def check_priority(priority: object, queue: str) -> None:
    """Make sure that a job of a queue can have a priority.

    Raises:
        InvalidTask: it is none, or the queue is shared with Redisson.
    """
    _Checker()(is_priority(priority), "priority", priority, PRIORITY_WANTED)
    if priority and get_settings().queue(queue).is_shared:
        raise InvalidTask(
            f"priority={priority}: queue {queue!r} is shared with Redisson, which has no priorities; use a queue"
            " without REDISSON, or priority=0"
        )


def check_encrypt(task: str, queue: QueueSettings) -> None:
    """Make sure that the jobs of a task can be encrypted on a queue.

    Raises:
        InvalidTask: the queue is shared with Redisson.
    """
    if queue.is_shared:
        raise InvalidTask(
            f"encrypt=True of task {task!r}: queue {queue.name!r} is shared with Redisson, and Java could not read its jobs;"
            " use a queue without REDISSON"
        )


def check_durable(durable: object) -> None:
    """Make sure that a call can be as durable as this says.

    Raises:
        InvalidTask: it says something else.
    """
    _Checker()(is_durability(durable), "durable", durable, DURABLE_WANTED)


class _Checker:
    def __call__(self, is_good: bool, name: str, value: object, wanted: str) -> None:
        if not is_good:
            raise InvalidTask(f"{name}={show(value)}: give {wanted}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_on_duplicate(value: object) -> bool:
    # Any type may come here, and one that is equal to everything would be.
    return isinstance(value, str | tuple) and any(
        value == each for each in _ON_DUPLICATE
    )


def _is_names(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and value != ()
        and all(isinstance(item, str) for item in value)
    )


def seconds(value: object) -> float | None:
    """Return a value in seconds if it is a time above 0, else None."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 10**9 else None


def is_unicode(text: str) -> bool:
    """Whether a text can be sent; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
