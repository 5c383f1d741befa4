"""A timer for very many timeouts of which nearly all are cancelled, after Netty's HashedWheelTimer.

`Wheel` knows where a timeout lies and when it is due, without a clock, a lock or a thread; `HashedWheelTimer` adds
those. Timeouts are up to a tick late. Events that must be on time to the millisecond have deadlines of their own, in the
transfer task.
"""

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from django_delayq.clock import monotonic_ms
from django_delayq.exceptions import InvalidDelay
from django_delayq.logs import get_log

logger = get_log(__name__)

#: Netty's own defaults: a turn takes 51.2 s.
TICK_MS = 100.0
TICKS_PER_WHEEL = 512

_WAITING, _CANCELLED, _EXPIRED = "waiting", "cancelled", "expired"

#: The tick of a thread that is awake: no timeout comes earlier, so none has to wake the thread.
_AWAKE = -1


class Timeout:
    """A call that will be made once, unless it is cancelled first. Any thread may use it."""

    # There may be a million of these, so they have no dict.
    __slots__ = ("_fn", "_state", "_tick", "_timer")

    def __init__(self, timer: "HashedWheelTimer", fn: Callable[[], object]) -> None:
        self._timer = timer
        # Both guarded by the timer's lock.
        self._fn: Callable[[], object] | None = fn
        self._state = _WAITING
        # Written once, when the timeout is added to the wheel.
        self._tick = 0

    def __repr__(self) -> str:
        return f"<Timeout {self._state}, tick {self._tick} of {self._timer.name!r}: {self._fn!r}>"

    def cancel(self) -> bool:
        """Forget the call, and everything that it refers to, at once.

        Returns False if the call has begun or was cancelled before.
        """
        return self._timer._cancel(self)

    @property
    def is_cancelled(self) -> bool:
        return self._state is _CANCELLED

    @property
    def is_expired(self) -> bool:
        """Tell whether the call has begun; it may have ended."""
        return self._state is _EXPIRED

    @property
    def remaining_rounds(self) -> int:
        """Return how many whole turns of the wheel come before the turn in which the call is due."""
        return self._timer._rounds_before(self._tick)


class Wheel:
    """Slots that hold timeouts; each tick passes the next slot and takes what is due.

    Time is in ms since the wheel began. Tick ``n`` is at ``n * tick_ms``; its slot is ``n`` modulo the number of slots.
    Netty counts down every timeout of a slot that is in a later round; here a slot keeps its rounds apart, so that a
    tick costs only what is due. Adding and removing are O(1). Not thread-safe.
    """

    def __init__(self, tick_ms: float, ticks_per_wheel: int) -> None:
        self.tick_ms = tick_ms
        self.ticks_per_wheel = ticks_per_wheel
        #: The last tick that was passed.
        self.tick = 0
        # By slot, then by tick, in a dict, which keeps the order and forgets any timeout in O(1).
        self._slots: list[dict[int, dict[Timeout, None]]] = [
            {} for _ in range(ticks_per_wheel)
        ]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def tick_at(self, elapsed_ms: float) -> int:
        """Return the last tick at or before this time."""
        tick = math.floor(elapsed_ms / self.tick_ms)
        # The quotient is rounded, so it may be a whole number just before the tick.
        return tick - 1 if tick * self.tick_ms > elapsed_ms else tick

    def add(self, timeout: Timeout, deadline_ms: float) -> int:
        """Add a timeout at the first tick that is not before its deadline; return that tick."""
        tick = math.ceil(deadline_ms / self.tick_ms)
        if tick * self.tick_ms < deadline_ms:
            tick += 1
        tick = max(tick, self.tick + 1)
        timeout._tick = tick
        slot = self._slots[tick % self.ticks_per_wheel]
        bucket = slot.get(tick)
        if bucket is None:
            bucket = slot[tick] = {}
        bucket[timeout] = None
        self._count += 1
        return tick

    def remove(self, timeout: Timeout) -> None:
        """Remove a timeout, if it is there."""
        tick = timeout._tick
        slot = self._slots[tick % self.ticks_per_wheel]
        bucket = slot.get(tick)
        if bucket is None or timeout not in bucket:
            return
        del bucket[timeout]
        self._count -= 1
        if not bucket:
            del slot[tick]

    def advance(self, elapsed_ms: float) -> list[Timeout]:
        """Pass every tick up to this time; return the timeouts that were due, earlier ticks first."""
        last, self.tick = self.tick, max(self.tick, self.tick_at(elapsed_ms))
        due: list[Timeout] = []
        for tick in self._occupied(last, self.tick):
            bucket = self._slots[tick % self.ticks_per_wheel].pop(tick)
            self._count -= len(bucket)
            due += bucket
        return due

    def _occupied(self, last: int, now: int) -> list[int]:
        if not self._count:
            return []
        if now - last < self.ticks_per_wheel:
            ticks = range(last + 1, now + 1)
            return [
                tick
                for tick in ticks
                if tick in self._slots[tick % self.ticks_per_wheel]
            ]
        # If the process stood still for longer than a turn, each slot is looked at only once.
        return sorted(tick for slot in self._slots for tick in slot if tick <= now)

    def next_tick(self) -> int | None:
        """Return the next tick at which to advance; None if the wheel is empty.

        That is the next tick with something due, or a whole turn away if everything is later: looking further would
        cost more than one needless wake-up a turn.
        """
        if not self._count:
            return None
        end = self.tick + self.ticks_per_wheel
        for tick in range(self.tick + 1, end):
            if tick in self._slots[tick % self.ticks_per_wheel]:
                return tick
        return end

    def clear(self) -> list[Timeout]:
        """Remove all timeouts; return them, earlier ticks first."""
        buckets = sorted(
            ((tick, bucket) for slot in self._slots for tick, bucket in slot.items()),
            key=lambda item: item[0],
        )
        for slot in self._slots:
            slot.clear()
        self._count = 0
        return [timeout for _, bucket in buckets for timeout in bucket]


class HashedWheelTimer:
    """Calls functions on a thread of its own, at the first tick after their delay; never early.

    Adding and cancelling cost the same however many timeouts wait. Ticks are counted from the start, so lateness does
    not add up. The thread starts with the first timeout, and sleeps from one tick with something due to the next;
    nothing wakes it while no timeout waits. It is a daemon: the end of the process does not wait for it.

    A forked child has an empty wheel of its own, and starts a thread when it adds a timeout. Only the parent calls what
    the parent had added. A stopped timer stays stopped.

    Warning: a callback that takes long delays all others. Hand long work to an executor.

    Source: io.netty.util.HashedWheelTimer, as Redisson's ServiceManager uses it.
    """

    def __init__(
        self,
        *,
        tick_ms: float = TICK_MS,
        ticks_per_wheel: int = TICKS_PER_WHEEL,
        name: str = "delayq-wheel",
        clock: Callable[[], float] = monotonic_ms,
    ) -> None:
        """Build a timer; ``clock`` returns ms and never steps back."""
        if not (tick_ms > 0 and math.isfinite(tick_ms)):
            raise ValueError(f"tick_ms must be more than 0, not {tick_ms!r}")
        if ticks_per_wheel < 1:
            raise ValueError(
                f"ticks_per_wheel must be at least 1, not {ticks_per_wheel!r}"
            )
        self.name = name
        self._clock = clock
        self._start_ms = clock()
        # The condition's lock guards everything below. Its holder may take it again, because a finaliser or a signal
        # handler that cancels a timeout can run at any line.
        self._wakeup = threading.Condition(threading.RLock())
        self._wheel = Wheel(tick_ms, ticks_per_wheel)
        # Taken from the wheel, but not called yet.
        self._due: deque[Timeout] = deque()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        # The tick until which the thread sleeps; infinite while no timeout waits.
        self._sleeps_until: float = _AWAKE
        _timers.add(self)

    def __repr__(self) -> str:
        return f"<HashedWheelTimer {self.name!r}, {self.pending_timeouts} pending>"

    @property
    def tick_ms(self) -> float:
        return self._wheel.tick_ms

    @property
    def ticks_per_wheel(self) -> int:
        return self._wheel.ticks_per_wheel

    @property
    def pending_timeouts(self) -> int:
        """Return how many timeouts are neither cancelled nor called."""
        with self._wakeup:
            return len(self._wheel) + sum(one._state is _WAITING for one in self._due)

    def new_timeout(self, fn: Callable[[], object], delay_ms: float) -> Timeout:
        """Call ``fn()`` on the timer's thread after ``delay_ms``, up to a tick later.

        Its return value is ignored; an exception is logged. Any thread may call this method, even the timer's own.

        Raises:
            InvalidDelay: the delay is negative or not finite.
            RuntimeError: the timer was stopped.
        """
        if not 0 <= delay_ms < math.inf:
            raise InvalidDelay(
                f"delay_ms must be a finite number, 0 or more, not {delay_ms!r}"
            )
        timeout = Timeout(self, fn)
        with self._wakeup:
            if self._thread is None:
                self.start()
            elif self._is_stopped:
                raise RuntimeError(
                    f"{self.name!r} was stopped, so no timeout can be added"
                )
            if (
                self._wheel.add(timeout, self._elapsed_ms() + delay_ms)
                < self._sleeps_until
            ):
                self._wakeup.notify()
        return timeout

    def start(self) -> None:
        """Start the thread now, rather than with the first timeout.

        Raises:
            RuntimeError: the timer was stopped.
        """
        with self._wakeup:
            if self._is_stopped:
                raise RuntimeError(
                    f"{self.name!r} was stopped and cannot be started again"
                )
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                thread.start()  # it waits for our lock, and finds itself in the field
                self._thread = thread

    def stop(self) -> list[Timeout]:
        """End the thread once the current call has returned; return the timeouts that were never called.

        They stay uncancelled, and will not be called. A callback may stop its own timer.
        """
        with self._wakeup:
            self._is_stopped = True
            unprocessed = [one for one in self._due if one._state is _WAITING]
            unprocessed += self._wheel.clear()
            self._due.clear()
            self._wakeup.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        return unprocessed

    def _elapsed_ms(self) -> float:
        return self._clock() - self._start_ms

    def _rounds_before(self, tick: int) -> int:
        # By the clock, as the wheel stands still while its thread sleeps.
        now = self._wheel.tick_at(self._elapsed_ms())
        return max(0, (tick - now - 1) // self._wheel.ticks_per_wheel)

    def _cancel(self, timeout: Timeout) -> bool:
        with self._wakeup:
            if timeout._state is not _WAITING:
                return False
            timeout._state = _CANCELLED
            timeout._fn = None
            self._wheel.remove(timeout)
            return True

    def _run(self) -> None:
        while self._wait_for_due():
            while (taken := self._take()) is not None:
                timeout, fn = taken
                try:
                    fn()
                except BaseException:
                    # Even SystemExit is caught: it would end the thread without a word.
                    logger.exception("%r failed in timer %r", fn, self.name)
                # Otherwise the last callback would be kept alive until the next one.
                del taken, timeout, fn

    def _wait_for_due(self) -> bool:
        """Sleep until a timeout is due; return False when the thread has to end."""
        with self._wakeup:
            # A child that a callback has forked goes on from there, as another process.
            while not self._is_stopped and self._thread is threading.current_thread():
                self._due.extend(self._wheel.advance(self._elapsed_ms()))
                if self._due:
                    return True
                self._sleep()
            return False

    def _sleep(self) -> None:
        tick = self._wheel.next_tick()
        if tick is None:
            self._sleeps_until = math.inf
            self._wakeup.wait()
        else:
            self._sleeps_until = tick
            wait_s = (tick * self._wheel.tick_ms - self._elapsed_ms()) / 1000
            self._wakeup.wait(min(max(wait_s, 0.0), threading.TIMEOUT_MAX))
        self._sleeps_until = _AWAKE

    def _take(self) -> tuple[Timeout, Callable[[], object]] | None:
        # Only one at a time: until its turn comes, another timeout of the same tick can still be cancelled.
        with self._wakeup:
            while self._due:
                timeout = self._due.popleft()
                fn = timeout._fn
                if timeout._state is _WAITING and fn is not None:
                    timeout._state = _EXPIRED
                    timeout._fn = None
                    return timeout, fn
        return None

    def _start_over(self) -> None:
        # In a forked child the thread is the parent's, and so may be the holder of the lock.
        self._wakeup = threading.Condition(threading.RLock())
        self._wheel = Wheel(self._wheel.tick_ms, self._wheel.ticks_per_wheel)
        self._due = deque()
        self._thread = None
        self._sleeps_until = _AWAKE


_timers: "weakref.WeakSet[HashedWheelTimer]" = weakref.WeakSet()


def _start_over_in_child() -> None:
    for timer in _timers:
        timer._start_over()


os.register_at_fork(after_in_child=_start_over_in_child)
