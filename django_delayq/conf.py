"""``DELAYQ`` → one frozen `Settings`.

The key of a setting is the name of its field in capitals, without the unit: ``HOLD_UNKNOWN`` is `hold_unknown_s`.

Functions call `get_settings`; nothing reads a setting at import. The result is cached until Django says that the setting
has changed. `find_problems` collects what is wrong; ``manage.py check`` prints it, and `get_settings` raises it.
"""

import os
import sys
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_delayq.backoff import Backoff, in_capitals, read_backoff
from django_delayq.clients.clients import own_clients
from django_delayq.clients.url import is_readable
from django_delayq.codecs import Codec, default_codec, get_codec
from django_delayq.delivery.durability import (
    DURABLE_WANTED,
    Durable,
    as_durable,
    is_durability,
)
from django_delayq.delivery.ended import MOST_ENDED
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.rates import (
    MOST_AT_A_TIME,
    RATE_WANTED,
    is_concurrency,
    is_rate,
    limit_text,
    share_of_rate,
)
from django_delayq.delivery.sharding import (
    MOST_SHARDS,
    parse_shard,
    shard_name,
    shard_of,
    share_of,
)
from django_delayq.delivery.statistics import MOST_TASKS
from django_delayq.delivery.storing import Target
from django_delayq.delivery.workers import RegistryKeys
from django_delayq.exceptions import DelayqError, InvalidSettings, QueueNotFound
from django_delayq.queues.options import QueueOptions
from django_delayq.redaction import (
    hide,
    hide_url,
    is_secret_name,
    redact_url,
    show,
)
from django_delayq.setting import (
    BOOLEAN,
    Problem,
    Values,
    count,
    declare,
    dict_of,
    find_wrong,
    list_of,
    read_fields,
    seconds,
    setting,
    settings_of,
)
from django_delayq.suggestions import suggestion
from django_delayq.wire.encryption import INSTALL, has_library
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.signing import Keyring

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Seconds of the longest time limit: thirty years. A thread can wait for three hundred.
LONGEST_S = 10**9
#: Seconds of the shortest lease. It is renewed at a third, and a busy machine may pause a process for that long.
SHORTEST_LEASE_S = 2
#: Seconds of the longest lease. The jobs of a dead machine wait that long for another.
LONGEST_LEASE_S = 86_400
#: Seconds of the longest hold of a job whose task is unknown: 30 days.
LONGEST_HOLD_S = 2_592_000
#: Seconds of the shortest time to keep dead letters and quarantined jobs. Who writes a smaller number means days.
SHORTEST_TTL_S = 3_600
#: Seconds of the longest time to keep what was given up: a hundred years.
LONGEST_TTL_S = 100 * 365 * 86_400
#: Seconds of the longest `OUTBOX_KEEP`: until then, workers look at each row again and again.
LONGEST_KEEP_S = 300
#: Characters of the shortest secret.
SHORTEST_SECRET = 16
#: Characters of the longest prefix of queues. Each key has it.
LONGEST_PREFIX = 64
#: Bytes of the largest payload. A script that moves more holds the server for half a second.
LARGEST_PAYLOAD = 64 << 20
#: The largest bound of how many jobs or dead letters a queue holds.
MOST_JOBS = 10**9
#: What jobs may do in tests; see `Settings.test`.
TEST_MODES = ("captured", "immediate", "frozen", "server", "connection")


def _is_redisson(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        FrameFormat.for_redisson(value)
        default_codec(value)
    except DelayqError:
        return False
    return True


def _is_codec(value: Any) -> bool:
    try:
        get_codec(value)
    except (DelayqError, TypeError):
        return False
    return True


def _are_secrets(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(
            isinstance(item, str | bytes) and len(item) >= SHORTEST_SECRET
            for item in value
        )
    )


def _is_token(value: Any) -> bool:
    # Others cannot be sent in a header.
    return (
        isinstance(value, str)
        and len(value) >= SHORTEST_SECRET
        and all("!" <= character <= "~" for character in value)
    )


def _describe_secrets(value: Any) -> str:
    """Describe what is wrong with secrets without showing any."""
    if isinstance(value, str | bytes):
        return "a single secret (not shown), not a list"
    if not isinstance(value, list | tuple):
        return f"of type {type(value).__name__} (not shown)"
    for number, item in enumerate(value, 1):
        if not isinstance(item, str | bytes):
            return f"a list whose secret {number} is of type {type(item).__name__}"
        if len(item) < SHORTEST_SECRET:
            return f"a list whose secret {number} has {len(item)} characters"
    return (
        "a list with a secret that has characters that are not allowed"
        if value
        else "an empty list"
    )


def _is_connection(value: Any) -> bool:
    if not isinstance(value, str) or "://" not in value:
        return isinstance(value, str) and value != ""
    return is_readable(value)


def _show_connection(value: Any) -> str:
    # Not by `show`: a URL may be too mangled to be recognised.
    return repr(redact_url(value)) if isinstance(value, str) else show(value)


def _is_prefix(value: Any) -> bool:
    # Of a name with braces a cluster hashes only a part, which would put all queues into one slot.
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_PREFIX
        and (value + "_").isprintable()
        and not any(char in "{} " for char in value)
    )


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "." in value.strip(".")


def _is_module(value: Any) -> bool:
    return isinstance(value, str) and all(
        part.isidentifier() for part in value.split(".")
    )


def _paths(example: str) -> Values[tuple[str, ...]]:
    return list_of(_is_path, f"dotted paths, such as {example!r}")


CONNECTION = Values[str](
    _is_connection,
    "the alias of a django-redis cache, or a URL that redis-py reads, such as"
    " 'redis://localhost:6379/0': port and database are numbers, parameters those of redis-py, special"
    " characters in a password are encoded (# as %23); or a URL of Sentinels, such as"
    " 'redis+sentinel://host1:26379,host2:26379/mymaster/0'; or a URL of a cluster, such as"
    " 'redis+cluster://host1:7000,host2:7001', which has only database 0",
    hide_url,
    _show_connection,
)
SECRETS = Values[Sequence[str | bytes]](
    _are_secrets,
    f"a list of secrets, the one to sign with first, each a string of at least {SHORTEST_SECRET} characters",
    hide,
    _describe_secrets,
)
TOKENS: Values[Sequence[str]] = list_of(
    _is_token,
    f"strings of at least {SHORTEST_SECRET} printable ASCII characters without spaces, such as"
    " secrets.token_urlsafe() returns",
)._replace(read=hide, show=_describe_secrets)
DIRECTORY = Values[Path](
    lambda value: isinstance(value, str | os.PathLike) and str(value) != "",
    "the path of a directory",
    Path,
)
#: What may go before the names of queues.
PREFIX = Values[str](
    _is_prefix,
    f"a string of at most {LONGEST_PREFIX} characters without spaces and braces, such as 'shop-', or '' for none",
)
ATTEMPTS = count(1, 1_000_000, "attempts")
KEPT_JOBS = count(0, MOST_ENDED, "jobs")
TTL = seconds(SHORTEST_TTL_S, LONGEST_TTL_S)
LIMIT_S = seconds(0.001, LONGEST_S)
#: Share of the claims of a queue, in the settings and on the worker's command line.
WEIGHT = count(1, 1_000)


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """One entry of ``DELAYQ["QUEUES"]``."""

    name: str
    #: Attempts before a job becomes a dead letter, the first included. With the waits between them, the default
    #: outlasts a failure of more than two hours.
    max_attempts: int = setting(10, ATTEMPTS)
    #: Waits between attempts, see [Retries](#retries): some of these keys, or a `Backoff`.
    retry: Backoff = setting(
        Backoff(),
        Values[Backoff](
            lambda value: isinstance(value, Backoff | dict),
            "a Backoff, or a dict such as {'BASE': 5, 'FACTOR': 3, 'MAX': 3600, 'JITTER': 0.25} (seconds)",
            read_backoff,
        ),
    )
    #: How long one [attempt](#what-a-time-limit-does) may run.
    time_limit_s: float | None = setting(None, LIMIT_S, "any time")
    #: How often a busy worker serves this queue first, compared to its others: 5 means five times as often as 1.
    #: `--queue` overrides it.
    weight: int = setting(1, WEIGHT)
    #: Seconds of waiting that are worth one point of [priority](howto/priorities.md).
    priority_step_s: float | None = setting(None, LIMIT_S, "the highest priority first")
    #: How many jobs of the queue run at a time in all workers; see [limits](howto/limits.md).
    concurrency: int | None = setting(
        None,
        Values[int](
            is_concurrency, f"a number of jobs at a time, 1 to {MOST_AT_A_TIME:,}"
        ),
        "any number",
    )
    #: How often a job of the queue starts; see [limits](howto/limits.md).
    rate: str | None = setting(None, Values[str](is_rate, RATE_WANTED), "any rate")
    #: How many jobs the queue may hold, waiting or running. When it is full, `schedule()` raises
    #: [`QueueFull`](howto/limits-on-size.md#jobs-of-a-queue).
    max_jobs: int | None = setting(None, count(1, MOST_JOBS, "jobs"), "any number")
    #: Which replicas and disks must have a job before a call [returns](howto/durability.md); else it raises
    #: `NotDurable`. With `False`, neither the [outbox](howto/outbox.md#before-a-row-is-deleted) nor
    #: [moves](howto/move-servers.md) wait for a replica either.
    durable: Durable | None = setting(
        None,
        Values[Durable | None](is_durability, DURABLE_WANTED, as_durable),
        "the memory of the primary",
    )
    #: [Encrypt](howto/encryption.md) arguments, results, errors and progress on the server. Needs `pip install
    #: "django-delayq[encryption]"`, and a queue without `REDISSON`.
    encrypt: bool = setting(False, BOOLEAN)
    #: How many [shards](howto/shards.md) spread the queue over a cluster,
    #: [fixed](howto/shards.md#another-number-of-shards) while the queue holds anything. They share the queue's limits.
    shards: int | None = setting(
        None, count(1, MOST_SHARDS, "shards"), "a queue without shards"
    )
    #: How many ended jobs the queue [remembers](howto/ended-jobs.md); by default, `KEEP_ENDED` of `DELAYQ`.
    keep_ended: int = setting(1_000, KEPT_JOBS)
    #: How long dead letters are [kept](#what-is-kept); by default half a year.
    dead_ttl_s: float | None = setting(180 * 86_400.0, TTL, "ever")
    #: How many dead letters are kept. If there are more, those older than a day are deleted, the oldest first.
    max_dead: int | None = setting(
        None, count(1, MOST_JOBS, "dead letters"), "any number"
    )
    #: How long quarantined payloads from Java or a `DelayedQueue` are kept; by default 30 days.
    quarantine_ttl_s: float | None = setting(30 * 86_400.0, TTL, "ever")
    #: How long your quarantined jobs are kept.
    quarantined_jobs_ttl_s: float | None = setting(None, TTL, "ever")
    #: The version of the Redisson that [shares](howto/java.md) the queue. It decides `FRAME`, `CODEC` and
    #: `INSERTION_LIST`.
    redisson: str | None = setting(
        None,
        Values[str](
            _is_redisson, "a version of Redisson such as '3.16.6', 3.2.0 or later"
        ),
        "a queue that only Django uses",
    )
    #: The [codec](codecs.md) of payloads that Java or a `DelayedQueue` puts into the queue. An object has `name`,
    #: `encode` and `decode`. You can [change it](codecs.md#changing-the-codec-of-a-queue) while jobs wait.
    codec: str | Codec | None = setting(
        None,
        Values[str | Codec](
            _is_codec, "the name of a codec such as 'StringCodec', or a codec"
        ),
        "the default of REDISSON, else 'json'",
    )
    #: [Frame format](wire-format.md#frame).
    frame: str | None = setting(
        None,
        Values[str](
            lambda value: value in [item.value for item in FrameFormat],
            "'dLc0' (Redisson up to 3.21.0) or 'Bc0Lc0' (3.21.1 and later)",
        ),
        "that of REDISSON, else 'Bc0Lc0'",
    )
    #: Whether to keep Redisson's list, which Java's `size`, `contains`, `remove` and `readAll` search. Without it,
    #: every operation is O(log N), and Java can still take elements. You can [change it](#the-insertion-list) at any
    #: time.
    insertion_list: bool | None = setting(None, BOOLEAN, "a list if REDISSON is set")
    #: The queue that this shard belongs to; None: this is not a shard.
    shard_of: str | None = None
    #: Prefix of the name on the server: `Settings.prefix`, or nothing if REDISSON is set.
    prefix: str = ""
    #: Whether a replica must have a job before its other copy is deleted; False if DURABLE is False.
    waits: bool = True

    def shard(self, number: int) -> "QueueSettings":
        """Return the settings of a shard: a queue like any other, with its share of what the whole queue may do."""
        shards = self.shards or 1

        def share(total: int | None) -> int | None:
            return None if total is None else max(1, share_of(total, number, shards))

        return replace(
            self,
            name=shard_name(self.name, number),
            shard_of=self.name,
            concurrency=share(self.concurrency),
            rate=None if self.rate is None else share_of_rate(self.rate, shards),
            max_jobs=share(self.max_jobs),
            max_dead=share(self.max_dead),
            keep_ended=-(-self.keep_ended // shards),
        )

    @property
    def whole(self) -> str:
        """The name of the queue as DELAYQ['QUEUES'] has it: of a shard, that of the queue that it is a part of."""
        return self.name if self.shard_of is None else self.shard_of

    @property
    def many_dead(self) -> int | None:
        """The number of dead letters that causes a warning: four fifths of what is kept; None: no warning."""
        return None if self.max_dead is None else -(-4 * self.max_dead // 5)

    @cached_property
    def priority_step_ms(self) -> int | None:
        step_s = self.priority_step_s
        return None if step_s is None else round(step_s * 1000)

    @cached_property
    def limit_text(self) -> str:
        """The limits, as far as a claim needs them; empty if there are none."""
        return limit_text(self.concurrency, self.rate)

    @cached_property
    def is_shared(self) -> bool:
        return self.redisson is not None

    @cached_property
    def keeps_list(self) -> bool:
        """Whether stored elements also go into Redisson's list."""
        return self.is_shared if self.insertion_list is None else self.insertion_list

    @cached_property
    def frame_format(self) -> FrameFormat:
        if self.frame is not None:
            return FrameFormat(self.frame)
        return (
            FrameFormat.for_redisson(self.redisson)
            if self.redisson
            else FrameFormat.BC0LC0
        )

    @cached_property
    def payload_codec(self) -> Codec:
        """The codec of payloads that others put into this queue."""
        return _payload_codec(self.codec, self.redisson)

    @cached_property
    def keys(self) -> DeliveryKeys:
        return DeliveryKeys.of(self.name, self.prefix)

    @cached_property
    def target(self) -> Target:
        """Where calls store the jobs of the queue, and how."""
        shards = self.shards or 0
        listed = self.keeps_list
        return Target(self.keys, self.frame_format, listed, shards, self.max_jobs)


def keys_of(queue: str) -> DeliveryKeys:
    """Return the keys of a queue; one that is not configured has its own name on the server, without PREFIX."""
    configured = get_settings()
    settings = configured.find(queue) or configured.sharded.get(queue)
    return DeliveryKeys.of(queue) if settings is None else settings.keys


def keep_ended(queue: str) -> int:
    """Return how many of its last ended jobs a queue remembers; 0 for a queue that is not configured."""
    settings = get_settings().find(queue)
    return settings.keep_ended if settings is not None else 0


def durable_of(queue: str) -> Durable | None:
    """Return what the changes of a queue's jobs wait for; None for a queue that is not configured."""
    settings = get_settings().find(queue)
    return None if settings is None else settings.durable


def durables_of(queues: Iterable[QueueSettings]) -> dict[str, Durable]:
    """Return what the calls of these queues wait for, by name, without those that wait for nothing."""
    return {queue.name: queue.durable for queue in queues if queue.durable is not None}


def limits_of(queues: Iterable[QueueSettings]) -> dict[str, int]:
    """Return how many jobs these queues may hold, by name, without those that may hold any number."""
    return {
        queue.name: queue.max_jobs for queue in queues if queue.max_jobs is not None
    }


def shards_of(queues: Iterable[QueueSettings]) -> dict[str, int]:
    """Return how many shards these queues have, by their names in DELAYQ['QUEUES']; 0: none."""
    return {queue.whole: queue.shards or 0 for queue in queues}


def _payload_codec(codec: str | Codec | None, redisson: str | None) -> Codec:
    if codec is not None:
        return get_codec(codec, version=redisson)
    return get_codec(default_codec(redisson) if redisson else "json", version=redisson)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """``DELAYQ["WORKER"]``."""

    #: Worker processes: one for each processor, if your tasks compute.
    processes: int = setting(1, count(1, 512, "processes"))
    #: Threads of each process, for sync tasks. Each may hold a connection to each database.
    threads: int = setting(8, count(1, 1_000, "threads"))
    #: `async def` tasks that run at once in each process. Give them [a queue of their own](#task-options).
    coroutines: int = setting(100, count(1, 10_000, "coroutines"))
    #: After how long without a sign of life a worker loses its jobs to another. Jobs of a machine that died start again
    #: after this time. A worker renews its leases after each third of it, so one that stands still for two thirds may
    #: lose its jobs. It does not limit how long a job runs.
    lease_s: float = setting(30.0, seconds(SHORTEST_LEASE_S, LONGEST_LEASE_S))
    #: How long running jobs may take to end when the worker stops. Jobs that still run then run again elsewhere.
    grace_s: float = setting(25.0, seconds(0, LONGEST_LEASE_S))
    #: A directory of this worker, where each process writes `worker-PID.json` every 5 s while it can run jobs, for a
    #: [probe](howto/deploy.md#health-probes).
    heartbeat: Path | None = setting(None, DIRECTORY, "no files")
    #: How often a job may lose its worker and still start again. With 3, the fourth loss makes it a dead letter.
    max_kills: int = setting(3, count(0, 1_000))
    #: How long a job waits for a worker that knows its task or accepts its arguments. Then it goes to quarantine; with
    #: 0, at once. With the default, you may deploy the workers last.
    hold_unknown_s: float = setting(900.0, seconds(0, LONGEST_HOLD_S))

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * 1000)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All of ``DELAYQ``. `queues` has the queues that hold jobs: queues without shards, and the shards of the others."""

    #: The server. A URL begins with `redis://`, `rediss://` or `unix://`; that of [Sentinels](howto/sentinel.md) with
    #: `redis+sentinel://`, and that of a [cluster](howto/cluster.md) with `redis+cluster://`, or with `rediss+` for
    #: TLS. An alias stands for the address, password and TLS of a
    #: [django-redis](https://github.com/jazzband/django-redis) cache. Without a connection, the project uses the
    #: [embedded server](#the-embedded-server).
    connection: str | None = setting(
        None, CONNECTION, "the embedded server while DEBUG is on"
    )
    #: Secrets that [sign](trust.md) jobs: the first signs, all are accepted. Projects that schedule jobs for each other
    #: need the same keys.
    keys: Sequence[str | bytes] | None = setting(
        None, SECRETS, "SECRET_KEY and SECRET_KEY_FALLBACKS", repr=False
    )
    #: The folder where the [embedded server](#the-embedded-server) makes `.delayq`.
    embedded_dir: Path | None = setting(
        None, DIRECTORY, "BASE_DIR, else the current directory"
    )
    #: Queue names and their [options](#queues). Name every queue that you use. `{}`: one queue, `"default"`, for tasks
    #: without a `queue`.
    queues: Mapping[str, QueueSettings] = field(
        default_factory=dict,
        metadata=declare(
            # `read_settings` makes the queues: they depend on other settings.
            dict_of("queue names to dicts of options", dict)
        ),
    )
    #: A prefix for the names of all queues on the server, so that [two projects can share
    #: it](howto/servers.md#two-projects-on-one-server). Queues with `REDISSON` have none; ids, commands, pages and
    #: metrics leave it out.
    prefix: str = setting("", PREFIX)
    #: [Options of the worker](#worker).
    worker: WorkerSettings = setting(
        WorkerSettings(),
        dict_of(
            "options",
            lambda value: WorkerSettings(**read_fields(WorkerSettings, value)),
        ),
    )
    #: What happens to jobs [in tests](howto/testing.md#for-all-tests): `"captured"` only records them, `"immediate"`
    #: runs them at once, `"frozen"` keeps them in memory, `"server"` sends them to a server of the test run, and
    #: `"connection"` to that of `CONNECTION`.
    test: str = setting(
        "captured",
        Values[str](
            lambda value: value in TEST_MODES,
            f"what jobs do in tests, one of {', '.join(map(repr, TEST_MODES))}",
        ),
    )
    #: The largest payload of a job; a larger one raises `EncodeError`. A payload of 10 MB blocks the server for about
    #: 30 ms each time it is moved.
    max_payload_bytes: int = setting(1 << 20, count(128, LARGEST_PAYLOAD, "bytes"))
    #: The largest payload from Java or a `DelayedQueue` that is decoded. A larger one goes to quarantine.
    max_foreign_bytes: int = setting(8 << 20, count(1, LARGEST_PAYLOAD, "bytes"))
    #: How many ended jobs each queue [remembers](howto/ended-jobs.md).
    keep_ended: int = setting(1_000, KEPT_JOBS)
    #: How many tasks of each queue have [statistics](howto/statistics.md); all others count as one task, `other`.
    statistics: int = setting(1_000, count(0, MOST_TASKS, "tasks", "no statistics"))
    #: Tokens for machines that read the [metrics](howto/monitor.md), as `Authorization: Bearer …`. Empty: only staff
    #: reads them.
    metrics_tokens: Sequence[str] = setting((), TOKENS, repr=False)
    #: Modules with tasks, in addition to the `tasks.py` of each app. Every process imports them; an error ends the
    #: command with `InvalidSettings`.
    modules: tuple[str, ...] = setting(
        (), list_of(_is_module, "modules, such as 'shop.jobs'")
    )
    #: Dotted paths of [middleware](howto/middleware.md), the outermost first.
    middleware: tuple[str, ...] = setting((), _paths("shop.middleware.timed"))
    #: Dotted paths of [contexts](howto/context.md) that travel with each job.
    context: tuple[str, ...] = setting((), _paths("django_delayq.context.Locale"))
    #: In a transaction of the default database, the commit sends the jobs; see [transactions](howto/outbox.md).
    #: `False`: sent at once. A task or a call can say otherwise.
    on_commit: bool = setting(True, BOOLEAN)
    #: `True`: jobs are [rows of the transaction](howto/outbox.md) that schedules them, unless the task says otherwise.
    #: Needs the app `django_delayq.outbox`.
    outbox: bool = setting(False, BOOLEAN)
    #: How long a row of the outbox stays after the server has the job: give more than the last seconds that the server
    #: may lose when it dies.
    outbox_keep_s: float = setting(3.0, seconds(0, LONGEST_KEEP_S))
    #: The queues that consist of shards.
    sharded: Mapping[str, QueueSettings] = field(default_factory=dict)

    def queue(self, name: str) -> QueueSettings:
        """Return the settings of a queue that holds jobs, by the name with which a job's id begins.

        Raises:
            QueueNotFound: it is neither in ``DELAYQ["QUEUES"]`` nor a shard of such a queue.
        """
        try:
            return self.queues[name]
        except KeyError:
            raise self._not_found(name) from None

    def find(self, name: object) -> QueueSettings | None:
        """Return what `queue` returns, or None."""
        return self.queues.get(name) if isinstance(name, str) else None

    def queues_of(self, *names: str | None) -> list[QueueSettings]:
        """Return the queues that hold the jobs of queues: each itself, or its shards; without a name, those of every queue.

        Raises:
            QueueNotFound: see `queue`.
        """
        found: dict[str, QueueSettings] = {}
        for name in [each for each in names if each is not None] or self.names:
            for queue in self.parts_of(name) or [self.queue(name)]:
                found[queue.name] = queue
        return list(found.values())

    def parts_of(self, name: str) -> list[QueueSettings]:
        """Return the shards of a queue; none if it has no shards."""
        numbers = range(self.sharded[name].shards or 0) if name in self.sharded else ()
        return [self.queues[shard_name(name, number)] for number in numbers]

    def home_of(self, name: str, key: str) -> QueueSettings:
        """Return a queue; of a queue with shards, the one that the key leads to.

        Raises:
            QueueNotFound: see `queue`.
        """
        whole = self.sharded.get(name)
        return self.queue(name) if whole is None else self.shard_of_key(whole, key)

    def shard_of_key(self, whole: QueueSettings, key: str) -> QueueSettings:
        """Return the shard that a limit, a unique key or a schedule leads to, or the token of a job without any."""
        assert whole.shards is not None
        return self.queues[shard_name(whole.name, shard_of(key, whole.shards))]

    @cached_property
    def names(self) -> list[str]:
        """The names of all queues as DELAYQ['QUEUES'] has them."""
        return list(dict.fromkeys(queue.whole for queue in self.queues.values()))

    @cached_property
    def registry(self) -> RegistryKeys:
        """The keys under which the workers of this project are registered."""
        return RegistryKeys.of(self.prefix)

    def name_of(self, on_server: str) -> str:
        """Return the name of the queue that has this name on the server; any other name as it is."""
        name = on_server.removeprefix(self.prefix)
        found = self.find(name) or self.sharded.get(name)
        return name if found and found.prefix + name == on_server else on_server

    def whole(self, name: str) -> str:
        """Return the name of a queue as DELAYQ['QUEUES'] has it, if this is a shard of it; else the name as it is."""
        found = self.find(name)
        return name if found is None else found.whole

    def _not_found(self, name: str) -> QueueNotFound:
        if name in self.sharded:
            return QueueNotFound(
                f"queue {show(name)} has shards, and only each of them has jobs: name one, as {show(shard_name(name, 0))}."
            )
        return QueueNotFound(
            f"queue {show(name)} is not configured; DELAYQ['QUEUES'] has {', '.join(map(repr, sorted(self.names)))}."
            + suggestion(name, self.names)
            + f" Add {show(name)}: {{}} to DELAYQ['QUEUES'], or correct the name."
        )


def find_problems(value: Any) -> Iterator[Problem]:
    """Yield the problems in a value of ``DELAYQ``."""
    if not isinstance(value, dict):
        yield Problem(
            "E001",
            f"DELAYQ is {show(value)}, of type {type(value).__name__}.",
            "Make it a dict, as in docs/settings.md.",
        )
        return
    yield from _find_wrong("DELAYQ", value, Settings)
    queues = value.get("QUEUES", {})
    if isinstance(queues, dict):
        for name, options in queues.items():
            path = f"DELAYQ['QUEUES'][{show(name)}]"
            try:
                DeliveryKeys.of(name)
            except DelayqError as error:
                yield Problem("E004", f"{path}: {error}.", "Rename the queue.")
            if not isinstance(options, dict):
                yield Problem(
                    "E003",
                    f"{path} is {show(options)}.",
                    "Give a dict of options, {} for the defaults.",
                )
                continue
            yield from _find_wrong(path, options, QueueSettings)
            if isinstance(retry := options.get("RETRY"), dict):
                yield from _find_wrong(f"{path}['RETRY']", in_capitals(retry), Backoff)
            if options.get("ENCRYPT") is True:
                yield from _check_encrypt(path, options)
            if settings_of(QueueSettings)["SHARDS"].is_fit(options.get("SHARDS")):
                yield from _check_shards(name, options, path, queues)
        yield from _check_prefix(value.get("PREFIX", ""), queues)
    worker = value.get("WORKER", {})
    if isinstance(worker, dict):
        yield from _find_wrong("DELAYQ['WORKER']", worker, WorkerSettings)


#: The dicts of ``DELAYQ``, and what each is read into.
_DICTS = {
    "DELAYQ": Settings,
    "DELAYQ['QUEUES'][name]": QueueSettings,
    "DELAYQ['WORKER']": WorkerSettings,
}


def _find_wrong(
    path: str, value: dict[Any, Any], cls: "type[DataclassInstance]"
) -> Iterator[Problem]:
    return find_wrong(path, value, cls, place_of=partial(_place_of, cls))


def _place_of(here: "type[DataclassInstance]", key: Any) -> str:
    """Say where a key belongs that is known, but not here; empty if it is not known anywhere."""
    # The option of a task has the name of what it takes.
    name = "RETRY" if key == "BACKOFF" else key
    if name in settings_of(here):
        return f"Here it is called {name}."
    for path, cls in _DICTS.items():
        if name in settings_of(cls):
            as_what = "" if name == key else f" as {name}"
            return f"It belongs in {path}{as_what}."
    return ""


def _check_prefix(prefix: Any, queues: dict[Any, Any]) -> Iterator[Problem]:
    """Yield queues that a prefix would give the name of another one."""
    if not PREFIX.is_fit(prefix) or not prefix:
        return
    bare = {
        name
        for name, options in queues.items()
        if isinstance(name, str)
        and isinstance(options, dict)
        and options.get("REDISSON") is not None
    }
    wholes = {shard[0] for shard in map(parse_shard, bare) if shard is not None}
    for name, options in queues.items():
        if not isinstance(name, str) or name in bare or not isinstance(options, dict):
            continue
        there = prefix + name
        shard = parse_shard(there)
        has_shards = options.get("SHARDS") is not None
        if there in bare or (has_shards and there in wholes):
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(name)}] is {show(there)} on the server, because of DELAYQ['PREFIX'], and"
                " another queue has that name.",
                "Rename one of the two queues, or choose another PREFIX.",
            )
        elif shard is not None and parse_shard(name) is None:
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(name)}] is {show(there)} on the server, because of DELAYQ['PREFIX'], which"
                " is the name of a"
                f" shard of {show(shard[0])}.",
                "Rename the queue, or choose a PREFIX that does not end with a colon.",
            )


def _check_encrypt(path: str, options: dict[str, Any]) -> Iterator[Problem]:
    """Yield what hinders a queue from being encrypted."""
    if options.get("REDISSON") is not None:
        yield Problem(
            "E003",
            f"{path} has both ENCRYPT and REDISSON.",
            "Remove one of them: Java could not read the jobs.",
        )
    if not has_library():
        yield Problem(
            "E003",
            f"{path} has ENCRYPT, but the library for encryption is not installed.",
            f"Run {INSTALL}, or remove ENCRYPT.",
        )


def _check_shards(
    name: Any, options: dict[str, Any], path: str, queues: dict[Any, Any]
) -> Iterator[Problem]:
    """Yield what hinders a queue from having shards."""
    shards = options.get("SHARDS")
    if shards is None or not isinstance(name, str):
        return
    if options.get("REDISSON") is not None:
        yield Problem(
            "E003",
            f"{path} has both SHARDS and REDISSON.",
            "Remove one of them: Java has no shards. To share a shard with Java, configure it as a queue of its own.",
        )
    if "{" in name or "}" in name:
        yield Problem(
            "E004",
            f"{path} has SHARDS, and braces in its name: all its shards would share one hash slot.",
            "Give it a name without braces.",
        )
    for other in queues:
        shard = parse_shard(other) if isinstance(other, str) else None
        if shard is not None and shard[0] == name:
            yield Problem(
                "E004",
                f"DELAYQ['QUEUES'][{show(other)}] has the name of a shard of queue {show(name)}.",
                "Rename one of the two queues.",
            )
    for key in ("CONCURRENCY", "MAX_JOBS"):
        total = options.get(key)
        if isinstance(total, int) and 0 < total < shards:
            yield Problem(
                "E003",
                f"{path}[{key!r}] is {total}, which {shards} shards cannot share: each needs at least 1.",
                f"Give {shards} or more, or fewer SHARDS.",
            )
    rate: Any = options.get("RATE")
    if is_rate(rate) and not is_rate(share_of_rate(rate, shards)):
        yield Problem(
            "E003",
            f"{path}['RATE'] is {show(rate)}, which {shards} shards cannot share: each starts at least one job a week.",
            "Give a higher rate, or fewer SHARDS.",
        )


def override_worker(worker: WorkerSettings, options: dict[str, Any]) -> WorkerSettings:
    """Return the settings of a worker with some options replaced. Their keys are those of ``DELAYQ["WORKER"]``.

    Raises:
        InvalidSettings: an option is out of its bounds.
    """
    _refuse(_find_wrong("the command line", options, WorkerSettings))
    return replace(worker, **read_fields(WorkerSettings, options))


def _refuse(problems: Iterable[Problem]) -> None:
    """Raise `InvalidSettings` if there are problems. The message has them all."""
    text = "\n".join(f"{problem.message} {problem.hint}" for problem in problems)
    if text:
        raise InvalidSettings(text)


def read_settings(value: Any) -> Settings:
    """Turn a value of ``DELAYQ`` into `Settings`.

    Raises:
        InvalidSettings: there are problems. The message has them all.
    """
    _refuse(find_problems(value))
    queues: dict[str, QueueSettings] = {}
    sharded: dict[str, QueueSettings] = {}
    keep = value.get("KEEP_ENDED", Settings.keep_ended)
    for name, options in (value.get("QUEUES") or {"default": {}}).items():
        # Java knows its queues by their bare names.
        is_shared = options.get("REDISSON") is not None
        queue = QueueSettings(
            name=name,
            prefix="" if is_shared else value.get("PREFIX", Settings.prefix),
            waits=options.get("DURABLE") is not False,
            **read_fields(QueueSettings, {"KEEP_ENDED": keep, **options}),
        )
        if queue.shards is None:
            queues[name] = queue
            continue
        sharded[name] = queue
        for shard in map(queue.shard, range(queue.shards)):
            queues[shard.name] = shard
    found = read_fields(Settings, value)
    return Settings(**{**found, "queues": queues, "sharded": sharded})


def hide_password() -> None:
    """Make ``settings.DELAYQ`` show neither the password of its CONNECTION nor its KEYS.

    Django's debug page and error mails hide settings by name, but no URL, and nothing in the variables of frames. The
    values stay the same strings; only their repr changes.
    """
    value = getattr(django_settings, "DELAYQ", None)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if is_secret_name(key):
            value[key] = hide(item)
        elif type(item) is str and redact_url(item) != item:
            value[key] = hide_url(item)


@cache
def get_settings() -> Settings:
    """Return the settings of this process.

    Raises:
        InvalidSettings: ``DELAYQ`` is wrong, or the app is not installed. The message says what to do.
    """
    # Without the app, nothing keeps the jobs of tests from the server of CONNECTION. Not by `is_installed`: the registry
    # may lack the app in a test with `available_apps`.
    if apps.ready and "django_delayq.apps" not in sys.modules:
        raise InvalidSettings("'django_delayq' is not in INSTALLED_APPS: add it there")
    return read_settings(getattr(django_settings, "DELAYQ", {}))


@cache
def get_keyring() -> Keyring:
    """Return the keys that sign and check jobs.

    Raises:
        InvalidSettings: there is no secret, or one is unusable.
    """
    secrets, source = get_settings().keys, "DELAYQ['KEYS']"
    if secrets is None:
        source = "SECRET_KEY and SECRET_KEY_FALLBACKS"
        if not isinstance(django_settings.SECRET_KEY_FALLBACKS, list | tuple):
            raise InvalidSettings(
                "SECRET_KEY_FALLBACKS is not a list; write it as [the old key]"
            )
        try:
            secrets = hide(
                [django_settings.SECRET_KEY, *django_settings.SECRET_KEY_FALLBACKS]
            )
        except ImproperlyConfigured as error:
            raise InvalidSettings(
                "SECRET_KEY is empty, and jobs are signed with it. Set it, or DELAYQ['KEYS']"
            ) from error
    try:
        return Keyring(secrets)
    except InvalidSettings as error:
        raise InvalidSettings(f"{source}: {error}") from None


def forget_connections(**kwargs: Any) -> None:
    """Drop the cached settings and the connections. Django calls this with ``setting_changed``."""
    setting = kwargs.get("setting", "DELAYQ")
    if setting in ("DELAYQ", "SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        get_keyring.cache_clear()
    if setting not in ("DELAYQ", "CACHES", "DEBUG", "BASE_DIR"):
        return
    hide_password()
    get_settings.cache_clear()
    own_clients.forget()


def queue_options(name: str) -> QueueOptions | None:
    """Return how `DelayedQueue` and `BlockingQueue` write the elements of a configured queue; None for others."""
    queue = get_settings().find(name)
    if queue is None:
        return None
    return QueueOptions(
        prefix=queue.prefix,
        codec=queue.payload_codec,
        frame_format=queue.frame_format,
        insertion_list=queue.keeps_list,
    )


setting_changed.connect(forget_connections, dispatch_uid="django_delayq")
