"""What Django keeps for a thread or a context while jobs run there: connections to databases and to caches."""

from threading import local
from typing import Any

from django.core.cache import caches
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from django_delayq.logs import class_name, get_log
from django_delayq.redaction import redact

logger = get_log("django_delayq.worker")


class DatabaseUse(local):
    """Does what Django does around a request, but only for this thread's open connections: all would cost too much."""

    #: Whether this thread has connected to a database; Django's signal says so.
    has_connected = False

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] = []

    def begin(self) -> None:
        """Do what Django does for request_started."""
        for connection in list(self._connections):
            try:
                connection.queries_log.clear()
                connection.close_if_unusable_or_obsolete()
            except Exception as error:
                self._connections.remove(connection)
                _give_up(connection, error)

    def end(self, *, was_interrupted: bool) -> None:
        """Do what Django does for request_finished, and end every transaction that the task has left open.

        Called only in a thread that has connected.
        """
        self._connections.clear()
        for connection in connections.all(initialized_only=True):
            try:
                if not was_interrupted and not connection.in_atomic_block:
                    connection.close_if_unusable_or_obsolete()
                    self._connections.append(connection)
                    continue
                # The exception may have struck in the middle of an atomic block's end. Then the connection's own idea of
                # its transaction cannot be trusted, and the next task would work in a transaction that nobody commits.
                connection.close()
            except Exception as error:
                _give_up(connection, error)
            else:
                del connections[connection.alias]


def close_connections() -> None:
    """Close all connections of this thread, as `connections.close_all` does, whatever one of them raises."""
    for connection in connections.all(initialized_only=True):
        try:
            connection.close()
        except Exception as error:
            _give_up(connection, error)


def _give_up(connection: BaseDatabaseWrapper, error: Exception) -> None:
    """Drop a connection that cannot be closed. The next use of this database opens another."""
    logger.error(
        "a connection to database %r cannot be closed: %s",
        connection.alias,
        redact(f"{class_name(error)}: {error}"),
    )
    del connections[connection.alias]


database_use = DatabaseUse()


@receiver(connection_created, dispatch_uid="django_delayq.worker")
def _note_connection(**kwargs: object) -> None:
    database_use.has_connected = True


def make_caches() -> dict[str, Any]:
    """Make the caches of this thread, or of this context, which connect when they are used; return them by alias.

    Django keeps them in the context, and each job has a copy of that: a cache that a job made would go with it, and its
    connections too. Database connections are the thread's.
    """
    made = {}
    for alias in caches:
        try:
            made[alias] = caches[alias]
        except Exception as error:
            # The task that uses it gets the error.
            logger.debug("cache %s cannot be created: %s", alias, error)
    return made


def take_over(made: dict[str, Any]) -> None:
    """Use the caches of a thread that has ended. A context of that thread would not do: asgiref hides them from others."""
    for alias, cache in made.items():
        caches[alias] = cache
