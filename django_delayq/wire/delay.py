"""Brings the delay that a caller asks for into the form that the scripts read.

This module reads no clock: a relative delay stays relative, and the server adds it to its own TIME.
"""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal

from django_delayq.exceptions import InvalidDelay
from django_delayq.redaction import show

#: What a caller can ask for: seconds, a timedelta, or an aware datetime.
Delay = int | float | Decimal | timedelta | datetime

#: The last start time that a Python datetime can show: the end of the year 9999. Redisson's scores reach further, to
#: 10^17; beyond that, Lua and Java write them in different ways.
MAX_START_TIME_MS = 253_402_300_799_999
#: The first one: the beginning of the year 1. No script of ours writes a time before 1970.
MIN_START_TIME_MS = -62_135_596_800_000
#: The longest relative delay, some 5,475 years: added to the clock of any server, it stays below `MAX_START_TIME_MS`.
MAX_DELAY_MS = 2_000_000 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# A context of our own: in that of the thread, the application may have asked for three digits.
_ROUNDED_UP = Context(prec=100, rounding=ROUND_CEILING)


def parse_delay(delay: Delay, hint: str = "") -> str:
    """Bring a delay into the scripts' form, rounded up: ``+`` and ms from now, or ``=`` and epoch ms.

    ``hint`` ends the error about a value that is not a delay at all.

    A number is in seconds. A datetime in the past is written as it is; the scripts take it as now.

    Raises:
        InvalidDelay: the delay is negative, NaN, infinite, a naive datetime, not a time at all, or beyond the year
            9999.
    """
    if type(delay) is int and 0 <= delay <= MAX_DELAY_MS // 1000:
        return f"+{delay * 1000}"
    if isinstance(delay, datetime):
        return f"={_start_time_ms(delay)}"
    if isinstance(delay, timedelta):
        is_negative = delay < timedelta(0)
        delay_ms = -(delay // -_MILLISECOND)
    elif isinstance(delay, int | float | Decimal) and not isinstance(delay, bool):
        seconds = _seconds(delay)
        is_negative = seconds < 0
        delay_ms = MAX_DELAY_MS + 1
        if 0 <= seconds <= MAX_DELAY_MS:
            exact_ms = _ROUNDED_UP.multiply(seconds, Decimal(1000))
            delay_ms = int(exact_ms.to_integral_value(ROUND_CEILING))
    else:
        raise InvalidDelay(
            "a delay is a number of seconds, a timedelta or an aware datetime;"
            f" got {show(delay)}, of type {type(delay).__name__}{hint}"
        )
    if is_negative:
        raise InvalidDelay(
            f"a delay cannot be negative; got {show(delay)}. For now, say 0"
        )
    if delay_ms > MAX_DELAY_MS:
        raise InvalidDelay(
            f"a delay cannot be longer than {MAX_DELAY_MS // 86_400_000:,} days; got {show(delay)}"
        )
    return f"+{delay_ms}"


def _seconds(delay: int | float | Decimal) -> Decimal:
    # By its digits, not its bits: 16.1 s are 16,100 ms, while 16.1 * 1000 is a little more. The explicit
    # float.__repr__ and int() are for subclasses that print differently.
    seconds = Decimal(float.__repr__(delay)) if isinstance(delay, float) else delay
    if isinstance(seconds, Decimal):
        if not seconds.is_finite():
            raise InvalidDelay(
                f"a delay has to be a finite number of seconds; got {show(delay)}"
            )
        return seconds
    return Decimal(int(seconds))


def parse_timeout_ms(timeout: float | timedelta) -> float:
    """Return a time-out, given in seconds or as a timedelta, in ms; a negative one gives 0.

    Raises:
        InvalidDelay: the time-out is NaN, or not a time at all.
    """
    if isinstance(timeout, timedelta):
        return max(0.0, timeout / _MILLISECOND)
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or timeout != timeout
    ):
        raise InvalidDelay(
            f"a timeout is a number of seconds or a timedelta; got {show(timeout)}"
        )
    # A longer time-out might be too large for a float.
    return float(max(0, min(timeout, MAX_DELAY_MS))) * 1000


def _start_time_ms(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise InvalidDelay(
            f"a datetime needs a time zone to say when it is; got {show(moment)}. django.utils.timezone.now() has one,"
            " make_aware() adds one"
        )
    start_time_ms = max(0, -((_EPOCH - moment) // _MILLISECOND))
    # The last microseconds of the year 9999 round up into the year 10000.
    if start_time_ms > MAX_START_TIME_MS + 1:
        raise InvalidDelay(
            f"a datetime has to be before the year 10000 in UTC; got {show(moment)}"
        )
    return min(start_time_ms, MAX_START_TIME_MS)
