"""The keys of one queue, as Redisson names them, and the hash tag that keeps them in one slot.

Only this module knows when a name is put into braces. ``frame`` and the scripts know what lies under these keys;
``core`` has our own keys.
"""

from dataclasses import dataclass
from functools import lru_cache

from django_delayq.exceptions import EncodeError
from django_delayq.redaction import show


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue; build it with ``QueueKeys.of(name, prefix)``."""

    #: Name of the queue without the prefix, as any NameMapper of Redisson's has left it.
    name: str
    #: The hash-tagged name on the server: ``{destination}``, or the name there itself if it already has a ``{``.
    tag: str
    #: LIST of payloads that are due. The key is the name on the server: prefix and name.
    destination: str
    #: ZSET of frames; score: start time, epoch ms.
    timeout_set: str
    #: LIST of the same frames, in the order they were offered.
    delay_queue: str
    #: Pub/sub channel that carries the start time of a new head: epoch ms, as decimal text.
    channel: str

    @classmethod
    def of(cls, name: str, prefix: str = "") -> "QueueKeys":
        """Name the keys of a queue; on the server, ``prefix`` goes before its name.

        Raises:
            EncodeError: the name is empty, is not text that UTF-8 can hold, or has braces that would put its keys
                into different slots of a Redis Cluster.

        Source: RedissonObject.prefixName, RedissonDelayedQueue's constructor.
        """
        return _keys_of(name, prefix)

    def __hash__(self) -> int:
        # Every call of a script needs it.
        return hash(self.destination)

    def key(self, name: str) -> str:
        """Return a key by its name in the headers of scripts."""
        key: str = getattr(self, name)
        return key

    def own(self, what: str) -> str:
        """Name a key that Redisson does not know, in the same slot: ``delayq_<what>:T``."""
        return f"delayq_{what}:{self.tag}"


def hash_tag(key: str) -> str:
    """Return the part of a key that a Redis Cluster hashes.

    That is what stands between the first ``{`` and the first ``}`` after it. Without such a pair, or with nothing
    between the two, it is the whole key.

    Source: keyHashSlot in cluster.c of Redis.
    """
    opening = key.find("{")
    if opening == -1:
        return key
    closing = key.find("}", opening + 1)
    if closing in (-1, opening + 1):
        return key
    return key[opening + 1 : closing]


@lru_cache(maxsize=4096)
def _keys_of(name: str, prefix: str) -> QueueKeys:
    if not isinstance(name, str) or not name:
        raise EncodeError(f"a queue needs a name, a non-empty string; got {show(name)}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"queue name {show(name)} cannot be encoded as UTF-8"
        ) from error
    destination = prefix + name
    tag = destination if "{" in destination else f"{{{destination}}}"
    keys = QueueKeys(
        name=name,
        tag=tag,
        destination=destination,
        timeout_set=f"redisson_delay_queue_timeout:{tag}",
        delay_queue=f"redisson_delay_queue:{tag}",
        channel=f"redisson_delay_queue_channel:{tag}",
    )
    _refuse_if_parted(keys)
    return keys


def _refuse_if_parted(keys: QueueKeys) -> None:
    # This compares tags, not slots: two tags may share a slot by chance, and a name that works by chance would stop
    # working under another prefix.
    for key in (keys.timeout_set, keys.delay_queue, keys.channel):
        if hash_tag(key) != hash_tag(keys.destination):
            instead = (
                keys.name.replace("{", "_").replace("}", "_").strip("_") or "default"
            )
            raise EncodeError(
                f"queue name {keys.name!r}: its keys {keys.destination!r} (hashed by"
                f" {hash_tag(keys.destination)!r}) and {key!r} (hashed by {hash_tag(key)!r})"
                f" would lie in different slots of a Redis Cluster; use a name without braces,"
                f" such as {instead!r}, or with one pair around a part of it, such as"
                f" {f'{{{instead}}}'!r}"
            )
