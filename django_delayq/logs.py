"""Loggers whose calls never raise.

A handler or a filter of the project's ``LOGGING`` may raise, and so may the text of an exception that is logged with its
traceback. Neither is a reason for a worker to stop.
"""

import logging
import sys
from typing import Any


class Log(logging.LoggerAdapter[logging.Logger]):
    """Does as the logger that it stands for."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        try:
            # Our own frame is not the caller's.
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except BaseException as error:
            # Whatever it is: the text of an exception may raise SystemExit.
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
            text, why = str(msg) % args, class_name(error)
            try:
                if kwargs.pop("exc_info", None) is None:
                    raise error
                text += f" (its traceback cannot be written: {why})"
                self.logger.log(level, "%s", text, stacklevel=3, **kwargs)
            except BaseException:
                # Where logging itself tells of a handler that failed.
                print(f"{text} (the log does not take this: {why})", file=sys.stderr)
        except BaseException:
            # Nothing is left to say it with.
            return


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class, whatever that class does."""
    # Not error.__class__, which the class may define. A metaclass can do nothing about this either.
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def get_log(name: str) -> Log:
    """Return the log of a name, as ``logging.getLogger`` does."""
    return Log(logging.getLogger(name))
