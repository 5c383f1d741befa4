"""Kryo 5 as Redisson's Kryo5Codec sets it up: ``codec`` over ``read``, ``write`` and ``kinds``."""
