"""Redisson's Jackson codecs: one tree of values and classes, in JSON and three binary coats.

``write`` and ``read`` turn values into trees (``tree``) and back; ``json``, ``cbor``,
``messagepack`` and ``smile`` turn trees into bytes.
"""
