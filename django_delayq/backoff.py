"""The wait between two attempts of a job."""

from dataclasses import dataclass
from typing import Any

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import show
from django_delayq.setting_fields import (
    number,
    read_fields,
    seconds,
    setting,
    settings_of,
)

#: The largest number in a `Backoff`: 31 years in seconds, and far from where a float overflows.
MAX_BACKOFF = 10**9


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The wait before the next attempt: ``base * factor ** (failures - 1)`` seconds, at most ``max``.

    ``jitter`` is the random part of the wait: 0.25 means between 75 % and 125 %.

    Example::

        @delayed_task(max_attempts=5, backoff=Backoff(base=1, factor=2, max=60))
        def fetch(url): ...  # waits about 1, 2, 4 and 8 s between attempts
    """

    base: float = setting(5.0, seconds(0, MAX_BACKOFF))
    factor: float = setting(
        3.0, number(1, MAX_BACKOFF, "a number", "below 1 the waits would shrink")
    )
    max: float = setting(3600.0, seconds(0, MAX_BACKOFF))
    jitter: float = setting(0.25, number(0, 1, "a share"))

    def __post_init__(self) -> None:
        for each in settings_of(Backoff).values():
            value = getattr(self, each.field)
            if not each.is_fit(value):
                raise InvalidSettings(
                    f"Backoff({each.field}={show(value)}): give {each.wanted}"
                )

    def delay_ms(self, failures: int, random: float) -> int:
        """Return the wait after a number of failures, in ms. ``random`` is between 0 and 1."""
        try:
            # A float: a whole number would grow without end, and ever more slowly.
            wait = min(self.max, self.base * float(self.factor) ** (failures - 1))
        except OverflowError:
            wait = self.max if self.base else 0.0
        jittered = wait * (1 + self.jitter * (2 * random - 1))
        return int(min(self.max, jittered) * 1000)


def in_capitals(retry: dict[Any, Any]) -> dict[Any, Any]:
    """Return RETRY with the keys of settings, if it has those of a `Backoff`. Unknown keys stay as they are."""
    known = settings_of(Backoff)
    return {
        name if (name := str(key).upper()) in known else key: item
        for key, item in retry.items()
    }


def read_backoff(value: Backoff | dict[str, Any]) -> Backoff:
    """Return the `Backoff` that a value of RETRY describes."""
    if isinstance(value, Backoff):
        return value
    return Backoff(**read_fields(Backoff, in_capitals(value)))
