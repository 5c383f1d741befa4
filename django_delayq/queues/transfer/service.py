"""The transfers of this process: one task for each queue, counted by its users."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.client import Redis

from django_delayq.queues.transfer.task import QueueTransferTask
from django_delayq.waiting.channel import ChannelListener
from django_delayq.waiting.connection import address_of

#: Makes the task of a queue, given the listener of its server.
MakeTask = Callable[[ChannelListener], QueueTransferTask]


@dataclass(slots=True)
class _Server:
    """The tasks of this process for one server and database."""

    listener: ChannelListener
    tasks: dict[str, QueueTransferTask] = field(default_factory=dict)
    usages: dict[str, int] = field(default_factory=dict)


class QueueTransferService:
    """Runs a transfer task for every queue that has a user, and one pub/sub connection for each server.

    Server, database and name identify a queue, whichever client leads there. A forked child inherits the users but no
    thread; `resume` starts the missing tasks.

    Source: QueueTransferService.java
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Guarded by _lock.
        self._servers: dict[object, _Server] = {}
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def schedule(self, client: Redis, name: str, make_task: MakeTask) -> None:
        """Count one more user of a queue. The first one starts its task."""
        with self._lock:
            address = address_of(client)
            if address not in self._servers:
                self._servers[address] = _Server(ChannelListener(client))
            server = self._servers[address]
            if name not in server.tasks:
                server.tasks[name] = make_task(server.listener)
            server.usages[name] = server.usages.get(name, 0) + 1
            server.tasks[name].start()

    def resume(self, client: Redis, name: str) -> None:
        """Start the task of a queue again if a fork has ended it."""
        server = self._servers.get(address_of(client))
        task = server.tasks.get(name) if server is not None else None
        if task is not None and not task.is_running:
            with self._lock:
                task.start()

    def unschedule(self, client: Redis, name: str) -> None:
        """Count one user less. The last one stops the task. Without a user nothing happens."""
        address = address_of(client)
        with self._lock:
            server = self._servers.get(address)
            if server is None or name not in server.tasks:
                return
            server.usages[name] -= 1
            if server.usages[name] > 0:
                return
            task = server.tasks.pop(name)
            del server.usages[name]
            if not server.tasks:
                del self._servers[address]
        # Outside the lock: this waits for a push, and other queues need not.
        task.stop()
        if not server.tasks:
            server.listener.stop()
