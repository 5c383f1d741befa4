"""Performing many operations at once: in each round, the next calls of all of them share one write.

The operations stay separate: each call is atomic by itself, and an error ends only the operation that it belongs to.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from django_delayq.transport.call import Call
from django_delayq.transport.exchange import Exchange, Made
from django_delayq.transport.plain_command import Command
from django_delayq.transport.steps import Steps

T = TypeVar("T")


def together(operations: Sequence[Steps[T]]) -> Steps[list[T | Exception]]:
    """Perform operations at once, and return the result of each, or the server's or the connection's error.

    The operations ask for nothing but calls and commands that may be repeated.
    """
    results: list[Any] = [None] * len(operations)
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while True:
        calls: dict[int, Made] = {}
        for i, reply in replies.items():
            operation = operations[i]
            try:
                if isinstance(reply, Exception):
                    request = operation.throw(reply)
                else:
                    request = operation.send(reply)
            except StopIteration as stop:
                results[i] = stop.value
            except RedisError as error:
                results[i] = error
            else:
                assert isinstance(request, (Call, Command))
                calls[i] = request
        if not calls:
            return results
        made = yield Exchange(list(calls.values()), is_one=False)
        replies = dict(zip(calls, made, strict=True))
