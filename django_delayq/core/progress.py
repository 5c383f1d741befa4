"""How far a job that runs is: kept beside it while its lease lasts, for people."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from django_delayq.core.bounds import LATEST_MS
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.scripts import bind
from django_delayq.decoder import Decoder, whole_number
from django_delayq.redaction import brief
from django_delayq.transport.call import Call

#: Characters of the text that are kept.
TEXT_LIMIT = 200


#: More is shown by nobody.
Amount = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class StoredProgress(msgspec.Struct, omit_defaults=True):
    """How far a job is, as it is stored in JSON."""

    #: How much is done, and how much there is; None: that is not known.
    done: Amount
    total: Amount | None = None
    text: str = ""
    #: The text, if it is encrypted.
    encrypted: str = ""


@brief
class JobProgress(NamedTuple):
    """How far one job is, as its worker says."""

    token: str
    #: The fencing token of its lease.
    fence: bytes
    #: What `encode` returns; empty: the attempt has ended.
    stored: bytes


_encode = msgspec.json.Encoder().encode
_progress = Decoder[StoredProgress](
    StoredProgress, "the progress of a job cannot be read"
)


def encode(progress: StoredProgress) -> bytes:
    return _encode(progress)


def note_progress(keys: DeliveryKeys, jobs: Sequence[JobProgress]) -> Call[None]:
    """Store how far up to `limits.MAX_BATCH` jobs are, whose leases are the caller's; forget it of those that ended."""
    rows = [(job.token, job.fence, job.stored) for job in jobs]
    return bind("note_progress", keys)(lambda reply: None, jobs=rows)


class ReadProgress(NamedTuple):
    """How far a job is."""

    progress: StoredProgress
    #: When its worker said so, by the server's clock, epoch ms.
    at_ms: int


def read_progress(keys: DeliveryKeys, token: str) -> Call[ReadProgress | None]:
    """Read how far a job is; None: it does not run, or has not said so."""

    def read(reply: bytes | None) -> ReadProgress | None:
        at_ms, _, text = (reply or b"").partition(b" ")
        found = _progress.read(text) if text else None
        time_ms = whole_number(at_ms) or 0
        if found is None or not 0 < time_ms <= LATEST_MS:
            return None
        return ReadProgress(found, time_ms)

    return bind("read_progress", keys)(read, token=token)
