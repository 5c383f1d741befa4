"""`set_limit`, `clear_limit` and `limits`: change what may run at a time, and how often something starts, while it runs.

This module checks the arguments. The scripts keep the limits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core.rates import (
    MOST_AT_A_TIME,
    RATE_WANTED,
    is_concurrency,
    is_rate,
    numbers_of,
    share_of_rate,
    whole_of_rate,
)
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.shards import parse_shard, share_of
from django_delayq.exceptions import InvalidArguments
from django_delayq.features.limits import calls as limit_calls
from django_delayq.features.limits.calls import UNLIMITED, StoredLimit
from django_delayq.jobs import registry
from django_delayq.jobs.actor import actor
from django_delayq.jobs.answers import asking, complete
from django_delayq.jobs.limit import MAX_LIMIT_NAME, Limit, is_limit_name
from django_delayq.jobs.shard_agreement import on_each
from django_delayq.logs import get_log
from django_delayq.redaction import show
from django_delayq.suggestions import suggestion
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps
from django_delayq.wording import Wording, gettext, joined

logger = get_log("django_delayq.jobs")


class _Unchanged:
    def __repr__(self) -> str:
        return "unchanged"


#: In the place of a number: it stays as it is.
UNCHANGED: Final = _Unchanged()
Concurrency = int | None | _Unchanged
Rate = str | None | _Unchanged


class LimitInForce(NamedTuple):
    """A limit of a queue, or of tasks on it.

    Example::

        print(*limits("mail"), sep="\\n")
    """

    queue: str
    #: The name of the limit that tasks have; None: it is the queue's own.
    limit: str | None
    #: Jobs that run at a time; None: any number. By a key, it counts for each.
    concurrency: int | None
    #: How often a job starts; None: as often as workers can.
    rate: str | None
    #: Who has set it in the place of what the code says; empty: nobody.
    by: str

    def __str__(self) -> str:
        return str(self.words)

    @property
    def words(self) -> Wording:
        """The limit in one line of text."""
        most = self.concurrency
        return joined(
            what=gettext("queue {queue}: ", queue=self.queue)
            if self.limit is None
            else gettext(
                "limit {limit} on queue {queue}: ", limit=self.limit, queue=self.queue
            ),
            most=gettext("any number at a time")
            if most is None
            else gettext("{count:,} at a time", count=most),
            rate="" if self.rate is None else gettext(", {rate}", rate=self.rate),
            by=gettext(", set by {by}", by=self.by) if self.by else "",
        )


@performed
def set_limit(
    queue: str | None = None,
    *,
    limit: str | Limit | None = None,
    concurrency: Concurrency = UNCHANGED,
    rate: Rate = UNCHANGED,
) -> Steps[None]:
    """Change a limit while workers run. It replaces the settings or the code until `clear_limit`.

    ``set_limit("mail", rate="100/s")`` limits a queue. ``set_limit(limit="stripe", concurrency=5)`` limits the tasks
    with this limit on every queue in the settings, and ``set_limit("mail", limit="stripe", …)`` those on one queue. An
    argument that you leave out does not change; None removes that limit.

    Raises:
        QueueNotFound, InvalidArguments: nothing was set.
        redis.exceptions.RedisError: an error of the server. The limit may be set on some of the queues.
    """
    name = _name_of(limit)
    changes: dict[str, int | str | None] = {}
    for what, value, is_good, wanted in (
        (
            "concurrency",
            concurrency,
            is_concurrency,
            f"a whole number, 1 to {MOST_AT_A_TIME:,}",
        ),
        ("rate", rate, is_rate, RATE_WANTED),
    ):
        if isinstance(value, _Unchanged):
            continue
        if value is not None and not is_good(value):
            raise InvalidArguments(
                f"{what}={show(value)}: give {wanted}; or None for no such limit. To pause a queue, use pause()"
            )
        changes[what] = value
    if not changes:
        raise InvalidArguments(
            "set_limit() changes nothing: give concurrency=, rate=, or both. clear_limit() forgets what was set"
        )
    by = actor()
    queues = _queues_of(queue, name, "set_limit")
    if name is not None:
        yield from _checking_name(name, queues)
    # What is wrong with the numbers is said before anything is changed; it is the same for each part.
    _numbers(queues[0], changes, queue, name)

    def change(each: QueueSettings) -> Steps[None]:
        its = _numbers(each, changes, queue, name)
        yield limit_calls.set_limit(each.keys, its, name=name or "", by=by)
        for found in (yield from _in_force(each)):
            if found.limit == name:
                logger.warning("%s", found)
        yield from _loosening(each, name)

    yield from on_each(queues, change)


aset_limit = aperformed(set_limit)


@performed
def clear_limit(
    queue: str | None = None, *, limit: str | Limit | None = None
) -> Steps[bool]:
    """Undo `set_limit` with the same names; return False if nothing was set.

    The settings or the code apply again.

    Example::

        clear_limit(limit="stripe")

    Raises:
        QueueNotFound, InvalidArguments: nothing has changed.
    """
    name, was_set = _name_of(limit), False

    def change(each: QueueSettings) -> Steps[None]:
        nonlocal was_set
        if (yield limit_calls.set_limit(each.keys, None, name=name or "")):
            was_set = True
            what = "" if name is None else f"limit {name} on "
            logger.warning(
                "%squeue %s is again as the code says, by %s",
                what,
                each.name,
                actor(),
            )
        yield from _loosening(each, name)

    queues = _queues_of(queue, name, "clear_limit")
    yield from on_each(queues, change)
    return was_set


aclear_limit = aperformed(clear_limit)


@performed
def limits(queue: str | None = None) -> Steps[list[LimitInForce]]:
    """Return the limits of a queue and of tasks on it; by default of every queue in the settings.

    The limit of a task appears when the first worker with its code has started.

    Example::

        for each in limits("mail"):
            print(each.limit, each.concurrency, each.rate)

    Raises:
        QueueNotFound: the queue is not configured.
        PartialAnswer: some queues did not answer; ``found`` has the limits of the others.
    """
    settings = conf.get_settings()
    queues = settings.queues_of(queue)
    answers = yield from asking(queues, map(_in_force, queues))
    read = {each.name: its for each, its in answers.of(queues)}
    found: list[LimitInForce] = []
    for name in settings.names if queue is None else [queue]:
        parts = settings.queues_of(name)
        known = [(part, read[part.name]) for part in parts if part.name in read]
        if name in settings.sharded and len(known) == len(parts):
            found += _merged(settings.sharded[name], known)
        else:
            found += (each for _, its in known for each in its)
    return complete(found, answers.missing)


alimits = aperformed(limits)


def _numbers(
    part: QueueSettings,
    changes: dict[str, int | str | None],
    queue: str | None,
    name: str | None,
) -> dict[str, int | float | str]:
    """Return a change as the scripts read it. Of a limit of a whole queue, a shard gets its share.

    Raises:
        InvalidArguments: there is too little to share.
    """
    whole = conf.get_settings().sharded.get(part.whole)
    numbers: dict[str, int | float | str] = {}
    for what, value in changes.items():
        if value is None:
            numbers |= UNLIMITED[what]
            continue
        if whole is not None and name is None and queue == whole.name:
            try:
                value = share_in(part, whole, value)
            except ValueError:
                raise InvalidArguments(
                    f"{what}={show(value)}: the {whole.shards} shards of queue {whole.name!r} share it, and this is"
                    " too low; give more"
                ) from None
        numbers |= numbers_of(**{what: value})  # type: ignore[arg-type]
    return numbers


def share_in(part: QueueSettings, whole: QueueSettings, value: int | str) -> int | str:
    """Return the share that a shard has of a number of jobs, or of a rate.

    Raises:
        ValueError: it is less than can be given.
    """
    shards = whole.shards or 1
    if isinstance(value, str):
        rate = share_of_rate(value, shards)
        if not is_rate(rate):
            raise ValueError(rate)
        return rate
    if value < shards:
        raise ValueError(value)
    shard = parse_shard(part.name)
    return share_of(value, shard[1] if shard else 0, shards)


def _checking_name(name: str, queues: list[QueueSettings]) -> Steps[None]:
    """Make sure that tasks have a limit of this name: in this process, or in that of a worker that has declared it."""
    known = set(registry.all_limits())
    if name in known:
        return
    answers = yield from asking(queues, map(_in_force, queues))
    for _, found in answers.of(queues):
        known |= {each.limit for each in found if each.limit}
    if name not in known:
        raise InvalidArguments(
            f"limit={show(name)}: no task has a limit of this name, here or on the workers of"
            f" {', '.join(each.name for each in queues)}; known are {', '.join(sorted(known)) or 'none'}."
            + suggestion(name, known)
        )


def _loosening(queue: QueueSettings, name: str | None) -> Steps[None]:
    """Release jobs that the limit admits now: also those that an earlier call left that broke off."""
    cursor = b""
    while name is not None:
        reply = yield limit_calls.loosen(queue.keys, name=name, cursor=cursor)
        cursor = reply.cursor
        if not cursor:
            return


def _merged(
    whole: QueueSettings, parts: list[tuple[QueueSettings, list[LimitInForce]]]
) -> Iterator[LimitInForce]:
    """Yield the limits of a queue with shards: one where all shards say the same, else each."""
    names = dict.fromkeys(each.limit for _, found in parts for each in found)
    for name in names:
        of_parts = [
            (part, each)
            for part, found in parts
            for each in found
            if each.limit == name
        ]
        first = of_parts[0][1]
        together, is_of_all = first._replace(queue=whole.name), True
        if name is None:
            shares = [each.concurrency for _, each in of_parts]
            concurrency = None if None in shares else sum(filter(None, shares))
            rate = _rate_of(whole, first.rate)
            together = together._replace(concurrency=concurrency, rate=rate)
            is_of_all = len(of_parts) == len(parts)
        if is_of_all and all(
            each[2:4] == _shares(part, whole, together, name) for part, each in of_parts
        ):
            yield together
        else:
            yield from (each for _, each in of_parts)


def _rate_of(whole: QueueSettings, rate: str | None) -> str | None:
    if rate is None:
        return None
    if whole.rate is not None and share_of_rate(whole.rate, whole.shards or 1) == rate:
        return whole.rate
    return whole_of_rate(rate, whole.shards or 1)


def _shares(
    part: QueueSettings, whole: QueueSettings, together: LimitInForce, name: str | None
) -> tuple[int | None, str | None]:
    """Return what a shard says if it has its share of a limit."""
    concurrency, rate = together.concurrency, together.rate
    if name is None:
        try:
            if concurrency is not None:
                concurrency = int(share_in(part, whole, concurrency))
            if rate is not None:
                rate = str(share_in(part, whole, rate))
        except ValueError:
            return None, None
    return concurrency, rate


def _in_force(queue: QueueSettings) -> Steps[list[LimitInForce]]:
    stored = yield limit_calls.limits(queue.keys)
    return list(in_force(queue, stored))


def in_force(queue: QueueSettings, stored: list[StoredLimit]) -> Iterator[LimitInForce]:
    """Yield the limits of a queue, its own first, then others by name."""
    own = numbers_of(queue.concurrency, queue.rate)
    if own and not any(each.name == "" for each in stored):
        yield _limit(queue, None, own, {}, "")
    for name, code, changed, by in stored:
        yield _limit(queue, name or None, code if name else own, changed, by)


def concerning(
    queue: QueueSettings, limits: Iterable[LimitInForce], held: Iterable[Reason] = ()
) -> Iterator[LimitInForce]:
    """Yield those limits that say something of a queue. ``held``: what its jobs are held for.

    A worker declares the limits of all its tasks on all its queues, as jobs of a task may be on any. Of interest are those
    of tasks that have this queue, those that this process does not know, those that were set here, and those that hold jobs.
    """
    tasks = [task for task in registry.all_tasks() if task.options.limit]
    known = {task.options.limit.name for task in tasks if task.options.limit}
    here = {
        task.options.limit.name
        for task in tasks
        if task.options.limit and task.options.queue == queue.name
    }
    holding = {reason.name for reason in held if reason.kind == Kind.LIMIT}
    for each in limits:
        if (
            each.limit is None
            or each.by
            or each.limit in here | holding
            or each.limit not in known
        ):
            yield each


def _limit(
    queue: QueueSettings,
    name: str | None,
    code: dict[str, Any],
    changed: dict[str, Any],
    by: str,
) -> LimitInForce:
    numbers = {**code, **changed}
    concurrency, rate = numbers.get("concurrency"), numbers.get("rate")
    return LimitInForce(
        queue.name,
        name,
        concurrency if is_concurrency(concurrency) else None,
        rate if is_rate(rate) else None,
        by if changed else "",
    )


def _name_of(limit: object) -> str | None:
    if isinstance(limit, Limit):
        return limit.name
    if limit is not None and not is_limit_name(limit):
        raise InvalidArguments(
            f"limit={show(limit)}: give a Limit, or the name of one: text of 1 to {MAX_LIMIT_NAME} bytes, without spaces"
        )
    return limit  # type: ignore[return-value]


def _queues_of(queue: str | None, name: str | None, verb: str) -> list[QueueSettings]:
    settings = conf.get_settings()
    if queue is None:
        if name is None:
            raise InvalidArguments(
                f"{verb}() needs the name of a queue, or limit= and that of a limit: {verb}('mail'), {verb}(limit='stripe')"
            )
        return settings.queues_of()
    if not isinstance(queue, str):
        raise InvalidArguments(
            f"{verb}() takes the name of a queue; got {show(queue)}. For tasks, say {verb}(limit=…)"
        )
    return settings.queues_of(queue)
