"""Makes sure that all processes agree on how many shards a queue has.

Where two processes disagreed, each would keep a key in a shard of its own, and one would store jobs where the other does
not look. So the first process writes the number down, and a process with another one refuses to store, and to serve. A
worker changes the number of a queue that holds nothing. docs/internals.md, "Shards".
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce

from django.core.signals import setting_changed
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from django_delayq.calls.errors import is_of_node, nothing_sent
from django_delayq.calls.neighbours import Neighbours
from django_delayq.calls.steps import Steps
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.delivery.sharding import (
    MOST_SHARDS,
    Held,
    Part,
    Pin,
    pin_shards,
    read_shards,
    shard_keys,
    words_of,
)
from django_delayq.exceptions import OtherShards

#: The queues of which this process has made sure. Of each, `Clients.changes` when the server was asked: another one is
#: asked again.
_agreed: dict[str, int] = {}
#: The shards to which this process may send, in the same way.
_ready: dict[str, int] = {}


def agreeing(
    whole: QueueSettings, part: QueueSettings, *, is_worker: bool = False
) -> Steps[Pin | None]:
    """Make sure that this process agrees with the others on the number of shards of a queue.

    Returns what the server says; None if the node that knows is down, and the part says the same. A worker gives an
    empty queue its own number, unless it has agreed on another one before: then others have changed it since.

    Raises:
        OtherShards: it does not agree.
        redis.exceptions.RedisError: the server did not answer.
    """
    changes, ours = own_clients.changes, whole.shards or 0
    while True:
        try:
            there: Part = yield read_shards(whole.keys)
        except RedisError as error:
            # The keys of the bare name may lie on a node that is down, and this part on another.
            if is_of_node(error) and part.name != whole.name:
                its: Part = yield read_shards(part.keys)
                if its.pin.number == ours:
                    return None
            raise
        pin = there.pin
        if pin.before is not None and is_worker:
            yield from _ending_change(whole, pin)
            continue
        if pin.number == ours and pin.before is None:
            _agreed[whole.name] = changes
            return pin
        theirs = pin.number if pin.before in (None, ours) else pin.before
        held, is_new = there.held, not pin.id
        if is_new:
            # Jobs of a number that the server has forgotten would lie in shards that nobody serves.
            for number in range(ours, MOST_SHARDS):
                try:
                    lying = yield read_shards(shard_keys(whole.keys, number))
                except RedisError as error:
                    # What a node that is down holds keeps no queue from its first use.
                    if not is_of_node(error):
                        raise
                    continue
                if any(lying.held):
                    theirs, held = number + 1, held.plus(lying.held)
        else:
            found: list[Part] = [] if theirs else [there]
            for number in range(theirs):
                found.append((yield read_shards(shard_keys(whole.keys, number))))
            held = reduce(Held.plus, (each.held for each in found))
        # Other processes may be at work on a queue that was used, and have no shards in their settings.
        is_first = is_new and (is_worker or not there.was_used)
        may_change = is_first or (is_worker and whole.name not in _agreed)
        if any(held) or not may_change:
            what, hint = words_of(whole.name, theirs, ours, held)
            raise OtherShards(
                f"{what} {hint}", queue=whole.name, theirs=theirs, ours=ours
            )
        new = Pin.new(ours, None if is_new else theirs)
        yield pin_shards(whole.keys, pin, new, closes=True, if_empty=True)


def _ending_change(whole: QueueSettings, pin: Pin) -> Steps[None]:
    """End the change of an empty queue's number, which this process or another one has begun.

    Until each old shard refuses what comes with the old number, a process that has it may store a job. Then the number
    stays as it was.
    """
    old, done = pin.before or 0, Pin(pin.number, pin.id)
    parts = [shard_keys(whole.keys, number) for number in range(old)]
    for number, keys in enumerate(parts):
        part: Part = yield read_shards(keys)
        if part.pin != done:
            closes = number >= done.number
            part = yield pin_shards(keys, part.pin, done, closes=closes, if_empty=True)
        if part.pin != done:
            back = Pin.new(old)
            there: Part = yield pin_shards(whole.keys, pin, back, closes=True)
            if there.pin.number == old and there.pin.before is None:
                for keys in parts:
                    yield pin_shards(keys, done, there.pin, closes=False)
            return
    there_is = bool(done.number)
    yield pin_shards(whole.keys, pin, done if there_is else Pin(), closes=there_is)


def serving(part: QueueSettings) -> Steps[None]:
    """Make sure that this process may serve a queue, or a shard of one, and that the shard says so to others.

    Raises:
        OtherShards: the queue has another number of shards.
        redis.exceptions.RedisError: the server did not answer.
    """
    whole = get_settings().sharded.get(part.whole)
    if whole is None:
        yield from agreeing(part, part, is_worker=True)
        return
    # First the shard: what it says may be replaced only by what the queue says later.
    there: Part = yield read_shards(part.keys)
    pin = yield from agreeing(whole, part, is_worker=True)
    if pin is not None and there.pin != pin:
        # On a full server it goes on saying nothing.
        with suppress(OutOfMemoryError):
            yield pin_shards(part.keys, there.pin, pin, closes=False)


def is_agreed(queue: str) -> bool:
    """Return whether jobs can be sent to a queue or a part of one without `agreeing_on` it."""
    return not get_settings().sharded or _ready.get(queue) == own_clients.changes


def agreeing_on(queue: str) -> Steps[None]:
    """Make sure that this process agrees with the others on the shards of a queue, before it sends to it.

    Raises:
        OtherShards: it does not agree; nothing was sent.
        redis.exceptions.RedisError: the server did not answer; nothing was sent.
    """
    if is_agreed(queue):
        return
    settings, changes = get_settings(), own_clients.changes
    part = settings.find(queue)
    if part is None:
        return
    whole = settings.sharded.get(part.whole)
    if whole is not None and _agreed.get(whole.name) != changes:
        with nothing_sent():
            yield from agreeing(whole, part)
    _ready[queue] = changes


def is_refused(error: Exception) -> bool:
    """Return whether the server may have refused jobs because their queue has got another number of shards."""
    text = str(error)
    return isinstance(error, ResponseError) and (
        "OTHERSHARDS" in text or "WRONGTYPE" in text
    )


def asking_why(queue: str) -> Steps[None]:
    """Say why the server has refused jobs, see `is_refused`.

    Raises:
        OtherShards: their queue has got another number of shards.
    """
    part = get_settings().find(queue)
    if part is None:
        return
    whole = get_settings().sharded.get(part.whole, part)
    _ready.pop(queue, None)
    with suppress(RedisError):
        there: Part = yield read_shards(part.keys)
        pin = yield from agreeing(whole, part)
        if part is not whole and pin is not None and there.pin.id and there.pin != pin:
            # A change of the number was broken off.
            yield pin_shards(part.keys, there.pin, pin, closes=False)


def checking(queues: Sequence[QueueSettings]) -> Steps[None]:
    """Make sure that this process agrees with the others on the shards of queues, except those whose node is down.

    Raises:
        OtherShards: it does not agree.
        redis.exceptions.RedisError: the server did not answer.
    """
    sharded = get_settings().sharded
    for queue in {queue.whole: queue for queue in queues}.values():
        try:
            yield from agreeing(sharded.get(queue.whole, queue), queue)
        except RedisError as error:
            if not is_of_node(error):
                raise


def on_each(
    queues: Sequence[QueueSettings], change: Callable[[QueueSettings], Steps[None]]
) -> Steps[list[QueueSettings]]:
    """Change something of each queue. A node of a cluster that is down does not keep the others from the change.

    Returns the queues.

    Raises:
        OtherShards: a queue has another number of shards; nothing was changed.
        redis.exceptions.RedisError: the server's own error; a note says which queues may be as they were.
    """
    sharded = get_settings().sharded
    left: list[str] = []
    failure: RedisError | None = None

    def over(
        rest: list[QueueSettings], act: Callable[[QueueSettings], Steps[object]]
    ) -> Steps[list[QueueSettings]]:
        nonlocal failure
        done: list[QueueSettings] = []
        while rest:
            queue = rest.pop(0)
            try:
                yield from act(queue)
                done.append(queue)
            except RedisError as error:
                if not is_of_node(error):
                    raise
                failure = failure or error
                left.append(queue.name)
                # A node that hangs is waited for once, however many queues it has.
                near = yield Neighbours(error, [each.keys.control for each in rest])
                paired = list(zip(rest, near, strict=True))
                left.extend(queue.name for queue, is_near in paired if is_near)
                rest = [queue for queue, is_near in paired if not is_near]
        return done

    def agree(queue: QueueSettings) -> Steps[Pin | None]:
        return agreeing(sharded.get(queue.whole, queue), queue)

    # All before the first change.
    agreed = yield from over(list(queues), agree)
    yield from over(agreed, change)
    if failure is not None:
        failure.add_note(
            f"django-delayq: {', '.join(left)} may be unchanged; the others are changed. Repeat the call once the"
            " node answers."
        )
        raise failure
    return list(queues)


def forget(**kwargs: object) -> None:
    """Ask again; connected to ``setting_changed``."""
    _agreed.clear()
    _ready.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.sharding")
