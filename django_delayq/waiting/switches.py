"""Hearing at once from Sentinels that the primary is another server.

A thread that waits for a message, or for a list to fill, hears nothing from a primary that hangs, and nothing is what it
expects. So a process that has such threads listens to the Sentinels, and shuts the connections to the old primary.
"""

import os
import threading

from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq.clients.primary import led_by
from django_delayq.clients.sentinels import Sentinels
from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.waiting.channel import ChannelListener

logger = get_log(__name__)

#: Where a Sentinel says that it knows of another primary: ``<name> <old host> <old port> <new host> <new port>``.
CHANNEL = "+switch-master"


class SwitchListener:
    """Listens to each Sentinel in a thread of its own, from `start` to `stop`."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._listeners = [
            ChannelListener(client, name="delayq-sentinel")
            for client in sentinels.clients()
        ]

    def start(self) -> None:
        for listener in self._listeners:
            listener.subscribe(CHANNEL, self._look)

    def stop(self) -> None:
        for listener in self._listeners:
            listener.stop()

    def _look(self, message: bytes | None) -> None:
        """Shut the connections to a replaced primary. A new subscription may have missed the message."""
        of_ours = f"{self._sentinels.name} ".encode()
        if message is not None and not message.startswith(of_ours):
            return
        try:
            self._sentinels.shut_replaced()
        except RedisError as error:
            logger.debug("cannot ask for the primary: %s", redact(str(error)))


def hear_switches(client: Redis) -> None:
    """Listen to the Sentinels that lead a client, from now on and once a process. Without Sentinels nothing happens."""
    sentinels = led_by(client)
    if sentinels is None or sentinels in _heard:
        return
    with _lock:
        if sentinels not in _heard:
            listener = SwitchListener(sentinels)
            listener.start()
            _heard[sentinels] = listener


def hear_no_more() -> None:
    """End all that `hear_switches` began."""
    with _lock:
        listeners = list(_heard.values())
        _heard.clear()
    for listener in listeners:
        listener.stop()


_lock = threading.Lock()
# Filled under the lock.
_heard: dict[Sentinels, SwitchListener] = {}


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _heard.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
