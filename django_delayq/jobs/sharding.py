"""Makes sure that all processes agree on where a queue with shards keeps unique keys, limits and schedules.

Where two processes disagreed, each would keep a key by itself, and two jobs would hold it. So the first process writes
down how many shards keep keys, and a process with another number refuses to send, and to serve.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from django.core.signals import setting_changed
from redis.exceptions import RedisError

from django_delayq.calls.command import Command
from django_delayq.calls.errors import is_of_node, nothing_sent
from django_delayq.calls.neighbours import Neighbours
from django_delayq.calls.steps import Steps
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings, get_settings
from django_delayq.delivery.sharding import Shards, pin_shards, shard_name
from django_delayq.exceptions import InvalidSettings

T = TypeVar("T")

#: The queues of which this process has made sure. Of each, `Clients.changes` when the server was asked: another one is
#: asked again.
_agreed: dict[str, int] = {}
#: The parts of queues with shards to which this process may send, in the same way.
_ready: dict[str, int] = {}


#: The field of a shard's control hash that says how many shards kept keys when a worker began to serve it. It lets others
#: begin while the node of the bare name is down: the number never changes.
JOINED = "joined"


def joined(shard: QueueSettings) -> Command[int | None]:
    """Ask how many shards kept keys when a shard was served first; None: nobody has served it."""
    return Command(
        ("HMGET", shard.keys.control, JOINED),
        lambda reply: None if reply[0] is None else int(reply[0]),
    )


def agreeing(whole: QueueSettings, part: QueueSettings) -> Steps[Shards | None]:
    """Make sure that this process agrees with the others, before it uses a part of a queue with shards.

    Returns what the server knows, None if nothing was asked.

    Raises:
        InvalidSettings: it does not agree.
        redis.exceptions.RedisError: the server did not answer.
    """
    changes = own_clients.changes
    if _agreed.get(whole.name) == changes:
        return None
    ours = whole.key_home
    assert ours is not None
    try:
        found: Shards = yield pin_shards(whole.keys, whole.most_shards, ours)
    except RedisError as error:
        # What has the bare name may lie on a node that is down, and this part elsewhere.
        if is_of_node(error) and (yield joined(part)) == ours:
            return None
        raise
    if found.with_keys != ours:
        name, theirs = whole.name, found.with_keys
        where = f"in its first {theirs} shards" if theirs else "under its bare name"
        raise InvalidSettings(
            f"queue {name!r} keeps unique keys, limits and schedules {where}, but these settings"
            " say"
            f" {ours}: set DELAYQ['QUEUES'][{name!r}]['KEY_SHARDS'] to {theirs}"
        )
    _agreed[whole.name] = changes
    return found


def is_agreed(queue: str) -> bool:
    """Return whether jobs can be sent to a queue or a part of one without `agreeing_on` it."""
    return not get_settings().sharded or _ready.get(queue) == own_clients.changes


def agreeing_on(queue: str) -> Steps[None]:
    """Make sure that this process agrees with the others on the shards of a queue, before it sends to it.

    Raises:
        InvalidSettings: it does not agree; nothing was sent.
        redis.exceptions.RedisError: the server did not answer; nothing was sent.
    """
    if is_agreed(queue):
        return
    settings, changes = get_settings(), own_clients.changes
    part = settings.find(queue)
    if part is None:
        return
    if (whole := settings.sharded.get(part.whole)) is not None:
        with nothing_sent():
            yield from agreeing(whole, part)
    _ready[queue] = changes


def on_each(
    queues: Sequence[QueueSettings], change: Callable[[QueueSettings], Steps[None]]
) -> Steps[list[QueueSettings]]:
    """Change something of each queue, and of the shards that only the server knows, if all of their queue is meant.

    Other processes have more shards in their settings, or had more, and the workers serve those as well. A node of a
    cluster that is down does not keep the others from the change. Returns the queues.

    Raises:
        redis.exceptions.RedisError: the server's own error; a note says which queues may be as they were.
    """
    left: list[str] = []
    rest = list(queues)
    failure: RedisError | None = None

    def attempt(what: str, steps: Steps[T]) -> Steps[T | None]:
        nonlocal failure, rest
        try:
            return (yield from steps)
        except RedisError as error:
            if not is_of_node(error):
                raise
            failure = failure or error
            left.append(what)
            # A node that hangs is waited for once, however many queues it has.
            near = yield Neighbours(error, [queue.keys.control for queue in rest])
            paired = list(zip(rest, near, strict=True))
            left.extend(queue.name for queue, is_near in paired if is_near)
            rest = [queue for queue, is_near in paired if not is_near]
            return None

    parts = {queue.name: queue for queue in queues}
    while rest:
        queue = rest.pop(0)
        yield from attempt(queue.name, change(queue))
    # Last: where the node of the bare name is lost, and found again, nothing was left out meanwhile.
    for whole in queues:
        if whole.shard_of is None or whole.name != whole.whole:
            continue
        what = f"each further shard of {whole.name}"
        known = yield from attempt(what, _shards_of(whole))
        for number in range(known.most if known else 0):
            name = shard_name(whole.name, number)
            if name not in parts:
                parts[name] = get_settings().queue(name)
                yield from attempt(name, change(parts[name]))
    if failure is not None:
        failure.add_note(
            f"django-delayq: {', '.join(left)} may be unchanged; the others are changed. Repeat the call once the"
            " node answers."
        )
        raise failure
    return list(parts.values())


def _shards_of(whole: QueueSettings) -> Steps[Shards]:
    known: Shards = yield pin_shards(whole.keys)
    return known


def forget(**kwargs: object) -> None:
    """Ask again; connected to ``setting_changed``."""
    _agreed.clear()
    _ready.clear()


setting_changed.connect(forget, dispatch_uid="django_delayq.sharding")
