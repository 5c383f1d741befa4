"""Which server the jobs of this process go to: that of the settings, or one of a test.

The app imports this module, so it imports nothing that only tests need.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
)
from typing import Any, Protocol, cast

from django.conf import UserSettingsHolder, global_settings
from django.conf import settings as django_settings
from django.db.backends.signals import connection_created

from django_delayq import conf, project_connection
from django_delayq.jobs import shard_agreement
from django_delayq.later import import_later
from django_delayq.transport.clients import own_clients
from django_delayq.transport.cluster import Cluster
from django_delayq.transport.server import Server

#: Servers that tests have put in place of the others, the last first asked.
_servers: list[Server] = []
_later: Callable[[str], Callable[[], Any]] = import_later(
    __name__,
    {
        "captured_server": "django_delayq.testing.capture",
        "immediate_server": "django_delayq.testing.capture",
        "frozen_server": "django_delayq.testing.frozen",
        "run_server": "django_delayq.testing.servers",
        "watch_transactions": "django_delayq.testing.transactions",
    },
)


def find_server() -> Server | Cluster:
    """Return the server to connect to, as `Clients` asks for it whenever it makes a pool.

    Raises:
        InvalidSettings, EmbeddedServerError: see `connection.connection_url`.
    """
    if _servers:
        return _servers[-1]
    mode = mode_in_force()
    if mode == "captured":
        return cast(Server, _later("captured_server")())
    if mode == "immediate":
        return cast(Server, _later("immediate_server")())
    if mode == "frozen":
        return cast(Server, _later("frozen_server")())
    if mode == "server":
        return cast(Server, _later("run_server")())
    return project_connection.find_server()


def mode_in_force() -> str:
    """Return what jobs do: what ``DELAYQ["TEST"]`` says in tests, and ``connection`` elsewhere.

    A test that overrides ``DELAYQ`` with a ``CONNECTION`` means that connection.
    """
    if not is_testing():
        return "connection"
    settings = conf.get_settings()
    is_said = "TEST" in getattr(django_settings, "DELAYQ", {})
    if not is_said and settings.connection is not None and _is_overridden():
        return "connection"
    return settings.test


class RunsAtOnce(Protocol):
    """A server of tests that runs each job within the call that sends it."""

    def afterwards(self) -> AbstractContextManager[Any]:
        """Run jobs sent within this context when it ends, not before."""

    def aafterwards(self) -> AbstractAsyncContextManager[Any]:
        """`afterwards` on the event loop."""


def runs_at_once() -> RunsAtOnce | None:
    """Return the server if a job runs within the call that sends it."""
    if _servers:
        server = _servers[-1]
    elif is_testing() and mode_in_force() == "immediate":
        server = cast(Server, _later("immediate_server")())
    else:
        return None
    in_process: Any = server.arguments.get("in_process")
    return in_process if hasattr(in_process, "afterwards") else None


def is_of_run() -> bool:
    """Whether jobs go to the server of this run of tests, as ``DELAYQ["TEST"]`` says."""
    return not _servers and mode_in_force() == "server"


def is_testing() -> bool:
    """Whether Django's test environment is set up in this process, by whatever runs the tests."""
    # Nobody who does not test imports this module of Django's.
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


def _is_overridden() -> bool:
    """Whether ``DELAYQ`` comes from a test, by `override_settings` or in its manner, and not from the project."""
    holder: Any = vars(django_settings)["_wrapped"]
    while isinstance(holder, UserSettingsHolder):
        if holder.default_settings is global_settings:
            # What settings.configure() was given.
            return False
        if "DELAYQ" in vars(holder):
            return True
        holder = holder.default_settings
    return False


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Have jobs go to a server of a test."""
    install()
    _servers.append(server)
    forget()
    try:
        yield
    finally:
        _servers.remove(server)
        forget()


def forget() -> None:
    """Forget all connections, and what servers have said: the server is another one now."""
    own_clients.forget()
    shard_agreement.forget()


def install() -> None:
    """Have the clients of this process ask here where their server is."""
    own_clients.find = find_server
    # The test environment may begin, or end, after something has used the server.
    own_clients.state, own_clients.on_change = is_testing, shard_agreement.forget
    # The project's first transaction in a test comes after a connection, and Django sends no signal when tests begin.
    connection_created.connect(_watch_transactions)


def _watch_transactions(**kwargs: Any) -> None:
    if is_testing():
        _later("watch_transactions")()
