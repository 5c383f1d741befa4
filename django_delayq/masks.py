"""Masks in texts what a task has marked as sensitive: how a value may be written there, and where it stands."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from datetime import date, time
from decimal import Decimal
from functools import cached_property
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import UUID

from django_delayq.redaction import MASK

#: What may stand before each line of a text that is quoted, as a traceback does inside of an exception group.
_MARGIN = " \t|"
#: A secret of fewer characters is looked for only as a whole word, as too much else contains it.
LEAST_SECRET = 4
#: The fewest characters of a secret's beginning or end that are masked where a text was cut.
LEAST_PIECE = 8
#: A piece of this length is masked even if a word goes on behind it.
LONG_PIECE = 32
#: A longer text is not looked for as JSON in a repr: each form of it would have as many characters again.
MOST_TWICE = 10_000
#: An integer of more bits is not looked for.
MOST_BITS = 12_000
#: With more secrets than this, a text is masked as a whole: each of them is looked for.
MOST_SECRETS = 1_000
#: The work of one masker, in steps: to look for one secret in 1,000 characters is one. Beyond it, texts are masked as a whole.
MOST_STEPS = 1_000_000
#: What each place takes where a secret, or its beginning or end, is found.
_STEPS_OF_PLACE = 50
#: A value that is nested deeper is masked as a whole.
DEEPEST = 100
# Where a word begins: behind what is no letter or digit, or behind the escape of that, such as \\n and %20.
_BEGINS = (
    r"(?:(?<![0-9A-Za-z])|(?<=\\[abfnrtv])|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4})"
    r"|(?<=%[0-9A-F]{2}))"
)
#: In place of secrets: every text is masked as a whole.
WHOLE = ("",)


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return a text without some others. See `Masker`."""
    return Masker(secrets).mask(text)


class Masker:
    """Masks secrets in texts, whole ones and those that were cut.

    The lines of a secret may be indented in the text. A secret that was cut is known by its first or last 8 characters,
    if no word continues where it was cut. One of fewer than `LEAST_SECRET` characters is masked where neither a letter nor a
    digit of ASCII adjoins it, and if it has a letter or a digit itself. `MOST_STEPS` bounds the work.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {_without_margins(secret) for secret in secrets}
        self._is_whole = "" in found or len(found) > MOST_SECRETS
        self._words = sorted(
            each
            for each in found
            if len(each) < LEAST_SECRET and any(map(str.isalnum, each))
        )
        # The longest first: one may contain another. With their beginnings and ends.
        self._secrets = [
            (each, each[:LEAST_PIECE], each[-LEAST_PIECE:])
            for each in sorted(found, key=len, reverse=True)
            if len(each) >= LEAST_SECRET
        ]
        self._left = MOST_STEPS

    def mask(self, text: str) -> str:
        """Return a text with ``***`` in place of each secret."""
        if text and self._is_whole:
            return MASK
        if not text or not (self._secrets or self._words):
            return text
        try:
            return self._without_words(self._masked(text))
        except _TooMuch:
            return MASK

    def mask_value(self, value: Any, depth: int = 0) -> Any:
        """Return a value of JSON with ``***`` in place of each secret, also where that is a number, or in a key."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            return value if self.mask(text := str(value)) == text else MASK
        if depth > DEEPEST:
            return MASK
        if isinstance(value, dict):
            return {
                self.mask(str(key)): self.mask_value(each, depth + 1)
                for key, each in value.items()
            }
        return [self.mask_value(each, depth + 1) for each in value]

    def _without_words(self, text: str) -> str:
        if not self._words:
            return text
        self._take_step(len(self._words) * (1 + len(text) // 100))
        return self._pattern.sub(MASK, text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The longest first: one may begin as another does.
        any_of = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        first = "".join({re.escape(each[0]) for each in self._words})
        return re.compile(rf"(?=[{first}]){_BEGINS}(?:{any_of})(?![0-9A-Za-z])")

    def _masked(self, text: str) -> str:
        lines = _lines(text)
        plain = "".join(lines)
        self._take_step(len(self._secrets) * (1 + len(plain) // 1_000))
        likely = [
            secret
            for secret, head, tail in self._secrets
            if head in plain or tail in plain
        ]
        found: list[tuple[int, int]] = []
        gaps = [(0, len(plain))]
        for secret in likely:
            if secret in plain:
                gaps = list(self._gaps(plain, secret, gaps, found))
        for secret in likely:
            for low, high in gaps:
                found += self._pieces(plain, secret, low, high)
        if not found:
            return text
        if plain != text:
            found = _in_original(found, lines, text)
        return _replaced(text, found)

    def _take_step(self, count: int = _STEPS_OF_PLACE) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMuch

    def _gaps(
        self,
        text: str,
        secret: str,
        gaps: list[tuple[int, int]],
        found: list[tuple[int, int]],
    ) -> Iterator[tuple[int, int]]:
        """Find a secret in parts of a text, and yield what is left of those."""
        for low, high in gaps:
            self._take_step()
            while (at := text.find(secret, low, high)) >= 0:
                if low < at:
                    yield low, at
                low = at + len(secret)
                self._take_step()
                found.append((at, low))
            if low < high:
                yield low, high

    def _pieces(
        self, text: str, secret: str, low: int, high: int
    ) -> Iterator[tuple[int, int]]:
        """Yield where the beginning or the end of a secret stands in a part of a text."""
        if len(secret) <= LEAST_PIECE:
            return
        self._take_step()
        head, tail = secret[:LEAST_PIECE], secret[-LEAST_PIECE:]
        at = text.find(head, low, high)
        while at >= 0:
            self._take_step()

            def starts(size: int, at: int = at) -> bool:
                return text.startswith(secret[:size], at, high)

            end = at + _common(len(secret), starts)
            if end - at >= LONG_PIECE or end == high or not _is_word(text[end]):
                yield at, end
            else:
                end = at + 1
            at = text.find(head, end, high)
        at = text.find(tail, low, high)
        while at >= 0:
            self._take_step()
            end = at + LEAST_PIECE

            def ends(size: int, low: int = low, end: int = end) -> bool:
                return text.endswith(secret[-size:], low, end)

            start = end - _common(len(secret), ends)
            if (
                end - start >= LONG_PIECE
                or start == low
                or not _is_word(text[start - 1])
            ):
                yield start, end
                low = end
            else:
                end = at + 1
            at = text.find(tail, end, high)


class _TooMuch(Exception):
    """The work of a masker is more than `MOST_STEPS`."""


def _without_margins(secret: str) -> str:
    # Before its first line, spaces are its own.
    first, *rest = secret.splitlines(keepends=True) or [""]
    return first + "".join([line.lstrip(_MARGIN) for line in rest])


def _lines(text: str) -> list[str]:
    """Return the lines of a text, without what may stand before them. textwrap.indent() finds lines in the same way."""
    return [line.lstrip(_MARGIN) for line in text.splitlines(keepends=True)]


def _common(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size that fits, in a time that grows with it. ``LEAST_PIECE`` fits."""
    size = LEAST_PIECE
    while size < most and fits(min(2 * size, most)):
        size = min(2 * size, most)
    low, high = size, min(2 * size, most)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _is_word(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _in_original(
    spans: list[tuple[int, int]], lines: list[str], text: str
) -> list[tuple[int, int]]:
    """Return where the spans of the joined lines are in the text that they come from."""
    starts, places = [], []
    start = place = 0
    for line, whole in zip(lines, text.splitlines(keepends=True), strict=True):
        starts.append(start)
        places.append(place + len(whole) - len(line))
        start += len(line)
        place += len(whole)

    def original(at: int) -> int:
        line = bisect_right(starts, at) - 1
        return places[line] + at - starts[line]

    # The last character, and not the end: that may be the beginning of the next line, behind its margin.
    return [(original(start), original(end - 1) + 1) for start, end in spans]


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            parts += text[done:start], MASK
        done = max(done, end)
    return "".join([*parts, text[done:]])


def texts_of(value: Any) -> Iterator[str]:
    """Yield how a text may write what is in a value: its leaves, and the keys of its dicts.

    ``None``, ``True`` and ``False`` are not looked for.
    """
    rest = [value]
    while rest:
        value = rest.pop()
        # type() and not isinstance, which would make a lazy object ask the database.
        cls = type(value)
        if issubclass(cls, dict):
            rest += value.keys()
            rest += value.values()
        elif issubclass(cls, list | tuple | set | frozenset):
            rest += value
        elif issubclass(cls, bytes):
            # Not JSON: it is an argument that was refused.
            rest.append(value.decode(errors="replace"))
        elif issubclass(cls, str):
            yield from _texts_of_text(str.__str__(value))
        elif issubclass(cls, int) and cls is not bool:
            # Without its sign, which stays.
            whole = abs(int.__int__(value))
            # Python refuses to write the digits of longer ones, so it has written them nowhere.
            if whole.bit_length() <= MOST_BITS:
                yield from (f"{whole}", f"{whole:,}")
        elif issubclass(cls, float):
            number = abs(float.__float__(value))
            # JSON may write 1e16 where Python has 1e+16.
            yield from (repr(number), repr(number).replace("e+", "e"))
            if number.is_integer():
                yield str(int(number))
        elif issubclass(cls, Decimal | date | time | UUID):
            yield str(value)


def _texts_of_text(text: str) -> Iterator[str]:
    if not text.strip():
        return
    yield text
    yield text.strip()
    # In HTML.
    yield escape(text)
    yield escape(text, quote=False)
    once = set(_written(text))
    yield from once
    if len(text) <= MOST_TWICE:
        # Also JSON in a repr, as a debugger shows a request's body.
        for written in once - {text}:
            yield from _written(written)


def _written(text: str) -> Iterator[str]:
    """Yield how an exception's text or a traceback writes a text."""
    # Alone, and in a text that has both quotes.
    yield repr(text)[1:-1]
    yield repr("'\"" + text)[4:-1]
    yield ascii(text)[1:-1]
    yield repr(text.encode(errors="surrogatepass"))[2:-1]
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    # In the query of a URL.
    yield quote(text, safe="", errors="surrogatepass")
    yield quote_plus(text, errors="surrogatepass")
