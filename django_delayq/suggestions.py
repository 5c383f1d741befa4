"""The known name that somebody may have meant."""

import difflib
import heapq
from collections.abc import Collection, Iterable

#: How alike two words have to be, 0 to 1, to be taken for one another.
ALIKE = 0.7
#: A suggestion is sought among this many names of similar length: 3 ms at most.
MAX_CANDIDATES = 50
#: A longer name gets no suggestion, because each comparison costs its length.
MAX_SUGGESTED = 200


def suggestion(name: object, known: Collection[str]) -> str:
    """Return a question about the known name that this is most like, to stand behind an error; empty if none is."""
    close = closest(str(name), known)
    return "" if close is None else f" Did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that somebody may have meant; None: none is close.

    Of a dotted name each part is compared by itself: a common beginning makes two names no more alike.
    """
    if len(name) > MAX_SUGGESTED:
        return None
    is_bare = "." not in name
    candidates = heapq.nsmallest(
        MAX_CANDIDATES,
        known,
        # The last part alone may be given.
        key=lambda each: (
            not each.endswith(f".{name}"),
            abs(len(each.rpartition(".")[2] if is_bare else each) - len(name)),
        ),
    )
    scored = ((_likeness(name, each), each) for each in candidates)
    likeness, best = max(scored, default=(0.0, ""))
    return best if likeness >= ALIKE else None


def _likeness(name: str, known: str) -> float:
    name, known = name.casefold(), known.casefold()
    if known.endswith(f".{name}"):
        return 1.0
    parts, others = name.split("."), known.split(".")
    if len(parts) == 1:
        # A name without its module.
        others = others[-1:]
    if len(parts) != len(others):
        return 0.0
    return min(
        # Two letters in the wrong order make much of a short name.
        1.0
        if sorted(part) == sorted(other)
        else difflib.SequenceMatcher(None, part, other).ratio()
        for part, other in zip(parts, others, strict=True)
    )
