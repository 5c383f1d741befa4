"""Frames: the members of the timeout set. A frame is eight free bytes, a length, and the payload.

Redisson has two formats, and each version of it knows only one; this module reads both. The scripts choose the eight
bytes; ``codecs`` reads the payload.
"""

import re
import struct
from enum import Enum
from typing import NamedTuple

from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.redaction import brief

#: Bytes of the random id, in both formats. RedissonDelayedQueue.offerAsync.
RANDOM_ID_SIZE = 8

_DLC0 = struct.Struct("<8sQ")
_BC0LC0 = struct.Struct("<B8sQ")
_VERSION = re.compile(
    r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:[.-][0-9A-Za-z.-]+)?", re.ASCII
)


class FrameFormat(Enum):
    """The two layouts, named as Redisson passes them to ``struct.pack``."""

    #: 8 bytes id | 8 bytes length | payload. Redisson 3.2.0 – 3.21.0.
    DLC0 = "dLc0"
    #: 1 byte length of the id, always 8 | 8 bytes id | 8 bytes length | payload. 3.21.1 on.
    BC0LC0 = "Bc0Lc0"

    def __init__(self, layout: str) -> None:
        #: The number that the scripts have for this format.
        self.number = 1 if layout == "dLc0" else 2

    @classmethod
    def for_redisson(cls, version: str) -> "FrameFormat":
        """Return the format that a version of Redisson reads and writes.

        Raises:
            EncodeError: the text is not a version; or the version is before 3.2.0, which has no delayed queue; or it is
                ``3.21`` without the third number, on which the answer depends.
        """
        major, minor, patch = redisson_version(version)
        if (major, minor) < (3, 2):
            raise EncodeError(
                f"Redisson {version} has no RDelayedQueue; it came with 3.2.0"
            )
        if (major, minor) != (3, 21):
            return cls.DLC0 if (major, minor) < (3, 21) else cls.BC0LC0
        if patch is None:
            raise EncodeError(
                f"Redisson {version!r}: give the third number as well;"
                " the frame format changed between 3.21.0 and 3.21.1"
            )
        return cls.DLC0 if patch == 0 else cls.BC0LC0


@brief
class Frame(NamedTuple):
    """One member of the timeout set, taken apart."""

    format: FrameFormat
    random_id: bytes
    payload: bytes


def redisson_version(version: str) -> tuple[int, int, int | None]:
    """Split ``"3.16.6"`` into numbers; the third may be missing, a suffix is ignored.

    Raises:
        EncodeError: the text is not a version number.
    """
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise EncodeError(
            f"{version!r} is not a version of Redisson; write it as '3.16.6'"
        )
    major, minor, patch = match.groups()
    return int(major), int(minor), None if patch is None else int(patch)


def pack(random_id: bytes, payload: bytes, format: FrameFormat) -> bytes:
    """Build the member that Redisson keeps in the timeout set for one element.

    Shape, as a 64-bit little-endian server packs it, no padding:
        DLC0                       8 bytes random_id | 8 bytes len(payload) | payload
        BC0LC0  1 byte, always 8 | 8 bytes random_id | 8 bytes len(payload) | payload

    Raises:
        EncodeError: random_id is not 8 bytes long.

    Source: RedissonDelayedQueue.offerAsync, ``struct.pack('dLc0', …)`` and ``('Bc0Lc0', …)``.
    """
    if len(random_id) != RANDOM_ID_SIZE:
        raise EncodeError(
            f"random_id must be {RANDOM_ID_SIZE} bytes, got {random_id!r}"
        )
    if format is FrameFormat.BC0LC0:
        return _BC0LC0.pack(RANDOM_ID_SIZE, random_id, len(payload)) + payload
    return _DLC0.pack(random_id, len(payload)) + payload


def unpack(frame: bytes, *, prefer: FrameFormat = FrameFormat.BC0LC0) -> Frame:
    """Take a member of the timeout set apart; its length field reveals its format.

    A frame is BC0LC0 if ``frame[0] == 8`` and the u64 at 9 is ``len(frame) - 17``; it is DLC0 if the u64 at 8 is
    ``len(frame) - 16``. Only one shape fits both: 17 bytes, ``08``, 7 bytes, ``01``, 8 times ``00``. That is an empty
    payload in BC0LC0, and the payload ``00`` in DLC0. Here ``prefer`` decides. The default is BC0LC0: Redisson writes
    it today, and an empty payload (StringCodec's ``""``) is more usual than a single zero byte. A caller that knows
    the Redisson on the other side passes its format.

    Raises:
        DecodeError: the lengths fit neither format.
    """
    format = format_of(frame, len(frame), prefer=prefer)
    if format is FrameFormat.BC0LC0:
        return Frame(format, frame[1:9], frame[17:])
    if format is FrameFormat.DLC0:
        return Frame(format, frame[:8], frame[16:])
    raise _not_a_frame(frame)


def format_of(
    head: bytes, size: int, *, prefer: FrameFormat = FrameFormat.BC0LC0
) -> FrameFormat | None:
    """Return the format of a member of ``size`` bytes by its first 17, as `unpack` does; None if it fits neither."""
    is_bc0lc0 = (
        size >= _BC0LC0.size
        and head[0] == RANDOM_ID_SIZE
        and int.from_bytes(head[9:17], "little") == size - _BC0LC0.size
    )
    is_dlc0 = (
        size >= _DLC0.size and int.from_bytes(head[8:16], "little") == size - _DLC0.size
    )
    if is_bc0lc0 and (prefer is FrameFormat.BC0LC0 or not is_dlc0):
        return FrameFormat.BC0LC0
    return FrameFormat.DLC0 if is_dlc0 else None


#: Bytes of a member that `is_read_by` looks at: one with the length of the id, up to 255 of id, eight with the length
#: of the payload.
READ_BY_SIZE = 1 + 255 + 8


def is_read_by(redisson: FrameFormat, head: bytes, size: int) -> bool:
    """Return whether a Redisson that knows one format unpacks a member, rightly or wrongly, instead of stopping at it.

    Redisson checks only that the length fits, so by chance it can read some frames of the other format.

    Source: ``struct.unpack`` in RedissonDelayedQueue's pushTaskAsync.
    """
    at = RANDOM_ID_SIZE
    if redisson is FrameFormat.BC0LC0:
        at = 1 + head[0] if head else 1
    left = size - at - 8
    return left >= 0 and int.from_bytes(head[at : at + 8], "little") <= left


def _not_a_frame(frame: bytes) -> DecodeError:
    size = len(frame)
    if size < _DLC0.size:
        return DecodeError(
            f"no frame: {size} bytes end before the payload's length, which needs {_DLC0.size}",
            frame,
            size,
        )
    looks_new = frame[0] == RANDOM_ID_SIZE
    found = [_misfit(frame, FrameFormat.DLC0, 8)]
    if looks_new and size >= _BC0LC0.size:
        found.insert(0, _misfit(frame, FrameFormat.BC0LC0, 9))
    return DecodeError(f"no frame: {'; '.join(found)}", frame, 9 if looks_new else 8)


def _misfit(frame: bytes, format: FrameFormat, offset: int) -> str:
    said = int.from_bytes(frame[offset : offset + 8], "little")
    left = len(frame) - offset - 8
    fault = "truncated" if said > left else "oversized"
    return f"{fault} as {format.value}: length {said} at byte {offset}, but {left} bytes follow"
