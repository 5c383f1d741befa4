"""Messages of pub/sub channels, on one connection for all of them.

A message only says that it is worth looking. So does every new subscription, because messages before it were lost.
Nobody may rely on either: the alarm's cap stays.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from redis.client import Redis
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.clock import monotonic_ms
from django_delayq.logs import get_log
from django_delayq.transport.primary import pause_ms
from django_delayq.waiting.background import Background
from django_delayq.waiting.connection import (
    DedicatedConnection,
    Waker,
    wait_readable,
)
from django_delayq.waiting.trouble import Trouble

logger = get_log(__name__)

#: Takes the message; None says that the channel was subscribed to, for the first time or again.
Callback = Callable[[bytes | None], None]

#: After this much silence the server is asked for a sign of life. Until then the listener's owner looks by itself.
PING_AFTER_MS = 5_000
#: How long any answer may take; then the connection counts as dead, and a new one is made.
DEADLINE_MS = 2_000
#: Between attempts to connect: from the first to the second of these, doubling.
BACKOFF_MS = (50, 1_000)
#: A channel that the server's ACL forbids is asked for again after this.
REFUSED_MS = 30_000


def ignore_message(message: bytes | None) -> None:
    """Ignore a message: the callback of a process that subscribes only to be counted."""


class ChannelListener:
    """Listens to channels in a thread of its own, and subscribes again after any loss.

    A channel that the server's ACL forbids is logged once and asked for again now and then; the others are heard.

    Callbacks run in that thread: they should wake somebody and return. The thread starts with the first
    `subscribe`, and ends with `stop`. In a forked child nothing is subscribed.
    """

    def __init__(self, client: Redis, *, name: str = "delayq-channel") -> None:
        self._background = Background(lambda: _Listening(client), name=name)

    def subscribe(self, channel: str, callback: Callback) -> None:
        """Call back for every message, and with None whenever the subscription stands, now or again."""
        with self._background.lock:
            self._background.ensure().add(channel, callback)

    def unsubscribe(self, channel: str, callback: Callback) -> None:
        """Call back no more; a message that arrives at this moment may still come through."""
        with self._background.lock:
            if (listening := self._background.actor) is not None:
                listening.remove(channel, callback)

    def stop(self) -> None:
        """End the thread and its connection; every subscription is forgotten. Idempotent."""
        self._background.stop()


class _Listening:
    """The work of the thread. `add`, `remove` and `end` are called by others, under the lock."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._waker = Waker()
        self._is_ended = False
        self._trouble = Trouble(logger, is_outage_told=False)
        #: Replaced, never changed, so that the thread reads it without the lock.
        self._callbacks: dict[str, tuple[Callback, ...]] = {}
        #: Callbacks that are still to be told that their channel is subscribed to.
        self._newcomers: list[tuple[str, Callback]] = []
        # Owned by the thread: asked for, and acknowledged by the server.
        self._requested: set[str] = set()
        self._subscribed: set[str] = set()
        # What was sent and has no answer, in order: a refusal does not name what it refuses.
        self._unanswered: deque[tuple[str, str]] = deque()
        # Channels that the ACL forbids, and when to ask again; and those that were logged as forbidden.
        self._refused: dict[str, float] = {}
        self._told: set[str] = set()
        self._heard_ms = 0.0
        self._pinged_ms: float | None = None

    def add(self, channel: str, callback: Callback) -> None:
        others = self._callbacks.get(channel, ())
        self._callbacks = {**self._callbacks, channel: (*others, callback)}
        self._newcomers.append((channel, callback))
        self._waker.wake()

    def remove(self, channel: str, callback: Callback) -> None:
        left = list(self._callbacks.get(channel, ()))
        if callback in left:
            left.remove(callback)
        others = {
            name: callbacks
            for name, callbacks in self._callbacks.items()
            if name != channel
        }
        self._callbacks = {**others, channel: tuple(left)} if left else others
        self._waker.wake()

    def end(self) -> None:
        self._is_ended = True
        self._waker.wake()

    def run(self) -> None:
        backoff_ms: float = BACKOFF_MS[0]
        longest_ms = pause_ms(self._client, BACKOFF_MS[1])
        while not self._is_ended:
            self._told &= set(self._callbacks)
            if not self._callbacks:
                wait_readable([self._waker], None)
                self._waker.clear()
                continue
            connection = DedicatedConnection(
                self._client, deadline_s=DEADLINE_MS / 1000
            )
            try:
                self._listen(connection)
            except Exception as error:
                if self._subscribed:
                    backoff_ms = BACKOFF_MS[0]
                self._trouble.note(
                    error,
                    f"cannot listen to {len(self._callbacks)} channels",
                    again_ms=round(backoff_ms),
                )
                wait_readable([self._waker], backoff_ms / 1000)
                self._waker.clear()
                backoff_ms = min(2 * backoff_ms, longest_ms)
            finally:
                connection.close()
        self._waker.close()

    def _listen(self, connection: DedicatedConnection) -> None:
        self._requested, self._subscribed = set(), set()
        self._refused = {}
        self._unanswered.clear()
        connection.connect()
        self._heard_ms, self._pinged_ms = monotonic_ms(), None
        while not self._is_ended and self._callbacks:
            self._request(connection)
            self._greet()
            # What redis-py or TLS has read already does not make the socket readable.
            while connection.has_reply():
                self._heard_ms, self._pinged_ms = monotonic_ms(), None
                self._receive(connection)
            wait_readable([connection, self._waker], self._look_after(connection))
            self._waker.clear()

    def _request(self, connection: DedicatedConnection) -> None:
        wanted = set(self._callbacks)
        now_ms = monotonic_ms()
        self._refused = {
            name: again_ms
            for name, again_ms in self._refused.items()
            if name in wanted and now_ms < again_ms
        }
        added = wanted - self._requested - set(self._refused)
        removed = self._requested - wanted
        # One by one: the server refuses a whole command for one channel that the ACL forbids.
        for command, names in (("SUBSCRIBE", added), ("UNSUBSCRIBE", removed)):
            for name in sorted(names):
                self._send(connection, command, name)
        if added or removed:
            # An answer is due: a dead connection is to be noticed now and not after the next silence.
            self._pinged_ms = self._pinged_ms or monotonic_ms()
        self._requested = (self._requested | added) - removed

    def _send(self, connection: DedicatedConnection, *command: str) -> None:
        connection.send(*command)
        self._unanswered.append((command[0], command[-1]))

    def _receive(self, connection: DedicatedConnection) -> None:
        try:
            self._handle(connection.read())
        except NoPermissionError as error:
            # Answers come in the order of the commands, and messages are no answers.
            command, name = self._unanswered.popleft()
            if command == "SUBSCRIBE":
                self._note_refusal(name, error)

    def _note_refusal(self, name: str, error: NoPermissionError) -> None:
        self._requested.discard(name)
        self._refused[name] = monotonic_ms() + REFUSED_MS
        if name not in self._told:
            self._told.add(name)
            logger.error(
                "the account has no right to listen to channel %s: %s. Grant it with ACL SETUSER <user> '&%s'. Until then,"
                " jobs of its queue may start up to 2 s late",
                name,
                error,
                name,
            )

    def _greet(self) -> None:
        for newcomer in list(self._newcomers):
            channel, callback = newcomer
            # The others are called when their subscription is acknowledged.
            if channel in self._subscribed:
                self._call(callback, None)
            self._newcomers.remove(newcomer)

    def _look_after(self, connection: DedicatedConnection) -> float:
        """Ask a silent server for a sign of life; return how long to wait for the next event, in s."""
        now_ms = monotonic_ms()
        if self._pinged_ms is None:
            if now_ms < self._heard_ms + PING_AFTER_MS:
                return (self._heard_ms + PING_AFTER_MS - now_ms) / 1000
            self._send(connection, "PING")
            self._pinged_ms = now_ms
        if now_ms >= self._pinged_ms + DEADLINE_MS:
            raise RedisTimeoutError(f"no answer within {DEADLINE_MS} ms")
        return (self._pinged_ms + DEADLINE_MS - now_ms) / 1000

    def _handle(self, message: Any) -> None:
        # ['message', channel, data], ['subscribe', channel, count], ['pong', ''], or 'PONG' with no channel left
        kind = message[0] if isinstance(message, list) else b"pong"
        if kind != b"message" and self._unanswered:
            self._unanswered.popleft()
        if not isinstance(message, list) or len(message) < 3:
            return
        channel = message[1].decode()
        if kind == b"subscribe":
            self._subscribed.add(channel)
            self._trouble.is_over()
            if channel in self._told:
                self._told.discard(channel)
                logger.warning("now listening to channel %s", channel)
        elif kind == b"unsubscribe":
            self._subscribed.discard(channel)
        if kind in (b"subscribe", b"message"):
            data = message[2] if kind == b"message" else None
            for callback in self._callbacks.get(channel, ()):
                self._call(callback, data)

    def _call(self, callback: Callback, message: bytes | None) -> None:
        try:
            callback(message)
        except Exception:
            # One bad callback must not keep messages from the others.
            logger.exception("a callback of a channel failed")
