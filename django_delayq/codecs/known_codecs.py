"""Codecs by their Redisson names, and the default codec of each version of Redisson."""

from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType

from django_delayq.codecs.codec import Codec
from django_delayq.codecs.unsupported import REFUSED, UnsupportedCodec
from django_delayq.exceptions import EncodeError
from django_delayq.wire.frame import redisson_version

#: The first version in which Config.getCodec() returns each default. Config.java of each version.
_DEFAULTS = (
    ((3, 19), "Kryo5Codec"),
    ((3, 13), "MarshallingCodec"),
    ((3, 10), "FstCodec"),
    ((0, 0), "JsonJacksonCodec"),
)


#: The codecs that are the same in every version of Redisson: module and class.
_PLAIN = {
    "json": ("plain_json", "JsonCodec"),
    "StringCodec": ("text", "StringCodec"),
    "LongCodec": ("text", "LongCodec"),
    "IntegerCodec": ("text", "IntegerCodec"),
    "DoubleCodec": ("text", "DoubleCodec"),
    "ByteArrayCodec": ("raw", "ByteArrayCodec"),
    "MarshallingCodec": ("river.codec", "MarshallingCodec"),
}

#: The other codecs: the module whose ``make`` takes the name and the version, None for the newest.
_MADE = {
    "Kryo5Codec": "kryo.codec",
    "JsonJackson3Codec": "jackson.codecs",
    "TypedJsonJackson3Codec": "jackson.codecs",
    "CborJackson3Codec": "jackson.codecs",
    "SmileJackson3Codec": "jackson.codecs",
    "JsonJacksonCodec": "jackson.codecs",
    "TypedJsonJacksonCodec": "jackson.codecs",
    "CborJacksonCodec": "jackson.codecs",
    "SmileJacksonCodec": "jackson.codecs",
    "MsgPackJacksonCodec": "jackson.codecs",
}

#: The names of the codecs that we read and write.
CODEC_NAMES = tuple(sorted([*_PLAIN, *_MADE]))


def get_codec(codec: str | Codec, *, version: str | None = None) -> Codec:
    """Return the codec of this name; a codec object is returned as it is.

    The name is that of Redisson's class, with or without its package, or ``json``. ``version`` is
    the Redisson on the other side (``"3.16.6"``): a few corners of the formats depend on it.

    Example::

        get_codec("Kryo5Codec", version="3.16.6").decode(payload)

    Raises:
        EncodeError: no codec has this name, or ``version`` is not a version of Redisson.
    """
    if isinstance(codec, str):
        return _make(codec.removeprefix("org.redisson.").rpartition(".")[2], version)
    if isinstance(codec, Codec):
        return codec
    raise EncodeError(
        f"{codec!r} is not a codec; a codec has a name, encode() and decode()"
    )


def default_codec(version: str) -> str:
    """Return the name of the codec that a version of Redisson uses when none is set."""
    number = redisson_version(version)[:2]
    return next(name for since, name in _DEFAULTS if number >= since)


@lru_cache(maxsize=256)
def _make(name: str, version: str | None) -> Codec:
    if version is not None:
        redisson_version(version)
    if name in _PLAIN:
        return _plain(name)
    if name in _MADE:
        codec: Codec = _module(_MADE[name]).make(name, version)
        return codec
    if name in REFUSED:
        return UnsupportedCodec(name)
    raise EncodeError(
        f"no codec is named {name!r}; the known names are {', '.join(CODEC_NAMES)}"
    )


@cache
def _plain(name: str) -> Codec:
    module, cls = _PLAIN[name]
    codec: Codec = getattr(_module(module), cls)()
    return codec


def _module(name: str) -> ModuleType:
    # Imported on demand: all codecs together took half of the time that this package added to a start of Django.
    return import_module(f"django_delayq.codecs.{name}")
