"""What workers, the admin and the registry know about a task: its function, its name and its options.

This module does not know how tasks are scheduled.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django_delayq.conf import Settings, get_settings
from django_delayq.exceptions import InvalidTask
from django_delayq.jobs.options import Commit, TaskOptions, commit_of
from django_delayq.redaction import show
from django_delayq.suggestions import closest, suggestion


def name_of_djangos(task: object) -> str | None:
    """Return the name of a task of Django's; None: it is none.

    Django's own class is not imported: Django 5.2 lacks it.
    """
    if isinstance(task, TaskDefinition):
        return None if task.takes_delay else task.name
    name = getattr(task, "module_path", None)
    return name if isinstance(name, str) and hasattr(task, "enqueue") else None


class TaskDefinition:
    """A function with the name and the options of a task."""

    #: What `periodic` has put above the task, a CodeSchedule each.
    schedules: tuple[Any, ...] = ()
    #: Whether its calls begin with a delay, which a caller may forget.
    takes_delay = True
    #: Whether ON_COMMIT of the settings is meant for it.
    heeds_on_commit = True
    #: The parameter that a worker fills by position, so that no call may give its name.
    filled: str | None = None
    # The commit that sends its jobs, as decided for these settings.
    _commit: Commit | None = None
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
        self.call_signature = signature_of(function)
        if isinstance(options.unique, tuple):
            _check_names(name, "unique", options.unique, self.call_signature)
        if options.sensitive:
            _check_names(name, "sensitive", options.sensitive, self.call_signature)
        #: How few and how many positional arguments make a valid call by themselves.
        self.positional = positional_range(self.call_signature)
        # By the number of positional arguments, see `_taking`.
        self._takes: dict[int, _Taking] = {}
        #: Name of the first positional parameter if it has a default, else "".
        self.optional_first = _optional_first(self.call_signature)

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the function takes a call's arguments."""
        if not kwargs:
            least, most = self.positional
            return least <= len(args) <= most
        taking = self._takes.get(len(args))
        if taking is None:
            # More positional arguments than parameters are the same case, however many they are.
            count = min(len(args), len(self.call_signature.parameters) + 1)
            taking = _taking(self.call_signature, count)
            self._takes[count] = taking
        names = kwargs.keys()
        return (
            not taking.too_many
            and not taking.unfilled
            and taking.required.keys() <= names
            and names.isdisjoint(taking.given)
            and (taking.allowed is None or names <= taking.allowed)
            and self.filled not in names
        )

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what is wrong with the arguments of a call; empty if the function takes them."""
        taking = _taking(self.call_signature, len(args))
        missing = [
            *taking.unfilled,
            *(name for name in taking.required if name not in kwargs),
        ]
        twice = [name for name in kwargs if name in taking.given]
        unexpected = [
            name
            for name in kwargs
            if name == self.filled
            or (
                taking.allowed is not None
                and name not in taking.allowed
                and name not in taking.given
            )
        ]
        # A misspelt name may be that of an optional parameter.
        free = [
            *missing,
            *sorted((taking.allowed or frozenset()) - kwargs.keys() - {self.filled}),
        ]
        close = {name: closest(name, free) for name in unexpected}
        meant = [name for name in close.values() if name is not None]
        parts = []
        if missing:
            what = "arguments" if len(missing) > 1 else "argument"
            parts.append(f"missing {what} {_listed(missing)}")
        if unexpected:
            parts.append(f"unexpected {_listed(unexpected)}")
        if twice:
            parts.append(f"given twice: {_listed(twice)}")
        if taking.too_many:
            what = "argument" if taking.too_many == 1 else "arguments"
            parts.append(f"{taking.too_many} positional {what} too many")
        text = ", ".join(parts)
        return f"{text}; did you mean {_listed(meant)}?" if meant else text

    @property
    def commit(self) -> Commit | None:
        """The commit that sends its jobs; None if they are sent at once.

        Raises:
            InvalidTask: see `commit_of`.
        """
        settings = get_settings()
        if self._decided_for is not settings:
            self._commit = commit_of(
                self.options,
                on_commit=settings.on_commit and self.heeds_on_commit,
                outbox=settings.outbox,
            )
            self._decided_for = settings
        return self._commit


class _Taking(NamedTuple):
    """The parameters of a function after a number of positional arguments."""

    #: Names of parameters that are still to be given, as keys, in their order.
    required: dict[str, None]
    #: Names of such parameters that no call can give by name.
    unfilled: tuple[str, ...]
    #: Names that a call may give; None: any.
    allowed: frozenset[str] | None
    #: Names that the positional arguments have given.
    given: frozenset[str]
    #: How many of the positional arguments have no parameter.
    too_many: int


def _taking(signature: inspect.Signature, count: int) -> _Taking:
    left = count
    required: dict[str, None] = {}
    unfilled: list[str] = []
    allowed: set[str] = set()
    given: set[str] = set()
    takes_all = takes_names = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            takes_all = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_names = True
        elif left and parameter.kind is not parameter.KEYWORD_ONLY:
            left -= 1
            if parameter.kind is not parameter.POSITIONAL_ONLY:
                given.add(name)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            if parameter.default is parameter.empty:
                unfilled.append(name)
        else:
            allowed.add(name)
            if parameter.default is parameter.empty:
                required[name] = None
    return _Taking(
        required,
        tuple(unfilled),
        None if takes_names else frozenset(allowed),
        frozenset(given),
        0 if takes_all else left,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(show, names))


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that the calls of a function have to fit.

    As `functools.wraps` has it, a wrapper with ``*args`` or ``**kwargs`` passes its arguments on. A wrapper that names
    all its parameters takes no others, whatever it wraps.
    """
    return inspect.signature(
        inspect.unwrap(function, stop=_speaks_for_itself), follow_wrapped=False
    )


def _speaks_for_itself(function: Any) -> bool:
    if hasattr(function, "__signature__"):
        return True
    code = getattr(function, "__code__", None)
    passes_on = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return code is not None and not code.co_flags & passes_on


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
            raise InvalidTask(
                f"{option} of {task!r} names {show(name)}, which is not one of its parameters:"
                f" {', '.join(signature.parameters) or 'it has none'}."
                + suggestion(name, signature.parameters)
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
