"""Where a Redis Cluster would put a key."""

import binascii

from django_delayq.wire.queue_keys import hash_tag

#: Hash slots of a Redis Cluster.
CLUSTER_SLOTS = 16384


def key_slot(key: str) -> int:
    """Return the slot of a key, 0 … 16383."""
    return binascii.crc_hqx(hash_tag(key).encode(), 0) % CLUSTER_SLOTS
