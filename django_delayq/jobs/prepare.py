"""Makes a job from a call of a task: checks the arguments, writes and signs the payload."""

import hashlib
import json
import math
import secrets
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from django_delayq import conf
from django_delayq.core import store as store_calls
from django_delayq.core.durability import Durable, as_durable
from django_delayq.core.store import NewJob
from django_delayq.exceptions import (
    EncodeError,
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
)
from django_delayq.jobs import contexts, json_values
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.draft import Draft, Extras
from django_delayq.jobs.duplicates import on_holder
from django_delayq.jobs.job import Job
from django_delayq.jobs.options import (
    Seconds,
    TaskOptions,
    check_encrypt,
    check_priority,
    is_unicode,
    seconds,
)
from django_delayq.masks import mask, texts_of
from django_delayq.redaction import HIDDEN, show
from django_delayq.wire.delay import (
    MAX_DELAY_MS,
    MAX_START_TIME_MS,
    Delay,
    parse_delay,
)

#: Some 31 years. No delay is that long, but clocks and generated keys count higher.
NO_DELAY_S = 10**9
#: What to say of a delay that is none.
FIRST = (
    ". schedule() takes it first, without a name, before the arguments of the function"
)
#: The longest key that a function for `unique` may return, bytes. A locator, a header and a hash each hold it.
MAX_UNIQUE_KEY = 1_024


def prepare(
    task: TaskDefinition,
    delay: Delay,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    at_ms: int | None = None,
) -> Job[Any]:
    """Make the job of one call, with id and payload, but send nothing; see `DelayedTask.prepare`.

    ``at_ms``: when it was enqueued, if its payload is to say so.
    """
    try:
        when = parse_delay(delay, FIRST)
    except InvalidDelay as error:
        if delay is None and "delay" in kwargs:
            raise InvalidDelay(
                "a delay is missing; schedule() takes it first, without a name: leave out 'delay='"
            ) from None
        if task.base.sensitive:
            # An argument may stand in its place.
            raise InvalidDelay(mask(str(error), texts_of(delay))) from None
        raise
    settings = conf.get_settings()
    options = task.options
    queue = settings.queues.get(options.queue)
    token = store_calls.new_token()
    if queue is None:
        queue = _shard_of_call(task, delay, args, kwargs, token)
    least, most = task.positional
    # Almost every call fits, and is not looked at any further.
    if kwargs or not 0 < len(args) <= most or len(args) < least:
        _check_call(task, delay, args, kwargs)
    try:
        plain_args, plain_kwargs = json_values.plain(args, kwargs)
    except InvalidArguments as error:
        raise json_values.named(error, task, args, kwargs) from None
    carried = None if options is task.base else options.carried(task.base)
    if options.unique and options.expires is not None:
        # Workers and scripts have to agree until when it holds its key, whatever the task says later.
        carried = {**(carried or {}), "expires": seconds(options.expires)}
    call = envelopes.Envelope(task.name, plain_args, plain_kwargs, carried, at_ms)
    if settings.context:
        call.headers = contexts.capture(settings.context, task.name, queue.name, token)
    if queue.encrypt or options.encrypt:
        check_encrypt(task.name, queue)
        call.flags = envelopes.IS_ENCRYPTED
    codec = queue.payload_codec if queue.is_shared else None
    payload = envelopes.encode(call, token, queue.name, conf.get_keyring(), codec)
    if len(payload) > settings.max_payload_bytes:
        payload = _within_limit(call, token, payload, settings, queue)
    # What NewJob() does, in half of its time.
    new: NewJob = tuple.__new__(NewJob, (token, when, "", payload))
    draft = Draft(new, task.commit)
    job: Job[Any] = Job(queue.name, token, task.name, plain_args, plain_kwargs, draft)
    if carried is not None:
        job.options = carried
    if queue.durable is not None or not options.is_plain:
        _add_extras(job, draft, task, args, kwargs, queue.durable)
    return job


def _shard_of_call(
    task: TaskDefinition,
    delay: Delay,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    token: str,
) -> conf.QueueSettings:
    """Return the shard that holds the job of a call: with all others of its limit, or of its unique key.

    Raises:
        QueueNotFound: the queue has no shards, and is not configured at all.
        InvalidTask: see `check_key`.
    """
    settings, options = conf.get_settings(), task.options
    whole = settings.sharded.get(options.queue)
    if whole is None:
        return settings.queue(options.queue)
    _check_call(task, delay, args, kwargs)
    if options.limit is not None:
        check_key(task.name, options)
        key = options.limit.of_call(task.name, args, kwargs)
    elif options.unique:
        key = _unique_key(task, args, kwargs)
    else:
        key = token
    return settings.shard_of_key(whole, key)


def check_key(task: str, options: TaskOptions) -> None:
    """Make sure that one shard holds all that a job of a task has to meet there.

    Raises:
        InvalidTask: its limit and its unique key may lead to different shards.
    """
    limit, unique = options.limit, options.unique
    if limit is None or limit.key is None or not unique or unique is True:
        return
    raise InvalidTask(
        f"task {task!r} has a limit by a key, and a unique key of its own, and queue {options.queue!r} has shards:"
        " the two keys may lead to different shards, but a job is in one. Give unique=True, for which equal jobs"
        " have equal limit keys; or"
        " use a queue without SHARDS"
    )


def _within_limit(
    call: envelopes.Envelope,
    token: str,
    payload: bytes,
    settings: conf.Settings,
    queue: conf.QueueSettings,
) -> bytes:
    """Return a payload that is not too large: without those headers that a call can do without.

    Raises:
        EncodeError: it is too large all the same.
    """
    has_context = bool(call.headers)
    if has_context:
        call.headers = contexts.required(settings.context, call.headers)
        codec = queue.payload_codec if queue.is_shared else None
        payload = envelopes.encode(call, token, queue.name, conf.get_keyring(), codec)
    if len(payload) > settings.max_payload_bytes:
        raise EncodeError(
            f"job of {call.task!r} has {len(payload):,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'],"
            f" {settings.max_payload_bytes:,}; store the data elsewhere and pass its key"
        )
    if has_context:
        # Not before: a job that is refused goes neither with it nor without.
        contexts.log_left_out(call.task)
    return payload


def _add_extras(
    job: Job[Any],
    draft: Draft,
    task: TaskDefinition,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    durable: Durable | None,
) -> None:
    """Add to a new job what the options of its task ask for beside the call; ``durable`` is its queue's."""
    options = task.options
    token, when, unique, payload = draft.new
    if options.spread is not None:
        when = spread(when, options.spread)
    if options.unique:
        job.unique = _unique_key(task, args, kwargs)
        unique = options.unique_until[0] + job.unique
    if options.priority:
        check_priority(options.priority, job.queue)
        job.priority = options.priority
    draft.new = NewJob(token, when, unique, payload)
    limit = options.limit
    draft.extras = Extras(
        options.priority,
        "" if limit is None else limit.of_call(task.name, args, kwargs),
        on_holder(options) if options.duplicates else None,
        durable=durable if options.durable is None else as_durable(options.durable),
        expires_ms=math.ceil((seconds(options.expires) or 0) * 1000)
        if options.unique and options.expires is not None
        else 0,
    )


def spread(when: str, longest: Seconds) -> str:
    """Add a random wait of 0 ms up to ``longest`` to what `parse_delay` wrote; the end of all time stays."""
    longest_ms = math.ceil((seconds(longest) or 0.0) * 1000)
    kind, start_ms = when[0], int(when[1:])
    most_ms = MAX_DELAY_MS if kind == "+" else MAX_START_TIME_MS
    # Not `random`: where a project seeds that in each process, all of them would choose the same waits.
    wait_ms = secrets.randbelow(longest_ms + 1)
    return f"{kind}{min(start_ms + wait_ms, most_ms)}"


def _check_call(
    task: TaskDefinition, delay: Delay, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    if task.fits(args, kwargs):
        if not args and not kwargs and task.optional_first and task.takes_delay:
            _warn_of_forgotten_delay(task, delay)
        return
    forgotten = ""
    # Only where the delay would be the argument that is missing.
    if (
        task.takes_delay
        and type(delay) in (int, float)
        and task.fits((delay, *args), kwargs)
    ):
        forgotten = f". The first argument of the call is the delay, {_shown(task, delay)} here: was the delay forgotten?"
    raise InvalidArguments(
        f"{task.name}{task.call_signature} cannot be called with {_show_call(args, kwargs)}:"
        f" {task.misfit(args, kwargs)}{forgotten}"
    )


def _warn_of_forgotten_delay(task: TaskDefinition, delay: Delay) -> None:
    """Warn if the only number in the call is more likely its argument than its delay."""
    # A timedelta or a datetime is never meant as an argument.
    if type(delay) not in (int, float):
        return
    if not _names_an_id(task.optional_first) and delay < NO_DELAY_S:  # type: ignore[operator]
        return
    shown = _shown(task, delay)
    warnings.warn(
        f"{task.name} is scheduled in {shown} seconds and without arguments. If {shown} was meant as"
        f" {task.optional_first!r}, the delay is missing before it: schedule(0, {shown}). If it is the delay, say"
        f" so: timedelta(seconds={shown})",
        stacklevel=_caller_level(),
    )


def _shown(task: TaskDefinition, delay: Delay) -> str:
    """Write a delay that may be an argument."""
    return repr(HIDDEN if task.base.sensitive else delay)


def _unique_key(
    task: TaskDefinition, args: Sequence[Any], kwargs: dict[str, Any]
) -> str:
    unique = task.options.unique
    if callable(unique):
        key = unique(*args, **kwargs)
        if not isinstance(key, str) or not key or not is_unicode(key):
            raise InvalidArguments(
                f"unique of {task.name!r} returned {show(key)}; return a string that is not empty"
            )
        if len(key.encode()) > MAX_UNIQUE_KEY:
            raise InvalidArguments(
                f"unique of {task.name!r} returned a key of {len(key.encode()):,} bytes; return one of at most"
                f" {MAX_UNIQUE_KEY:,}, such as a hash of it"
            )
        return f"{task.name}:{key}"
    bound = task.call_signature.bind(*args, **kwargs)
    bound.apply_defaults()
    chosen = dict(bound.arguments)
    if isinstance(unique, tuple):
        chosen = {name: chosen[name] for name in unique}
    text = json.dumps(
        json_values.plain_of(task, (), chosen)[1], sort_keys=True, separators=(",", ":")
    )
    return f"{task.name}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _names_an_id(name: str) -> bool:
    return name in ("id", "pk") or name.endswith(("_id", "_pk"))


def _caller_level() -> int:
    """Return the ``stacklevel`` that makes a warning point at the code that called into this package."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(
        "django_delayq."
    ):
        frame = frame.f_back
        level += 1
    return level


def _show_call(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    # The arguments' number and names are wrong, not their values, which are private.
    parts = [f"<{type(arg).__qualname__}>" for arg in args] + [
        f"{name}=<{type(value).__qualname__}>" for name, value in kwargs.items()
    ]
    text = ", ".join(parts)
    return f"({text if len(text) <= 200 else text[:200] + '…'})"
