"""Codecs by the name that Redisson gives them, and which one a version takes by default."""

from collections.abc import Callable
from functools import lru_cache

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
from django_delayq.codecs.kryo.codec import Kryo5Codec
from django_delayq.codecs.plain_json import JsonCodec
from django_delayq.codecs.raw import ByteArrayCodec
from django_delayq.codecs.river.codec import MarshallingCodec
from django_delayq.codecs.text import (
    DoubleCodec,
    IntegerCodec,
    LongCodec,
    StringCodec,
)
from django_delayq.codecs.unsupported import WRAPPING, UnsupportedCodec
from django_delayq.exceptions import EncodeError
from django_delayq.wire.frame import redisson_version

#: From which version on Config.getCodec() returns what. Config.java of each.
_DEFAULTS = (
    ((3, 19), "Kryo5Codec"),
    ((3, 13), "MarshallingCodec"),
    ((3, 10), "FstCodec"),
    ((0, 0), "JsonJacksonCodec"),
)


#: One object each: nothing in these depends on a version.
_CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        JsonCodec(),
        StringCodec(),
        LongCodec(),
        IntegerCodec(),
        DoubleCodec(),
        ByteArrayCodec(),
        JacksonJsonCodec("JsonJackson3Codec", TYPED_3),
        JacksonJsonCodec("TypedJsonJackson3Codec", UNTYPED_3),
        JacksonBinaryCodec(
            "CborJackson3Codec", UNTYPED_CBOR_3, lambda: Cbor(negates_bignums=False)
        ),
        JacksonBinaryCodec("SmileJackson3Codec", UNTYPED_SMILE_3, Smile),
        MarshallingCodec(),
    )
}

#: What makes the others, given the version of Redisson, or None for the newest.
_DIALECTS: dict[str, Callable[[str | None], Codec]] = {
    "Kryo5Codec": lambda version: Kryo5Codec(version=version),
    "JsonJacksonCodec": lambda version: JacksonJsonCodec(
        "JsonJacksonCodec", dialect_of(TYPED, version)
    ),
    "TypedJsonJacksonCodec": lambda version: JacksonJsonCodec(
        "TypedJsonJacksonCodec", dialect_of(UNTYPED_JSON, version)
    ),
    "CborJacksonCodec": lambda version: JacksonBinaryCodec(
        "CborJacksonCodec", dialect_of(TYPED_CBOR, version), lambda: _cbor(version)
    ),
    "SmileJacksonCodec": lambda version: JacksonBinaryCodec(
        "SmileJacksonCodec", dialect_of(TYPED_SMILE, version), Smile
    ),
    "MsgPackJacksonCodec": lambda version: JacksonBinaryCodec(
        "MsgPackJacksonCodec", dialect_of(TYPED_MSGPACK, version), MessagePack
    ),
}

#: Known to be refused with advice; nobody is offered these.
_REFUSED = {
    name: UnsupportedCodec(name)
    for name in ("FstCodec", "SerializationCodec", *WRAPPING)
}

#: The names of the codecs that are read and written.
CODEC_NAMES = tuple(sorted([*_CODECS, *_DIALECTS]))


def get_codec(codec: str | Codec, *, version: str | None = None) -> Codec:
    """Return the codec of a name, or the one that is passed.

    The name is that of Redisson's class, with or without its package, or ``json``. ``version`` is
    the Redisson on the other side (``"3.16.6"``): a few corners of the formats depend on it.

    Raises:
        EncodeError: no codec has this name, or the version is none.
    """
    if isinstance(codec, str):
        return _make(codec.removeprefix("org.redisson.").rpartition(".")[2], version)
    if isinstance(codec, Codec):
        return codec
    raise EncodeError(f"{codec!r} is no codec; it needs a name, encode() and decode()")


def default_codec(version: str) -> str:
    """Return the name of the codec that a version of Redisson uses when none is set."""
    number = redisson_version(version)[:2]
    return next(name for since, name in _DEFAULTS if number >= since)


@lru_cache(maxsize=256)
def _make(name: str, version: str | None) -> Codec:
    if version is not None:
        redisson_version(version)
    if name in _CODECS:
        return _CODECS[name]
    if name in _DIALECTS:
        return _DIALECTS[name](version)
    if name in _REFUSED:
        return _REFUSED[name]
    raise EncodeError(f"no codec is named {name!r}; known are {', '.join(CODEC_NAMES)}")


def _cbor(version: str | None) -> Cbor:
    old = version is not None and redisson_version(version)[:2] < (3, 15)
    return Cbor(long_is_nine_bytes=old)
