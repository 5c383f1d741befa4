"""The server of the settings: that of the URL or the cache alias in ``DELAYQ["CONNECTION"]``, or the embedded one.

Which server a test uses instead is up to `django_delayq.testing.mode`.
"""

from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django_redis import get_redis_connection
from redis.cluster import RedisCluster

from django_delayq.conf import get_settings
from django_delayq.exceptions import InvalidSettings
from django_delayq.redaction import redact, redact_url
from django_delayq.transport.clients import own_clients
from django_delayq.transport.cluster import Cluster, server_at
from django_delayq.transport.server import Server


def connection_url() -> str | None:
    """Return the URL to connect to, or None if CONNECTION is the alias of a django-redis cache.

    Without CONNECTION it starts the embedded server, in DEBUG only.

    Raises:
        InvalidSettings: there is no CONNECTION and DEBUG is off.
        EmbeddedServerError: the embedded server does not start.
    """
    settings = get_settings()
    if settings.connection is None:
        if not django_settings.DEBUG:
            raise InvalidSettings(
                "DELAYQ['CONNECTION'] is not set. The embedded server serves DEBUG only;"
                " name a django-redis cache or a URL such as 'redis://localhost:6379/0'."
            )
        return embedded_url()
    return settings.connection if "://" in settings.connection else None


def embedded_url() -> str:
    """Return the URL of the project's embedded server, which is started if it does not run.

    Raises:
        EmbeddedServerError: it does not start.
    """
    directory = (
        get_settings().embedded_dir
        or getattr(django_settings, "BASE_DIR", None)
        or Path.cwd()
    )
    # Only a project without a server of its own needs this import.
    from django_delayq.embedded.embedded_server import ensure_server

    return ensure_server(Path(directory))


def find_server() -> Server | Cluster:
    """Return the server, or the cluster, that the settings name by a URL or an alias.

    Raises:
        InvalidSettings, EmbeddedServerError: see `connection_url`.
    """
    url = connection_url()
    if url is not None:
        return server_at(url)
    alias = get_settings().connection
    assert alias is not None
    client = _alias_client(alias)
    if isinstance(client, RedisCluster):
        return Cluster.of(client)
    return Server.of_pool(client.connection_pool)


def _alias_client(alias: str) -> Any:
    # Only the names: a debug page shows the variables of this frame, and CACHES has passwords.
    aliases = list(getattr(django_settings, "CACHES", {}))
    if alias not in aliases:
        # Not left to django-redis: its error would show the alias, which may be a mangled URL.
        why = f"CACHES has {', '.join(map(repr, aliases)) or 'nothing'}"
        raise _no_alias(alias, why)
    try:
        return get_redis_connection(alias)
    except ValueError as error:
        # Neither its message nor its traceback: they repeat parts of a malformed LOCATION, perhaps a password.
        why = f"its LOCATION is not a URL that redis-py reads ({type(error).__name__})"
        raise _no_alias(alias, why) from None
    except Exception as error:
        # Not chained: the frames of django-redis hold the OPTIONS of the alias, a password among them.
        why = f"{type(error).__name__}: {redact(str(error))}"
        raise _no_alias(alias, why) from None


def _no_alias(alias: str, why: str) -> InvalidSettings:
    return InvalidSettings(
        f"DELAYQ['CONNECTION'] is {redact_url(alias)!r}, which is neither a URL (it has no '://') nor the alias"
        f" of a django-redis cache: {why}."
    )


own_clients.find = find_server
