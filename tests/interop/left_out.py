"""Values that one side cannot carry over, by codec and direction, and why; everything else has to pass."""

from typing import NamedTuple


class LeftOut(NamedTuple):
    codec: str
    #: "read": what Java wrote is read as something else here; "write": our bytes are others than Java's.
    how: str
    label: str
    reason: str
    #: The versions that it is so with; empty: all that can write and read the value.
    versions: tuple[str, ...] = ()


_KEYS = "the keys are numbers in it; Redisson makes text of them, we keep them"

LEFT_OUT = (
    LeftOut(
        "MsgPackJacksonCodec",
        "read",
        "float",
        "it says that it has 32 bits; Redisson makes a Double of it, we a Float",
    ),
    LeftOut(
        "MsgPackJacksonCodec",
        "read",
        "small BigDecimal",
        "a double in it, as which Redisson reads -1.0E-20, and we -1E-20",
    ),
    LeftOut("CborJacksonCodec", "read", "map of ints", _KEYS),
    LeftOut("CborJackson3Codec", "read", "map of ints", _KEYS),
    LeftOut(
        "CborJacksonCodec",
        "write",
        "long 2^32",
        "Redisson 3.15 writes 0 for it, and the number is lost",
        ("3.15.0",),
    ),
    LeftOut(
        "TypedJsonJacksonCodec",
        "write",
        "Instant",
        "Redisson 3.12 writes a bean that it reads back as a map; later ones refuse it, and so do we",
        ("3.12.5",),
    ),
)


def left_out(version: str, codec: str, how: str) -> dict[str, str]:
    """The reasons by label, for one codec of one version."""
    return {
        each.label: each.reason
        for each in LEFT_OUT
        if (each.codec, each.how) == (codec, how)
        and (not each.versions or version in each.versions)
    }
