"""The tree that all of Redisson's Jackson codecs write, whatever their bytes.

A tree is made of None, bool, int, float, Float, BigInteger, Decimal, str, bytes, lists and dicts of
them, and ``Tagged``. ``write`` and ``read`` turn values into trees and back; JSON, CBOR, MessagePack
and Smile are its coats.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from django_delayq.wire.frame import redisson_version

#: The key that names the class of a map or an object. JsonTypeInfo.Id.CLASS.
CLASS_KEY = "@class"


class Tagged(NamedTuple):
    """A value with the name of its class before it: ``["java.lang.Long",1]``."""

    class_name: str
    body: object


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the codecs of the family and their versions differ."""

    #: Whether values carry their classes; the TypedJson codecs leave them out.
    typed: bool = True
    #: Whether a null in a map or an object is written; most drop it.
    keeps_nulls: bool = False
    #: Jackson 3: dates as ISO text, java.time known, no class for a Long at top level.
    jackson3: bool = False
    #: Whether a UUID carries its class, even where nothing else does.
    tags_uuid: bool = False
    #: Whether a UUID without such a class is 16 bytes rather than text.
    binary_uuid: bool = False
    #: Whether a whole number stays a number as the key of a map, as in CBOR.
    int_keys: bool = False
    #: Whether the format has floats of 32 bits, so that a float in a field needs no class.
    single_floats: bool = False


#: JsonJacksonCodec and its subclasses before Redisson 4.2.
TYPED = Dialect()
#: TypedJsonJacksonCodec.
UNTYPED_JSON = Dialect(typed=False)
#: JsonJackson3Codec, as of 4.7.
TYPED_3 = Dialect(jackson3=True, tags_uuid=True)
#: CborJacksonCodec, SmileJacksonCodec and MsgPackJacksonCodec before Redisson 4.2.
TYPED_CBOR = Dialect(binary_uuid=True, int_keys=True, single_floats=True)
TYPED_SMILE = Dialect(binary_uuid=True, single_floats=True)
TYPED_MSGPACK = Dialect(single_floats=True)
#: TypedJsonJackson3Codec, and what became of Cbor and Smile with Jackson 3.
UNTYPED_3 = Dialect(typed=False, keeps_nulls=True, jackson3=True)
UNTYPED_CBOR_3 = replace(UNTYPED_3, binary_uuid=True, int_keys=True, single_floats=True)
UNTYPED_SMILE_3 = replace(UNTYPED_3, binary_uuid=True, single_floats=True)


def dialect_of(dialect: Dialect, version: str | None) -> Dialect:
    """Return a Jackson 2 dialect as a version of Redisson writes it; ``None`` is the newest.

    From 4.2 on, a UUID carries its class (redisson issue 6828). For TypedJsonJacksonCodec, 4.5 took
    that back (issue 7154).
    """
    number = redisson_version(version)[:2] if version else None
    if dialect.typed:
        tags = number is None or number >= (4, 2)
    else:
        tags = number is not None and (4, 2) <= number < (4, 5)
    return replace(dialect, tags_uuid=tags)
