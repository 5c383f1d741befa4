"""Reads payloads of other writers. If a codec cannot, the error says which setting to change."""

from typing import Any

from django_delayq.codecs import Codec
from django_delayq.codecs.guess import likely_codecs, looks_like
from django_delayq.exceptions import DecodeError
from django_delayq.logs import get_log

logger = get_log(__name__)

#: Queues for which this process has logged that StringCodec reads payloads of another codec.
_told: set[str] = set()


def read(codec: Codec, payload: bytes, queue: str) -> Any:
    """Decode a payload of a queue.

    Raises:
        DecodeError: the codec cannot read it. The message says which codec it looks like, and which setting decides.
    """
    try:
        value = codec.decode(payload)
    except DecodeError as error:
        raise explained(error, codec, payload, queue) from error
    # Only StringCodec reads payloads of binary codecs without an error, if they happen to be UTF-8.
    if codec.name == "StringCodec" and (
        payload[:1] < b" " or payload.startswith(b":)\n")
    ):
        _tell(payload, queue)
    return value


def _tell(payload: bytes, queue: str) -> None:
    if queue not in _told and "StringCodec" not in likely_codecs(payload):
        _told.add(queue)
        logger.warning(
            "an element of %r is read with StringCodec, as text, but it %s:"
            " see DELAYQ['QUEUES'][%r]['CODEC']",
            queue,
            looks_like(payload),
            queue,
        )


def explained(
    error: DecodeError, codec: Codec, payload: bytes, queue: str
) -> DecodeError:
    """Return the error, with advice if another codec seems to have written the payload."""
    likely = likely_codecs(payload)
    if codec.name in likely:
        # This codec wrote the payload. It is broken, or its class was not declared, as the error says.
        return error
    setting = f"DELAYQ['QUEUES'][{queue!r}]['CODEC']"
    if likely:
        advice = (
            f"it {looks_like(payload)}, and is read with {codec.name}: see {setting}"
        )
    else:
        advice = (
            f"it {looks_like(payload)}; set {setting} to an object with a name, encode() and decode() that reads"
            " it, or to 'ByteArrayCodec' for the bytes"
        )
    return DecodeError(f"{error}; {advice}", error.data or payload, error.offset)
