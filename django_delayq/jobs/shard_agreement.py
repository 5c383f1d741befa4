"""Makes sure that all processes agree on how many shards a queue has.

Where two processes disagreed, each would keep a key in a shard of its own, and one would store jobs where the other does
not look. So the first process writes the number down, and a process with another one refuses to store, and to serve. A
worker changes the number of a queue that holds nothing. docs/internals.md, "Shards".
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce

from django.core.signals import setting_changed
from redis.exceptions import (
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from django_delayq.conf import QueueSettings, get_settings
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.shards import (
    MOST_SHARDS,
    Held,
    Part,
    Pin,
    parse_shard,
    pin_shards,
    read_shards,
    shard_keys,
    words_of,
)
from django_delayq.exceptions import OtherShards
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node, nothing_sent
from django_delayq.transport.neighbours import Neighbours
from django_delayq.transport.steps import Steps

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
        pin, theirs = there.pin, there.pin.number
        # A queue without shards says nothing, and nothing is asked beyond it: what has such a name may be anybody's.
        if not pin.id and ours:
            theirs = yield from _number_shown(whole, there)
        if theirs == ours and (pin.id or not ours):
            _agreed[whole.name] = changes
            return pin
        may_change, held = is_worker and not (pin.id and whole.name in _agreed), Held()
        if theirs != ours:
            found = [] if theirs else [there]
            for number in range(theirs):
                found.append((yield read_shards(shard_keys(whole.keys, number))))
            held = reduce(Held.plus, (each.held for each in found))
            if any(held) or not may_change:
                what, hint = words_of(whole.name, theirs, ours, held)
                raise OtherShards(
                    f"{what} {hint}", queue=whole.name, theirs=theirs, ours=ours
                )
        if pin.id:
            yield from _changing(whole, pin, ours)
        else:
            yield pin_shards(whole.keys, pin, Pin.new(theirs or ours))


def _number_shown(whole: QueueSettings, there: Part) -> Steps[int]:
    """Return how many shards a queue has as its parts show, where the server says nothing; ours if they show nothing.

    The server may have forgotten the number. Jobs of another one would lie in shards that nobody serves.
    """
    ours = whole.shards or 0
    if any(there.held):
        return 0
    # Other processes may be at work on a queue that was used, and have no shards in their settings.
    shown = 0 if there.was_used else ours
    for number in range(MOST_SHARDS):
        try:
            part: Part = yield read_shards(shard_keys(whole.keys, number))
        except NoPermissionError:
            # An account needs no right to shards that its queue does not have.
            continue
        except RedisError as error:
            # What a node that is down holds keeps no queue from its first use.
            if not is_of_node(error):
                raise
            continue
        if part.pin.id and not part.pin.is_closed:
            return part.pin.number
        if number >= ours and any(part.held):
            shown = number + 1
    return shown


def _changing(whole: QueueSettings, pin: Pin, ours: int) -> Steps[None]:
    """Give an empty queue our number of shards, unless one of its shards gets a job meanwhile.

    First each shard is closed, so nobody stores a job by the old number once the queue has another one.
    """
    parts, new = [shard_keys(whole.keys, n) for n in range(pin.number)], Pin.new(ours)
    for keys in parts:
        there: Part = yield read_shards(keys)
        there = yield pin_shards(keys, there.pin, pin)
        if there.pin != pin:
            new = Pin.new(pin.number)
            break
    there = yield pin_shards(whole.keys, pin, new)
    if there.pin == new:
        for keys in parts[: new.number]:
            yield pin_shards(keys, pin, new.opened)


def _opening(
    whole: QueueSettings, keys: DeliveryKeys, old: Pin, pin: Pin
) -> Steps[bool]:
    """Have a shard say what its queue says; ``old`` is what it said before that was read. Returns whether it was closed."""
    if old == pin:
        # By a change that was broken off: it must not go on while the shard is open.
        pin = Pin.new(pin.number)
        there: Part = yield pin_shards(whole.keys, old, pin)
        if there.pin != pin:
            return True
    if old != pin.opened:
        # On a full server it goes on saying nothing.
        with suppress(OutOfMemoryError):
            yield pin_shards(keys, old, pin.opened)
    return old.is_closed


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
    if pin is not None:
        yield from _opening(whole, part.keys, there.pin, pin)


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
        OtherShards: their queue has got another number of shards, or a worker was about to give it one.
    """
    part = get_settings().find(queue)
    if part is None:
        return
    whole = get_settings().sharded.get(part.whole, part)
    _ready.pop(queue, None)
    with suppress(RedisError):
        there: Part = yield read_shards(part.keys)
        pin = yield from agreeing(whole, part)
        if part is whole or pin is None:
            return
        if (yield from _opening(whole, part.keys, there.pin, pin)):
            raise OtherShards(
                f"The number of shards of queue {whole.name!r} was being changed, and nothing was stored. It is"
                f" {pin.number} now: repeat the call.",
                queue=whole.name,
                theirs=pin.number,
                ours=pin.number,
            )


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


def whole_of_former(part: QueueSettings) -> Steps[str]:
    """Return the queue that a shard of it, or its bare name, was part of before its number of shards changed.

    Empty: it still is a part, or a queue that this process does not have.

    Raises:
        OtherShards: this process does not agree on that number.
        redis.exceptions.RedisError: the server did not answer.
    """
    settings, shard = get_settings(), parse_shard(part.name)
    whole = part.name if shard is None else shard[0]
    if settings.find(part.name) is not None or whole not in settings.names:
        return ""
    there: Part = yield read_shards(part.keys)
    if not there.pin.id and whole not in settings.sharded:
        # A queue without shards beside this one, which has such a name.
        return ""
    yield from checking(settings.queues_of(whole))
    return whole


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
