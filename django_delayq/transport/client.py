"""A client of redis-py all of whose commands go the way of our own calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.client import Redis

from django_delayq.transport.call import texts
from django_delayq.transport.connections import converse
from django_delayq.transport.errors import LOST
from django_delayq.transport.run import execute

#: Options that redis-py's clients keep from the functions that read replies.
_OF_CLIENTS = frozenset({"NEVER_DECODE", "EMPTY_RESPONSE", "keys"})


class Client(Redis):
    """A client of one server. An interrupted command closes its connection."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return called_back(self, args, options, execute(self, tuple(texts(args))))

    def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> Any:
        """Collect commands for one write; with a transaction, as redis-py does."""
        if transaction:
            return super().pipeline(transaction, shard_hint)
        return Pipeline(
            lambda commands: converse(self, [tuple(texts(each)) for each in commands]),
            lambda *told: called_back(self, *told),
        )


class Pipeline(Redis):
    """Commands for one exchange. They are not atomic together."""

    def __init__(
        self,
        exchange: Callable[[Sequence[tuple[Any, ...]]], list[Any]],
        read: Callable[[Sequence[Any], Mapping[str, Any], Any], Any],
    ) -> None:
        # Not that of `Redis`, which would make a pool.
        self.connection = None
        self.auto_close_connection_pool = False
        self._exchange = exchange
        self._read = read
        self._commands: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._commands.append((args, options))
        return self

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Return the replies. An error takes the place of its reply, unless no server answers, or it is to be raised."""
        commands, self._commands = self._commands, []
        replies = self._exchange([args for args, _ in commands])
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        are_all_lost = len(errors) == len(replies) and all(
            isinstance(error, LOST) for error in errors
        )
        if errors and (raise_on_error or are_all_lost):
            raise errors[0]
        return [
            reply if isinstance(reply, Exception) else self._read(args, options, reply)
            for (args, options), reply in zip(commands, replies, strict=True)
        ]


def called_back(
    client: Any, args: Sequence[Any], options: Mapping[str, Any], reply: Any
) -> Any:
    """Read a reply as redis-py's client does."""
    read = client.response_callbacks.get(args[0])
    if read is None:
        return reply
    told = {name: value for name, value in options.items() if name not in _OF_CLIENTS}
    return read(reply, **told)
