"""Loggers whose calls never raise, and that do not exist before their first use.

A handler or a filter of the project's ``LOGGING`` may raise, and so may the text of an exception that is logged. A
worker must not stop for either.

Settings may import this package, before Django applies ``LOGGING``. By default that disables every logger that exists
by then.
"""

import logging
import sys
import traceback
from functools import cached_property
from typing import Any

from django_delayq.masks import mask
from django_delayq.wording import printable


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose errors are printed instead of raised.

    Pass ``secrets`` with an exception that may repeat what a task has marked as sensitive: the log then has its traceback
    as a masked text.
    """

    def __init__(self, name: str) -> None:
        # The base class would make the logger here.
        self._name = name
        self.extra = None

    @cached_property
    def logger(self) -> logging.Logger:  # type: ignore[override]
        logger = logging.getLogger(self._name)
        logger.addFilter(_with_printable_traceback)
        return logger

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        secrets = kwargs.pop("secrets", ())
        if not self.isEnabledFor(level):
            return
        try:
            if secrets:
                error = kwargs.pop("exc_info", None)
                text = str(msg) % args
                if isinstance(error, BaseException):
                    text += "\n" + "".join(traceback.format_exception(error))
                msg, args = "%s", (printable(mask(text.rstrip(), secrets)),)
            elif (shown := _shown(msg, args)) is not None:
                msg, args = "%s", (shown,)
            # Skips this frame, which is not the caller's.
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except BaseException as error:
            # Not only Exception: the text of an exception may raise SystemExit.
            self._log_in_few_words(level, msg, args, kwargs, error)

    def _log_in_few_words(
        self,
        level: int,
        msg: object,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        error: BaseException,
    ) -> None:
        try:
            text, why = printable(str(msg) % args), class_name(error)
            try:
                if kwargs.pop("exc_info", None) is None:
                    raise error
                text += f" (its traceback cannot be written: {why})"
                self.logger.log(level, "%s", text, stacklevel=3, **kwargs)
            except BaseException:
                # Logging itself reports a failed handler on standard error.
                print(f"{text} (the log does not take this: {why})", file=sys.stderr)
        except BaseException:
            # No way is left to report it.
            return


def _with_printable_traceback(record: logging.LogRecord) -> bool:
    """Have handlers write a traceback without what would steer a terminal. They still get the exception."""
    if record.exc_info and not record.exc_text:
        text = logging.Formatter().formatException(record.exc_info)
        if (shown := printable(text)) != text:
            record.exc_text = shown
    return True


def _shown(msg: object, args: tuple[object, ...]) -> str | None:
    """Return a message whose values would steer a terminal, or forge lines of the log, with escapes; None: none does."""
    text = str(msg) % args if args else str(msg)
    if text.isprintable():
        return None
    # A message of several lines may have values of several lines, such as a traceback.
    shown = printable(text if "\n" in str(msg) else text.replace("\n", "\\n"))
    return None if shown == text else shown


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class, even if the class hides it."""
    # Not error.__class__, which the class may define. A metaclass cannot change this lookup either.
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def get_log(name: str) -> Log:
    """Return the log with a name; `logging` makes its logger at the first call."""
    return Log(name)
