"""The server's clock, as a test sets it: the call's script takes the time from an argument instead of `TIME`."""

from functools import cache
from hashlib import sha1
from typing import Any, TypeVar

from msgspec.structs import replace

from django_delayq.transport.call import Call
from django_delayq.transport.plain_command import Command
from django_delayq.transport.script import LOADED, Script

C = TypeVar("C", bound=Call[Any] | Command[Any])


def at(now_us: float, call: C) -> C:
    """Return a call in which the server's time is ``now_us``, epoch us. One that reads no time, or has it, stays as it is."""
    if isinstance(call, Command) or "'TIME'" not in call.script.source:
        return call
    full = call.full
    return replace(
        call,
        script=_with_a_given_time(call.script),
        args=[*call.args, round(now_us)],
        full=None if full is None else lambda: at(now_us, full()),
    )


@cache
def _with_a_given_time(script: Script) -> Script:
    """Return a script that gets the time behind its arguments. It takes it away first, and so counts them as before."""
    source = "ARGV.now = table.remove(ARGV)\n" + script.source.replace(
        "redis.call('TIME')", "{ math.floor(ARGV.now / 1000000), ARGV.now % 1000000 }"
    )
    sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
    LOADED[sha] = replace(script, source=source, sha=sha)
    return LOADED[sha]
