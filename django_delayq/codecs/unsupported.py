"""Redisson's codecs that we know by name only, and what to use instead.

FstCodec and SerializationCodec write a Java object's fields in an order that only its class file
has. The others wrap a codec that the Java program chose, and no payload names it.
"""

from django_delayq.exceptions import DecodeError, EncodeError


class UnsupportedCodec:
    """Refuses every value and every payload; the error keeps the raw bytes."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: What to do instead, as the errors say it.
        self.advice = WRAPPING.get(name, _ADVICE)

    def __repr__(self) -> str:
        return f"UnsupportedCodec({self.name!r})"

    def encode(self, value: object) -> bytes:
        """Refuse."""
        raise EncodeError(f"{self.name} is not supported; {self.advice}")

    def decode(self, payload: bytes) -> object:
        """Refuse, keeping the payload in the error."""
        raise DecodeError(
            f"{self.name} is not supported, the {len(payload)} raw bytes are kept; {self.advice}",
            payload,
            0,
        )


#: The advice for codecs that wrap another one.
WRAPPING = {
    **dict.fromkeys(
        ("LZ4Codec", "LZ4CodecV2", "SnappyCodec", "SnappyCodecV2", "ZStdCodec"),
        "it compresses what another codec writes: pass a codec object that decompresses and then calls"
        " that codec (docs/codecs.md has an example), set the inner codec itself in Java, or take the"
        " bytes with ByteArrayCodec",
    ),
    "CompositeCodec": "the elements of a queue are written by the third codec that it was built"
    " from: set that one",
}

#: Every codec that we refuse. Messages never suggest one of these.
REFUSED = ("FstCodec", "SerializationCodec", *WRAPPING)

_ADVICE = (
    "set a codec that both sides have for this queue, such as JsonJacksonCodec, Kryo5Codec or"
    " StringCodec, or take the bytes with ByteArrayCodec"
)
