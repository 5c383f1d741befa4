"""URLs of servers: whether one is read as it is meant, and those of clusters and Sentinels, which redis-py does not know."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, redact_url

#: The schemes of clusters, and those of their nodes. redis-py reads no URL with several hosts.
_CLUSTERS = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
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
    """The parts of a URL of Sentinels."""

    name: str
    addresses: tuple[tuple[str, int], ...]
    has_tls: bool
    #: Of the connections to the server, and to the Sentinels.
    arguments: dict[str, Any] = field(repr=False)
    sentinel_arguments: dict[str, Any] = field(repr=False)
    max_connections: int | None = None


def nodes_of(url: str) -> list[SecretUrl] | None:
    """Return the URL of each node that the URL of a cluster names; None if it is not a cluster's.

    ``redis+cluster://user:pass@h1:7000,h2:7001/?protocol=3`` names two.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _CLUSTERS:
        return None
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    account, at, hosts = place.rpartition("@")
    end = rest[len(place) :]
    return [
        SecretUrl(f"{_CLUSTERS[scheme]}://{account}{at}{host}{end}")
        for host in hosts.split(",")
    ]


def is_readable(url: str) -> bool:
    """Return whether a URL is read as it is meant. redis-py takes any database that is not a number for database 0."""
    if (nodes := nodes_of(url)) is not None:
        # A cluster has database 0 only.
        return all(
            urlparse(node).hostname
            and is_readable(node)
            and not ConnectionPool.from_url(node).connection_kwargs.get("db")
            for node in nodes
        )
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
            f"connection is {redact_url(url)!r}, which is not a URL that redis-py reads. Give one such as"
            " 'redis://localhost:6379/0': its database is a number, its parameters are those of redis-py, and"
            " special characters in a password are encoded (# as %23). For Sentinels, give one such as"
            " 'redis+sentinel://host1:26379,host2:26379/mymaster/0'. For a cluster, which has only database 0, give"
            " one such as 'redis+cluster://host1:7000,host2:7001'"
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
        raise ValueError("it names no primary, or its database is not a number")
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
        raise ValueError("a host is missing, or its port is not a number")
    return matched[1] or matched[2], port
