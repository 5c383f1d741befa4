"""URLs of servers and clusters: whether one is read as it is meant, and where it leads."""

import re
from urllib.parse import unquote, urlparse

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from django_delayq.clients.cluster import Address, Cluster
from django_delayq.clients.server import Server
from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, redact_url

#: The schemes of clusters, and those of their nodes. redis-py reads no URL with several hosts.
_CLUSTERS = {"redis+cluster": "redis", "rediss+cluster": "rediss"}


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


def server_at(url: str) -> Server | Cluster:
    """Return the server or the cluster at a URL."""
    if (nodes := nodes_of(url)) is None:
        return Server.at(url)
    servers = [Server.at(node) for node in nodes]
    return Cluster(
        servers[0],
        [
            Address(
                server.arguments.get("host", "localhost"),
                server.arguments.get("port", 6379),
            )
            for server in servers
        ],
    )


def is_readable(url: str) -> bool:
    """Return whether a URL is read as it is meant. redis-py takes any database that is not a number for database 0."""
    if (nodes := nodes_of(url)) is not None:
        # A cluster has database 0 only.
        return all(
            urlparse(node).hostname
            and is_readable(node)
            and not Server.at(node).arguments.get("db")
            for node in nodes
        )
    try:
        url.encode()
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
            " of a password as %23; or the nodes of a cluster, which has no other database than 0, such as"
            " 'redis+cluster://host1:7000,host2:7001'"
        )
    return SecretUrl(url)
