"""Counts the steps of a regular expression: a backtracking matcher that does what ``re`` does, one character at a time.

``re`` cannot be asked for its steps, and its time depends on the machine. It has shortcuts that this matcher has not,
so it may take fewer steps, but not more.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

#: Characters that are tried as members of a class.
_POOL = "a1 .-:/!\n_\x00\xe9\ud800\U0001f600"
#: A repeat of more than this is long.
SHORT = 50
_REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)


class TooMany(Exception):
    """A pattern has taken more steps than `MOST`."""


#: Steps for one text. A pattern whose steps double with each character is stopped here.
MOST = 500_000


class Steps:
    """A pattern, and the number of steps that it has taken."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source, flags = pattern.pattern, pattern.flags
        if isinstance(source, bytes):
            source, flags = source.decode("latin-1"), flags | re.ASCII
        self.is_bytes = isinstance(pattern.pattern, bytes)
        self._flags = flags & (re.ASCII | re.IGNORECASE | re.DOTALL | re.MULTILINE)
        self.tree = list(_parser.parse(source, flags & ~re.DEBUG))
        self._known: dict[tuple[int, str], bool] = {}
        self.count = 0

    def search(self, text: str) -> int:
        """Return the steps to find all places that fit, as `re.sub` does."""
        self.spans(text)
        return self.count

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the places that fit."""
        self.count = 0
        found = []
        start = 0
        with _deep():
            while start <= len(text):
                end = self._first(self.tree, text, start, {})
                if end is not None:
                    found.append((start, end))
                start = start + 1 if end is None or end == start else end
        return found

    def match(self, text: str) -> int:
        """Return the steps to find whether the whole text fits."""
        self.count = 0
        with _deep():
            self._sequence(self.tree, 0, text, 0, {}, lambda end: end == len(text))
        return self.count

    def _sequence(
        self,
        nodes: list[Any],
        at: int,
        text: str,
        place: int,
        groups: dict[int, tuple[int, int]],
        then: Callable[[int], bool],
    ) -> bool:
        if at == len(nodes):
            return then(place)

        def go_on(end: int) -> bool:
            return self._sequence(nodes, at + 1, text, end, groups, then)

        op, value = nodes[at]
        self.count += 1
        if self.count > MOST:
            raise TooMany
        if op in _REPEATS:
            return self._repeat(op, value, text, place, groups, go_on)
        if op is c.SUBPATTERN:
            number, _, _, items = value

            def close(end: int) -> bool:
                if number is not None:
                    groups[number] = (place, end)
                return go_on(end)

            return self._sequence(list(items), 0, text, place, groups, close)
        if op is c.BRANCH:
            for each in value[1]:
                if self._sequence(list(each), 0, text, place, groups, go_on):
                    return True
            return False
        if op in (c.ASSERT, c.ASSERT_NOT):
            return self._assert(op, value, text, place, groups) and go_on(place)
        if op is c.ATOMIC_GROUP:
            end = self._first(list(value), text, place, groups)
            return end is not None and go_on(end)
        if op is c.AT:
            return self._is_at(value, text, place) and go_on(place)
        if op is c.GROUPREF:
            low, high = groups.get(value, (0, 0))
            self.count += high - low
            return text.startswith(text[low:high], place) and go_on(place + high - low)
        if not _is_character(op):
            raise NotImplementedError(op)
        return (
            place < len(text) and self.fits(nodes[at], text[place]) and go_on(place + 1)
        )

    def _first(
        self, nodes: list[Any], text: str, place: int, groups: Any
    ) -> int | None:
        ends: list[int] = []

        def keep(end: int) -> bool:
            ends.append(end)
            return True

        self._sequence(nodes, 0, text, place, groups, keep)
        return ends[0] if ends else None

    def _repeat(
        self, op: Any, value: Any, text: str, place: int, groups: Any, then: Any
    ) -> bool:
        least, most, items = value
        nodes = list(items)
        if len(nodes) == 1 and _is_character(nodes[0][0]):
            # In a loop, and not in a recursion.
            high = place
            while (
                high - place < most
                and high < len(text)
                and self.fits(nodes[0], text[high])
            ):
                self.count += 1
                high += 1
            if op is c.POSSESSIVE_REPEAT:
                return high - place >= least and then(high)
            ends = range(high, place + least - 1, -1)
            for end in ends if op is c.MAX_REPEAT else reversed(ends):
                self.count += 1
                if then(end):
                    return True
            return False

        def more(start: int, times: int) -> bool:
            def again(end: int) -> bool:
                return end > start and more(end, times + 1)

            self.count += 1
            if op is c.MIN_REPEAT and times >= least and then(start):
                return True
            if times < most and self._sequence(nodes, 0, text, start, groups, again):
                return True
            return op is not c.MIN_REPEAT and times >= least and then(start)

        if op is c.POSSESSIVE_REPEAT:
            times = 0
            while times < most:
                found = self._first(nodes, text, place, groups)
                if found is None or found == place:
                    break
                place, times = found, times + 1
            return times >= least and then(place)
        return more(place, 0)

    def _assert(self, op: Any, value: Any, text: str, place: int, groups: Any) -> bool:
        direction, items = value
        nodes = list(items)
        if direction < 0:
            width = items.getwidth()[0]
            found = place >= width and self._sequence(
                nodes, 0, text, place - width, groups, lambda end: True
            )
        else:
            found = self._sequence(nodes, 0, text, place, groups, lambda end: True)
        return found == (op is c.ASSERT)

    def _is_at(self, kind: Any, text: str, place: int) -> bool:
        before = text[place - 1 : place] if place else ""
        after = text[place : place + 1]
        is_multiline = self._flags & re.MULTILINE
        if kind in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return not before or bool(
                kind is c.AT_BEGINNING and is_multiline and before == "\n"
            )
        if kind in (c.AT_END, c.AT_END_STRING):
            if not after:
                return True
            return (
                kind is c.AT_END
                and after == "\n"
                and (bool(is_multiline) or place + 1 == len(text))
            )
        is_edge = self._is_word(before) != self._is_word(after)
        return is_edge == (kind is c.AT_BOUNDARY)

    def _is_word(self, character: str) -> bool:
        flags = self._flags & re.ASCII
        return re.fullmatch(r"\w", character, flags) is not None

    def fits(self, node: Any, character: str) -> bool:
        """Return whether a character fits a node of one character."""
        key = (id(node), character)
        if key not in self._known:
            self._known[key] = self._fits(node, character)
        return self._known[key]

    def _fits(self, node: Any, character: str) -> bool:
        op, value = node
        if op is c.ANY:
            return character != "\n" or bool(self._flags & re.DOTALL)
        if op is c.NOT_LITERAL:
            return not self._fits((c.LITERAL, value), character)
        if op is c.LITERAL:
            return character in self._cases(chr(value))
        if op is c.RANGE:
            low, high = value
            return any(low <= ord(each) <= high for each in self._cases(character))
        if op is c.CATEGORY:
            name = str(value).removeprefix("CATEGORY_")
            letter = name.removeprefix("NOT_")[0].lower()
            if name.startswith("NOT_"):
                letter = letter.upper()
            return bool(re.fullmatch(rf"\{letter}", character, self._flags & re.ASCII))
        items = [item for item in value if item[0] is not c.NEGATE]
        found = any(self._fits(item, character) for item in items)
        return found == (len(items) == len(value))

    def _cases(self, character: str) -> set[str]:
        if self._flags & re.IGNORECASE:
            return {character.lower(), character.upper(), character}
        return {character}

    def alphabet(self) -> list[str]:
        """Return one character of each kind that the long repeats of the pattern tell apart."""
        nodes = [node for node in _in_repeats(self.tree) if _is_character(node[0])]
        candidates = [*_POOL]
        for op, value in nodes:
            if op in (c.LITERAL, c.NOT_LITERAL):
                candidates.append(chr(value))
            elif op is c.IN:
                candidates += [chr(v) for o, v in value if o is c.LITERAL]
                candidates += [chr(v[0]) for o, v in value if o is c.RANGE]
        kinds: dict[tuple[bool, ...], str] = {}
        for each in candidates:
            if self.is_bytes and ord(each) > 255:
                continue
            kind = (self._is_word(each), each == "\n")
            kinds.setdefault(kind + tuple(self.fits(n, each) for n in nodes), each)
        return list(kinds.values())

    def sample(self, nodes: Any) -> str:
        """Return a short text that these nodes fit."""
        text = ""
        for node in nodes:
            op, value = node
            if _is_character(op):
                pool = [*_POOL, *map(chr, range(0x250))]
                if op is c.LITERAL:
                    pool = [chr(value)]
                text += next((each for each in pool if self.fits(node, each)), "")
            elif op in _REPEATS:
                text += self.sample(value[2]) * max(1, value[0])
            elif op is c.SUBPATTERN:
                text += self.sample(value[3])
            elif op is c.BRANCH:
                text += self.sample(value[1][0])
            elif op is c.ATOMIC_GROUP:
                text += self.sample(value)
        return text

    def parts(self, nodes: Any = None, before: str = "") -> Iterator[tuple[str, str]]:
        """Yield, for each repeat without a bound, what stands before it, and what it repeats."""
        for node in self.tree if nodes is None else nodes:
            op, value = node
            if op in _REPEATS:
                if value[1] > SHORT:
                    yield before, self.sample(value[2])
                yield from self.parts(value[2], before)
            elif op is c.SUBPATTERN:
                yield from self.parts(value[3], before)
            elif op is c.ATOMIC_GROUP:
                yield from self.parts(value, before)
            elif op is c.BRANCH:
                for each in value[1]:
                    yield from self.parts(each, before)
            before += self.sample([node])


def _is_character(op: Any) -> bool:
    return op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)


def _in_repeats(nodes: Any) -> Iterator[Any]:
    for op, value in _walk(nodes):
        if op in _REPEATS and value[1] > SHORT:
            yield from _walk(value[2])


def _walk(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        op, value = node
        if op in _REPEATS:
            yield from _walk(value[2])
        elif op is c.SUBPATTERN:
            yield from _walk(value[3])
        elif op is c.BRANCH:
            for each in value[1]:
                yield from _walk(each)
        elif op in (c.ASSERT, c.ASSERT_NOT):
            yield from _walk(value[1])
        elif op is c.ATOMIC_GROUP:
            yield from _walk(value)


@contextmanager
def _deep() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
