"""Sentences that layers below Django make and pages above it show in the reader's language.

A `Wording` is its English text, for logs, with times in UTC; and it remembers what it was made of; ``translations`` writes the same
sentence in another language. `gettext`, `ngettext` and `gettext_noop` have the names by which ``makemessages`` finds texts.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django_delayq.clock import iso_text

_TWO_STOPS = re.compile("([.!?…。！？])[.。]$")
#: Begins with a word, and not with code such as ``cron('…')`` or ``max_attempts``.
_PROSE = re.compile(r"[^\W\d_]+(?![\w(=\[]|\.\w)")
Value = str | int | datetime
#: What steers a terminal, or turns the direction in which a line is read; and the separators that end one.
_STEERING = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
#: People type a carriage return only before a line feed.
_STEERS = re.compile(f"[{_STEERING}]|\r(?!\n)")
#: Besides, no stream takes halves of surrogate pairs.
_ESCAPED = re.compile(f"[{_STEERING}\r\ud800-\udfff]")


def steers(text: str) -> bool:
    """Return whether a text has characters that would change how a terminal shows it, and what follows it."""
    return _STEERS.search(text) is not None


def printable(text: object) -> str:
    """Return text that steers no terminal: what would becomes backslash escapes.

    Spaces that do not break and joiners stay. Persian, emojis and prices need them.
    """
    return _ESCAPED.sub(
        lambda found: found[0].encode("unicode_escape").decode(), str(text)
    )


def one_line(text: object) -> str:
    """Return printable text with its line breaks as spaces."""
    return " ".join(printable(text).split())


class Wording(str):
    """An English text that can be said in another language. Its values may be wordings themselves."""

    __slots__ = ("_is_sentence", "_plural", "_singular", "_values")

    _singular: str
    #: The form for many, and how many there are; None: it counts nothing.
    _plural: tuple[str, int] | None
    _values: Mapping[str, Value]
    _is_sentence: bool

    def __new__(
        cls,
        singular: str,
        values: Mapping[str, Value],
        plural: tuple[str, int] | None = None,
        *,
        is_sentence: bool = False,
    ) -> "Wording":
        template = singular if plural is None or plural[1] == 1 else plural[0]
        plain = {
            name: iso_text(value) if isinstance(value, datetime) else value
            for name, value in values.items()
        }
        self = super().__new__(cls, _write(template, plain, is_sentence))
        self._singular, self._plural, self._values = singular, plural, values
        self._is_sentence = is_sentence
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A copy, and what another process receives, is the English text.
        return str, (str(self),)

    def said_by(
        self,
        find: Callable[[str, tuple[str, int] | None], str],
        localize: Callable[[Value], Any],
    ) -> str:
        """Write it with templates that ``find`` returns for ours, and values that know how to be formatted."""
        values = {
            name: value.said_by(find, localize)
            if isinstance(value, Wording)
            else localize(value)
            for name, value in self._values.items()
        }
        return _write(find(self._singular, self._plural), values, self._is_sentence)


def _write(template: str, values: Mapping[str, Any], is_sentence: bool) -> str:
    text = template.format_map(values)
    if not is_sentence:
        return text
    # A clause that ends in somebody's own words may have its full stop already.
    if _PROSE.match(text):
        text = text[:1].upper() + text[1:]
    return _TWO_STOPS.sub(r"\1", text)


def gettext(text: str, **values: Value) -> Wording:
    """Make a wording of a template for ``str.format``."""
    return Wording(text, values)


def ngettext(singular: str, plural: str, number: int, **values: Value) -> Wording:
    """Make a wording that depends on a number, which its templates call ``number``."""
    return Wording(singular, {"number": number, **values}, (plural, number))


def gettext_noop(template: str) -> str:
    """Have the tools find a template that is not filled in here."""
    return template


def sentence(clause: str) -> Wording:
    """Make a sentence of a clause: a capital, and a full stop."""
    return Wording(gettext_noop("{clause}."), {"clause": clause}, is_sentence=True)


def joined(**parts: Value) -> Wording:
    """Put parts together as they are, one after the other."""
    return Wording("".join(f"{{{name}}}" for name in parts), parts)
