"""``DELAYQ`` → one frozen `Settings`.

The key of a setting is the name of its field in capitals, without the unit: ``HOLD_UNKNOWN`` is `hold_unknown_s`.

Functions call `get_settings`; nothing reads a setting at import. The result is cached until Django says that the setting
has changed. `find_problems` collects what is wrong; ``manage.py check`` prints it, and `get_settings` raises it. `setting_values`
has the values of each setting, and `queue_conflicts` says which options of queues do not go together.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_delayq.backoff import Backoff, in_capitals
from django_delayq.codecs import Codec, default_codec, get_codec
from django_delayq.core.bounds import MOST_TASKS
from django_delayq.core.durability import Durable
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.rates import limit_text, share_of_rate
from django_delayq.core.shards import MOST_SHARDS, shard_name, shard_of, share_of
from django_delayq.core.store import Target
from django_delayq.core.worker_registry import RegistryKeys
from django_delayq.exceptions import DelayqError, InvalidSettings, QueueNotFound
from django_delayq.queue_conflicts import (
    find_encrypt_conflicts,
    find_prefix_conflicts,
    find_shards_conflicts,
)
from django_delayq.queues.queue_options import QueueOptions
from django_delayq.redaction import hide, hide_url, is_secret_name, redact_url, show
from django_delayq.setting_fields import (
    BOOLEAN,
    Problem,
    count,
    declare,
    dict_of,
    find_wrong,
    read_fields,
    seconds,
    setting,
    settings_of,
)
from django_delayq.setting_values import (
    ATTEMPTS,
    CODEC,
    CONCURRENCY,
    CONNECTION,
    DIRECTORY,
    DURABLE,
    FRAME,
    KEPT_JOBS,
    LARGEST_PAYLOAD,
    LIMIT_S,
    LONGEST_HOLD_S,
    LONGEST_KEEP_S,
    LONGEST_LEASE_S,
    MODULES,
    MOST_JOBS,
    PREFIX,
    RATE,
    REDISSON,
    RETRY,
    SECRETS,
    SHORTEST_LEASE_S,
    TEST_MODE,
    TOKENS,
    TTL,
    WEIGHT,
    paths,
)
from django_delayq.suggestions import suggestion
from django_delayq.transport.clients import own_clients
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.signatures import Keyring

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """One entry of ``DELAYQ["QUEUES"]``."""

    name: str
    #: Attempts before a job becomes a dead letter, the first included. With the waits between them, the default
    #: outlasts a failure of more than two hours.
    max_attempts: int = setting(10, ATTEMPTS)
    #: Waits between attempts, see [Retries](#retries): some of these keys, or a `Backoff`.
    retry: Backoff = setting(Backoff(), RETRY)
    #: How long one [attempt](#what-a-time-limit-does) may run.
    time_limit_s: float | None = setting(None, LIMIT_S, "any time")
    #: How often a busy worker serves this queue first, compared to its others: 5 means five times as often as 1.
    #: `--queue` overrides it.
    weight: int = setting(1, WEIGHT)
    #: Seconds of waiting that are worth one point of [priority](howto/priorities.md).
    priority_step_s: float | None = setting(None, LIMIT_S, "the highest priority first")
    #: How many jobs of the queue run at a time in all workers; see [limits](howto/limits.md).
    concurrency: int | None = setting(None, CONCURRENCY, "any number")
    #: How often a job of the queue starts; see [limits](howto/limits.md).
    rate: str | None = setting(None, RATE, "any rate")
    #: How many jobs the queue may hold, waiting or running. When it is full, `schedule()` raises
    #: [`QueueFull`](howto/limits-on-size.md#jobs-of-a-queue).
    max_jobs: int | None = setting(None, count(1, MOST_JOBS, "jobs"), "any number")
    #: Which replicas and disks must have a job before a call [returns](howto/durability.md); else it raises
    #: `NotDurable`. With `False`, neither the [outbox](howto/outbox.md#before-a-row-is-deleted) nor
    #: [moves](howto/move-servers.md) wait for a replica either.
    durable: Durable | None = setting(None, DURABLE, "the memory of the primary")
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
    redisson: str | None = setting(None, REDISSON, "a queue that only Django uses")
    #: The [codec](codecs.md) of payloads that Java or a `DelayedQueue` puts into the queue. An object has `name`,
    #: `encode` and `decode`. You can [change it](codecs.md#changing-the-codec-of-a-queue) while jobs wait.
    codec: str | Codec | None = setting(
        None,
        CODEC,
        "the default of REDISSON, else 'json'",
    )
    #: [Frame format](wire-format.md#frame).
    frame: str | None = setting(None, FRAME, "that of REDISSON, else 'Bc0Lc0'")
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
    test: str = setting("captured", TEST_MODE)
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
    modules: tuple[str, ...] = setting((), MODULES)
    #: Dotted paths of [middleware](howto/middleware.md), the outermost first.
    middleware: tuple[str, ...] = setting((), paths("shop.middleware.timed"))
    #: Dotted paths of [contexts](howto/context.md) that travel with each job.
    context: tuple[str, ...] = setting((), paths("django_delayq.context.Locale"))
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
                yield from find_encrypt_conflicts(path, options)
            if settings_of(QueueSettings)["SHARDS"].is_fit(options.get("SHARDS")):
                yield from find_shards_conflicts(name, options, path, queues)
        yield from find_prefix_conflicts(value.get("PREFIX", ""), queues)
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


def key_ids() -> list[str] | None:
    """Return the ids of the keys, or None if the keys are wrong, which ``manage.py check`` reports."""
    try:
        return get_keyring().ids
    except DelayqError:
        return None


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
