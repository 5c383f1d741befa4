"""Codecs: what a payload says. Sans-I/O, like frames and keys.

``get_codec("Kryo5Codec", version="3.16.6").decode(payload)``; the values are in ``values``.
"""

from django_delayq.wire.codecs.codec import Codec
from django_delayq.wire.codecs.registry import CODEC_NAMES, default_codec, get_codec

__all__ = ["CODEC_NAMES", "Codec", "default_codec", "get_codec"]
