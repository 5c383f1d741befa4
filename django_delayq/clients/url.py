"""URLs of servers: whether redis-py reads one as it is meant."""

import re
from urllib.parse import unquote, urlparse

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, redact_url


def is_readable(url: str) -> bool:
    """Return whether redis-py reads a URL as it is meant: it takes a database that is not a number for database 0."""
    try:
        url.encode()
        # Opens nothing. A parameter that redis-py does not know is a TypeError here.
        ConnectionPool.from_url(url).make_connection()
        place = urlparse(url)
    except (ValueError, TypeError, RedisError):
        return False
    if place.scheme == "unix":
        # redis-py ignores a host, which is the start of a password with a slash in it, and takes the rest for the path.
        return not place.netloc or "@" in place.netloc
    return re.fullmatch(r"/?[0-9]*/?", unquote(place.path)) is not None


def read_url(url: str) -> SecretUrl:
    """Return a URL that shows no password.

    Raises:
        InvalidSettings: redis-py does not read it.
    """
    if not is_readable(url):
        # Not chained: what redis-py says of a URL may repeat a part of its password.
        raise InvalidSettings(
            f"connection is {redact_url(url)!r}, which is not a URL that redis-py reads; give one such as"
            " 'redis://localhost:6379/0', its database a number, its parameters those of redis-py, special characters"
            " of a password as %23"
        )
    return SecretUrl(url)
