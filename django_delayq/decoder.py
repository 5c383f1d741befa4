"""Decodes what a server, a file or a database holds. Anybody who may write there may have written it.

All of it goes through one of these, so one list of bounds holds: how deep a value is nested, how many digits a number
has, and which types stand where. What goes beyond is a `DecodeError`, or is left out and said once.
"""

import math
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from django_delayq.exceptions import DecodeError
from django_delayq.logs import get_log

logger = get_log("django_delayq")

T = TypeVar("T")

#: How deep lists and dicts may be nested where any value may stand. Functions that write them call themselves.
MAX_DEPTH = 200
#: Digits of a whole number: a time in microseconds has as many.
MAX_DIGITS = 16

#: Of what the log has said that some of it cannot be read.
_told: set[str] = set()

#: A whole number that scripts and pages can add up, and one that is not negative.
Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Decoder(Generic[T]):
    """Decodes JSON, or MessagePack, of one type."""

    def __init__(
        self,
        type: Any,
        what: str = "",
        *,
        form: Any = msgspec.json,
        holds_any: bool = False,
        trusted: bool = False,
    ) -> None:
        """Errors begin with ``what``. ``holds_any``: values of any form may stand in it, so their depth has a bound.

        Of ``trusted`` texts we have checked that this project has written them. In others, each number has bounds.
        """
        self.type, self.form = type, form
        self.holds_any, self.is_trusted = holds_any, trusted
        self._what = f"{what}: " if what else ""
        self._decode = form.Decoder(type).decode

    def read(self, text: bytes | str) -> T | None:
        """Return the value; None if `decode` refuses it. The log says so of the first of its kind."""
        assert self._what
        try:
            return self.decode(text)
        except DecodeError as error:
            if self._what not in _told:
                _told.add(self._what)
                logger.warning(
                    "%s; it is ignored, and more like it will be ignored without a log line",
                    error,
                )
            return None

    def decode(self, text: bytes | str) -> T:
        """Return the value.

        Raises:
            DecodeError: it is beyond the bounds, or not of the type.
        """
        try:
            value: T = self._decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise DecodeError(f"{self._what}{error}") from error
        if self.holds_any and _is_deep(value):
            raise DecodeError(f"{self._what}nested deeper than {MAX_DEPTH} levels")
        return value


def _is_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list | tuple):
                below += each
            elif isinstance(each, msgspec.Struct):
                below += msgspec.structs.astuple(each)
        if not below:
            return False
        level = below
    return True


def whole_number(text: bytes | str) -> int | None:
    """Read decimal digits; None: there are others, or more than `MAX_DIGITS`."""
    is_number = text.isdigit() and text.isascii() and len(text) <= MAX_DIGITS
    return int(text) if is_number else None


def score_of(text: bytes | float | None) -> int | None:
    """Read the score of a sorted set, a time; None: there is none. Anybody may have written inf."""
    try:
        found = float(text) if text is not None and text != b"" else math.inf
    except ValueError:
        return None
    return int(found) if math.isfinite(found) else None
