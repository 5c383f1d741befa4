"""Values that one side cannot carry over, by codec and direction, and why; everything else has to pass."""

_FLOAT = "it says that it has 32 bits; Redisson makes a Double of it, we a Float"
_KEYS = "keys are numbers in it; Redisson makes text of them, we keep them"

LEFT_OUT: dict[tuple[str, str], dict[str, str]] = {
    ("MsgPackJacksonCodec", "read"): {
        "float": _FLOAT,
        "small BigDecimal": "a double in it, as which Redisson reads -1.0E-20, and we -1E-20",
    },
    ("CborJacksonCodec", "read"): {"map of ints": _KEYS},
    ("CborJackson3Codec", "read"): {"map of ints": _KEYS},
}
