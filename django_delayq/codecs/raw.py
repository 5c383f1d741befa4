"""Bytes as they are: ByteArrayCodec."""

from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show


class ByteArrayCodec:
    """The payload is the value. ``client/codec/ByteArrayCodec.java``."""

    name = "ByteArrayCodec"

    def encode(self, value: object) -> bytes:
        """Write bytes, a bytearray or a memoryview."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise EncodeError(f"ByteArrayCodec writes bytes, got {show(value)}")

    def decode(self, payload: bytes) -> object:
        """Return the payload."""
        return payload
