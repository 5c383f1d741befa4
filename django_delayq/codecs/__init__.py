"""Codecs: the encoding of values as payloads. Sans-I/O, like frames and keys.

``get_codec("Kryo5Codec", version="3.16.6").decode(payload)``. ``values`` has the types that Java has
and Python lacks. Two codecs take declarations of your classes: ``Kryo5Codec(classes=…)`` needs them to
read any object, ``MarshallingCodec(classes=…)`` to write an object that it has not read.
"""

from typing import TYPE_CHECKING

from django_delayq.codecs.codec import Codec
from django_delayq.codecs.known_codecs import CODEC_NAMES, default_codec, get_codec
from django_delayq.later import import_later

if TYPE_CHECKING:
    from django_delayq.codecs.kryo.codec import Kryo5Codec
    from django_delayq.codecs.river.classes import ClassLayout
    from django_delayq.codecs.river.codec import MarshallingCodec

__all__ = [
    "CODEC_NAMES",
    "ClassLayout",
    "Codec",
    "Kryo5Codec",
    "MarshallingCodec",
    "default_codec",
    "get_codec",
]

_LATER = {
    "ClassLayout": "django_delayq.codecs.river.classes",
    "Kryo5Codec": "django_delayq.codecs.kryo.codec",
    "MarshallingCodec": "django_delayq.codecs.river.codec",
}

__getattr__ = import_later(__name__, _LATER)
