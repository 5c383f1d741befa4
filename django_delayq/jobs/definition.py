"""What workers, the admin and the registry know about a task: its function, its name and its options.

This module does not know how tasks are scheduled.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from django_delayq.conf import Settings, get_settings
from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.options import Commit, TaskOptions, commit_of
from django_delayq.redaction import show


class TaskDefinition:
    """A function with the name and the options of a task."""

    #: What `periodic` has put above the task, a CodeSchedule each.
    schedules: tuple[Any, ...] = ()
    #: Whether its calls begin with a delay, which a caller may forget.
    takes_delay = True
    # With which commit its jobs are sent, as decided for these settings.
    _commit: Commit = False
    _decided_for: Settings | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: TaskOptions,
        base: TaskOptions | None = None,
    ) -> None:
        """Describe a task.

        Raises:
            InvalidTask: ``unique`` or ``sensitive`` names a parameter that the function does not have.
        """
        self.function = function
        self.name = name
        self.options = options
        #: The options as decorated. Each job carries the differences in `options`.
        self.base = options if base is None else base
        self.is_async = inspect.iscoroutinefunction(function)
        self.call_signature = inspect.signature(function)
        if isinstance(options.unique, tuple):
            _check_names(name, "unique", options.unique, self.call_signature)
        if options.sensitive:
            _check_names(name, "sensitive", options.sensitive, self.call_signature)
        #: How few and how many positional arguments make a valid call by themselves.
        self.positional = positional_range(self.call_signature)
        #: Name of the first positional parameter if it has a default, else "".
        self.optional_first = _optional_first(self.call_signature)

    @property
    def on_commit(self) -> Commit:
        """Whether a commit sends its jobs: True for the default database, or the alias of another; or InOutbox."""
        settings = get_settings()
        if self._decided_for is not settings:
            self._commit = commit_of(self.options, settings)
            self._decided_for = settings
        return self._commit


def positional_range(signature: inspect.Signature) -> tuple[int, int]:
    """Return how few and how many positional arguments make a valid call by themselves; (1, 0) if none do."""
    least = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            most += 1
            least += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = 1 << 30
        elif (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
        ):
            return 1, 0
    return least, most


def _check_names(
    task: str, option: str, names: tuple[str, ...], signature: inspect.Signature
) -> None:
    for name in names:
        if name not in signature.parameters:
            close = difflib.get_close_matches(name, signature.parameters, n=1)
            suggestion = f" Did you mean {close[0]!r}?" if close else ""
            raise InvalidTask(
                f"{option} of {task!r} names {show(name)}, which is not a parameter of it;"
                f" name parameters of the function: {', '.join(signature.parameters) or 'it has none'}.{suggestion}"
            )


def _optional_first(signature: inspect.Signature) -> str:
    """Return the name of the first positional parameter if it has a default, else ""."""
    for parameter in signature.parameters.values():
        if (
            parameter.kind
            in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is not parameter.empty
        ):
            return parameter.name
        break
    return ""
