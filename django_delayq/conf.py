"""``DELAYQ`` → one frozen `Settings`.

Functions call `get_settings`; nothing reads a setting at import. The result is cached until Django says that the setting
has changed. `find_problems` collects what is wrong; ``manage.py check`` prints it, and `get_settings` raises it.
"""

import os
import sys
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

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
from django_delayq.suggestions import suggestion
from django_delayq.wire.encryption import INSTALL, has_library
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.signing import Keyring

#: The largest number in a `Backoff`: 31 years in seconds, and far from where a float overflows.
MAX_BACKOFF = 10**9


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The wait before the next attempt: ``base * factor ** (failures - 1)`` seconds, at most ``max``.

    ``jitter`` is the random part of the wait: 0.25 means between 75 % and 125 %.

    Example::

        @delayed_task(max_attempts=5, backoff=Backoff(base=1, factor=2, max=60))
        def fetch(url): ...  # waits about 1, 2, 4 and 8 s between attempts
    """

    base: float = 5.0
    factor: float = 3.0
    max: float = 3600.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        for name, is_fit, wanted in _RETRY.values():
            value = getattr(self, name)
            if not is_fit(value):
                raise InvalidSettings(f"Backoff({name}={show(value)}): give {wanted}")

    def delay_ms(self, failures: int, random: float) -> int:
        """Return the wait after a number of failures, in ms. ``random`` is between 0 and 1."""
        try:
            # A float: a whole number would grow without end, and ever more slowly.
            wait = min(self.max, self.base * float(self.factor) ** (failures - 1))
        except OverflowError:
            wait = self.max if self.base else 0.0
        jittered = wait * (1 + self.jitter * (2 * random - 1))
        return int(min(self.max, jittered) * 1000)


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """One entry of ``DELAYQ["QUEUES"]``."""

    name: str
    #: Whether the queue also keeps Redisson's list of all offered elements. None: only if REDISSON is set. Without the
    #: list, every operation takes the same time up to ten million jobs. Java can still transfer and take, but its size,
    #: contains, remove and readAll see nothing.
    insertion_list: bool | None = None
    #: Version of the Redisson that this queue is shared with; None: only Django uses it.
    redisson: str | None = None
    #: Frame format, dLc0 (up to 3.21.0) or Bc0Lc0; None: that of REDISSON, else the newer one.
    frame: str | None = None
    #: Codec of foreign payloads; None: the default of REDISSON, else JSON.
    codec: str | Codec | None = None
    #: Attempts before a job becomes a dead letter, including the first. With the waits between them the default
    #: outlasts a failure of more than two hours.
    max_attempts: int = 10
    #: Waits between attempts.
    retry: Backoff = field(default_factory=Backoff)
    #: Seconds that a task may run; None: any time.
    time_limit_s: float | None = None
    #: Seconds of waiting that count as one point of priority. None: the highest priority comes first, however long
    #: others wait.
    priority_step_s: float | None = None
    #: Jobs of the queue that run at a time, in all its workers; None: any number.
    concurrency: int | None = None
    #: How often a job of the queue starts, such as "500/s" or "10/m"; None: as often as workers can.
    rate: str | None = None
    #: Share of the claims, unless the worker has another.
    weight: int = 1
    #: Number of shards; None: the queue has no shards. They share the queue's limits.
    shards: int | None = None
    #: Number of shards that keep unique keys, limits and schedules; 0: the queue under its bare name; None: SHARDS.
    key_shards: int | None = None
    #: The queue that this shard belongs to; None: this is not a shard.
    shard_of: str | None = None
    #: Prefix of the name on the server: `Settings.prefix`, or nothing if REDISSON is set.
    prefix: str = ""
    #: Jobs that the queue may hold, whether they wait or run; None: any number. A full queue takes no new ones.
    max_jobs: int | None = None
    #: Replicas and disks that must have a job before a call that stores or changes it returns; None: none.
    durable: Durable | None = None
    #: Whether a replica must have a job before its other copy is deleted; False if DURABLE is False.
    waits: bool = True
    #: Whether arguments, results, errors and progress are encrypted on the server. It needs django-delayq[encryption].
    encrypt: bool = False
    #: Number of ended jobs that the queue keeps for `ended_jobs` and the admin; 0: none.
    keep_ended: int = 1_000
    #: Seconds to keep dead letters; None: forever.
    dead_ttl_s: float | None = 180 * 86_400.0
    #: Dead letters to keep. Beyond that number, those older than a day are deleted. None: any number.
    max_dead: int | None = None
    #: Seconds to keep quarantined foreign payloads; None: forever.
    quarantine_ttl_s: float | None = 30 * 86_400.0
    #: Seconds to keep quarantined jobs; None: forever.
    quarantined_jobs_ttl_s: float | None = None

    def shard(self, number: int) -> "QueueSettings":
        """Return the settings of a shard: a queue like any other, with its share of what the whole queue may do."""
        shards = self.shards or 1

        def share(total: int | None) -> int | None:
            # A shard that was left behind when their number was lowered still needs something.
            return None if total is None else max(1, share_of(total, number, shards))

        return replace(
            self,
            name=shard_name(self.name, number),
            shards=None,
            key_shards=None,
            shard_of=self.name,
            concurrency=share(self.concurrency),
            rate=None if self.rate is None else share_of_rate(self.rate, shards),
            max_jobs=share(self.max_jobs),
            max_dead=share(self.max_dead),
            keep_ended=-(-self.keep_ended // shards),
        )

    def bare(self) -> "QueueSettings":
        """Return the settings of what has the bare name of a queue with shards: jobs of a time without them."""
        # Its share is that of one more shard.
        return replace(self.shard(self.shards or 0), name=self.name)

    @property
    def most_shards(self) -> int:
        """How many shards may hold jobs."""
        return max(self.shards or 0, self.key_shards or 0)

    @property
    def key_home(self) -> int | None:
        """How many shards keep unique keys, limits and schedules; 0: the queue under its bare name; None: it has no shards."""
        return self.shards if self.key_shards is None else self.key_shards

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


def keys_of(queue: str) -> DeliveryKeys:
    """Return the keys of a queue; one that is not configured has its own name on the server, without PREFIX."""
    settings = get_settings().find(queue)
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


def key_homes_of(queues: Iterable[QueueSettings]) -> dict[str, int]:
    """Return how many shards keep keys, by the bare name of each queue that has shards, see `QueueSettings.key_home`."""
    sharded = get_settings().sharded
    wholes = {queue.whole: sharded.get(queue.whole) for queue in queues}
    return {
        name: whole.key_home
        for name, whole in wholes.items()
        if whole is not None and whole.key_home is not None
    }


def _payload_codec(codec: str | Codec | None, redisson: str | None) -> Codec:
    if codec is not None:
        return get_codec(codec, version=redisson)
    return get_codec(default_codec(redisson) if redisson else "json", version=redisson)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """``DELAYQ["WORKER"]``."""

    #: Worker processes.
    processes: int = 1
    #: Threads of each process that run sync tasks.
    threads: int = 8
    #: ``async def`` tasks that each process runs at once.
    coroutines: int = 100
    #: Seconds that a lease lasts. Workers renew it after a third of that time.
    lease_s: float = 30.0
    #: Seconds that running jobs have to end when the worker stops.
    grace_s: float = 25.0
    #: Times that a job may lose its worker before it becomes a dead letter.
    max_kills: int = 3
    #: Seconds that a job of an unknown task waits for a worker that knows it, before it goes to quarantine; 0: none.
    hold_unknown_s: float = 900.0
    #: Directory of a file for each process, for probes. The file exists while the process can run jobs. None: no files.
    heartbeat: str | os.PathLike[str] | None = None

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * 1000)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All of ``DELAYQ``."""

    #: Alias of a django-redis cache, or a redis-py URL; None: the embedded server, in DEBUG only.
    #: Neither its repr nor that of the settings shows the password.
    connection: str | None = None
    #: Secrets: the first signs jobs, all of them check jobs; None: SECRET_KEY and SECRET_KEY_FALLBACKS.
    keys: Sequence[str | bytes] | None = field(default=None, repr=False)
    #: Prefix of the names of all queues without REDISSON on the server, and of other keys of the project.
    prefix: str = ""
    #: Directory for .delayq, the folder with the embedded server's data; None: BASE_DIR, else the current directory.
    embedded_dir: Path | None = None
    #: The queues that hold jobs: queues without shards, and the shards of the others.
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    #: The queues that consist of shards. Such a queue may hold older jobs under its bare name.
    sharded: Mapping[str, QueueSettings] = field(default_factory=dict)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    #: Largest payload that may be scheduled, bytes.
    max_payload_bytes: int = 1 << 20
    #: Largest foreign payload that is decoded, bytes. Larger ones go to quarantine.
    max_foreign_bytes: int = 8 << 20
    #: Whether jobs of a transaction are sent after its commit, unless a task or a call says otherwise.
    on_commit: bool = True
    #: True: jobs are rows of the caller's transaction, unless a task or a call says otherwise. It needs the app
    #: django_delayq.outbox.
    outbox: bool = False
    #: Seconds that the server must have had a job before a worker deletes its row: more than the server may lose.
    outbox_keep_s: float = 3.0
    #: Number of ended jobs that each queue keeps, unless the queue has its own KEEP_ENDED; 0: none.
    keep_ended: int = 1_000
    #: Number of tasks with statistics in each queue; further tasks count as one task, ``other``. 0: no statistics.
    statistics: int = 1_000
    #: Tokens that read the metrics, sent as ``Authorization: Bearer …``. Without any, only staff reads them.
    metrics_tokens: Sequence[str] = field(default=(), repr=False)
    #: Modules that define tasks, imported in addition to the ``tasks`` module of each app.
    modules: tuple[str, ...] = ()
    #: Dotted paths of middleware, the outermost first, as in Django's MIDDLEWARE.
    middleware: tuple[str, ...] = ()
    #: Dotted paths of contexts that travel with each job, such as "django_delayq.context.Locale".
    context: tuple[str, ...] = ()
    #: Mode in tests: jobs are ``captured``, run at once (``immediate``), or go to the tests' own ``server`` or to the
    #: ``connection`` of the settings.
    test: str = "captured"

    def queue(self, name: str) -> QueueSettings:
        """Return the settings of a queue that holds jobs, by the name with which a job's id begins.

        Raises:
            QueueNotFound: neither the queue nor what it is a shard of is in ``DELAYQ["QUEUES"]``.
        """
        try:
            return self.queues[name]
        except KeyError:
            found = self._left_behind(name)
            if found is None:
                raise self._not_found(name) from None
            return found

    def find(self, name: str) -> QueueSettings | None:
        """Return what `queue` returns, or None."""
        found = self.queues.get(name)
        return self._left_behind(name) if found is None else found

    def queues_of(self, *names: str | None) -> list[QueueSettings]:
        """Return the queues that hold the jobs of queues: each itself, or its shards; without a name, those of every queue.

        Raises:
            QueueNotFound: see `queue`.
        """
        found: dict[str, QueueSettings] = {}
        for name in [each for each in names if each is not None] or self.names:
            whole = self.sharded.get(name)
            for queue in [self.queue(name)] if whole is None else self.parts_of(whole):
                found[queue.name] = queue
        return list(found.values())

    def parts_of(self, whole: QueueSettings) -> list[QueueSettings]:
        """Return the shards of a queue, and last what it may hold under its bare name."""
        numbers = range(whole.most_shards)
        shards = [self.queues[shard_name(whole.name, number)] for number in numbers]
        return [*shards, whole.bare()]

    def shard_of_token(self, whole: QueueSettings, token: str) -> QueueSettings:
        """Return the shard of a job that no key holds in another."""
        assert whole.shards is not None
        return self.queues[shard_name(whole.name, shard_of(token, whole.shards))]

    def shard_of_key(self, whole: QueueSettings, key: str) -> QueueSettings:
        """Return the shard that a unique key, a limit or a schedule leads to."""
        shards = whole.key_home
        if not shards:
            return whole.bare()
        return self.queues[shard_name(whole.name, shard_of(key, shards))]

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
        found = self.find(name)
        return name if found and found.prefix + name == on_server else on_server

    def whole(self, name: str) -> str:
        """Return the name of a queue as DELAYQ['QUEUES'] has it, if this is a shard of it; else the name as it is."""
        found = self.find(name) if isinstance(name, str) else None
        return name if found is None else found.whole

    def _left_behind(self, name: object) -> QueueSettings | None:
        """Return the settings of what holds jobs of another number of shards than that of the settings."""
        if not isinstance(name, str):
            return None
        if name in self.sharded:
            # The queue had no shards once, or still has none where older settings are in force.
            return self.sharded[name].bare()
        shard = parse_shard(name)
        if shard is None:
            return None
        queue, number = shard
        whole = self.sharded.get(queue) or self.queues.get(queue)
        return None if whole is None else whole.shard(number)

    def _not_found(self, name: str) -> QueueNotFound:
        return QueueNotFound(
            f"queue {show(name)} is not configured; DELAYQ['QUEUES'] has {', '.join(map(repr, sorted(self.names)))}."
            + suggestion(name, self.names)
            + f" Add {show(name)}: {{}} to DELAYQ['QUEUES'], or correct the name."
        )


# The tables of the settings: key in DELAYQ → field, check, what the check wants.
_Check = Callable[[Any], bool]


class Problem(NamedTuple):
    """A problem in ``DELAYQ``: where and what it is, and what to do."""

    id: str
    message: str
    hint: str


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


#: Seconds of the longest time limit: thirty years. A thread can wait for three hundred.
LONGEST_S = 10**9
#: Seconds of the shortest lease. It is renewed at a third, and a busy machine may pause a process for that long.
SHORTEST_LEASE_S = 2.0
#: Seconds of the longest lease. The jobs of a dead machine wait that long for another.
LONGEST_LEASE_S = 86_400
#: Seconds of the longest hold of a job whose task is unknown: 30 days.
LONGEST_HOLD_S = 2_592_000
#: Seconds of the shortest time to keep what was given up. A smaller number was meant as days.
SHORTEST_TTL_S = 3_600
#: Seconds of the longest `OUTBOX_KEEP`: until then, workers look at each row again and again.
LONGEST_KEEP_S = 300
#: Characters of the shortest secret.
SHORTEST_SECRET = 16
#: The largest weight of a queue, in the settings and on the worker's command line.
LARGEST_WEIGHT = 1_000
#: Characters of the longest prefix of queues. Each key has it.
LONGEST_PREFIX = 64
#: Bytes of the largest payload. A script that moves more holds the server for half a second.
LARGEST_PAYLOAD = 64 << 20


def _is_count(least: int, most: int) -> _Check:
    return lambda value: (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value <= most
    )


def _is_number(least: float, most: float) -> _Check:
    return lambda value: (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and least <= value <= most
    )


def _optional(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _is_directory(value: Any) -> bool:
    return value is None or (isinstance(value, str | os.PathLike) and str(value) != "")


def _read_backoff(value: Backoff | dict[str, Any]) -> Backoff:
    if isinstance(value, Backoff):
        return value
    return Backoff(
        **{_RETRY[key][0]: item for key, item in _in_capitals(value).items()}
    )


def _in_capitals(retry: dict[Any, Any]) -> dict[Any, Any]:
    # The keys of RETRY may be written like the arguments of a Backoff. Unknown keys stay as they are.
    return {
        name if (name := str(key).upper()) in _RETRY else key: item
        for key, item in retry.items()
    }


def _is_frame(value: Any) -> bool:
    return value in [item.value for item in FrameFormat]


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


def _is_keys(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(
            isinstance(item, str | bytes) and len(item) >= SHORTEST_SECRET
            for item in value
        )
    )


def _are_tokens(value: Any) -> bool:
    # Others cannot be sent in a header.
    return isinstance(value, list | tuple) and all(
        isinstance(item, str)
        and len(item) >= SHORTEST_SECRET
        and all("!" <= character <= "~" for character in item)
        for item in value
    )


def _is_connection(value: Any) -> bool:
    if not isinstance(value, str) or "://" not in value:
        return isinstance(value, str) and value != ""
    return is_readable(value)


#: What `is_prefix` wants.
PREFIX_WANTED = f"a string of at most {LONGEST_PREFIX} characters without spaces and braces, such as 'shop-', or '' for none"


def is_prefix(value: Any) -> bool:
    """Return whether this may go before the names of queues."""
    # Of a name with braces a cluster hashes only a part, which would put all queues into one slot.
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_PREFIX
        and (value + "_").isprintable()
        and not any(char in "{} " for char in value)
    )


def _are_paths(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(item, str) and "." in item.strip(".") for item in value
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(item, str) and all(part.isidentifier() for part in item.split("."))
        for item in value
    )


#: What jobs may do in tests; see `Settings.test`.
TEST_MODES = ("captured", "immediate", "frozen", "server", "connection")

_is_keep_ended = _is_count(0, MOST_ENDED)
_KEEP_ENDED = f"a number of jobs, 0 to {MOST_ENDED:,}"
_TOP: dict[str, tuple[str, _Check, str]] = {
    "CONNECTION": (
        "connection",
        _optional(_is_connection),
        "the alias of a django-redis cache, or a URL that redis-py reads, such as"
        " 'redis://localhost:6379/0': port and database are numbers, parameters those of redis-py, special"
        " characters in a password are encoded (# as %23); or a URL of Sentinels, such as"
        " 'redis+sentinel://host1:26379,host2:26379/mymaster/0'; or a URL of a cluster, such as"
        " 'redis+cluster://host1:7000,host2:7001', which has only database 0",
    ),
    "KEYS": (
        "keys",
        _optional(_is_keys),
        f"a list of secrets, the one to sign with first, each a string of at least {SHORTEST_SECRET} characters,"
        " or None for SECRET_KEY and SECRET_KEY_FALLBACKS",
    ),
    "EMBEDDED_DIR": (
        "embedded_dir",
        _optional(lambda value: isinstance(value, str | os.PathLike)),
        "a folder",
    ),
    "QUEUES": (
        "queues",
        lambda value: isinstance(value, dict),
        "a dict of queue names to dicts of options",
    ),
    "PREFIX": (
        "prefix",
        is_prefix,
        PREFIX_WANTED,
    ),
    "WORKER": ("worker", lambda value: isinstance(value, dict), "a dict of options"),
    "TEST": (
        "test",
        lambda value: value in TEST_MODES,
        f"what jobs do in tests, one of {', '.join(map(repr, TEST_MODES))}",
    ),
    "MAX_PAYLOAD_BYTES": (
        "max_payload_bytes",
        _is_count(128, LARGEST_PAYLOAD),
        f"a number of bytes, 128 to {LARGEST_PAYLOAD:,}",
    ),
    "MAX_FOREIGN_BYTES": (
        "max_foreign_bytes",
        _is_count(1, LARGEST_PAYLOAD),
        f"a number of bytes, 1 to {LARGEST_PAYLOAD:,}",
    ),
    "ON_COMMIT": ("on_commit", _is_bool, "True or False"),
    "OUTBOX": ("outbox", _is_bool, "True or False"),
    "OUTBOX_KEEP": (
        "outbox_keep_s",
        _is_number(0, LONGEST_KEEP_S),
        f"a number of seconds, 0 to {LONGEST_KEEP_S}",
    ),
    "KEEP_ENDED": ("keep_ended", _is_keep_ended, _KEEP_ENDED),
    "STATISTICS": (
        "statistics",
        _is_count(0, MOST_TASKS),
        f"a number of tasks, 1 to {MOST_TASKS:,}, or 0 for no statistics",
    ),
    "METRICS_TOKENS": (
        "metrics_tokens",
        _are_tokens,
        f"a list of strings of at least {SHORTEST_SECRET} printable ASCII characters without spaces, such as"
        " secrets.token_urlsafe() returns",
    ),
    "MODULES": (
        "modules",
        _are_names,
        "a list of modules, such as 'shop.jobs'",
    ),
    "MIDDLEWARE": (
        "middleware",
        _are_paths,
        "a list of dotted paths, such as 'shop.middleware.timed'",
    ),
    "CONTEXT": (
        "context",
        _are_paths,
        "a list of dotted paths, such as 'django_delayq.context.Locale'",
    ),
}
_RETRY: dict[str, tuple[str, _Check, str]] = {
    "BASE": (
        "base",
        _is_number(0, MAX_BACKOFF),
        f"a number of seconds, 0 to {MAX_BACKOFF:,}",
    ),
    "FACTOR": (
        "factor",
        _is_number(1, MAX_BACKOFF),
        f"a number, 1 to {MAX_BACKOFF:,}; below 1 the waits would shrink",
    ),
    "MAX": (
        "max",
        _is_number(0, MAX_BACKOFF),
        f"a number of seconds, 0 to {MAX_BACKOFF:,}",
    ),
    "JITTER": ("jitter", _is_number(0, 1), "a share, 0 to 1"),
}
_is_ttl = _optional(_is_number(SHORTEST_TTL_S, 100 * 365 * 86_400))
_TTL = f"a number of seconds, {SHORTEST_TTL_S:,} or more, or None"
_QUEUE: dict[str, tuple[str, _Check, str]] = {
    "INSERTION_LIST": (
        "insertion_list",
        _optional(_is_bool),
        "True, False, or None for the default, which depends on REDISSON",
    ),
    "REDISSON": (
        "redisson",
        _optional(_is_redisson),
        "a version of Redisson such as '3.16.6', 3.2.0 or later",
    ),
    "FRAME": (
        "frame",
        _optional(_is_frame),
        "'dLc0' (Redisson up to 3.21.0) or 'Bc0Lc0' (3.21.1 and later)",
    ),
    "CODEC": (
        "codec",
        _optional(_is_codec),
        "the name of a codec such as 'StringCodec', or a codec",
    ),
    "MAX_ATTEMPTS": (
        "max_attempts",
        _is_count(1, 1_000_000),
        "a number of attempts, 1 to 1,000,000",
    ),
    "RETRY": (
        "retry",
        lambda value: isinstance(value, Backoff | dict),
        "a Backoff, or a dict such as {'BASE': 5, 'FACTOR': 3, 'MAX': 3600, 'JITTER': 0.25} (seconds)",
    ),
    "TIME_LIMIT": (
        "time_limit_s",
        _optional(_is_number(0.001, LONGEST_S)),
        f"a number of seconds, 0.001 to {LONGEST_S:,}, or None",
    ),
    "PRIORITY_STEP": (
        "priority_step_s",
        _optional(_is_number(0.001, LONGEST_S)),
        f"a number of seconds, 0.001 to {LONGEST_S:,}, or None for the highest priority first",
    ),
    "CONCURRENCY": (
        "concurrency",
        _optional(is_concurrency),
        f"a number of jobs at a time, 1 to {MOST_AT_A_TIME:,}, or None for any number",
    ),
    "RATE": ("rate", _optional(is_rate), f"{RATE_WANTED}; or None"),
    "WEIGHT": (
        "weight",
        _is_count(1, LARGEST_WEIGHT),
        f"a whole number, 1 to {LARGEST_WEIGHT:,}",
    ),
    "SHARDS": (
        "shards",
        _optional(_is_count(1, MOST_SHARDS)),
        f"a number of shards, 1 to {MOST_SHARDS}, or None for a queue without shards",
    ),
    "KEY_SHARDS": (
        "key_shards",
        _optional(_is_count(0, MOST_SHARDS)),
        f"a number of shards, 0 to {MOST_SHARDS}, or None for the value of SHARDS",
    ),
    "MAX_JOBS": (
        "max_jobs",
        _optional(_is_count(1, 10**9)),
        "a number of jobs, 1 to 1,000,000,000, or None for any number",
    ),
    "DURABLE": ("durable", _optional(is_durability), f"{DURABLE_WANTED} or None"),
    "ENCRYPT": ("encrypt", _is_bool, "True or False"),
    "KEEP_ENDED": ("keep_ended", _is_keep_ended, _KEEP_ENDED),
    "DEAD_TTL": ("dead_ttl_s", _is_ttl, _TTL),
    "MAX_DEAD": (
        "max_dead",
        _optional(_is_count(1, 10**9)),
        "a number of dead letters, 1 to 1,000,000,000, or None",
    ),
    "QUARANTINE_TTL": ("quarantine_ttl_s", _is_ttl, _TTL),
    "QUARANTINED_JOBS_TTL": ("quarantined_jobs_ttl_s", _is_ttl, _TTL),
}
_WORKER: dict[str, tuple[str, _Check, str]] = {
    "PROCESSES": ("processes", _is_count(1, 512), "a number of processes, 1 to 512"),
    "THREADS": ("threads", _is_count(1, 1_000), "a number of threads, 1 to 1,000"),
    "COROUTINES": (
        "coroutines",
        _is_count(1, 10_000),
        "a number of coroutines, 1 to 10,000",
    ),
    "LEASE": (
        "lease_s",
        _is_number(SHORTEST_LEASE_S, LONGEST_LEASE_S),
        f"a number of seconds, {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:,}",
    ),
    "GRACE": (
        "grace_s",
        _is_number(0, LONGEST_LEASE_S),
        f"a number of seconds, 0 to {LONGEST_LEASE_S:,}",
    ),
    "MAX_KILLS": ("max_kills", _is_count(0, 1_000), "a number, 0 to 1,000"),
    "HOLD_UNKNOWN": (
        "hold_unknown_s",
        _is_number(0, LONGEST_HOLD_S),
        f"a number of seconds, 0 to {LONGEST_HOLD_S:,}",
    ),
    "HEARTBEAT": ("heartbeat", _is_directory, "the path of a directory, or None"),
}


def find_problems(value: Any) -> Iterator[Problem]:
    """Yield the problems in a value of ``DELAYQ``."""
    if not isinstance(value, dict):
        yield Problem(
            "E001",
            f"DELAYQ is {show(value)}, of type {type(value).__name__}.",
            "Make it a dict, as in docs/settings.md.",
        )
        return
    yield from _check_keys("DELAYQ", value, _TOP)
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
            yield from _check_keys(path, options, _QUEUE)
            if isinstance(retry := options.get("RETRY"), dict):
                yield from _check_keys(f"{path}['RETRY']", _in_capitals(retry), _RETRY)
            if options.get("ENCRYPT") is True:
                yield from _check_encrypt(path, options)
            if _QUEUE["SHARDS"][1](options.get("SHARDS")):
                yield from _check_shards(name, options, path, queues)
        yield from _check_prefix(value.get("PREFIX", ""), queues)
    worker = value.get("WORKER", {})
    if isinstance(worker, dict):
        yield from _check_keys("DELAYQ['WORKER']", worker, _WORKER)


def _check_prefix(prefix: Any, queues: dict[Any, Any]) -> Iterator[Problem]:
    """Yield queues that a prefix would give the name of another one."""
    if not is_prefix(prefix) or not prefix:
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
    if shards is None:
        if options.get("KEY_SHARDS") is not None:
            yield Problem(
                "E003",
                f"{path} has KEY_SHARDS, but no SHARDS.",
                "Give SHARDS as well: 1 is a queue of one shard.",
            )
        return
    if not isinstance(name, str):
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


def _check_keys(
    path: str, value: dict[Any, Any], known: dict[str, tuple[str, _Check, str]]
) -> Iterator[Problem]:
    for key, item in value.items():
        if key not in known:
            yield Problem(
                "E002",
                f"{path} has an unknown key {show(key)}.",
                _place_of(key, known)
                or suggestion(key, known).strip()
                or f"Known are {', '.join(known)}.",
            )
        elif not known[key][1](item):
            yield Problem(
                "E003",
                f"{path}[{key!r}] is {_show_setting(key, item)}.",
                f"Give {known[key][2]}.",
            )


def _place_of(key: Any, known: Collection[str]) -> str:
    """Say where a key belongs that is known, but not here; empty if it is not known anywhere."""
    # The option of a task has the name of what it takes.
    name = "RETRY" if key == "BACKOFF" else key
    if name in known:
        return f"Here it is called {name}."
    for path, keys in (
        ("DELAYQ", _TOP),
        ("DELAYQ['QUEUES'][name]", _QUEUE),
        ("DELAYQ['WORKER']", _WORKER),
    ):
        if name in keys:
            as_what = "" if name == key else f" as {name}"
            return f"It belongs in {path}{as_what}."
    return ""


def _show_setting(key: str, value: Any) -> str:
    # Not by `show`: a URL may be too mangled to be recognised.
    if key == "CONNECTION" and isinstance(value, str):
        return repr(redact_url(value))
    if key in ("KEYS", "METRICS_TOKENS"):
        return _describe_secrets(value)
    return show(value)


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


def override_worker(worker: WorkerSettings, options: dict[str, Any]) -> WorkerSettings:
    """Return the settings of a worker with some options replaced. Their keys are those of ``DELAYQ["WORKER"]``.

    Raises:
        InvalidSettings: an option is out of its bounds.
    """
    problems = list(_check_keys("the command line", options, _WORKER))
    if problems:
        raise InvalidSettings(
            "\n".join(f"{problem.message} {problem.hint}" for problem in problems)
        )
    return replace(worker, **{_WORKER[key][0]: value for key, value in options.items()})


def _read(
    cls: type,
    value: dict[str, Any],
    known: dict[str, tuple[str, _Check, str]],
    **extra: Any,
) -> Any:
    return cls(
        **{
            known[key][0]: item
            for key, item in value.items()
            if known[key][0] not in extra
        },
        **extra,
    )


def read_settings(value: Any) -> Settings:
    """Turn a value of ``DELAYQ`` into `Settings`.

    Raises:
        InvalidSettings: there are problems. The message has them all.
    """
    problems = list(find_problems(value))
    if problems:
        raise InvalidSettings(
            "\n".join(f"{problem.message} {problem.hint}" for problem in problems)
        )
    queues: dict[str, QueueSettings] = {}
    sharded: dict[str, QueueSettings] = {}
    keep = value.get("KEEP_ENDED", Settings.keep_ended)
    prefix = value.get("PREFIX", Settings.prefix)
    for name, options in (value.get("QUEUES") or {"default": {}}).items():
        read: dict[str, Any] = {}
        if "RETRY" in options:
            read["retry"] = _read_backoff(options["RETRY"])
        if options.get("DURABLE") is not None:
            read["durable"] = as_durable(options["DURABLE"])
            read["waits"] = options["DURABLE"] is not False
        options = {"KEEP_ENDED": keep, **options}
        if options.get("REDISSON") is None:
            # Java knows the others by their bare names.
            read["prefix"] = prefix
        queue = _read(QueueSettings, options, _QUEUE, name=name, **read)
        if queue.shards is None:
            queues[name] = queue
            continue
        sharded[name] = queue
        for shard in map(queue.shard, range(queue.most_shards)):
            queues[shard.name] = shard
    directory = value.get("EMBEDDED_DIR")
    return Settings(
        connection=hide_url(value.get("CONNECTION")),
        keys=hide(value.get("KEYS")),
        prefix=prefix,
        embedded_dir=Path(directory) if directory is not None else None,
        queues=queues,
        sharded=sharded,
        worker=_read(WorkerSettings, value.get("WORKER", {}), _WORKER),
        max_payload_bytes=value.get("MAX_PAYLOAD_BYTES", Settings.max_payload_bytes),
        max_foreign_bytes=value.get("MAX_FOREIGN_BYTES", Settings.max_foreign_bytes),
        on_commit=value.get("ON_COMMIT", Settings.on_commit),
        outbox=value.get("OUTBOX", Settings.outbox),
        outbox_keep_s=value.get("OUTBOX_KEEP", Settings.outbox_keep_s),
        keep_ended=keep,
        statistics=value.get("STATISTICS", Settings.statistics),
        metrics_tokens=hide(value.get("METRICS_TOKENS", ())),
        modules=tuple(value.get("MODULES", ())),
        middleware=tuple(value.get("MIDDLEWARE", ())),
        context=tuple(value.get("CONTEXT", ())),
        test=value.get("TEST", Settings.test),
    )


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


def setting_names() -> dict[str, str]:
    """Return the path and the field of every setting, for the test that compares docs/settings.md with the code."""
    names = {f"DELAYQ['{key}']": f"Settings.{item[0]}" for key, item in _TOP.items()}
    names |= {
        f"DELAYQ['QUEUES'][name]['{key}']": f"QueueSettings.{item[0]}"
        for key, item in _QUEUE.items()
    }
    names |= {
        f"DELAYQ['WORKER']['{key}']": f"WorkerSettings.{item[0]}"
        for key, item in _WORKER.items()
    }
    known = {
        f"{cls.__name__}.{item.name}"
        for cls in (Settings, QueueSettings, WorkerSettings)
        for item in fields(cls)
    }
    assert set(names.values()) <= known
    return names


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
