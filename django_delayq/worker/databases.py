"""Database connections around an attempt, as Django treats them around a request."""

import threading

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver


class DatabaseUse(threading.local):
    """Does what Django does around a request, but only for this thread's open connections: all would cost too much."""

    #: Whether this thread has connected to a database; Django's signal says so.
    has_connected = False

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] = []

    def begin(self) -> None:
        """Do what Django does for request_started."""
        for connection in self._connections:
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()

    def end(self, *, was_interrupted: bool) -> None:
        """Do what Django does for request_finished, and end every transaction that the task has left open.

        Called only in a thread that has connected.
        """
        self._connections.clear()
        for connection in connections.all(initialized_only=True):
            if not was_interrupted and not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
                self._connections.append(connection)
                continue
            # The exception may have struck in the middle of an atomic block's end. Then the connection's own idea of
            # its transaction cannot be trusted, and the next task would work in a transaction that nobody commits.
            try:
                connection.close()
            finally:
                del connections[connection.alias]


database_use = DatabaseUse()


@receiver(connection_created, dispatch_uid="django_delayq.worker")
def _note_connection(**kwargs: object) -> None:
    database_use.has_connected = True
