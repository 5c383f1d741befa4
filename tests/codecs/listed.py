"""Rows of the golden files that are not read or written to the letter, and why."""

from typing import NamedTuple


class Listed(NamedTuple):
    #: Which of "read", "again" and "write" do not hold.
    claims: str
    labels: str
    reason: str
    since: tuple[int, ...] = (0,)
    until: tuple[int, ...] = (99,)


JAVA_TIME = "instant instant.s localdatetime localdate localtime zoneddatetime offsetdatetime duration"
DECIMALS = "bigdec.-1E-20 bigdec.12.340 bigdec.long list.array.big"

_BEANS = (
    Listed(
        "read write",
        JAVA_TIME,
        "a bean without its class, which Redisson cannot read back; later versions refuse it",
        until=(3, 15),
    ),
    Listed(
        "read write",
        "optional",
        "a bean without its class, which Redisson cannot read back; later versions refuse it",
        until=(3, 27),
    ),
)
_PLAIN = (
    Listed(
        "read again",
        DECIMALS,
        "plain JSON has numbers, but no BigDecimal that keeps its digits",
    ),
    Listed(
        "read",
        "bigdec.0 bigdec.1E+5",
        "plain JSON has whole numbers, but no BigDecimal",
    ),
)

_NO_SET = Listed("read", "set.of", "written without its class, so it reads as a list")
_LANGUAGE_TAG = Listed("write", "locale", "Jackson 3 writes the language tag, zh-CN")

LISTED = {
    "CborJacksonCodec": (
        *_BEANS,
        _NO_SET,
        Listed(
            "read write",
            "long.4294967296",
            "Jackson 2.12.1 writes 0 for it, and the number is lost",
            since=(3, 15),
            until=(3, 16),
        ),
    ),
    "CborJackson3Codec": (_LANGUAGE_TAG,),
    "MsgPackJacksonCodec": (
        *_BEANS,
        _NO_SET,
        Listed(
            "write",
            "str.lone_surrogate",
            "Java writes ? for it; refused here, so that nothing is lost",
        ),
    ),
    "SmileJacksonCodec": (*_BEANS, _NO_SET),
    "SmileJackson3Codec": (_LANGUAGE_TAG,),
    "JsonJacksonCodec": (
        *_BEANS,
        _NO_SET,
    ),
    "TypedJsonJacksonCodec(Object)": (*_BEANS, *_PLAIN),
    "TypedJsonJacksonCodec(T)": (*_BEANS, *_PLAIN),
    "JsonJackson3Codec": (
        _NO_SET,
        _LANGUAGE_TAG,
    ),
    "TypedJsonJackson3Codec(Object)": (
        *_PLAIN,
        Listed(
            "again",
            "bigdec.1E+5",
            "plain JSON has numbers, but no BigDecimal that keeps its digits",
        ),
        _LANGUAGE_TAG,
    ),
    "MarshallingCodec": (
        Listed("read write", "self.list", "a list inside of itself: refused"),
        Listed(
            "again write",
            "equal.strings repeat.long_string",
            "two equal String objects: written once here",
        ),
    ),
    "Kryo5Codec": (
        Listed(
            "read",
            "zoneddatetime",
            "Kryo writes the zone without its offset",
        ),
        Listed(
            "read write",
            "list.unmodifiable",
            "embedded Java serialization",
            since=(3, 35),
        ),
    ),
}
