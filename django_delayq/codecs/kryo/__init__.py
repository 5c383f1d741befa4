"""Kryo 5 as Redisson's Kryo5Codec sets it up: ``codec`` rests on ``read``, ``write`` and ``kinds``."""
