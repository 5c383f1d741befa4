"""Context that travels with a job: what ``DELAYQ["CONTEXT"]`` names captures it where a job is prepared, and restores it
around each attempt.

A context is a class or an object with ``capture()``, which returns texts by name, and ``restore(headers)``, which gets them
back and returns a context manager, or None if nothing is to be done after the attempt. It may have ``warm()``.
docs/howto/context.md has the contract.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from django.utils.module_loading import import_string

from django_delayq.clock import monotonic_ms
from django_delayq.exceptions import InvalidSettings
from django_delayq.logs import class_name, get_log
from django_delayq.redaction import show

logger = get_log("django_delayq.context")

#: The most bytes that one context may add to a job, names included.
MAX_CONTEXT_BYTES = 8_192
#: Of one context, a failure is logged at most this often: it would be logged with every job.
QUIET_MS = 60_000.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Scheduling(NamedTuple):
    """The job that is being prepared, for `being_scheduled`."""

    task: str
    queue: str
    id: str


# Task, queue and token: few ask, and a bare tuple costs less.
_scheduling: ContextVar[tuple[str, str, str] | None] = ContextVar(
    "django_delayq_scheduling", default=None
)


def being_scheduled() -> Scheduling | None:
    """Return task, queue and id of the job for which ``capture`` is called; elsewhere None.

    Example::

        class Audit:
            def capture(self):
                print("scheduling", being_scheduled().id)
                return {}

            def restore(self, headers): ...
    """
    if (found := _scheduling.get()) is None:
        return None
    task, queue, token = found
    return Scheduling(task, queue, f"{queue}:{token}")


class Traveller(NamedTuple):
    """One context, as it is used."""

    #: As the settings name it.
    path: str
    #: How the names of its headers begin.
    prefix: str
    capture: Callable[[], Mapping[str, str]]
    restore: Callable[[dict[str, str]], Any]
    #: Puts into the context of a thread what each attempt there finds in its copy of that.
    warm: Callable[[], Any] | None
    #: Without it, a job is neither scheduled nor run.
    is_required: bool


@cache
def load(paths: tuple[str, ...]) -> tuple[Traveller, ...]:
    """Import contexts, and make objects of classes.

    Raises:
        InvalidSettings: one of them cannot be imported, or is not a context.
    """
    found = [_load(path) for path in paths]
    by_prefix: dict[str, str] = {}
    for each in found:
        other = by_prefix.setdefault(each.prefix, each.path)
        if other != each.path:
            raise InvalidSettings(
                f"DELAYQ['CONTEXT'] names {other!r} and {each.path!r}, which are both named {each.prefix[:-1]!r}; give one of"
                " them another name"
            )
    return tuple(found)


def _load(path: str) -> Traveller:
    where = f"DELAYQ['CONTEXT'] names {path!r}, "
    found = imported(where, path)
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:
            raise InvalidSettings(
                f"{where}which cannot be made without arguments: {class_name(error)}: {error}; name an object instead"
            ) from error
    for method in ("capture", "restore"):
        if not callable(getattr(found, method, None)):
            raise InvalidSettings(
                f"{where}which has no {method}(); a context has capture(), which returns a dict of texts, and"
                " restore(headers), which returns a context manager, or None"
            )
    name = getattr(found, "name", None) or type(found).__name__.lower()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSettings(
            f"{where}whose name is {show(name)}; give it a name of up to 32 lower-case letters, digits and _"
        )
    is_required = bool(getattr(found, "required", False))
    warm = getattr(found, "warm", None)
    return Traveller(path, f"{name}.", found.capture, found.restore, warm, is_required)


def imported(where: str, path: str) -> Any:
    """Import what a setting names; ``where`` begins the text of an error.

    Raises:
        InvalidSettings: it cannot be imported.
    """
    try:
        return import_string(path)
    except Exception as error:
        raise InvalidSettings(
            f"{where}which cannot be imported: {class_name(error)}: {error}"
        ) from error


def capture(
    paths: tuple[str, ...], task: str, queue: str, token: str
) -> dict[str, str]:
    """Return the texts that travel with a job that is being prepared.

    A context that fails is left out and logged, as a job must not be lost because tracing is broken.

    Raises:
        Exception: what a required context raised.
    """
    headers: dict[str, str] = {}
    reset = _scheduling.set((task, queue, token))
    try:
        for each in load(paths):
            try:
                # A tracer that is not set up has nothing.
                if (found := each.capture()) != {}:
                    _take(each, found, headers)
            except Exception as error:
                if each.is_required:
                    error.add_note(
                        f"django-delayq: capture() of {each.path} raised this, and that context is required, so no"
                        f" job of {task!r} was scheduled"
                    )
                    raise
                _log_failure(each, "capture()", f"a job of {task!r}", error)
    finally:
        _scheduling.reset(reset)
    return headers


def _take(each: Traveller, found: object, headers: dict[str, str]) -> None:
    # The first is a short cut: the second asks an abstract class.
    if type(found) is not dict and not isinstance(found, Mapping):
        raise TypeError(f"it returned {show(found)}, and not a dict of texts")
    own = {}
    size = 0
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"it returned {show(key)}: {show(value)}, and not texts")
        key = each.prefix + key
        size += len(key.encode()) + len(value.encode())
        own[key] = value
    if size > MAX_CONTEXT_BYTES:
        raise ValueError(
            f"it returned {size:,} bytes, more than the {MAX_CONTEXT_BYTES:,} that a job may carry"
        )
    headers.update(own)


def required(paths: tuple[str, ...], headers: dict[str, str]) -> dict[str, str]:
    """Return what a job cannot go without, as it is too large with all that was captured."""
    prefixes = tuple(each.prefix for each in load(paths) if each.is_required)
    return {key: text for key, text in headers.items() if key.startswith(prefixes)}


def log_left_out(task: str) -> None:
    """Log that a job of a task goes without what it can do without."""
    logger.warning(
        "a job of %r goes without its captured context, which would make it larger than MAX_PAYLOAD_BYTES",
        task,
    )


class Carrier(Protocol):
    """The context that came with a job, as its attempt reports it."""

    headers: dict[str, str]

    @property
    def id(self) -> str: ...

    @property
    def secrets(self) -> Sequence[str]: ...


def warm(travellers: Sequence[Traveller]) -> None:
    """Have contexts get ready for the attempts of this thread, or of the context that this runs in. Failures are logged."""
    for each in travellers:
        if each.warm is None:
            continue
        try:
            each.warm()
        except (Exception, SystemExit) as error:
            _log_failure(each, "warm()", "a thread of the worker", error)


def restored(
    travellers: Sequence[Traveller], of: Carrier
) -> AbstractContextManager[None]:
    """Restore contexts for an attempt, and return what ends them: ``with restored(…):``.

    A context that fails is left out and logged.

    Raises:
        BaseException: what a required context raised, or an error that is not an Exception.
    """
    own: dict[str, dict[str, str]] = {}
    for key, text in of.headers.items():
        after = key.find(".") + 1
        own.setdefault(key[:after], {})[key[after:]] = text
    entered: _Entered | None = None
    for each in travellers:
        try:
            manager = each.restore(own.get(each.prefix) or {})
            if manager is None:
                continue
            manager.__enter__()
        except BaseException as error:
            if each.is_required or not isinstance(error, Exception):
                error.add_note(
                    f"django-delayq: restore() of {each.path} raised this; the task was not called"
                )
                if entered is not None:
                    entered.__exit__(type(error), error, error.__traceback__)
                raise
            _log_failure(each, "restore()", f"job {of.id}", error, of.secrets)
        else:
            if entered is None:
                entered = _Entered(of)
            entered.managers.append((each, manager))
    return _NOTHING if entered is None else entered


class _Entered:
    """The contexts around an attempt that have something to do at its end."""

    __slots__ = ("_of", "managers")

    def __init__(self, of: Carrier) -> None:
        self._of = of
        self.managers: list[tuple[Traveller, Any]] = []

    def __enter__(self) -> None:
        """Do nothing: `restored` has entered them."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What they return is of no account: a context that swallowed an error would make a failure a success.
        while self.managers:
            each, manager = self.managers.pop()
            try:
                manager.__exit__(kind, error, traceback)
            except (Exception, SystemExit) as failure:
                if failure is not error:
                    # Behind it may be what the task raised.
                    _log_failure(
                        each,
                        "the end of restore()",
                        f"job {self._of.id}",
                        failure,
                        self._of.secrets,
                    )


# Most attempts have nothing to end: a language ends with the attempt's own context.
_NOTHING = nullcontext()

# When each failure was logged, and how many were not since.
_logged: dict[tuple[str, str], tuple[float, int]] = {}


def _log_failure(
    each: Traveller,
    what: str,
    of: str,
    error: BaseException,
    secrets: Sequence[str] = (),
) -> None:
    now_ms = monotonic_ms()
    last_ms, quiet = _logged.get((each.path, what), (-QUIET_MS, 0))
    if now_ms - last_ms < QUIET_MS:
        _logged[each.path, what] = last_ms, quiet + 1
        return
    _logged[each.path, what] = now_ms, 0
    more = (
        f", and so did {quiet:,} others since the last line like this" if quiet else ""
    )
    logger.error(
        "%s goes without the context %s: its %s raised %s: %s%s",
        of,
        each.path,
        what,
        class_name(error),
        error,
        more,
        exc_info=error,
        secrets=secrets,
    )
