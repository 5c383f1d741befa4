"""Describing the call of a script: its keys and arguments by name, put in the order of its header."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

from django_delayq.transport.call import NOTHING, Argument, Call, identity
from django_delayq.transport.script import Script, load_script, name_of

T = TypeVar("T")


class Bound(NamedTuple):
    """A script and its keys, to be called with its arguments."""

    script: Script
    keys: tuple[str, ...]

    def __call__(
        self,
        read: Callable[[Any], T] = identity,
        /,
        *,
        repeat: Mapping[int, Argument] | None = NOTHING,
        window_ms: float = math.inf,
        full: Callable[[], Call[T]] | None = None,
        more_keys: Iterable[str] = (),
        **named: Any,
    ) -> Call[T]:
        """Describe the call with these arguments; of a list, an iterable of values or of rows.

        ``more_keys`` are those that the header writes as ``name...``. The others but the arguments are those of `Call`.

        Raises:
            TypeError: an argument is missing, or the header does not name it; or takes no more keys.
        """
        script, keys = self
        if more_keys:
            if not script.keys or not script.keys[-1].endswith("..."):
                raise TypeError(
                    f"{script.name}.lua takes no more keys than its header names"
                )
            keys = (*keys, *more_keys)
        try:
            args = [*script.pick(named)]
            count = len(args)
            for record in script.lists:
                values, before = named[record.name], len(args)
                args += chain.from_iterable(values) if record.fields else values
                if (len(args) - before) % record.size:
                    raise TypeError(
                        f"{script.name}.lua takes rows of {record.size} as {record.name!r}"
                    )
                count += 1
        except KeyError as missing:
            raise TypeError(f"{script.name}.lua needs the argument {missing}") from None
        if len(named) > count:
            known = {*script.args, *(each.name for each in script.lists)}
            raise TypeError(
                f"{script.name}.lua has no argument {min(named.keys() - known)!r} in its header"
            )
        return Call(script, keys, args, read, repeat, window_ms, full)


class Keys(Hashable, Protocol):
    """The keys of one queue."""

    def key(self, name: str) -> str:
        """Return the key that the headers of scripts call by this name."""


def binder(*packages: str) -> Callable[..., Bound]:
    """Return `bind_in` for the scripts of these packages, remembering what it has returned."""
    return lru_cache(maxsize=16_384)(partial(bind_in, packages))


def bind_in(
    packages: tuple[str, ...],
    name: str,
    keys: Keys,
    order: tuple[str, ...] | None = None,
    **named: str,
) -> Bound:
    """Return a script and its keys in the order of its header: those named here, and the others from the queue.

    A key that the header writes as ``name?`` is passed only if it is named here.

    ``order``: the names of arguments that the caller puts in order by itself, as naming them costs a call of every job a
    hundredth of its time.

    Raises:
        TypeError: the header names no such key, or has its arguments in another order.
    """
    script = load_script(packages, name)
    optional = {name_of(key) for key in script.keys if "?" in key}
    if not optional <= named.keys():
        script = load_script(packages, name, frozenset(optional - named.keys()))
    found = [
        named.pop(name_of(key), "") or keys.key(name_of(key))
        for key in script.keys
        if not key.endswith("...")
    ]
    if named:
        raise TypeError(f"{name}.lua has no key {min(named)!r} in its header")
    if order not in (None, script.args):
        raise TypeError(f"{name}.lua takes {', '.join(script.args)}, in this order")
    return Bound(script, tuple(found))
