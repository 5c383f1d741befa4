"""The Jackson codecs by their Redisson names: each is a dialect of trees and the coat that writes it."""

from django_delayq.codecs.codec import Codec
from django_delayq.codecs.jackson.binary import JacksonBinaryCodec
from django_delayq.codecs.jackson.cbor import Cbor
from django_delayq.codecs.jackson.json import JacksonJsonCodec
from django_delayq.codecs.jackson.messagepack import MessagePack
from django_delayq.codecs.jackson.smile import Smile
from django_delayq.codecs.jackson.tree import (
    TYPED,
    TYPED_3,
    TYPED_CBOR,
    TYPED_MSGPACK,
    TYPED_SMILE,
    UNTYPED_3,
    UNTYPED_CBOR_3,
    UNTYPED_JSON,
    UNTYPED_SMILE_3,
    dialect_of,
)
from django_delayq.wire.frame import redisson_version

#: The codecs that are the same in every version.
_CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        JacksonJsonCodec("JsonJackson3Codec", TYPED_3),
        JacksonJsonCodec("TypedJsonJackson3Codec", UNTYPED_3),
        JacksonBinaryCodec(
            "CborJackson3Codec", UNTYPED_CBOR_3, lambda: Cbor(negates_bignums=False)
        ),
        JacksonBinaryCodec("SmileJackson3Codec", UNTYPED_SMILE_3, Smile),
    )
}


def make(name: str, version: str | None) -> Codec:
    """Make a codec for a version of Redisson, or for the newest."""
    match name:
        case "JsonJacksonCodec":
            return JacksonJsonCodec(name, dialect_of(TYPED, version))
        case "TypedJsonJacksonCodec":
            return JacksonJsonCodec(name, dialect_of(UNTYPED_JSON, version))
        case "CborJacksonCodec":
            old = version is not None and redisson_version(version)[:2] < (3, 15)
            return JacksonBinaryCodec(
                name,
                dialect_of(TYPED_CBOR, version),
                lambda: Cbor(long_is_nine_bytes=old),
            )
        case "SmileJacksonCodec":
            return JacksonBinaryCodec(name, dialect_of(TYPED_SMILE, version), Smile)
        case "MsgPackJacksonCodec":
            return JacksonBinaryCodec(
                name, dialect_of(TYPED_MSGPACK, version), MessagePack
            )
    return _CODECS[name]
