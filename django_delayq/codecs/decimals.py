"""``java.math``: BigInteger, and BigDecimal as an unscaled value and a scale."""

from decimal import Decimal

from django_delayq.codecs.values import BigInteger
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show

#: Bytes of a BigInteger that is read, some 4285 digits. Python prints no int of more than 4300
#: (``sys.set_int_max_str_digits``), so a page or a log that shows such a value would fail.
MAX_NUMBER_BYTES = 1780


def read_big_integer(raw: bytes, *, signed: bool = True) -> BigInteger:
    """Read a BigInteger, big-endian, two's complement if signed.

    Raises:
        ValueError: it has no bytes, or more than anyone's number.
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
    """Return unscaled value and scale of a BigDecimal.

    Raises:
        EncodeError: infinity, NaN, or a scale that 32 bits cannot hold.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -(2**31) < exponent < 2**31:
        raise EncodeError(f"{show(value)} is no number that a BigDecimal can hold")
    unscaled = int(Decimal((sign, digits, 0)))
    return unscaled, -exponent
