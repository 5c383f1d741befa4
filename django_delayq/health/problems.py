"""Checks a live server before a worker relies on it: version, memory, persistence, role, rights, keys.

The checks take a few round trips and a few milliseconds, however much waits in the queues. ``facts`` and ``rights``
ask the server; this module says what the answers mean. The caller decides what to do about a problem. Nothing here
knows Django.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple

from redis.client import Redis
from redis.exceptions import MovedError, NoPermissionError, ResponseError

from django_delayq.calls.connections import arguments_of
from django_delayq.calls.errors import LOST, is_of_node
from django_delayq.calls.running import run
from django_delayq.calls.several import run_all
from django_delayq.delivery import holding, looking, pausing, prefixes
from django_delayq.delivery.durability import Durable, Told, refusal
from django_delayq.delivery.forwarding import Forwards
from django_delayq.delivery.holding import HeldNames
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.delivery.looking import Counts
from django_delayq.delivery.pausing import Pause
from django_delayq.delivery.reasons import Kind
from django_delayq.delivery.sharding import (
    Held,
    Part,
    parse_shard,
    read_shards,
    shard_keys,
    words_of,
)
from django_delayq.delivery.states import State
from django_delayq.delivery.workers import RegistryKeys
from django_delayq.exceptions import EncodeError
from django_delayq.faults import Fault, describe_fault
from django_delayq.health.facts import Facts, ask_each
from django_delayq.health.rights import Rights, kinds_of
from django_delayq.wire import signing
from django_delayq.wording import gettext, ngettext, sentence

#: An insertion list of more frames than this slows the server: one scan of it takes 3 ms.
LONG_LIST = 100_000
#: From this share of its jobs on, a queue of limited size is nearly full.
NEARLY_FULL = 0.9
#: From this share of its memory on, a server is nearly full.
NEARLY_OUT_OF_MEMORY = 0.9
#: Clocks that are further apart than this are told of: a job for a moment of the day begins by the server's.
CLOCK_SKEW_MS = 2_000
#: A due job that has waited for so long shows that nobody takes it; a worker takes it within 2 s, and a look lasts.
UNSERVED_MS = 5_000
#: From this lateness on, a queue that is served is late.
LATE_MS = 60_000
#: A worker forwards at once, and looks every few seconds for what others have left.
NOT_FORWARDED_MS = 15_000
#: Jobs of each state that show who has signed the jobs of a queue.
SAMPLE = 10
#: The same for a place in which most jobs may be another project's.
LARGE_SAMPLE = 100
#: The states of jobs that wait or run.
ALIVE = (State.SCHEDULED, State.DUE, State.RUNNING, State.RETRYING, State.HELD)
#: How long the check waits for replicas.
WAIT_S = 0.5
#: The oldest servers that know every command of ours.
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}


class Level(StrEnum):
    """How bad a problem is."""

    #: Jobs will be lost, or not run at all.
    ERROR = "error"
    #: Works, until something happens.
    WARNING = "warning"
    #: Could not be found out.
    INFO = "info"


#: What a node of a cluster says where another has the slot, without its first word.
_MOVED = re.compile(r"\d+ \S*:\d+$")


class ServerProblem(NamedTuple):
    """Something about the server to know before relying on it."""

    level: Level
    message: str
    hint: str
    #: No worker may start with it.
    is_fatal: bool = False


def find_server_problems(
    client: "Redis",
    queues: Iterable[str],
    *,
    key_ids: Collection[str] | None = None,
    max_jobs: Mapping[str, int] | None = None,
    durable: Mapping[str, Durable] | None = None,
    shards: Mapping[str, int] | None = None,
    prefix: str = "",
    keys_of: Callable[[str], DeliveryKeys] = DeliveryKeys.of,
) -> list[ServerProblem]:
    """Find the problems that a server has with these queues, given by name; the worst comes first.

    ``key_ids`` are the ids of this project's keys. With None, nothing looks for jobs signed with other keys.
    ``max_jobs`` says how many jobs a queue may hold, by name, if that is limited. ``durable`` says what its calls wait
    for, if they do. ``shards`` says how many shards a queue has, by its name in the settings.
    ``prefix`` is that of the settings, and ``keys_of`` returns the keys of a queue.

    Raises:
        redis.exceptions.ConnectionError: the server does not answer, or does not let us in.
    """
    each = ask_each(client)
    facts = each[0]
    others = find_other_shards(client, shards or {}, keys_of)
    # Where others closed a part, a key has another type.
    keys = [keys_of(name) for name in queues if _whole_of(name) not in others]
    # The nodes of a cluster are likely to have the same ones.
    problems = list(
        dict.fromkeys(
            problem
            for one in each
            for find in (find_in_facts, _persistence, _unknowns)
            for problem in find(one)
        )
    )
    if keys:
        rights = Rights(client, keys, facts, RegistryKeys.of(prefix))
        rights.find()
        problems += _missing_rights(rights)
        if rights.is_read_only and not facts.role:
            facts.role = "replica"
            problems += find_role(facts)
        if not rights.unreadable and not rights.mistyped:
            problems += _formats(client, keys)
            if key_ids is not None:
                problems += _missing_keys(client, keys, key_ids)
                problems += _strangers(client, keys, key_ids)
                problems += _left_behind(client, keys, key_ids, prefix)
            problems += _nearly_full(client, keys, max_jobs or {})
            problems += _paused(client, keys)
    problems += others.values()
    problems += _not_durable(client, durable or {})
    order = list(Level)
    return sorted(problems, key=lambda problem: order.index(problem.level))


# What the server says about itself


def find_in_facts(facts: Facts) -> Iterator[ServerProblem]:
    """Report what a server's word about itself shows: all but its persistence, which is a matter of choice."""
    yield from _version(facts)
    yield from find_role(facts)
    yield from _memory(facts)
    yield from _nearly_out_of_memory(facts)
    yield from _clock_skew(facts)


def _version(facts: Facts) -> Iterator[ServerProblem]:
    if facts.version and facts.version < (oldest := OLDEST[facts.product]):
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "The server is {product} {version}. The oldest supported version is {product} {oldest}.",
                product=facts.product,
                version=".".join(map(str, facts.version)),
                oldest=".".join(map(str, oldest)),
            ),
            gettext("Use a newer server: Redis 6.2 or later, or Valkey 7.2 or later."),
        )


def find_role(facts: Facts) -> Iterator[ServerProblem]:
    """Report a server that is no primary."""
    if facts.role not in ("", "primary"):
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "The server is a {role}: it refuses writes, or loses them with the next synchronisation.",
                role=facts.role,
            ),
            gettext("Name the primary in DELAYQ['CONNECTION']."),
        )


def _memory(facts: Facts) -> Iterator[ServerProblem]:
    hint = gettext(
        "Set maxmemory-policy to noeviction: a full server then refuses new jobs instead of dropping old ones."
    )
    named: dict[str, str | int] = {
        "policy": facts.policy,
        "limit": facts.maxmemory or 0,
    }
    is_known = facts.maxmemory is not None
    if facts.policy.startswith("allkeys-"):
        if facts.maxmemory == 0:
            yield ServerProblem(
                Level.WARNING,
                gettext(
                    "maxmemory-policy is {policy!r}: as soon as maxmemory is set, the server may drop whole queues.",
                    **named,
                ),
                hint,
            )
        else:
            yield ServerProblem(
                Level.ERROR,
                gettext(
                    "maxmemory-policy is {policy!r} and maxmemory is {limit:,} bytes: a full server drops whole queues.",
                    **named,
                )
                if is_known
                else gettext(
                    "maxmemory-policy is {policy!r}: a full server drops whole queues.",
                    **named,
                ),
                hint,
            )
    elif facts.policy.startswith("volatile-") and facts.maxmemory != 0:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "maxmemory-policy is {policy!r} and maxmemory is {limit:,} bytes: a full server drops the results of"
                " jobs before their time. Jobs are safe.",
                **named,
            )
            if is_known
            else gettext(
                "maxmemory-policy is {policy!r}: a full server drops the results of jobs before their time. Jobs are"
                " safe.",
                **named,
            ),
            hint,
        )


def _nearly_out_of_memory(facts: Facts) -> Iterator[ServerProblem]:
    used, limit = facts.used_memory, facts.maxmemory
    # Above its limit it is full, which `_missing_rights` finds by what it refuses.
    if limit and used is not None and NEARLY_OUT_OF_MEMORY * limit <= used < limit:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "The server uses {used:,} bytes of {limit:,} (maxmemory). When it is full, it takes no new jobs.",
                used=used,
                limit=limit,
            ),
            gettext(
                "Raise maxmemory: CONFIG SET maxmemory BYTES, and the same in the server's configuration."
            ),
        )


def _clock_skew(facts: Facts) -> Iterator[ServerProblem]:
    skew_ms = facts.skew_ms
    if skew_ms is None or abs(skew_ms) < CLOCK_SKEW_MS:
        return
    seconds = abs(skew_ms) // 1000
    yield ServerProblem(
        Level.WARNING,
        ngettext(
            "The server's clock is {number:,} s ahead of this machine's clock. Jobs that are scheduled for a date and time start early.",
            "The server's clock is {number:,} s ahead of this machine's clock. Jobs that are scheduled for a date and time start early.",
            seconds,
        )
        if skew_ms > 0
        else ngettext(
            "The server's clock is {number:,} s behind this machine's clock. Jobs that are scheduled for a date and time start late.",
            "The server's clock is {number:,} s behind this machine's clock. Jobs that are scheduled for a date and time start late.",
            seconds,
        ),
        gettext("Synchronize both clocks with NTP: timedatectl set-ntp true."),
    )


def _persistence(facts: Facts) -> Iterator[ServerProblem]:
    if facts.is_aof_on is not False:
        return
    if facts.snapshots:
        what = f"Jobs scheduled since the last snapshot (save {facts.snapshots!r}) are lost"
    elif facts.snapshots == "":
        what = "There are no snapshots either: all jobs are lost"
    else:
        what = "Jobs scheduled since the last snapshot, if there is one, are lost"
    yield ServerProblem(
        Level.WARNING,
        f"The append-only file is off (appendonly 'no'). {what} when the server crashes.",
        "Set appendonly to yes, and appendfsync to everysec or always.",
    )


def _unknowns(facts: Facts) -> Iterator[ServerProblem]:
    unknown = [
        name
        for name, is_known in (
            ("the version", bool(facts.version)),
            ("whether it is a primary", bool(facts.role)),
            ("maxmemory-policy (has to be noeviction)", bool(facts.policy)),
            ("the append-only file (ought to be on)", facts.is_aof_on is not None),
        )
        if not is_known
    ]
    if unknown:
        yield ServerProblem(
            Level.INFO,
            f"Could not be checked, because the server allows neither INFO nor CONFIG GET: {', '.join(unknown)}.",
            "Look it up where the server is managed, or allow the user INFO.",
        )


# What is written in a way that this project cannot read


def _formats(
    client: "Redis", queues: Sequence[DeliveryKeys]
) -> Iterator[ServerProblem]:
    calls: list[Any] = [looking.read_format(keys) for keys in queues]
    found = run_all(client, calls)
    for keys, reply in zip(queues, found, strict=True):
        # Missing rights are reported with the commands themselves.
        if not isinstance(reply, Exception):
            yield from find_newer(keys.queue.name, reply)


def find_newer(queue: str, format: int) -> Iterator[ServerProblem]:
    """Report a queue in a later format than this version reads."""
    if format > signing.FORMAT:
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "Queue {queue!r} has format {format}, but this version of django-delayq reads format {ours}. Its workers claim no jobs there.",
                queue=queue,
                format=format,
                ours=signing.FORMAT,
            ),
            gettext("Update django-delayq in this project."),
        )


def _missing_keys(
    client: "Redis", queues: Sequence[DeliveryKeys], key_ids: Collection[str]
) -> Iterator[ServerProblem]:
    found = run_all(client, [holding.held_names(keys) for keys in queues])
    for keys, held in zip(queues, found, strict=True):
        # Missing rights are reported with the commands themselves.
        if not isinstance(held, Exception):
            yield from find_missing_on(keys.queue.name, held, key_ids)


def find_missing_on(
    queue: str, held: HeldNames, key_ids: Collection[str]
) -> Iterator[ServerProblem]:
    """Report what `find_missing` does, with the name of the queue."""
    for problem in find_missing(held, key_ids):
        message = gettext(
            "Queue {queue!r}: {problem}", queue=queue, problem=problem.message
        )
        yield problem._replace(message=message)


def find_missing(held: HeldNames, key_ids: Collection[str]) -> Iterator[ServerProblem]:
    """Report the jobs of a queue that are held because this project cannot tell whether they are jobs."""
    for (kind, which, _), count in held.counts.items():
        if kind == Kind.KEY and which not in key_ids:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it is signed with key {key!r}, which this project does not have.",
                    "{number:,} jobs are held: they are signed with key {key!r}, which this project does not have.",
                    count,
                    key=which,
                ),
                gettext(
                    "Add the key's secret to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS, and restart the workers. Or run manage.py delayq_resign where the settings have the secret. If you do not know this key, another project may use this server with the same queue names."
                ),
            )
        elif kind == Kind.CODEC:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: another codec wrote it, and {codec} cannot read it.",
                    "{number:,} jobs are held: another codec wrote them, and {codec} cannot read them.",
                    count,
                    codec=which,
                ),
                gettext(
                    "Set CODEC and REDISSON of the queue back to the values with which these jobs were scheduled, and restart the workers. Keep these values until the jobs have run."
                ),
            )
        elif kind == Kind.FORMAT and which == signing.ENCRYPTED:
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it is encrypted, and a worker cannot decrypt it.",
                    "{number:,} jobs are held: they are encrypted, and a worker cannot decrypt them.",
                    count,
                ),
                gettext(
                    "Install django-delayq[encryption] where the workers run, in a version that supports encryption. Then restart the workers."
                ),
            )
        elif kind == Kind.FORMAT and which != str(signing.FORMAT):
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job is held: it has format {format}, but this version of django-delayq reads format {ours}.",
                    "{number:,} jobs are held: they have format {format}, but this version of django-delayq reads format {ours}.",
                    count,
                    format=which,
                    ours=signing.FORMAT,
                ),
                gettext("Start workers with the version that wrote them."),
            )


# Whose jobs wait where


def _strangers(
    client: "Redis", queues: Sequence[DeliveryKeys], key_ids: Collection[str]
) -> Iterator[ServerProblem]:
    """Report queues in which jobs of another project wait, as far as their keys tell."""
    for keys, found in _signed(client, queues, (State.SCHEDULED, State.DUE), SAMPLE):
        for key_id, count in found.by_key.items():
            if key_id not in key_ids:
                yield ServerProblem(
                    Level.WARNING,
                    ngettext(
                        "At least {number:,} job in queue {queue!r} is signed with key {key!r}, which this project does not have.",
                        "At least {number:,} jobs in queue {queue!r} are signed with key {key!r}, which this project does not have.",
                        count,
                        queue=keys.queue.name,
                        key=key_id,
                    ),
                    gettext(
                        "If another project uses this server with the same queue names, set DELAYQ['PREFIX'] in one of them. A queue with REDISSON gets no prefix, so give it another name. If you changed a secret, add the old one to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS."
                    ),
                )


def _left_behind(
    client: "Redis",
    queues: Sequence[DeliveryKeys],
    key_ids: Collection[str],
    prefix: str,
) -> Iterator[ServerProblem]:
    """Report jobs of this project that wait under a prefix which its settings do not have any more."""
    noted: dict[str, str] = {}
    try:
        noted = run(client, prefixes.noted_prefixes())
    except NoPermissionError:
        # Without a prefix, there is most likely no other.
        if prefix:
            user = _user_of(client)
            yield ServerProblem(
                Level.WARNING,
                f"User {user!r} may not use the key {prefixes.PREFIXES}: nobody notices when DELAYQ['PREFIX'] changes"
                " while jobs wait.",
                f"ACL SETUSER {user} ~{prefixes.PREFIXES}",
            )
    except ResponseError:
        # Another program uses this key for something that is not a hash, so there are no notes to read.
        pass
    except LOST as error:
        # The queues lie on other nodes than the notes.
        if not is_of_node(error):
            raise
    here = {keys.queue.destination for keys in queues}
    ours = (other for other, key_id in noted.items() if key_id in key_ids)
    for other in dict.fromkeys(("", prefix, *ours)):
        places = [
            keys
            for keys in _with_prefix(queues, other)
            if keys.queue.destination not in here
        ]
        left = [
            (keys.queue, found.total - found.of_others(key_ids))
            for keys, found in _signed(client, places, ALIVE, LARGE_SAMPLE)
            if not found.by_key.keys().isdisjoint(key_ids)
        ]
        if left:
            names = [queue.name for queue, total in left]
            count = sum(total for queue, total in left)
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job waits in {there} on the server (PREFIX {other!r}). Workers with these settings serve {here} (PREFIX {prefix!r}).",
                    "{number:,} jobs wait in {there} on the server (PREFIX {other!r}). Workers with these settings serve {here} (PREFIX {prefix!r}).",
                    count,
                    there=_some([queue.destination for queue, total in left]),
                    other=other,
                    prefix=prefix,
                    here=_some(
                        [
                            keys.queue.destination
                            for keys in queues
                            if keys.queue.name in names
                        ]
                    ),
                ),
                gettext(
                    "To move them, run manage.py delayq_import --from-prefix={quoted}. Or change PREFIX, or REDISSON of the queue, back. If the prefix belongs to another project with the same secret, give each project its own KEYS.",
                    quoted=quote(other),
                ),
                is_fatal=True,
            )


def _replies(client: "Redis", calls: Sequence[Any]) -> list[Any]:
    """Ask about keys that may lie on other nodes than the queues, which answer. An error takes the place of its reply."""
    try:
        return run_all(client, calls)
    except LOST as error:
        if not is_of_node(error):
            raise
        return [error] * len(calls)


def _with_prefix(queues: Iterable[DeliveryKeys], prefix: str) -> Iterator[DeliveryKeys]:
    for keys in queues:
        # Anybody may have noted a prefix that no name can have.
        with suppress(EncodeError):
            yield DeliveryKeys.of(keys.queue.name, prefix)


def _signed(
    client: "Redis",
    queues: Sequence[DeliveryKeys],
    states: Sequence[State],
    count: int,
) -> Iterator[tuple[DeliveryKeys, prefixes.Signed]]:
    """Yield who has signed the first jobs of each queue that can be read."""
    calls: list[Any] = [
        looking.page(keys, state, count=count) for keys in queues for state in states
    ]
    replies = iter(_replies(client, calls))
    for keys in queues:
        found = list(islice(replies, len(states)))
        # Missing rights are reported with the commands themselves; under another prefix, anything may lie.
        pages = [each for each in found if not isinstance(each, Exception)]
        if len(pages) == len(found):
            yield keys, prefixes.signed(pages)


# What is paused


def _paused(client: "Redis", queues: Sequence[DeliveryKeys]) -> Iterator[ServerProblem]:
    found = run_all(client, [pausing.pauses(keys) for keys in queues])
    for reply in found:
        # Missing rights are reported with the commands themselves.
        if not isinstance(reply, Exception):
            yield from find_paused(reply)


def find_other_shards(
    client: "Redis",
    shards: Mapping[str, int],
    keys_of: Callable[[str], DeliveryKeys],
) -> dict[str, ServerProblem]:
    """Report queues that would be neither served nor scheduled to, as they have another number of shards, by name."""
    problems: dict[str, ServerProblem] = {}
    replies = _replies(client, [read_shards(keys_of(name)) for name in shards])
    for (name, ours), found in zip(shards.items(), replies, strict=True):
        # Missing rights are reported with the commands themselves.
        if isinstance(found, Exception):
            continue
        if not found.differs(ours):
            continue
        theirs = found.pin.number
        parts = [shard_keys(keys_of(name), number) for number in range(theirs)]
        held = found.held if not theirs else Held()
        for part in _replies(client, [read_shards(part) for part in parts]):
            if isinstance(part, Part):
                held = held.plus(part.held)
        what, hint = words_of(name, theirs, ours, held)
        # An empty queue takes the number of the first worker.
        level = Level.ERROR if any(held) else Level.WARNING
        problems[name] = ServerProblem(level, what, hint)
    return problems


def _whole_of(name: str) -> str:
    shard = parse_shard(name)
    return name if shard is None else shard[0]


def _not_durable(
    client: "Redis", durable: Mapping[str, Durable]
) -> Iterator[ServerProblem]:
    """Report what queues ask for with DURABLE and the server cannot give, found out by waiting for it."""
    told: dict[Durable, Told | Exception] = {}
    for queue, wanted in durable.items():
        if wanted not in told:
            told[wanted] = _wait(client, wanted)
        reply = told[wanted]
        name = f"Queue {queue!r} asks for {wanted} (DURABLE)"
        if isinstance(reply, Exception):
            yield ServerProblem(
                Level.ERROR,
                f"{name}, which this server cannot give: each call that stores a job raises NotDurable.",
                f"WAIT fails: {refusal(reply)}.",
            )
        elif not reply.is_enough(wanted):
            yield ServerProblem(
                Level.WARNING,
                f"{name}, and {reply.replicas} replicas answer: each call that stores a job waits"
                f" {wanted.timeout_s:g} s and raises NotDurable.",
                "Look at the replicas (INFO replication), or lower DURABLE.",
            )


def _wait(client: "Redis", wanted: Durable) -> Told | Exception:
    # This connection may have written nothing, so the replicas have to be there, and no more.
    command = replace(wanted, timeout=WAIT_S).command(None)
    try:
        return run(client, command)
    except ResponseError as error:
        return error


def find_paused(pauses: Iterable[Pause]) -> Iterator[ServerProblem]:
    """Report the pauses of a queue."""
    for pause in pauses:
        what = quote(pause.queue)
        if pause.task is not None:
            what += f" --task {quote(pause.task)}"
        yield ServerProblem(
            Level.WARNING,
            sentence(pause.words),
            gettext("To resume it, run manage.py delayq_resume {what}.", what=what),
        )


# What is nearly full


def _nearly_full(
    client: "Redis", queues: Sequence[DeliveryKeys], max_jobs: Mapping[str, int]
) -> Iterator[ServerProblem]:
    limited = [keys for keys in queues if keys.queue.name in max_jobs]
    found = run_all(client, [looking.counts(keys) for keys in limited])
    for keys, counts in zip(limited, found, strict=True):
        # Missing rights are reported with the commands themselves.
        if not isinstance(counts, Exception):
            name = keys.queue.name
            yield from find_nearly_full(name, counts.jobs, max_jobs[name])


def find_nearly_full(
    queue: str, count: int, max_jobs: int | None
) -> Iterator[ServerProblem]:
    """Report a queue that has hardly any room left."""
    if max_jobs is not None and count >= NEARLY_FULL * max_jobs:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "Queue {queue!r} holds {count:,} of {max_jobs:,} jobs (MAX_JOBS). When it is full, it takes no new jobs.",
                queue=queue,
                count=count,
                max_jobs=max_jobs,
            ),
            gettext(
                "Start more workers, or raise DELAYQ['QUEUES'][{queue!r}]['MAX_JOBS'].",
                queue=queue,
            ),
        )


# What does not answer


def find_missing_queues(missing: Mapping[str, Exception]) -> Iterator[ServerProblem]:
    """Report queues that did not answer, by name, where others did."""
    why: dict[Fault, list[str]] = {}
    for name, error in missing.items():
        why.setdefault(describe_fault(error), []).append(name)
    for fault, names in why.items():
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "No answer from queue {names}: {what} {message}",
                "No answer from queues {names}: {what} {message}",
                len(names),
                names=", ".join(names),
                what=fault.what,
                message=fault.message,
            ),
            fault.hint,
        )


def find_missing_workers(error: Exception) -> Iterator[ServerProblem]:
    """Report that the list of workers cannot be read."""
    fault = describe_fault(error)
    yield ServerProblem(
        Level.ERROR,
        gettext(
            "The list of workers cannot be read: {what} {message}",
            what=fault.what,
            message=fault.message,
        ),
        fault.hint,
    )


def find_not_forwarded(queue: str, forwards: Forwards) -> Iterator[ServerProblem]:
    """Report other queues that do not get the jobs that follow ones of this queue."""
    for waiting, age_s in forwards.ages_s():
        if 1000 * age_s >= NOT_FORWARDED_MS:
            yield ServerProblem(
                Level.WARNING,
                ngettext(
                    "{number:,} job that follows a job of queue {queue!r} has not reached queue {other!r} for {seconds:,} s.",
                    "{number:,} jobs that follow jobs of queue {queue!r} have not reached queue {other!r} for {seconds:,} s.",
                    waiting.number,
                    other=waiting.queue,
                    queue=queue,
                    seconds=int(age_s),
                ),
                gettext(
                    "The workers of queue {queue!r} forward them as soon as they can. Their log says why they cannot. If no worker runs, start one.",
                    queue=queue,
                ),
            )


# Who serves


def find_unserved(
    queue: str, counts: Counts, processes: int, *, is_shared: bool, is_paused: bool
) -> Iterator[ServerProblem]:
    """Report a queue whose jobs nobody takes, or whose workers are late; ``processes`` serve it."""
    late_ms = counts.late_ms
    if is_paused or (is_shared and late_ms < LATE_MS):
        # The pause is a problem of its own; and Java may be the one that takes what is due.
        return
    if processes == 0 and late_ms >= UNSERVED_MS:
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "Queue {queue!r} has {number:,} due job, the first for {late_s:,} s, and no worker serves it.",
                "Queue {queue!r} has {number:,} due jobs, the first for {late_s:,} s, and no worker serves it.",
                counts.due,
                queue=queue,
                late_s=late_ms // 1000,
            ),
            gettext(
                "Start a worker: manage.py delayq_worker --queue {queue}",
                queue=quote(queue),
            ),
        )
    elif processes == 0 and counts.jobs:
        yield ServerProblem(
            Level.WARNING,
            ngettext(
                "No worker serves queue {queue!r}, which holds {number:,} job.",
                "No worker serves queue {queue!r}, which holds {number:,} jobs.",
                counts.jobs,
                queue=queue,
            ),
            gettext(
                "Start a worker: manage.py delayq_worker --queue {queue}",
                queue=quote(queue),
            ),
        )
    elif late_ms >= LATE_MS:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "Queue {queue!r} is late: its first due job has waited for {late_s:,} s, though {processes} worker"
                " processes serve it.",
                queue=queue,
                late_s=late_ms // 1000,
                processes=processes,
            ),
            gettext(
                "If the workers are busy, start more. If a limit holds the queue, wait or raise the limit."
            ),
        )


def find_other_versions(
    versions: Mapping[str, str], version: str
) -> Iterator[ServerProblem]:
    """Report workers, given with their versions by name, that run another version than this process."""
    for name, its in versions.items():
        if its != version:
            yield ServerProblem(
                Level.WARNING,
                gettext(
                    "Worker {name} runs django-delayq {its}, and this project has {version}.",
                    name=name,
                    its=its,
                    version=version,
                ),
                gettext("Restart it with the code of this project."),
            )


# What the user may not do


def _missing_rights(rights: Rights) -> Iterator[ServerProblem]:
    user = _user_of(rights.client)
    if rights.has_frozen_scripts:
        yield ServerProblem(
            Level.ERROR,
            "lua-replicate-commands is 'no': a script that reads the clock may not write, so nothing can be"
            " scheduled.",
            "Set lua-replicate-commands to yes, which is the default (CONFIG SET lua-replicate-commands yes).",
        )
    if rights.commands:
        names = sorted(rights.commands)
        allowed = " ".join(f"+{name.lower()}" for name in names)
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not use {', '.join(names)}. The server says: {rights.commands[names[0]]}",
            f"ACL SETUSER {user} {allowed}",
        )
    yield from _refused_keys(rights, user)
    if rights.registry:
        yield ServerProblem(
            Level.WARNING,
            f"User {user!r} may not use the key{_s(rights.registry)} {_some(rights.registry)}: no page lists the"
            " workers, and stop_worker() reaches none.",
            f"ACL SETUSER {user} {' '.join(f'~{_glob(key)}' for key in rights.registry)}",
        )
    if rights.channels:
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not use the channel{_s(rights.channels)} {_some(rights.channels)}: workers do"
            " not hear of new jobs, and may start them 2 s late.",
            f"ACL SETUSER {user} {' '.join(f'&{_glob(name)}' for name in rights.channels[:30])}",
        )
    if rights.is_full:
        used, limit = rights.facts.used_memory, rights.facts.maxmemory
        numbers = "" if used is None else f": it uses {used:,} bytes of {limit:,}"
        yield ServerProblem(
            Level.WARNING,
            f"The server is at its maxmemory{numbers}. It takes no new jobs.",
            "Raise maxmemory. Due jobs go on running and make room.",
        )
    for text, command in rights.other.items():
        if _MOVED.match(text):
            what, _, hint = describe_fault(MovedError(text))
            yield ServerProblem(Level.ERROR, f"{what} {command}: MOVED {text}", hint)
            continue
        yield ServerProblem(
            Level.ERROR,
            f"The server refuses {command}: {text}",
            "See its log. While it refuses, nothing can be scheduled or run.",
        )
    yield from _contents(rights)


def _refused_keys(rights: Rights, user: str) -> Iterator[ServerProblem]:
    both = [key for key in rights.unwritable if key in rights.unreadable]
    for keys, right in (
        (both, "touch"),
        ([key for key in rights.unreadable if key not in both], "read"),
        ([key for key in rights.unwritable if key not in both], "write"),
    ):
        if not keys:
            continue
        yield ServerProblem(
            Level.ERROR,
            f"User {user!r} may not {right} the key{_s(keys)} {_some(keys)}.",
            f"ACL SETUSER {user} {' '.join(_patterns(rights, keys))}",
        )


def _patterns(rights: Rights, refused: Sequence[str]) -> list[str]:
    patterns = []
    for keys in rights.keys:
        tag = _glob(keys.queue.tag)
        own = set(kinds_of(keys)) | {keys.result("*")}
        if own & set(refused):
            patterns += [
                f"~{_glob(keys.queue.destination)}",
                f"~redisson_delay_queue*:{tag}",
                f"~delayq_*:{tag}*",
            ]
    return patterns[:30]


def _contents(rights: Rights) -> Iterator[ServerProblem]:
    if rights.mistyped:
        listing = [
            f"{key} ({rights.kinds.get(key, 'something else')} instead of {kind})"
            for key, kind in rights.mistyped.items()
        ]
        yield ServerProblem(
            Level.ERROR,
            f"{len(listing)} key{_s(listing)} of the queues hold{'s' * (len(listing) == 1)} somebody else's data:"
            f" {_some(listing)}.",
            "Give the queue another name in DELAYQ['QUEUES'], or delete what is there.",
        )
    for name, length in rights.list_lengths.items():
        yield from find_long_list(name, length)


def find_long_list(queue: str, length: int) -> Iterator[ServerProblem]:
    """Report an insertion list that has become so long that searching it takes long."""
    if length > LONG_LIST:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "The insertion list of queue {queue!r} holds {length:,} frames, more than {limit:,}. The server searches it for each job that starts or is cancelled.",
                queue=queue,
                length=length,
                limit=LONG_LIST,
            ),
            gettext(
                "If no Java client reads this queue, set DELAYQ['QUEUES'][{queue!r}]['INSERTION_LIST'] to False and run manage.py delayq_frames {quoted} --list off. You can do this while the queue is in use.",
                queue=queue,
                quoted=quote(queue),
            ),
        )


def find_other_format(
    queue: str, redisson: str, strange: int, looked: int
) -> Iterator[ServerProblem]:
    """Report frames at the head of a queue in a format that its Redisson does not read: ``strange`` of ``looked``."""
    if strange:
        yield ServerProblem(
            Level.ERROR,
            ngettext(
                "Of the next {looked:,} frames of queue {queue!r}, {number:,} has a format that Redisson {redisson} does"
                " not read: Java transfers nothing behind it.",
                "Of the next {looked:,} frames of queue {queue!r}, {number:,} have a format that Redisson {redisson} does"
                " not read: Java transfers nothing behind them.",
                strange,
                looked=looked,
                queue=queue,
                redisson=redisson,
            ),
            gettext(
                "Run manage.py delayq_frames {quoted}: it shows where the queue is stuck, and how to rewrite the frames.",
                quoted=quote(queue),
            ),
        )


def _user_of(client: "Redis") -> str:
    arguments = arguments_of(client)
    provider = arguments.get("credential_provider")
    if provider is not None:
        credentials = provider.get_credentials()
        return str(credentials[0]) if len(credentials) > 1 else "default"
    return str(arguments.get("username") or "default")


def _glob(text: str) -> str:
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:5]) + (
        f" and {len(items) - 5} more" if len(items) > 5 else ""
    )
