"""The compact form of times and offsets that ``java.time``'s own serialization and Kryo share.

A time ends with the complement of its last part that is not zero: ``01 02 fc`` is 01:02:03.
"""

from collections.abc import Callable

from django_delayq.codecs.binary import ByteReader

#: Marks a ZoneOffset that is not a whole number of quarters of an hour; its seconds follow.
_UNEVEN_OFFSET = 127


def time_bytes(
    parts: tuple[int, ...], nano: Callable[[int], bytes] | None = None
) -> bytes:
    """Write hour, minute, second and nanosecond in the compact form of ``LocalTime.writeExternal``."""
    hour, minute, second, fraction = parts
    if fraction:
        tail = nano(fraction) if nano else fraction.to_bytes(4, "big")
        return bytes([hour, minute, second]) + tail
    if second:
        return bytes([hour, minute, ~second & 0xFF])
    return bytes([hour, ~minute & 0xFF]) if minute else bytes([~hour & 0xFF])


def read_time(source: ByteReader, nano: Callable[[], int]) -> tuple[int, int, int, int]:
    """Read what ``time_bytes`` writes; ``nano`` reads the nanoseconds."""
    parts = []
    for _ in range(3):
        part = source.integer(1, signed=True)
        if part < 0:
            parts.append(~part)
            break
        parts.append(part)
    else:
        return parts[0], parts[1], parts[2], nano()
    hour, minute, second = (*parts, 0, 0)[:3]
    return hour, minute, second, 0


def offset_bytes(seconds: int, uneven: Callable[[int], bytes] | None = None) -> bytes:
    """Write a ZoneOffset: quarters of an hour in a byte, or 127 and the seconds."""
    quarters, rest = divmod(seconds, 900)
    if not rest:
        return quarters.to_bytes(1, "big", signed=True)
    tail = uneven(seconds) if uneven else seconds.to_bytes(4, "big", signed=True)
    return bytes([_UNEVEN_OFFSET]) + tail


def read_offset(source: ByteReader, uneven: Callable[[], int]) -> int:
    """Read what ``offset_bytes`` writes and return it in seconds; ``uneven`` reads the seconds after 127.

    Raises:
        ValueError: the offset is more than 18 hours.
    """
    quarters = source.integer(1, signed=True)
    seconds = uneven() if quarters == _UNEVEN_OFFSET else quarters * 900
    if abs(seconds) > 18 * 3600:
        raise ValueError(f"an offset of {seconds} seconds")
    return seconds
