"""MarshallingCodec: JBoss Marshalling's River protocol, Redisson's default from 3.13 to 3.18.

All versions that have it (up to 4.0) share one dialect. A payload names the fields of its objects, so
any Serializable object is read without its class.
"""

import struct
from collections.abc import Mapping

from django_delayq.codecs.river.classes import ClassLayout
from django_delayq.codecs.river.read import RiverReader
from django_delayq.codecs.river.write import RiverWriter
from django_delayq.exceptions import DecodeError, EncodeError


class MarshallingCodec:
    """Values as River writes them.

    ``classes`` says how to write a JavaObject that this codec has not read: a ``ClassLayout`` with
    the serialVersionUID and the fields, sorted by name.
    """

    name = "MarshallingCodec"

    def __init__(self, classes: Mapping[str, ClassLayout] | None = None) -> None:
        self._classes = dict(classes or {})

    def __repr__(self) -> str:
        return f"MarshallingCodec({self._classes!r})"

    def encode(self, value: object) -> bytes:
        """Write a value; ``values`` says which Python type is which in Java.

        Raises:
            EncodeError: the format cannot hold the value, or one inside it.
        """
        try:
            return RiverWriter(self._classes).write(value)
        except RecursionError:
            raise EncodeError("MarshallingCodec: nested too deep") from None
        except EncodeError:
            raise
        except (ValueError, OverflowError, struct.error) as error:
            raise EncodeError(
                f"MarshallingCodec: a number does not fit: {error}"
            ) from None

    def decode(self, payload: bytes) -> object:
        """Read a payload.

        Raises:
            DecodeError: the payload is not River's, is nested too deep, contains itself, or holds a map
                whose keys Python cannot distinguish.
        """
        try:
            return RiverReader(payload).read()
        except RecursionError:
            raise DecodeError("MarshallingCodec: nested too deep", payload, 0) from None
