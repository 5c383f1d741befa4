"""Reading what others put into a queue, and saying what to change where its codec cannot."""

from typing import Any

from django_delayq.exceptions import DecodeError
from django_delayq.wire.codecs import Codec
from django_delayq.wire.codecs.guess import likely_codecs, looks_like


def read(codec: Codec, payload: bytes, queue: str) -> Any:
    """Decode a payload of a queue.

    Raises:
        DecodeError: the codec cannot read it; says which codec it looks like, and which setting decides.
    """
    try:
        return codec.decode(payload)
    except DecodeError as error:
        raise explained(error, codec, payload, queue) from error


def explained(
    error: DecodeError, codec: Codec, payload: bytes, queue: str
) -> DecodeError:
    """Return the error with what to change, where it seems that another codec wrote the payload."""
    likely = likely_codecs(payload)
    if codec.name in likely:
        # Of this codec, and broken, or of a class that nobody declared: the error says all there is to say.
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
