"""Calls of scripts made up for tests."""

from collections.abc import Callable
from hashlib import sha1
from typing import Any

from django_delayq.transport.call import Call
from django_delayq.transport.script import Script

COUNT = "return { redis.call('INCR', KEYS[1]), ARGV[1] }"


def script(source: str) -> Script:
    return Script("test", source, sha1(source.encode()).hexdigest())


def echo(value: str, read: Callable[[Any], Any] = bytes.decode) -> Call[Any]:
    return Call(script("return ARGV[1]"), (), (value,), read)
