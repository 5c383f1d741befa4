"""The jobs of a queue that ended last: what is remembered of each, for people. Nothing depends on it.

The list is bounded in number and, as long texts are cut, in bytes. Its order is that in which processes reported the
ends; readers sort by the time of the end. A call that is repeated may add a record twice: `read_records` drops that.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from django_delayq.core.bounds import LATEST_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.core.states import State
from django_delayq.decoder import Decoder
from django_delayq.redaction import brief
from django_delayq.transport.call import Call

#: Records of one `note_ended` or `read_ended` call: some 0.3 ms of the server's time.
ENDED_BATCH = 1_000
#: Characters of a task's name, and of the first line of an error, that a record keeps.
NAME_LIMIT = 200
LINE_LIMIT = 200
#: No number: the job never started, or this was not its first attempt.
NONE = -1


#: A time, ms, or `NONE`.
Milliseconds = Annotated[float, msgspec.Meta(ge=-LATEST_MS, le=LATEST_MS)]


class EndRecord(msgspec.Struct, array_like=True, gc=False):
    """How one job ended. `_ended.lua` writes the same array."""

    token: str
    #: Empty if it is not known.
    task: str
    outcome: State
    #: By the server's clock, epoch ms.
    ended_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_MS)]
    #: From the start time to the first start, ms.
    lateness_ms: Milliseconds = NONE
    #: From the start of the last attempt to its end, ms.
    duration_ms: Milliseconds = NONE
    #: Attempts that were made; `NONE`: that is not known.
    attempts: Annotated[int, msgspec.Meta(ge=NONE, le=LATEST_MS)] = NONE
    #: The first line of the error, or why the job did not run.
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
_ends = Decoder[EndRecord](
    EndRecord, "the record of an ended job cannot be read", form=msgspec.msgpack
)


def first_line(text: str) -> str:
    """Return the first line of a text, cut to what a record keeps."""
    return text.lstrip().partition("\n")[0][:LINE_LIMIT]


def note_ended(
    keys: DeliveryKeys, records: Sequence[EndRecord], *, keep: int
) -> Call[None]:
    """Remember how up to `ENDED_BATCH` jobs ended, the oldest first, and forget what is beyond ``keep`` records."""
    return bind("note_ended", keys)(
        lambda reply: None, keep=keep, records=map(_encode, records)
    )


@brief
class EndedPage(NamedTuple):
    """Some of what a queue remembers."""

    #: How many records there are.
    total: int
    #: Records as they are stored, the newest first; see `read_records`.
    stored: list[bytes]


def read_ended(
    keys: DeliveryKeys, *, first: int = 0, count: int = ENDED_BATCH
) -> Call[EndedPage]:
    """Read up to `ENDED_BATCH` records, the newest first, after the ``first`` newest."""
    return bind("read_ended", keys)(
        lambda reply: EndedPage(*reply), first=first, count=min(count, ENDED_BATCH)
    )


def read_records(stored: Iterable[bytes]) -> list[EndRecord]:
    """Return the records, each once, without those that we have not written; the newest end first."""
    read = map(_ends.read, dict.fromkeys(stored))
    found = [each for each in read if each is not None]
    return sorted(found, key=lambda record: record.ended_ms, reverse=True)
