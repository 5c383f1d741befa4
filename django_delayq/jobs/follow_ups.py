"""What follows a job: the jobs that it carries in its envelope, and that its worker signs and stores at its end.

Their calls are part of the body of the job before them, so its signature covers them. Each has its id from the start, and
no signature of its own until the worker gives it one: a payload in a payload would double its escapes at each link.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from django_delayq import conf
from django_delayq.core.states import State
from django_delayq.core.store import NewJob, tail_of
from django_delayq.exceptions import EncodeError, InvalidTask, QueueNotFound
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.draft import Draft
from django_delayq.jobs.envelope import Envelope, Follow, Follower
from django_delayq.redaction import show

#: How many jobs may follow one, by `then` and by `on_dead` each.
MOST_FOLLOWERS = 100
#: How many links a chain may have, the first job included.
MOST_LINKS = 32
#: As so many bytes a small one counts where calls are cut by size: so no call stores more than some 500.
LEAST_BYTES = 2_048


class Prepared(NamedTuple):
    """A job that may carry others or be carried."""

    id: str
    queue: str
    state: State
    #: None: this process has not prepared it, or has given it away.
    draft: Draft | None


def join(name: str, carrier: Prepared, jobs: Sequence[Prepared | object]) -> None:
    """Have a prepared job carry others that follow it by ``name``: `then` or `on_dead`.

    Raises:
        InvalidTask: one of them cannot follow, or the job already has followers; they are too many, or too many in a
            row; or the queue is shared.
        EncodeError: the payload is larger than MAX_PAYLOAD_BYTES.
    """
    draft = _draft_of(carrier, name)
    _check_free(carrier.id, draft, name)
    if not 0 < len(jobs) <= MOST_FOLLOWERS:
        raise InvalidTask(
            f"{name}() takes 1 to {MOST_FOLLOWERS} prepared jobs, and got {len(jobs)}"
        )
    drafts = {job.id: (job.queue, _draft_of(job, name)) for job in _all(jobs, name)}
    if len(drafts.keys() | {carrier.id}) <= len(jobs):
        raise InvalidTask(f"{name}() got a job twice, or the job itself")
    followers = [_follower_of(queue, its) for queue, its in drafts.values()]
    _carry(carrier.queue, draft, name, followers)


def _all(jobs: Sequence[Prepared | object], name: str) -> Iterator[Prepared]:
    """Yield jobs; raise InvalidTask at the first value that is none."""
    for job in jobs:
        if not isinstance(job, Prepared):
            raise InvalidTask(
                f"{name}() takes jobs that were prepared, task.prepare(delay, …), not {show(job)}"
            )
        yield job


def _draft_of(job: Prepared, name: str) -> Draft:
    """Return what was prepared of a job, if it can still carry others or be carried.

    Raises:
        InvalidTask: it cannot.
    """
    job_id, _, state, draft = job
    if draft is None or draft.sent_ms is not None or draft.awaits_commit is not None:
        why = "it was sent" if draft is not None else "it is sent or follows another"
        raise InvalidTask(
            f"job {job_id} cannot be used with {name}(), as {why} already: prepare a new one, and say what follows"
            " it before it is sent or follows another"
        )
    if state is State.CANCELLED:
        raise InvalidTask(f"job {job_id} cannot be used with {name}(): it is cancelled")
    if draft.extras.batch:
        raise InvalidTask(
            f"job {job_id} cannot be used with {name}(): it is part of a batch; say what follows it before it joins one"
        )
    if draft.extras.duplicates is not None:
        raise InvalidTask(
            f"job {job_id} cannot be used with {name}(): its task has on_duplicate, which no job of a chain may"
            " have; use task.using(on_duplicate='keep')"
        )
    return draft


def _check_free(job_id: str, draft: Draft, name: str) -> None:
    """Make sure that no jobs follow a prepared one by ``name`` yet.

    Raises:
        InvalidTask: some do.
    """
    follow = draft.extras.follow or Follow()
    if follow.then if name == "then" else follow.dead:
        raise InvalidTask(
            f"job {job_id} already has {name}(). For several followers, write {name}(a, b); for a chain,"
            " first.then(second.then(third))"
        )


def _carry(queue: str, draft: Draft, name: str, followers: list[Follower]) -> None:
    """Have a prepared job of a queue carry others that follow it by ``name``.

    Raises:
        InvalidTask: they are too many in a row, or the queue is shared.
        EncodeError: the payload is larger than MAX_PAYLOAD_BYTES.
    """
    if conf.get_settings().queue(queue).is_shared:
        raise InvalidTask(
            f"queue {queue!r} is shared with Redisson, so Java may take its jobs, and nothing would follow them;"
            " use a queue without REDISSON for the first of them"
        )
    before, new = draft.extras.follow or Follow(), draft.new
    follow = (
        Follow(followers, before.dead)
        if name == "then"
        else Follow(before.then, followers)
    )
    if links(follow) >= MOST_LINKS:
        raise InvalidTask(
            f"more than {MOST_LINKS} jobs would follow one another; let the last one schedule the next ones itself"
        )
    call = envelopes.claimed_call(new.payload)
    call.follow = follow
    payload = written_anew(call, new.token, queue, "and all jobs that follow it")
    draft.new = new._replace(payload=payload)
    draft.extras = replace(draft.extras, follow=follow)


def _follower_of(queue: str, draft: Draft) -> Follower:
    """Return what another job carries of a prepared one."""
    new, priority, limit = draft.new, draft.extras.priority, draft.extras.limit
    settings = conf.get_settings().queue(queue)
    call = envelopes.claimed_call(new.payload, settings.payload_codec)
    follower = Follower(
        new.token, queue, new.when, call, str(new.tail), priority, limit
    )
    if settings.shard_of is not None:
        follower.whole = settings.whole
        # Who named another shard than that of the key means it.
        is_at_home = home_of(replace(follower, by_key=True)) == settings
        follower.by_key = is_at_home and bool(limit or follower.unique)
    return follower


def home_of(follower: Follower) -> conf.QueueSettings:
    """Return the settings of the queue that a job gets into, by default where this process does not have it."""
    settings, name = conf.get_settings(), follower.queue
    # The number of shards may have changed since, and a process without this queue does not know it.
    if follower.whole in settings.names and (
        follower.by_key or settings.find(name) is None
    ):
        name = follower.whole
    return queue_of(name, follower.limit or follower.unique[1:] or follower.token)


def links(follow: Follow | None) -> int:
    """Return how many jobs follow one another."""
    if follow is None:
        return 0
    return 1 + max(links(each.call.follow) for each in (*follow.then, *follow.dead))


def written_anew(call: Envelope, token: str, queue: str, what: str) -> bytes:
    """Return the payload of a prepared job whose call has changed; ``what`` has made it longer.

    Raises:
        EncodeError: it is larger than MAX_PAYLOAD_BYTES.
    """
    most = conf.get_settings().max_payload_bytes
    payload = envelopes.encode(call, token, queue, conf.get_keyring())
    if len(payload) > most:
        raise EncodeError(
            f"the job of {call.task!r} {what} have {len(payload):,} bytes, more than DELAYQ['MAX_PAYLOAD_BYTES'], {most:,};"
            " store the data elsewhere and pass its key"
        )
    return payload


@dataclass(slots=True)
class Bound:
    """Jobs that follow one, signed and ready to be stored."""

    #: Those in its own queue.
    here: list[NewJob] = field(default_factory=list)
    #: Those in others, by queue.
    elsewhere: dict[str, list[NewJob]] = field(default_factory=dict)
    #: Bytes of the payloads, each counted as `LEAST_BYTES` at least.
    weight: int = 0


def bind(followers: Sequence[Follower], queue: str) -> Bound:
    """Sign and write the jobs that follow one of a queue."""
    bound = Bound()
    keyring = conf.get_keyring()
    for each in followers:
        settings = home_of(each)
        payload = envelopes.encode(
            each.call,
            each.token,
            settings.name,
            keyring,
            settings.payload_codec if settings.is_shared else None,
        )
        # The queue may have come to be shared since the job was prepared, with a priority.
        priority = 0 if settings.is_shared else each.priority
        new = NewJob(each.token, each.when, _tail(each, priority), payload)
        bound.weight += max(len(payload), LEAST_BYTES)
        if settings.name == queue:
            bound.here.append(new)
        else:
            bound.elsewhere.setdefault(settings.name, []).append(new)
    return bound


def _tail(follower: Follower, priority: int) -> str | bytes:
    is_followed = follower.call.follow is not None and bool(follower.call.follow.dead)
    return tail_of(
        follower.unique,
        priority,
        follower.limit,
        has_on_dead=is_followed,
        expires_ms=_expires_ms(follower) if follower.unique else 0,
    )


def _expires_ms(follower: Follower) -> int:
    expires_s = (follower.call.options or {}).get("expires")
    return math.ceil(expires_s * 1000) if isinstance(expires_s, int | float) else 0


def queue_of(name: str, key: str = "") -> conf.QueueSettings:
    """Return the settings of a queue, by default where this process does not have it: what follows must not be lost.

    With the ``key`` of a job, which may be its token, see `Settings.home_of`.
    """
    settings = conf.get_settings()
    try:
        return settings.home_of(name, key) if key else settings.queue(name)
    except QueueNotFound:
        return conf.QueueSettings(name=name, prefix=settings.prefix)
