"""The transfer of one queue: channel, alarm and cap in, pushes out.

It knows when to push. What a push does, and to which queue, is its caller's.
"""

from collections.abc import Callable
from typing import NamedTuple

from django_delayq.logs import get_log
from django_delayq.waiting.alarm import CAP_MS, Alarm
from django_delayq.waiting.background import Background
from django_delayq.waiting.channel import ChannelListener, ignore_message
from django_delayq.waiting.trouble import Trouble

logger = get_log(__name__)

#: Between a push that failed and the next: from the first to the second of these, doubling. Redisson waits 5 s.
BACKOFF_MS = (50, 1_000)


class PushResult(NamedTuple):
    """What one push did and saw."""

    #: Elements moved to the destination queue.
    moved: int
    #: Until the next element is due, us: 0 when more is due now, -1 when none waits.
    wait_us: int


#: Move what is due, a bounded part of it. Any exception means: again soon.
Push = Callable[[], PushResult]


class QueueTransferTask:
    """Pushes whatever falls due in one queue, in a thread of its own, from `start` to `stop`.

    A push happens on every (re)subscription of the channel, for every message on it, when the alarm rings for
    the known head, at once while more is due, and after the cap whatever was said or lost. A push that fails
    is repeated, at most `BACKOFF_MS` later.

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
        cap_ms: float = CAP_MS,
    ) -> None:
        """``push`` is called by one thread at a time; its ``close()``, if it has one, when the thread ends.

        ``presence`` is a channel of ours that is listened to as well, so that subscribers of ``channel`` who are not
        ours can be told from those who are.
        """
        self.name = name
        self._channel = channel
        self._presence = presence
        self._listener = listener
        self._background = Background(
            lambda: _Transferring(name, push, cap_ms), name=f"delayq-transfer-{name}"
        )

    def start(self) -> None:
        """Start to transfer, unless it runs; after a fork, again."""
        if self._background.actor is not None:
            return
        with self._background.lock:
            if self._background.actor is None:
                self._background.ensure()
                self._listener.subscribe(self._presence, ignore_message)
                self._listener.subscribe(self._channel, self._on_message)

    def stop(self) -> None:
        """Stop, and wait for the push that is under way. Idempotent."""
        self._listener.unsubscribe(self._channel, self._on_message)
        self._listener.unsubscribe(self._presence, ignore_message)
        self._background.stop()

    @property
    def is_running(self) -> bool:
        """Whether its thread runs in this process."""
        return self._background.actor is not None

    def _on_message(self, message: bytes | None) -> None:
        # What it says is some client's view of the head. The push will tell, by the server's clock.
        if (transferring := self._background.actor) is not None:
            transferring.alarm.wake(None)


class _Transferring:
    """What the thread works on."""

    def __init__(self, name: str, push: Push, cap_ms: float) -> None:
        self.alarm: Alarm[None] = Alarm(cap_ms=cap_ms)
        self._name = name
        self._push = push
        self._is_ended = False

    def end(self) -> None:
        self._is_ended = True
        self.alarm.wake(None)

    def run(self) -> None:
        backoff_ms, longest_ms = BACKOFF_MS
        # Nobody else may call this server: who offers elements is another process.
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
