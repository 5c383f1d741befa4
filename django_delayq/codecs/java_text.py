"""Numbers and times as Java's ``toString`` writes them, and text in UTF-16 units."""

import re
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django_delayq.codecs.values import EPOCH, Float, JavaEnum, shortest
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: The most digits of a BigDecimal that are written in full; ``1E+999999999`` would fill the memory.
MAX_PLAIN_DIGITS = 100_000


def double_text(value: float) -> str:
    """Write a double (or a Float) as ``Double.toString`` does: ``1.0E300``, ``4.9E-324``.

    Shape: as many digits as distinguish the number from its neighbours, at least one after the point;
    below 10⁻³ and from 10⁷ on, an exponent.
    """
    text = float.__repr__(shortest(value) if isinstance(value, Float) else value)
    if value != value:
        return "NaN"
    if text in ("inf", "-inf"):
        return text.replace("inf", "Infinity")
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0.0"
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) == 1:
        # Java writes at least two digits, and chooses the pair nearest to the number.
        pair = f"{abs(_exact(value)):.1e}"
        again = Float(float(pair)) if isinstance(value, Float) else float(pair)
        if again == abs(value):
            head, _, exponent = pair.partition("e")
            digits, point = head.replace(".", "").rstrip("0"), int(exponent) + 1
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _exact(value: float) -> float:
    if isinstance(value, Float):
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    return value


def decimal_text(value: Decimal) -> str:
    """Write a Decimal as ``BigDecimal.toString`` does: ``12.340``, ``-1E-20``, ``1E+5``."""
    _refuse_unless_finite(value)
    # Java has no negative zero here.
    return str(value if value else value.copy_abs())


def decimal_plain_text(value: Decimal) -> str:
    """Write a Decimal as ``BigDecimal.toPlainString`` does: ``100000`` for ``1E+5``."""
    _refuse_unless_finite(value)
    if (
        abs(value.adjusted()) > MAX_PLAIN_DIGITS
        or len(value.as_tuple().digits) > MAX_PLAIN_DIGITS
    ):
        raise EncodeError(
            f"a Decimal with exponent {value.adjusted()} is too long to write in full"
        )
    if value:
        return f"{value:f}"
    zeros = f"{value.copy_abs():f}"
    return zeros if "." in zeros else "0"


def java_string(value: object) -> str:
    """Write a scalar as its ``toString`` in Java, as StringCodec does with any object.

    Raises:
        EncodeError: the value is ``None``, or its ``toString`` is not the same everywhere (a Date's
            depends on the time zone of the JVM) or not meant to be read (a list, a map).
    """
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            try:
                return int.__repr__(value)
            except ValueError as error:  # more digits than Python prints
                raise EncodeError(str(error)) from None
        case float():
            return double_text(value)
        case Decimal():
            return decimal_text(value)
        case UUID():
            return str(value)
        case JavaEnum():
            return value.name
        case _:
            raise EncodeError(
                f"{show(value)} of type {type(value).__name__} has no text of its own in Java;"
                " pass a str, or choose a codec for objects"
            )


def _refuse_unless_finite(value: Decimal) -> None:
    if not value.is_finite():
        raise EncodeError(f"{value!r} is not a number that a BigDecimal can hold")


def epoch_millis(moment: datetime) -> int:
    """Return the epoch ms of an aware datetime, rounded down to the millisecond that a Date keeps.

    Raises:
        EncodeError: the datetime is naive.
    """
    if moment.utcoffset() is None:
        raise EncodeError(f"{moment!r} has no time zone; make it aware")
    return (moment - EPOCH) // timedelta(milliseconds=1)


def iso_millis(moment: datetime) -> str:
    """Write an aware datetime as Jackson 3 writes a Date: ``2023-11-14T22:13:20.123Z``."""
    epoch_millis(moment)
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def utf16_units(text: str) -> int:
    """Return the length that Java sees: a character beyond U+FFFF counts as two units."""
    if text.isascii() or max(text) <= "\uffff":
        return len(text)
    return len(text) + len(_ASTRAL.findall(text))


def to_surrogates(text: str) -> str:
    """Return the text with a surrogate pair for each character beyond U+FFFF."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    return _ASTRAL.sub(_pair, text)


def _pair(match: re.Match[str]) -> str:
    code = ord(match[0]) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


def from_surrogates(text: str) -> str:
    """Join the surrogate pairs of a text; half a pair stays as it is."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "surrogatepass"
    )
