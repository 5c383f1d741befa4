"""Finds the shards that a queue has on the server beside those of the settings, so that no job is left behind there.

Other processes may have more shards in their settings, or had more. Each process that serves a whole queue serves them
all.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

from redis.client import Redis
from redis.exceptions import OutOfMemoryError

from django_delayq import conf
from django_delayq.calls.running import run
from django_delayq.calls.steps import perform
from django_delayq.conf import QueueSettings
from django_delayq.delivery import looking
from django_delayq.delivery.sharding import pin_shards, shard_name
from django_delayq.jobs.sharding import JOINED, agreeing, joined
from django_delayq.logs import get_log
from django_delayq.repair.moving import Settings, keep_settings, settings_of

logger = get_log("django_delayq.worker")


class OtherShards:
    """Adds queues to those of a process. Owned by the claim loop's thread."""

    def __init__(
        self,
        client: Redis,
        served: Mapping[str, object],
        add: Callable[[QueueSettings], None],
    ) -> None:
        self._client = client
        self._served = served
        self._add = add

    def begin(self, queue: QueueSettings) -> None:
        """Do what comes before the first claim from a queue.

        Raises:
            InvalidSettings: it is a shard, and the settings say otherwise than the server where keys are kept.
            redis.exceptions.RedisError: the server's own error.
        """
        whole = conf.get_settings().sharded.get(queue.whole)
        if whole is not None:
            self._join(whole, queue)
        self.look(queue)

    def _join(self, whole: QueueSettings, queue: QueueSettings) -> None:
        """Make sure that we agree, and have a shard that is new keep what was paused and limited when there were fewer."""
        known = run(self._client, joined(queue))
        if known == whole.key_home:
            return
        perform(self._client, agreeing(whole, queue))
        if known is not None or queue.name == whole.name:
            return
        first = whole.shard(0)
        if queue.name != first.name:
            keep_settings(self._client, queue, settings_of(self._client, first))
        # Of a time without shards. Its limits are those of the whole queue, and not of a shard.
        bare = settings_of(self._client, whole.bare())
        keep_settings(self._client, queue, Settings(pauses=bare.pauses))
        # A full server takes no mark. Then the next process does this again.
        with suppress(OutOfMemoryError):
            self._client.hset(queue.keys.control, JOINED, whole.key_home)

    def look(self, queue: QueueSettings) -> None:
        """Serve what the server knows beside the settings, if this queue has the bare name."""
        if queue.name != queue.whole:
            return
        found = run(self._client, pin_shards(queue.keys))
        settings = conf.get_settings()
        for number in range(found.most):
            name = shard_name(queue.name, number)
            if name in self._served:
                continue
            shard = settings.queue(name)
            jobs = run(self._client, looking.counts(shard.keys)).jobs
            logger.warning(
                "queue %s: shard %s is not in the settings but holds %d jobs; this worker serves it",
                queue.name,
                name,
                jobs,
            )
            self._add(shard)
