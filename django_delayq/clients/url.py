"""URLs of servers: whether redis-py reads one as it is meant."""

import re
from urllib.parse import unquote, urlparse

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import SecretUrl, redact_url


def is_readable(url: str) -> bool:
    """Return whether redis-py reads a URL as it is meant. It takes any database that is not a number for database 0."""
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
            " of a password as %23"
        )
    return SecretUrl(url)
