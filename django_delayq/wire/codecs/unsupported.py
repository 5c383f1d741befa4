"""Codecs of Redisson that we know by name only: FstCodec and SerializationCodec.

Both write a Java object's fields in an order that only its class file tells.
"""

from django_delayq.exceptions import DecodeError, EncodeError


class UnsupportedCodec:
    """Refuses every value and every payload; the raw bytes stay with whoever has them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"UnsupportedCodec({self.name!r})"

    def encode(self, value: object) -> bytes:
        """Refuse."""
        raise EncodeError(f"{self.name} is not supported; {_ADVICE}")

    def decode(self, payload: bytes) -> object:
        """Refuse, keeping the payload in the error."""
        raise DecodeError(
            f"{self.name} is not supported, the {len(payload)} raw bytes are kept; {_ADVICE}",
            payload,
            0,
        )


_ADVICE = (
    "set a codec that both sides have for this queue, such as JsonJacksonCodec, Kryo5Codec or"
    " StringCodec, or take the bytes with ByteArrayCodec"
)
