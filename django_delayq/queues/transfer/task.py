"""The transfer of one queue: the channel, an alarm and a cap decide when to push.

The caller decides what a push does, and to which queue.
"""

from collections.abc import Callable
from typing import NamedTuple

from django_delayq.logs import get_log
from django_delayq.waiting.alarm import CAP_MS, Alarm
from django_delayq.waiting.background import Background
from django_delayq.waiting.channel import ChannelListener, ignore_message
from django_delayq.waiting.trouble import Trouble

logger = get_log(__name__)

#: Pause after a failed push: from the first to the second of these, doubling. Redisson waits 5 s.
BACKOFF_MS = (50, 1_000)


class PushResult(NamedTuple):
    """The result of one push."""

    #: Elements moved to the destination queue.
    moved: int
    #: Time until the next element is due, us: 0 if more is due now, -1 if nothing waits.
    wait_us: int


#: Moves due elements, up to a limit. Any exception means: try again soon.
Push = Callable[[], PushResult]


class QueueTransferTask:
    """Pushes due elements of one queue, in a thread of its own, from `start` to `stop`.

    It pushes on every (re)subscription of the channel, for every message on it, when the alarm rings for the known head,
    at once while more is due, and after the cap in any case. A failed push is repeated, at most `BACKOFF_MS` later.

    Source: QueueTransferTask.java
    """

    def __init__(
        self,
        *,
        name: str,
        channel: str,
        presence: str,
        push: Push,
        listener: ChannelListener,
    ) -> None:
        """Call ``push`` from one thread at a time, and its ``close()``, if it has one, when the thread ends.

        ``presence`` is a channel of our own, and is subscribed as well. It distinguishes our subscribers of ``channel`` from
        others.
        """
        self.name = name
        self._channel = channel
        self._presence = presence
        self._listener = listener
        self._background = Background(
            lambda: _Transferring(name, push), name=f"delayq-transfer-{name}"
        )

    def start(self) -> None:
        """Start the transfer unless it runs. After a fork it has to be started again."""
        if self._background.actor is not None:
            return
        with self._background.lock:
            if self._background.actor is None:
                self._background.ensure()
                self._listener.subscribe(self._presence, ignore_message)
                self._listener.subscribe(self._channel, self._on_message)

    def stop(self) -> None:
        """Stop, and wait for a push that is under way. Idempotent."""
        self._listener.unsubscribe(self._channel, self._on_message)
        self._listener.unsubscribe(self._presence, ignore_message)
        self._background.stop()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._background.actor is not None

    def _on_message(self, message: bytes | None) -> None:
        # The message is one client's view of the head. The push finds out by the server's clock.
        if (transferring := self._background.actor) is not None:
            transferring.alarm.wake(None)


class _Transferring:
    """The state of the thread."""

    def __init__(self, name: str, push: Push) -> None:
        self.alarm: Alarm[None] = Alarm(cap_ms=CAP_MS)
        self._name = name
        self._push = push
        self._is_ended = False

    def end(self) -> None:
        self._is_ended = True
        self.alarm.wake(None)

    def run(self) -> None:
        backoff_ms, longest_ms = BACKOFF_MS
        # Perhaps nothing else in this process calls the server: another process may offer the elements.
        trouble = Trouble(logger, is_outage_told=True)
        while not self._is_ended:
            try:
                _, wait_us = self._push()
            except Exception as error:
                trouble.note(
                    error, f"cannot transfer {self._name!r}", again_ms=backoff_ms
                )
                self.alarm.forget(None)
                # A new subscription ends the wait: the server is back.
                self.alarm.wait(backoff_ms)
                backoff_ms = min(2 * backoff_ms, longest_ms)
                continue
            backoff_ms = BACKOFF_MS[0]
            trouble.is_over()
            if wait_us != 0:
                self.alarm.ring_in(None, wait_us)
                self.alarm.wait()
        if (close := getattr(self._push, "close", None)) is not None:
            close()
