"""``@periodic`` gives a task times at which it runs by itself. How a schedule is written, and how its jobs are made.

What is stored of a schedule is JSON, signed with the project's key: a worker stores jobs by it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, TypeVar, Unpack

import msgspec

from django_delayq import conf
from django_delayq.core import store as store_calls
from django_delayq.core.store import NewJob
from django_delayq.decoder import Decoder
from django_delayq.exceptions import (
    EncodeError,
    InvalidArguments,
    InvalidSchedule,
    InvalidTask,
)
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import json_values
from django_delayq.jobs.arguments import sensitive_texts
from django_delayq.jobs.decorator import FIXED, DelayedTask
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.envelope import OCCURRENCE, SCHEDULE
from django_delayq.jobs.limit import MAX_LIMIT_KEY
from django_delayq.jobs.occurrences import When
from django_delayq.jobs.options import (
    CallOptions,
    TaskOptions,
    check_encrypt,
    check_priority,
    is_unicode,
    seconds,
)
from django_delayq.jobs.prepare import spread
from django_delayq.jobs.registry import all_tasks
from django_delayq.masks import mask
from django_delayq.redaction import brief, show
from django_delayq.suggestions import suggestion
from django_delayq.wire.signatures import SEAL_LENGTH

CatchUp = Literal["one", "none", "all"]
CATCH_UPS = ("one", "none", "all")
#: The longest name of a schedule, bytes: jobs may be held under it.
MAX_NAME = MAX_LIMIT_KEY
#: The name of the limit by which jobs of a schedule do not overlap. No `Limit` has one with a space.
OWN_LIMIT = "of schedule"
#: The options of a schedule itself. The others are those of its task.
OWN_OPTIONS = ("name", "args", "kwargs", "catch_up", "overlap")
T = TypeVar("T", bound=DelayedTask[..., Any])


@brief
class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of a schedule, in code or stored."""

    task: str
    #: As `When.as_json` writes it.
    when: dict[str, Any]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    #: Options of its jobs that differ from their task's, as an envelope carries them.
    options: dict[str, Any] = {}
    priority: int = 0
    spread_s: float = 0
    catch_up: CatchUp = "one"
    #: The limit of its jobs, as `storing.tail_of` takes it.
    limit: str = ""
    #: While one of its jobs runs, the next is dropped; or it waits, if `catch_up` is "all".
    drops: bool = False
    #: When the code was loaded that says so, epoch ms by the server's clock; 0: it is not in code. Of two definitions in
    #: code, the later one holds.
    loaded_ms: int = 0
    #: The queue that the schedule has moved to: it comes to no occurrence on this one.
    moved_to: str = ""
    #: When it left this queue, by the clock of that; said again while the other waits. 0: the other has it.
    moved_ms: int = 0
    #: Whether the server has its arguments, and its jobs, encrypted.
    encrypt: bool = False
    #: Its arguments, while they are; and what tells this text from others, whichever key has encrypted it.
    encrypted: str = ""
    nonce: str = ""

    def is_like(self, other: "Definition | None") -> bool:
        """Whether two definitions say the same, whenever they were loaded."""
        return other is not None and msgspec.structs.replace(
            self, loaded_ms=0
        ) == msgspec.structs.replace(other, loaded_ms=0)


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes to a schedule by a user, beside its definition."""

    #: When it was paused, epoch ms; 0: it is not.
    paused_ms: int = 0
    by: str = ""
    reason: str = ""
    #: Other times than those of the definition.
    when: dict[str, Any] | None = None


@brief
class _Arguments(msgspec.Struct, omit_defaults=True):
    """The encrypted part of a definition."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


#: What stands before the JSON of a text since there are registers. An earlier version reads it as white space.
REGISTERED = b" "
#: What stands between that and the JSON of a definition with an encrypted part.
ENCRYPTED = b"\t"
_ENCRYPTED_PART = re.compile(rb'(?<="encrypted":")[^"]*')
_encoder = msgspec.json.Encoder()
_arguments = Decoder[_Arguments](_Arguments, trusted=True)
definitions = Decoder[Definition](Definition, trusted=True)
changes = Decoder[Change](Change, trusted=True)


def sealed(queue: str, kind: str, name: str, body: Definition | Change) -> bytes:
    """Write and sign what is stored of a schedule, and encrypt its arguments if its task or queue asks for it."""
    keyring, place, mark = conf.get_keyring(), _place(queue, kind, name), b""
    if isinstance(body, Definition) and body.encrypt:
        mark, text = ENCRYPTED, _encoder.encode(_Arguments(body.args, body.kwargs))
        body = msgspec.structs.replace(
            body,
            args=[],
            kwargs={},
            encrypted=keyring.encrypt("schedule", place, text),
            nonce=store_calls.new_token(),
        )
    text = REGISTERED + mark + _encoder.encode(body)
    return keyring.seal(_signed_place(place, text), text)


def sealed_anew(
    queue: str, kind: str, name: str, text: bytes, *, target: str | None = None
) -> bytes:
    """Sign and encrypt with the present key what another one, or an earlier version, has signed; what it says stays.

    With ``target``, sign it for that queue.

    Raises:
        NotSigned: this project has not signed it for this place, or has another key for what is encrypted.
    """
    keyring, source = conf.get_keyring(), _place(queue, kind, name)
    place = source if target is None else _place(target, kind, name)
    body = unsealed(queue, kind, name, text).lstrip(REGISTERED)
    if body.startswith(ENCRYPTED):

        def encrypt_anew(found: re.Match[bytes]) -> bytes:
            secret = keyring.decrypt("schedule", source, found[0].decode())
            return keyring.encrypt("schedule", place, secret).encode()

        body = _ENCRYPTED_PART.sub(encrypt_anew, body)
    body = REGISTERED + body
    return keyring.seal(_signed_place(place, body), body)


def without_encrypted(body: bytes) -> bytes:
    """Return a signed text with only the nonce of its encrypted part, which stays the same under a new key."""
    return _ENCRYPTED_PART.sub(b"", body) if body.startswith(ENCRYPTED) else body


def read_definition(queue: str, kind: str, name: str, text: bytes) -> Definition:
    """Read a definition that `sealed` has written.

    Raises:
        NotSigned: this project has not signed it for this place, or what it needs to decrypt it is not here.
        DecodeError: another version has written it.
    """
    found = definitions.decode(unsealed(queue, kind, name, text))
    if not found.encrypted:
        return found
    place = _place(queue, kind, name)
    secret = conf.get_keyring().decrypt("schedule", place, found.encrypted)
    given = _arguments.decode(secret)
    return msgspec.structs.replace(
        found, args=given.args, kwargs=given.kwargs, encrypted="", nonce=""
    )


def read_change(queue: str, kind: str, name: str, text: bytes) -> Change:
    """Read a change that `sealed` has written.

    Raises:
        NotSigned, DecodeError: see `read_definition`.
    """
    return changes.decode(unsealed(queue, kind, name, text))


def unsealed(queue: str, kind: str, name: str, text: bytes) -> bytes:
    """Return what `sealed` has signed, as JSON.

    Raises:
        NotSigned: this project has not signed it for this place.
    """
    place = _signed_place(_place(queue, kind, name), text[SEAL_LENGTH:])
    return conf.get_keyring().unseal(place, text)


def is_sealed_now(text: bytes) -> bool:
    """Return whether the key that signs now has signed what is stored, as far as it says so itself."""
    return text.startswith(conf.get_keyring().ids[0].encode())


def is_registered(text: bytes) -> bool:
    """Return whether what is stored of a schedule was written where there are registers."""
    return text.startswith(REGISTERED, SEAL_LENGTH)


def _signed_place(place: str, body: bytes) -> str:
    # A version that knows no encryption would call the task without arguments. For it, this is not signed.
    return f"encrypted {place}" if body.startswith(REGISTERED + ENCRYPTED) else place


def _place(queue: str, kind: str, name: str) -> str:
    return f"{kind} {len(queue)} {queue} {name}"


def fingerprint(definition: Definition, change: Change | None) -> str:
    """Return a fingerprint, which is equal if two processes go by the same definition."""
    same = msgspec.structs.replace(definition, loaded_ms=0)
    when = None if change is None else change.when
    text = _encoder.encode((same, when))
    return blake2b(text, digest_size=8).hexdigest()


# In code.


@brief
@dataclass(frozen=True)
class CodeSchedule:
    """A schedule as code writes it: one ``@periodic`` above a task, or one that it stores."""

    task: DelayedTask[..., Any]
    when: When
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    catch_up: CatchUp
    overlap: bool
    options: TaskOptions

    @property
    def queue(self) -> str:
        """The queue that holds its jobs: of a queue with shards, one of them."""
        settings = conf.get_settings()
        whole = settings.sharded.get(self.options.queue)
        if whole is None:
            return self.options.queue
        try:
            limit = self._limit()
        except Exception:
            # `definition` raises it, and says of which schedule.
            limit = ""
        # That of its limit, with all other jobs of that; or of its name.
        return settings.shard_of_key(whole, limit or self.name).name

    def _limit(self) -> str:
        limit = self.options.limit
        if limit is None:
            return ""
        return limit.of_call(self.task.name, tuple(self.args), dict(self.kwargs))

    def definition(self) -> Definition:
        """Return what is stored of it.

        Raises:
            InvalidArguments: an argument is not JSON, or the key function of the task's limit does not take them.
        """
        options, task = self.options, self.task.name
        try:
            limit = self._limit()
        except Exception as error:
            secrets = sensitive_texts(self.task, self.args, self.kwargs)
            raise InvalidArguments(
                f"the limit of task {task!r} has no key for schedule {self.name!r}, as its key function failed:"
                f" {type(error).__name__}:"
                f" {mask(str(error), secrets)}"
            ) from error
        if not self.overlap:
            # A task with a limit is refused.
            limit = f"{OWN_LIMIT}\0{self.name}"
        args, kwargs = json_values.plain_of(self.task, self.args, self.kwargs)
        queue = conf.get_settings().find(self.queue)
        carried = options.carried(self.task.base) or {}
        if self.catch_up == "none" and options.expires is not None:
            carried["expires"] = seconds(options.expires)
        return Definition(
            task,
            self.when.as_json(),
            args,
            kwargs,
            carried,
            options.priority,
            0 if options.spread is None else seconds(options.spread) or 0,
            self.catch_up,
            limit,
            not self.overlap,
            encrypt=options.encrypt or (queue is not None and queue.encrypt),
        )


def schedule_of(
    task: DelayedTask[..., Any],
    when: When,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    catch_up: CatchUp,
    overlap: bool,
    options: CallOptions,
) -> CodeSchedule:
    """Return a schedule of what `periodic` or `store_schedule` were given.

    Raises:
        InvalidSchedule, InvalidTask: it cannot be.
    """
    check_parts(name, when, args, kwargs, catch_up, overlap)
    chosen = task.using(**options).options
    check_options(task.name, chosen, overlap)
    return CodeSchedule(
        task, when, name, tuple(args), dict(kwargs or {}), catch_up, overlap, chosen
    )


def periodic(
    when: When,
    *,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    catch_up: CatchUp = "one",
    overlap: bool = True,
    **options: Unpack[CallOptions],
) -> Callable[[T], T]:
    """Have workers run a task at each occurrence of `cron` or `every`. It stands above ``@delayed_task``.

    ``name`` is that of the task by default; several schedules of one task need names. ``args`` and ``kwargs`` are for
    the function, ``options`` as in `DelayedTask.using`. ``catch_up`` says what becomes of occurrences when no worker was
    there: of "one" or more, one job runs; "none" runs late, as a job expires at the next occurrence; "all" run. Without
    ``overlap``, the next job is dropped while one runs; of "all", it waits for its turn.

    Example::

        @periodic(cron("0 9 * * *"), catch_up="none")
        @delayed_task
        def report(): ...

    Raises:
        InvalidSchedule, InvalidTask, InvalidArguments: the schedule is not valid. ``manage.py check`` reports problems that
            depend on the machine and its settings.
    """
    if callable(when):
        raise InvalidSchedule(
            f"@periodic takes cron() or every(), not {show(when)}; write @periodic(cron('0 9 * * 1-5')) or"
            " @periodic(every(timedelta(minutes=5)))"
        )

    check_names(options)

    def decorate(task: T) -> T:
        if not isinstance(task, DelayedTask):
            raise InvalidTask(
                f"@periodic has to be above @delayed_task; got {show(task)}, a {type(task).__name__}"
            )
        if task.options is not task.base:
            raise InvalidTask(
                f"@periodic got {task.name}.using(…), but workers know only the schedules of the task itself; put"
                " @periodic above the function, and give the options to @periodic"
            )
        full_name = task.name if name is None else name
        schedule = schedule_of(
            task, when, full_name, args, kwargs, catch_up, overlap, options
        )
        json_values.plain_of(task, args, kwargs or {})
        if any(other.name == schedule.name for other in task.schedules):
            raise InvalidSchedule(
                f"task {task.name!r} has two schedules named {schedule.name!r}; give each @periodic a name= of its own"
            )
        task.schedules = (*task.schedules, schedule)
        return task

    return decorate


def check_names(options: Mapping[str, Any]) -> None:
    """Make sure that options beside a schedule's own are options of a task.

    Raises:
        InvalidTask: one is not, or is about the caller of a job, whom a schedule has not.
    """
    for name in ("on_commit", "outbox", "durable"):
        if options.get(name):
            raise InvalidTask(
                f"{name}={show(options[name])} of a schedule: workers store the jobs of a schedule, outside your"
                f" transactions; leave {name} out, or give it to the task, for your own calls"
            )
    of_tasks = [item.name for item in fields(TaskOptions)]
    if unknown := set(options) - set(of_tasks):
        known = [*OWN_OPTIONS, *(name for name in of_tasks if name not in FIXED)]
        raise InvalidTask(
            f"unknown option {min(unknown)!r} of a schedule; known are {', '.join(known)}."
            + suggestion(min(unknown), known)
        )


def options_by_using(task: TaskDefinition) -> dict[str, Any]:
    """Return the options of ``task.using(…)`` that are not those of the task itself."""
    changed = (
        (item.name, getattr(task.options, item.name)) for item in fields(TaskOptions)
    )
    return {name: value for name, value in changed if value != getattr(task.base, name)}


def check_parts(
    name: object,
    when: object,
    args: object,
    kwargs: object,
    catch_up: object,
    overlap: object,
) -> None:
    """Make sure that a schedule can be made of these.

    Raises:
        InvalidSchedule: it cannot.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidSchedule(
            f"name={show(name)}: a schedule has a name of one line of text"
        )
    if not is_unicode(name) or len(name.encode()) > MAX_NAME:
        raise InvalidSchedule(
            f"name={show(name)}: the name of a schedule has {MAX_NAME} bytes at most; give another name="
        )
    if not isinstance(when, When):
        raise InvalidSchedule(
            f"schedule {name!r} takes cron() or every(), not {show(when)}; give cron('0 9 * * 1-5') or every(timedelta(minutes=5))"
        )
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidSchedule(f"args={show(args)} of schedule {name!r}: give a list")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidSchedule(
            f"kwargs={show(kwargs)} of schedule {name!r}: give a dict"
        )
    if catch_up not in CATCH_UPS:
        raise InvalidSchedule(
            f"catch_up={show(catch_up)} of schedule {name!r}: give 'one', 'none' or 'all'"
        )
    if not isinstance(overlap, bool):
        raise InvalidSchedule(
            f"overlap={show(overlap)} of schedule {name!r}: give True or False"
        )


def check_options(task: str, options: TaskOptions, overlap: bool) -> None:
    """Make sure that a task can be periodic.

    Raises:
        InvalidTask: it cannot.
    """
    if options.unique:
        raise InvalidTask(
            f"task {task!r} is unique, so it cannot be periodic: the next job waits while one runs, and would find the key"
            " taken. A schedule stores one job for each occurrence by itself; give unique=False"
        )
    if options.limit is not None and not overlap:
        raise InvalidTask(
            f"task {task!r} has a limit, and overlap=False would be a second one; leave overlap out: a limit with"
            " concurrency=1 also holds the next job back"
        )


def all_schedules() -> list[CodeSchedule]:
    """Return every schedule in code; of two with one name on a queue, the first."""
    found: dict[tuple[str, str], CodeSchedule] = {}
    for task in all_tasks():
        for schedule in task.schedules:
            found.setdefault((schedule.queue, schedule.name), schedule)
    return list(found.values())


def schedules_on(queue: str) -> dict[str, CodeSchedule]:
    """Return the schedules in code of a queue, by name."""
    return {
        schedule.name: schedule
        for schedule in all_schedules()
        if schedule.queue == queue
    }


def doubles() -> list[CodeSchedule]:
    """Return the schedules in code whose names others have already."""
    first = {id(schedule) for schedule in all_schedules()}
    return [
        schedule
        for task in all_tasks()
        for schedule in task.schedules
        if id(schedule) not in first
    ]


def check(schedule: CodeSchedule) -> None:
    """Make sure that the jobs of a schedule can be stored, and run.

    Raises:
        InvalidSchedule, InvalidTask, InvalidArguments, EncodeError, QueueNotFound: they cannot.
    """
    queue = conf.get_settings().queue(schedule.queue)
    schedule.when.check()
    check_call(schedule.name, schedule.task, schedule.args, schedule.kwargs)
    check_priority(schedule.options.priority, queue.name)
    if schedule.options.encrypt:
        check_encrypt(schedule.task.name, queue)
    check_size(queue, schedule.name, schedule.definition())


def check_call(
    name: str, task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Make sure that a task takes these arguments.

    Raises:
        InvalidArguments: it does not.
    """
    if not task.fits(args, kwargs):
        raise InvalidArguments(
            f"schedule {name!r} cannot call {task.name}{task.call_signature}: {task.misfit(args, kwargs)}; give it args= and kwargs="
        )


def check_size(queue: conf.QueueSettings, name: str, definition: Definition) -> None:
    """Make sure that a job of a schedule is not too large.

    Raises:
        EncodeError: it is.
    """
    job = occurrence(queue, name, definition, print="", occurrence_ms=0)
    size = len(job.payload)
    most = conf.get_settings().max_payload_bytes
    if size > most:
        raise EncodeError(
            f"a job of schedule {name!r} has {size:,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'], {most:,}; store the"
            " data elsewhere and pass its key"
        )


# Jobs.


def occurrence(
    queue: conf.QueueSettings,
    name: str,
    definition: Definition,
    *,
    print: str,
    occurrence_ms: int,
    next_ms: int | None = None,
) -> NewJob:
    """Make the job of one occurrence; ``next_ms`` is the occurrence after it.

    Its token is the same in every process: a hash of queue, name, occurrence and definition.
    """
    token = conf.get_keyring().token(queue.name, name, str(occurrence_ms), print)
    options, spread_s = dict(definition.options), definition.spread_s
    expires_at_ms = next_ms if definition.catch_up == "none" else None
    if expires_at_ms is not None:
        # A later start would be too late.
        spread_s = min(spread_s, (expires_at_ms - occurrence_ms - 1) / 1000)
    when = f"={occurrence_ms}"
    if spread_s:
        when = spread(when, spread_s)
    if expires_at_ms is not None:
        # `expires` counts from the random start.
        left_s = (expires_at_ms - int(when[1:])) / 1000
        options["expires"] = min(options.get("expires") or left_s, left_s)
    return _job(queue, name, definition, token, when, options, occurrence_ms)


def extra(
    queue: conf.QueueSettings,
    name: str,
    definition: Definition,
    now_ms: int,
) -> NewJob:
    """Make a job that is due now, beside those of the occurrences."""
    token = store_calls.new_token()
    options = definition.options
    return _job(queue, name, definition, token, "+0", options, now_ms)


def _job(
    queue: conf.QueueSettings,
    name: str,
    definition: Definition,
    token: str,
    when: str,
    options: dict[str, Any],
    occurrence_ms: int,
) -> NewJob:
    payload = envelopes.encode(
        envelopes.Envelope(
            definition.task,
            definition.args,
            definition.kwargs,
            options or None,
            headers={SCHEDULE: name, OCCURRENCE: str(occurrence_ms)},
            flags=envelopes.IS_ENCRYPTED if definition.encrypt else 0,
        ),
        token,
        queue.name,
        conf.get_keyring(),
        queue.payload_codec if queue.is_shared else None,
    )
    tail = store_calls.tail_of(
        "",
        definition.priority,
        definition.limit,
        drops=definition.drops,
        in_turn=definition.catch_up == "all",
    )
    return NewJob(token, when, tail, payload)
