"""Masks in texts what a task has marked as sensitive: how a value may be written there, and where it stands."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from django_delayq.redaction import MASK

#: What may stand before each line of a text that is quoted, as a traceback does inside of an exception group.
_MARGIN = " \t|"
#: A secret of fewer characters is not looked for: too much else reads like it.
LEAST_SECRET = 4
#: The fewest characters of a secret's beginning or end that are masked where a text was cut.
LEAST_PIECE = 8
#: A piece of this length is masked even if a word goes on behind it.
LONG_PIECE = 32
#: A longer text is not looked for as JSON in a repr: each form of it would have as many characters again.
MOST_TWICE = 10_000
#: With more secrets than this, a text is masked as a whole: each of them is looked for.
MOST_SECRETS = 1_000
#: The work of one masker, in steps: to look for one secret in 1,000 characters is one. Beyond it, texts are masked as a whole.
MOST_STEPS = 1_000_000
#: What each place takes where a secret, or its beginning or end, is found.
_STEPS_OF_PLACE = 50
#: In place of secrets: every text is masked as a whole.
WHOLE = ("",)


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return a text without some others. See `Masker`."""
    return Masker(secrets).mask(text)


class Masker:
    """Masks secrets in texts, whole ones and those that were cut.

    The lines of a secret may be indented in the text. A secret that was cut is known by its first or last 8 characters,
    if no word goes on where it was cut. `MOST_STEPS` bounds the work.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {_without_margins(secret) for secret in secrets}
        self._is_whole = "" in found or len(found) > MOST_SECRETS
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
        if not text or not self._secrets:
            return text
        try:
            return self._masked(text)
        except _TooMuch:
            return MASK

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
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as items:
                rest += items.values()
            case list() | tuple() | set() | frozenset() as items:
                rest += items
            # Neither is JSON: it is an argument that was refused.
            case bytes() as data:
                rest.append(data.decode(errors="replace"))
            case str() as text if len(text) >= LEAST_SECRET:
                yield text
                if len(stripped := text.strip()) >= LEAST_SECRET:
                    yield stripped
                once = set(_written(text))
                yield from once
                if len(text) <= MOST_TWICE:
                    # Also JSON in a repr, as a debugger shows a request's body.
                    for written in once - {text}:
                        yield from _written(written)
            case None | bool() | str():
                pass
            case number if len(text := str(number)) >= LEAST_SECRET:
                yield text


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
