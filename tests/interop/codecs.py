"""Which codecs each version of Redisson has, and the settings of a Django site that shares queues with it."""

from typing import Any

from django_delayq.codecs import Codec, default_codec, get_codec
from tests.codecs.vectors import codec_of
from tests.interop.peers import VERSIONS

#: Read what they can read back only: they write ``toString()`` of anything.
TEXT = {
    "StringCodec": "String",
    "LongCodec": "Long",
    "IntegerCodec": "Integer",
    "DoubleCodec": "Double",
    "ByteArrayCodec": "byte[]",
}
#: They write fields in an order that only a class file tells.
UNSUPPORTED = ("FstCodec", "SerializationCodec")
#: The queues of a codec in each round, by what is done with them.
QUEUES = (
    "java-java",
    "orphan-python",
    "orphan-java",
    "left-java",
    "left-python",
    "both",
    "seen",
    "last",
    "handled",
    "retried",
    "dead",
    "scheduled",
    "offered",
)


def codecs_of(version: str) -> list[str]:
    """The codecs of a version, as they are named in the tests; ``default`` is what it takes when none is set."""
    number = tuple(map(int, version.split(".")))
    names = [
        "default",
        *TEXT,
        "JsonJacksonCodec",
        "TypedJsonJacksonCodec",
        "MsgPackJacksonCodec",
        "CborJacksonCodec",
        "SmileJacksonCodec",
        "Kryo5Codec",
    ]
    if number < (4, 1):
        names.append("MarshallingCodec")
    else:
        names += [
            "JsonJackson3Codec",
            "TypedJsonJackson3Codec",
            "CborJackson3Codec",
            "SmileJackson3Codec",
        ]
    names += [name for name in UNSUPPORTED if name != "FstCodec" or number < (3, 53)]
    return names


def is_supported(version: str, codec: str) -> bool:
    return python_name(version, codec) not in UNSUPPORTED


def python_name(version: str, codec: str) -> str:
    return default_codec(version) if codec == "default" else codec


def java_name(codec: str) -> str:
    """What Peer.java is to make: with the class that a constructor wants."""
    return f"{codec}(java.lang.Object)" if codec.startswith("Typed") else codec


def python_codec(version: str, codec: str) -> Codec:
    """The codec of a queue, told of the classes in peer/src/main/java/demo where it has to be."""
    name = python_name(version, codec)
    if codec == "default" or name in UNSUPPORTED:
        return get_codec(name, version=version)
    return codec_of(name, version)


def delayq(version: str, url: str, prefix: str) -> dict[str, Any]:
    """``DELAYQ`` of a site that shares queues with a version of Redisson."""
    # Where a task goes that names no queue.
    queues: dict[str, dict[str, Any]] = {"default": {}}
    for codec in codecs_of(version):
        options: dict[str, Any] = {"REDISSON": version}
        if codec != "default":
            options["CODEC"] = python_codec(version, codec)
        for what in QUEUES:
            queues[queue_name(prefix, codec, what)] = options
    return {"CONNECTION": url, "QUEUES": queues, "WORKER": {"THREADS": 4}}


def queue_name(prefix: str, codec: str, what: str) -> str:
    return f"{prefix}-{codec}-{what}"


ALL = [(version, codec) for version in VERSIONS for codec in codecs_of(version)]
