"""How often something may start: rates as people write them, and limits as the scripts read them."""

import re
from typing import NamedTuple

import msgspec

#: Seconds of the units of a rate.
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: The most starts of a rate, or of its burst; and the longest and the shortest time between two starts, us: a week, and
#: what a hundred thousand a second have.
MOST_STARTS = 1_000_000
LONGEST_US = 7 * 86_400_000_000
SHORTEST_US = 10
#: The most jobs at a time that a limit may name.
MOST_AT_A_TIME = 1_000_000
#: Without a burst, what a rate has in this time may start at once.
BURST_US = 1_000_000
RATE_WANTED = (
    "a rate such as '500/s', '10/m', '5/2s' or '100/h burst 20': jobs in a time, in"
    f" {', '.join(UNITS)}; at most 100,000 a second, at least one a week"
)
_RATE = re.compile(r"(\d{1,7})/(\d{0,7})([smhd])(?: burst (\d{1,7}))?", re.ASCII)


class Rate(NamedTuple):
    """How often something may start."""

    #: As somebody wrote it.
    text: str
    #: From one start to the next if all come evenly, us.
    interval_us: float
    #: How many may start at once, after a while without any.
    burst: int


def read_rate(text: object) -> Rate | None:
    """Read a rate; None if it is not one."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    count, period, unit, burst = found.groups()
    starts, units = int(count), int(period or 1)
    if not 1 <= starts <= MOST_STARTS or not units:
        return None
    interval_us = units * UNITS[unit] * 1_000_000 / starts
    if not SHORTEST_US <= interval_us <= LONGEST_US:
        return None
    at_once = max(1, int(BURST_US / interval_us)) if burst is None else int(burst)
    if not 1 <= at_once <= MOST_STARTS or at_once * interval_us >= 10**15:
        return None
    return Rate(found.string, interval_us, at_once)


def share_of_rate(text: str, shards: int) -> str:
    """Return the rate of one of several shards that start jobs at this rate together. It may be too low to be one."""
    found = _RATE.fullmatch(text)
    assert found is not None
    count, period, unit, burst = found.groups()
    share = f"{count}/{int(period or 1) * shards}{unit}"
    return share if burst is None else f"{share} burst {max(1, int(burst) // shards)}"


def whole_of_rate(text: str, shards: int) -> str:
    """Return the rate that several shards with this share each have together, if it can be computed."""
    found = _RATE.fullmatch(text)
    assert found is not None
    count, period, unit, burst = found.groups()
    units = int(period or 1)
    if units % shards:
        count = str(int(count) * shards)
    else:
        units //= shards
    whole = f"{count}/{units if units > 1 else ''}{unit}"
    return whole if burst is None else f"{whole} burst {int(burst) * shards}"


def is_rate(text: object) -> bool:
    return read_rate(text) is not None


def is_concurrency(value: object) -> bool:
    """Return whether a value says how many jobs may run at a time."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 1 <= value <= MOST_AT_A_TIME
    )


def numbers_of(
    concurrency: int | None = None, rate: str | None = None
) -> dict[str, int | float | str]:
    """Return what a limit says as the scripts read it; what is None is left out."""
    numbers: dict[str, int | float | str] = {}
    if concurrency is not None:
        numbers["concurrency"] = concurrency
    if rate is not None:
        read = read_rate(rate)
        assert read is not None
        numbers |= {
            "rate": rate,
            "interval_us": read.interval_us,
            "burst": read.burst,
        }
    return numbers


def limit_text(concurrency: int | None = None, rate: str | None = None) -> str:
    """Return a limit as JSON, as the scripts read it; empty if it limits nothing."""
    numbers = numbers_of(concurrency, rate)
    return msgspec.json.encode(numbers).decode() if numbers else ""
