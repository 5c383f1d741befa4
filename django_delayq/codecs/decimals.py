"""``java.math``: BigInteger, and BigDecimal as an unscaled value and a scale."""

from decimal import Decimal

from django_delayq.codecs.values import BigInteger
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

#: The longest BigInteger that is read, in bytes: some 4285 digits. Python prints no int of more than
#: 4300 digits (``sys.set_int_max_str_digits``), so a page or a log that shows a longer one would fail.
MAX_NUMBER_BYTES = 1780


def read_big_integer(raw: bytes, *, signed: bool = True) -> BigInteger:
    """Read a BigInteger, big-endian, two's complement if signed.

    Raises:
        ValueError: it has no bytes, or more than MAX_NUMBER_BYTES.
    """
    if not 0 < len(raw) <= MAX_NUMBER_BYTES:
        raise ValueError(
            f"a number of {len(raw)} bytes, not of 1 to {MAX_NUMBER_BYTES}"
        )
    return BigInteger(int.from_bytes(raw, "big", signed=signed))


def as_decimal(unscaled: int, scale: int) -> Decimal:
    """Return ``java.math.BigDecimal(unscaled, scale)``, digits and scale kept."""
    sign, magnitude = (1, -unscaled) if unscaled < 0 else (0, unscaled)
    digits = Decimal(magnitude).as_tuple().digits
    return Decimal((sign, digits, -scale))


def split_decimal(value: Decimal) -> tuple[int, int]:
    """Return the unscaled value and the scale of a BigDecimal.

    Raises:
        EncodeError: the value is infinity or NaN, or has a scale that 32 bits cannot hold.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -(2**31) < exponent < 2**31:
        raise EncodeError(f"{show(value)} is not a number that a BigDecimal can hold")
    unscaled = int(Decimal((sign, digits, 0)))
    return unscaled, -exponent
