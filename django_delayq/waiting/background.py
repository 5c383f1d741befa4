"""Threads that start with their first use, end on request, and are forgotten in a forked child."""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from django_delayq.logs import get_log

logger = get_log(__name__)


class Actor(Protocol):
    """What a thread runs: it holds whatever belongs to that thread alone."""

    def run(self) -> None:
        """Work until `end` is called."""

    def end(self) -> None:
        """Make `run` return soon. Called from other threads, once."""


A = TypeVar("A", bound=Actor)


class Background(Generic[A]):
    """At most one daemon thread, that runs an actor made for it.

    ``lock`` also guards what the owner shares with the actor. A forked child has none of these threads, and what they
    held is in an unknown state: there ``lock`` is a new one, and the next `ensure` starts another thread.
    """

    def __init__(self, make: Callable[[], A], *, name: str) -> None:
        self.lock = threading.RLock()
        self._make = make
        self._name = name
        # Guarded by lock.
        self._actor: A | None = None
        self._thread: threading.Thread | None = None
        _known.add(self)

    @property
    def actor(self) -> A | None:
        """The actor that runs, if one does."""
        return self._actor

    def ensure(self) -> A:
        """Return the actor that runs; start one first if none does."""
        with self.lock:
            if self._actor is None:
                actor = self._make()
                thread = threading.Thread(
                    target=self._run, args=(actor,), name=self._name, daemon=True
                )
                # Where no thread can be started, the next use tries again.
                thread.start()
                self._actor, self._thread = actor, thread
            return self._actor

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread and wait for that, ``timeout_s`` at most; if the thread itself calls this, don't wait."""
        with self.lock:
            actor, thread = self._actor, self._thread
            self._actor = self._thread = None
            if actor is not None:
                actor.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, actor: A) -> None:
        try:
            actor.run()
        except Exception:
            logger.exception("%s ended; the next use starts it again", self._name)
            with self.lock:
                if self._actor is actor:
                    self._actor = self._thread = None

    def forget(self) -> None:
        """Take note that the thread is gone with a fork."""
        self.lock = threading.RLock()
        self._actor = self._thread = None


_known: "WeakSet[Background[Any]]" = WeakSet()


def _forget_threads() -> None:
    for background in list(_known):
        background.forget()


os.register_at_fork(after_in_child=_forget_threads)
