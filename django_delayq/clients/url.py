"""URLs of servers: whether redis-py reads one as it is meant, and those of Sentinels, which it does not know."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, redact_url

#: The port of a Sentinel whose URL names none.
SENTINEL_PORT = 26379
#: Schemes of Sentinels, and those that redis-py knows for the same connections.
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
#: Parameters of a Sentinel's URL for the connections to the Sentinels, and the names of redis-py.
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
#: What holds for the connections to Sentinels as it does for those to the server.
_OF_BOTH = re.compile(r"ssl_\w+|socket_keepalive\w*|socket_type|client_name")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]@/]+))(?::([0-9]{1,5}))?")
_PATH = re.compile(r"/([^/]+)(?:/([0-9]*))?/?")


@dataclass(frozen=True, kw_only=True)
class SentinelUrl:
    """What the URL of Sentinels says."""

    name: str
    addresses: tuple[tuple[str, int], ...]
    has_tls: bool
    #: Of the connections to the server, and to the Sentinels.
    arguments: dict[str, Any] = field(repr=False)
    sentinel_arguments: dict[str, Any] = field(repr=False)
    max_connections: int | None = None


def is_readable(url: str) -> bool:
    """Return whether a URL is read as it is meant. redis-py takes any database that is not a number for database 0."""
    try:
        url.encode()
        if read_sentinel_url(url) is not None:
            return True
        # This opens nothing. It raises TypeError for a parameter that redis-py does not know.
        ConnectionPool.from_url(url).make_connection()
        place = urlparse(url)
    except (ValueError, TypeError, RedisError):
        return False
    if place.scheme == "unix":
        # redis-py ignores a host and takes the rest for the path. Such a host is the start of a password with a slash.
        return not place.netloc or "@" in place.netloc
    return re.fullmatch(r"/?[0-9]*/?", unquote(place.path)) is not None


def read_url(url: str) -> SecretUrl:
    """Return a URL that shows no password.

    Raises:
        InvalidSettings: redis-py does not read it.
    """
    if not is_readable(url):
        # Not chained: redis-py's message may repeat a part of the password.
        raise InvalidSettings(
            f"connection is {redact_url(url)!r}, which is not a URL that redis-py reads; give one such as"
            " 'redis://localhost:6379/0', its database a number, its parameters those of redis-py, special characters"
            " of a password as %23; for Sentinels one such as 'redis+sentinel://host1:26379,host2:26379/mymaster/0'"
        )
    return SecretUrl(url)


def read_sentinel_url(url: str) -> SentinelUrl | None:
    """Return what the URL of Sentinels says; None: it is the URL of a server.

    Its shape is ``redis+sentinel://user:password@host:port,host:port/name/database?parameters``.

    Raises:
        ValueError, TypeError, redis.exceptions.RedisError: it cannot be read.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINEL_SCHEMES:
        return None
    place, question, query = rest.partition("?")
    account, at, place = place.rpartition("@")
    hosts, slash, path = place.partition("/")
    matched = _PATH.fullmatch(slash + path)
    if matched is None or "/" in account or "#" in rest:
        raise ValueError("it names no primary, or its database is no number")
    parts = parse_qs(query, keep_blank_values=True)
    own = {
        argument: parts.pop(name)[0]
        for name, argument in _OF_SENTINELS.items()
        if name in parts
    }
    known = "&".join(
        item
        for item in query.split("&")
        if unquote(item.partition("=")[0]) not in _OF_SENTINELS
    )
    # redis-py reads the account, the database and the parameters. This opens nothing.
    pool = ConnectionPool.from_url(
        f"{SENTINEL_SCHEMES[scheme]}://{account}{at}primary/{matched[2] or 0}{question}{known}"
    )
    pool.make_connection()
    arguments = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name not in ("host", "port")
    }
    shared = {
        name: value for name, value in arguments.items() if _OF_BOTH.fullmatch(name)
    }
    has_tls = SENTINEL_SCHEMES[scheme] == "rediss"
    return SentinelUrl(
        name=unquote(matched[1]),
        addresses=tuple(map(_read_address, hosts.split(","))),
        has_tls=has_tls,
        arguments=arguments,
        sentinel_arguments=shared | own | ({"ssl": True} if has_tls else {}),
        max_connections=pool.max_connections,
    )


def _read_address(text: str) -> tuple[str, int]:
    matched = _HOST.fullmatch(unquote(text))
    port = int(matched[3] or SENTINEL_PORT) if matched else 0
    if matched is None or not 0 < port < 65_536:
        raise ValueError("a host is missing, or its port is no number")
    return matched[1] or matched[2], port
