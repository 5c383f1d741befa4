"""What a project puts around each call of a task: the contexts that travel with its job, and middleware.

Both are composed once, before a worker starts. Without any of them nothing here is called.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import MiddlewareNotUsed

from django_delayq.conf import Settings
from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs import contexts
from django_delayq.jobs.contexts import Traveller, imported
from django_delayq.jobs.decisions import Decision
from django_delayq.jobs.job import Job
from django_delayq.logs import class_name
from django_delayq.redaction import show

#: How the note begins that says which middleware raised an error.
BLAME = "django-delayq: raised in middleware "

Call = Callable[[Job[Any]], Any]
AsyncCall = Callable[[Job[Any]], Awaitable[Any]]


class Middleware(NamedTuple):
    """The middleware and contexts around each call."""

    travellers: tuple[Traveller, ...]
    #: Call the task of a job within its middleware, in a thread or on the event loop; None: there is no middleware.
    call: Call | None
    acall: AsyncCall | None


def compose(settings: Settings) -> Middleware | None:
    """Return what the settings put around a call; None: nothing.

    Raises:
        InvalidSettings: a path cannot be imported, or does not name a context or a middleware.
    """
    if not settings.context and not settings.middleware:
        return None
    travellers = contexts.load(settings.context)
    if not settings.middleware:
        return Middleware(travellers, None, None)
    return Middleware(travellers, *_chained(settings.middleware))


@cache
def _chained(paths: tuple[str, ...]) -> tuple[Call, AsyncCall]:
    # The command asks first, so that its processes have what it made.
    call: Call = _call
    acall: AsyncCall = _acall
    for path in reversed(paths):
        factory = find_middleware(path)
        call = _made(path, factory, call, is_async=False)
        acall = _made(path, factory, acall, is_async=True)
    return call, acall


def find_middleware(path: str) -> Any:
    """Import a factory of middleware.

    Raises:
        InvalidSettings: it cannot be imported, or is none.
    """
    factory = imported(f"DELAYQ['MIDDLEWARE'] names {path!r}, ", path)
    if not callable(factory):
        raise InvalidSettings(
            f"DELAYQ['MIDDLEWARE'] names {path!r}, which is {show(factory)}; name a function that takes call and returns a"
            " function that takes job"
        )
    if not _is_capable(factory, is_async=False) and not _is_capable(
        factory, is_async=True
    ):
        raise InvalidSettings(
            f"DELAYQ['MIDDLEWARE'] names {path!r}, whose sync_capable and async_capable are both False; one of them has to be"
            " True"
        )
    return factory


def _is_capable(factory: Any, *, is_async: bool) -> bool:
    name = "async_capable" if is_async else "sync_capable"
    return bool(getattr(factory, name, not is_async))


def _call(job: Job[Any]) -> Any:
    assert job.here is not None
    assert job.here.call is not None
    return job.here.call()


async def _acall(job: Job[Any]) -> Any:
    assert job.here is not None
    assert job.here.call is not None
    return await job.here.call()


def _made(path: str, factory: Any, inner: Any, *, is_async: bool) -> Any:
    """Put one middleware around a call, as Django adapts its own: each is called in its own mode."""
    is_adapted = not _is_capable(factory, is_async=is_async)
    given = inner
    if is_adapted:
        given = async_to_sync(inner) if is_async else sync_to_async(inner)
    where = f"DELAYQ['MIDDLEWARE'] names {path!r}, which "
    try:
        made = factory(given)
    except MiddlewareNotUsed:
        return inner
    except Exception as error:
        raise InvalidSettings(f"{where}raised {class_name(error)}: {error}") from error
    if not callable(made):
        raise InvalidSettings(
            f"{where}returned {show(made)}; it has to return a function that takes job"
        )
    # What it was given decides what it has to return.
    is_async_given = is_async != is_adapted
    if _is_coroutine_function(made) != is_async_given:
        kinds = ("sync", "async") if is_async_given else ("async", "sync")
        raise InvalidSettings(
            f"{where}was given a call that is {kinds[1]}, and returned a function that is {kinds[0]}; mark it with a decorator of"
            " django.utils.decorators, such as sync_and_async_middleware, and return what it was given"
        )
    if is_adapted:
        made = sync_to_async(made) if is_async else async_to_sync(made)
    return _alayer(path, made) if is_async else _layer(path, made)


def _is_coroutine_function(made: Any) -> bool:
    return iscoroutinefunction(made) or iscoroutinefunction(type(made).__call__)


def _layer(path: str, made: Call) -> Call:
    def layer(job: Job[Any]) -> Any:
        try:
            return made(job)
        except BaseException as error:
            _blame(path, error)
            raise

    return layer


def _alayer(path: str, made: AsyncCall) -> AsyncCall:
    async def layer(job: Job[Any]) -> Any:
        try:
            return await made(job)
        except BaseException as error:
            _blame(path, error)
            raise

    return layer


def _code_of_layer(make: Any) -> CodeType:
    return next(each for each in make.__code__.co_consts if isinstance(each, CodeType))


#: An error that has come through one of these did not begin further out.
_INNER = frozenset(
    {
        _call.__code__,
        _acall.__code__,
        _code_of_layer(_layer),
        _code_of_layer(_alayer),
    }
)


def _blame(path: str, error: BaseException) -> None:
    """Note in an error that this middleware raised it, unless the task did, or a middleware further in."""
    if issubclass(type(error), (Decision, asyncio.CancelledError)):
        return
    traceback = error.__traceback__
    # The first frame is that of the layer itself.
    while traceback is not None and (traceback := traceback.tb_next) is not None:
        if traceback.tb_frame.f_code in _INNER:
            return
    # The exception is the project's code.
    with suppress(Exception):
        error.add_note(BLAME + path)


def blamed(error: BaseException) -> str:
    """Return what to add to the text of an error that a middleware raised; else an empty text."""
    notes = getattr(error, "__notes__", ())
    found = [note for note in notes if isinstance(note, str) and note.startswith(BLAME)]
    return f" (raised in middleware {found[0].removeprefix(BLAME)})" if found else ""
