"""Values that settings may have: a test of each, and the words of an error."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django_delayq.backoff import Backoff, read_backoff
from django_delayq.codecs import Codec, default_codec, get_codec
from django_delayq.core.bounds import MOST_ENDED
from django_delayq.core.durability import (
    DURABLE_WANTED,
    Durable,
    as_durable,
    is_durability,
)
from django_delayq.core.rates import (
    MOST_AT_A_TIME,
    RATE_WANTED,
    is_concurrency,
    is_rate,
)
from django_delayq.exceptions import DelayqError
from django_delayq.redaction import hide, hide_url, redact_url, show
from django_delayq.setting_fields import Values, count, list_of, seconds
from django_delayq.transport.url import is_readable
from django_delayq.wire.frame import FrameFormat

#: Seconds of the longest time limit: thirty years. A thread can wait for three hundred.
LONGEST_S = 10**9
#: Seconds of the shortest lease. It is renewed at a third, and a busy machine may pause a process for that long.
SHORTEST_LEASE_S = 2
#: Seconds of the longest lease. The jobs of a dead machine wait that long for another.
LONGEST_LEASE_S = 86_400
#: Seconds of the longest hold of a job whose task is unknown: 30 days.
LONGEST_HOLD_S = 2_592_000
#: Seconds of the shortest time to keep dead letters and quarantined jobs. Who writes a smaller number means days.
SHORTEST_TTL_S = 3_600
#: Seconds of the longest time to keep what was given up: a hundred years.
LONGEST_TTL_S = 100 * 365 * 86_400
#: Seconds of the longest `OUTBOX_KEEP`: until then, workers look at each row again and again.
LONGEST_KEEP_S = 300
#: Characters of the shortest secret.
SHORTEST_SECRET = 16
#: Characters of the longest prefix of queues. Each key has it.
LONGEST_PREFIX = 64
#: Bytes of the largest payload. A script that moves more holds the server for half a second.
LARGEST_PAYLOAD = 64 << 20
#: The largest bound of how many jobs or dead letters a queue holds.
MOST_JOBS = 10**9
#: What jobs may do in tests; see `Settings.test`.
TEST_MODES = ("captured", "immediate", "frozen", "server", "connection")


def _is_redisson(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        FrameFormat.for_redisson(value)
        default_codec(value)
    except DelayqError:
        return False
    return True


def _is_codec(value: Any) -> bool:
    try:
        get_codec(value)
    except (DelayqError, TypeError):
        return False
    return True


def _are_secrets(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(
            isinstance(item, str | bytes) and len(item) >= SHORTEST_SECRET
            for item in value
        )
    )


def _is_token(value: Any) -> bool:
    # Others cannot be sent in a header.
    return (
        isinstance(value, str)
        and len(value) >= SHORTEST_SECRET
        and all("!" <= character <= "~" for character in value)
    )


def _describe_secrets(value: Any) -> str:
    """Describe what is wrong with secrets without showing any."""
    if isinstance(value, str | bytes):
        return "a single secret (not shown), not a list"
    if not isinstance(value, list | tuple):
        return f"of type {type(value).__name__} (not shown)"
    for number, item in enumerate(value, 1):
        if not isinstance(item, str | bytes):
            return f"a list whose secret {number} is of type {type(item).__name__}"
        if len(item) < SHORTEST_SECRET:
            return f"a list whose secret {number} has {len(item)} characters"
    return (
        "a list with a secret that has characters that are not allowed"
        if value
        else "an empty list"
    )


def _is_connection(value: Any) -> bool:
    if not isinstance(value, str) or "://" not in value:
        return isinstance(value, str) and value != ""
    return is_readable(value)


def _show_connection(value: Any) -> str:
    # Not by `show`: a URL may be too mangled to be recognised.
    return repr(redact_url(value)) if isinstance(value, str) else show(value)


def _is_prefix(value: Any) -> bool:
    # Of a name with braces a cluster hashes only a part, which would put all queues into one slot.
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_PREFIX
        and (value + "_").isprintable()
        and not any(char in "{} " for char in value)
    )


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "." in value.strip(".")


def _is_module(value: Any) -> bool:
    return isinstance(value, str) and all(
        part.isidentifier() for part in value.split(".")
    )


def paths(example: str) -> Values[tuple[str, ...]]:
    return list_of(_is_path, f"dotted paths, such as {example!r}")


CONNECTION = Values[str](
    _is_connection,
    "the alias of a django-redis cache, or a URL that redis-py reads, such as"
    " 'redis://localhost:6379/0': port and database are numbers, parameters those of redis-py, special"
    " characters in a password are encoded (# as %23); or a URL of Sentinels, such as"
    " 'redis+sentinel://host1:26379,host2:26379/mymaster/0'; or a URL of a cluster, such as"
    " 'redis+cluster://host1:7000,host2:7001', which has only database 0",
    hide_url,
    _show_connection,
)
SECRETS = Values[Sequence[str | bytes]](
    _are_secrets,
    f"a list of secrets, the one to sign with first, each a string of at least {SHORTEST_SECRET} characters",
    hide,
    _describe_secrets,
)
TOKENS: Values[Sequence[str]] = list_of(
    _is_token,
    f"strings of at least {SHORTEST_SECRET} printable ASCII characters without spaces, such as"
    " secrets.token_urlsafe() returns",
)._replace(read=hide, show=_describe_secrets)
DIRECTORY = Values[Path](
    lambda value: isinstance(value, str | os.PathLike) and str(value) != "",
    "the path of a directory",
    Path,
)
#: What may go before the names of queues.
PREFIX = Values[str](
    _is_prefix,
    f"a string of at most {LONGEST_PREFIX} characters without spaces and braces, such as 'shop-', or '' for none",
)
ATTEMPTS = count(1, 1_000_000, "attempts")
RETRY = Values[Backoff](
    lambda value: isinstance(value, Backoff | dict),
    "a Backoff, or a dict such as {'BASE': 5, 'FACTOR': 3, 'MAX': 3600, 'JITTER': 0.25} (seconds)",
    read_backoff,
)
CONCURRENCY = Values[int](
    is_concurrency, f"a number of jobs at a time, 1 to {MOST_AT_A_TIME:,}"
)
RATE = Values[str](is_rate, RATE_WANTED)
DURABLE = Values[Durable | None](is_durability, DURABLE_WANTED, as_durable)
REDISSON = Values[str](
    _is_redisson, "a version of Redisson such as '3.16.6', 3.2.0 or later"
)
CODEC = Values[str | Codec](
    _is_codec, "the name of a codec such as 'StringCodec', or a codec"
)
FRAME = Values[str](
    lambda value: value in [item.value for item in FrameFormat],
    "'dLc0' (Redisson up to 3.21.0) or 'Bc0Lc0' (3.21.1 and later)",
)
MODULES = list_of(_is_module, "modules, such as 'shop.jobs'")
TEST_MODE = Values[str](
    lambda value: value in TEST_MODES,
    f"what jobs do in tests, one of {', '.join(map(repr, TEST_MODES))}",
)
KEPT_JOBS = count(0, MOST_ENDED, "jobs")
TTL = seconds(SHORTEST_TTL_S, LONGEST_TTL_S)
LIMIT_S = seconds(0.001, LONGEST_S)
#: Share of the claims of a queue, in the settings and on the worker's command line.
WEIGHT = count(1, 1_000)
