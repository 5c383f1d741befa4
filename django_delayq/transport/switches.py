"""The primary of some Sentinels as a process knows it, and news of another one.

An old primary may answer for seconds after the switch, and forget later what it took. So one thread of the process
listens to all Sentinels. Where no thread runs, each call makes sure that a Sentinel was asked within the last second.
"""

import asyncio
import os
import re
import select
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError, ResponseError

from django_delayq.logs import get_log
from django_delayq.redaction import redact
from django_delayq.transport.open_connections import (
    connections,
    note_another,
    shut_socket,
)
from django_delayq.transport.sentinels import PATIENCE_S, Address, Primary, Sentinels

logger = get_log(__name__)

#: Where a Sentinel says that it knows of another primary: ``<name> <old host> <old port> <new host> <new port>``.
CHANNEL = "+switch-master"
#: Where the Sentinel that leads a failover says that it is about to promote a replica: ``slave <name> <host> <port> @ <name
#: of the primary> <its host> <its port>``. Much of what the primary acknowledges from then on is lost.
PROMOTION = "+failover-state-send-slaveof-noone"
#: The most that calls are held meanwhile. A promotion takes a second, unless it fails, s.
HELD_S = 2.0
#: How often a call that is held looks whether that is over, s.
LOOK_S = 0.01
#: How long the answer of a Sentinel to a call is good for, and after which a listening thread asks for a sign of life, s.
FRESH_S = 1.0
#: How long a sign of life is good for, s.
HEARD_S = 1.2
#: Between attempts to reach a Sentinel: from the first to the second of these, doubling, s.
PAUSE_S = (0.05, 1.0)
#: The most that a Sentinel says at once, bytes.
MOST_SAID = 65_536
_PROMOTED = r"slave .* @ (\S+) (\S+) (\d+)"
_FAILURES = (RedisError, OSError, RecursionError)


class Lead:
    """The primary of some Sentinels, as this process knows it."""

    def __init__(self, sentinels: Sentinels) -> None:
        self.sentinels = sentinels
        self.forget()

    def forget(self) -> None:
        """Forget everything, in a forked child or in a test."""
        self.primary: Primary | None = None
        #: Until then nobody needs to ask, by `time.monotonic`.
        self.fresh_until_s = 0.0
        #: Whether a thread listens to a Sentinel.
        self.is_heard = False
        #: Until then calls wait for another primary, by `time.monotonic`.
        self.held_until_s = 0.0
        self._lock = threading.Lock()
        # Guarded by the lock: connections for `look`, and whose turn it is.
        self._kept: dict[Address, Any] = {}
        self._turn = 0
        self._looks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Ask one Sentinel after the other until one answers, for `PATIENCE_S` at most. Threads that come meanwhile wait."""
        with self._lock:
            if not self.is_stale:
                return
            while self.is_held:
                time.sleep(LOOK_S)
            with self._looking():
                for address in self._in_turn():
                    if address not in self._kept:
                        self._kept[address] = self.sentinels.connection(
                            address, PATIENCE_S[0], is_async=False
                        )
                    connection = self._kept[address]
                    try:
                        found = self.sentinels.ask(connection)
                    except BaseException as error:
                        connection.disconnect()
                        if not isinstance(error, _FAILURES):
                            raise
                    else:
                        self._note(found)
                        return

    async def alook(self) -> None:
        """`look` for asyncio. Coroutines that come meanwhile wait."""
        loop = asyncio.get_running_loop()
        if loop not in self._looks:
            self._looks[loop] = loop.create_task(self._alook())
            self._looks[loop].add_done_callback(lambda task: self._looks.pop(loop))
        await asyncio.shield(self._looks[loop])

    async def _alook(self) -> None:
        while self.is_held:
            await asyncio.sleep(LOOK_S)
        with self._looking():
            for address in self._in_turn():
                # Not kept: it would have to be closed with its loop.
                connection = self.sentinels.connection(
                    address, PATIENCE_S[0], is_async=True
                )
                try:
                    self._note(await self.sentinels.aask(connection))
                    return
                except _FAILURES:
                    continue
                finally:
                    await connection.disconnect(nowait=True)

    @property
    def is_stale(self) -> bool:
        """Whether somebody has to ask, or to wait."""
        now_s = time.monotonic()
        return now_s >= self.fresh_until_s or now_s < self.held_until_s

    @property
    def is_held(self) -> bool:
        """Whether a Sentinel is about to promote a replica."""
        return time.monotonic() < self.held_until_s

    def hold(self, address: Address) -> None:
        """Hold the calls to a primary that is about to be replaced, until it is, or for `HELD_S`."""
        if (known := self.primary) is None:
            return
        if (forced := self.sentinels.forced_host) is not None:
            address = forced, address[1]
        if known.address == address:
            self.held_until_s = time.monotonic() + HELD_S

    def has_replaced(self, primary: Primary | None) -> bool:
        """Return whether another server is the primary now."""
        return (
            primary is not None
            and self.primary is not None
            and self.primary.replaces(primary)
        )

    def note_alive(self, asked_s: float) -> None:
        """Note that a listening thread has heard all that was said until a moment."""
        self.fresh_until_s = max(self.fresh_until_s, asked_s + HEARD_S)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        # Whatever comes of it, nobody asks again for a while.
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.fresh_until_s = max(self.fresh_until_s, begun_s + FRESH_S)

    def _in_turn(self) -> Iterator[Address]:
        """Yield the Sentinels, another one first each time, until the time is over."""
        until_s = time.monotonic() + PATIENCE_S[0]
        self._turn += 1
        asked = self.sentinels.asked()
        for i in range(len(asked)):
            if time.monotonic() >= until_s:
                return
            yield asked[(self._turn + i) % len(asked)]

    def _note(self, found: Primary | None) -> None:
        """Take the answer of one Sentinel. It may know less than the others."""
        if found and (self.primary is None or found.epoch > self.primary.epoch):
            self.take(found)

    def take(self, found: Primary) -> Primary:
        """Take what all Sentinels have said."""
        known, self.primary = self.primary, found
        if known is not None and found.replaces(known):
            self.held_until_s = 0.0
            note_another(
                f"the primary of {self.sentinels.name!r} is {found.host}:{found.port} now",
                lambda each: (
                    getattr(each, "lead", None) is self
                    and self.has_replaced(each.primary)
                ),
            )
        return found


class _Ear:
    """The subscription to one Sentinel. It belongs to the listening thread."""

    def __init__(self, lead: Lead, address: Address) -> None:
        self.lead = lead
        self._address = address
        self._connection = lead.sentinels.connection(
            address, PATIENCE_S[0], is_async=False
        )
        self.sock: Any = None
        self.is_subscribed = False
        self._pause_s = PAUSE_S[0]
        self._next_s = 0.0
        # When the sign of life was asked for that has not come yet.
        self._asked_s: float | None = None
        self._line = b""
        self._is_refusal_told = False

    @property
    def next_s(self) -> float:
        """When `tend` has something to do, by `time.monotonic`."""
        return self._next_s

    def tend(self) -> None:
        """Connect, or ask for a sign of life."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        try:
            if self.sock is None:
                self._connection.connect()
                # Not through the parser of redis-py, which waits until an answer is whole.
                self.sock = self._connection._sock.wrapped
                self._send("SUBSCRIBE", CHANNEL)
                # Perhaps the account has no right to this one.
                self._send("SUBSCRIBE", PROMOTION)
            elif self._asked_s is not None:
                raise TimeoutError("it does not answer")
            self._send("PING")
            self._asked_s = now_s
            self._next_s = now_s + FRESH_S
        except _FAILURES as error:
            self._fail(error)

    def hear(self) -> bool:
        """Read the messages that have arrived. Return whether to ask the Sentinels for the primary."""
        is_to_ask = False
        said = len(self._line)
        try:
            while data := self._receive():
                *lines, self._line = (self._line + data).split(b"\r\n")
                for line in lines:
                    is_to_ask |= self._take(line)
                said += len(data)
                # Or it would keep the thread from the other Sentinels.
                if said > MOST_SAID:
                    raise OSError("it sends more than a Sentinel does")
        except _FAILURES as error:
            self._fail(error)
        return is_to_ask

    def _take(self, line: bytes) -> bool:
        if line.startswith(b"-") and not self.is_subscribed:
            raise ResponseError(line[1:].decode(errors="replace"))
        if line == b"subscribe":
            self.is_subscribed, self._pause_s = True, PAUSE_S[0]
            # Messages from before the subscription are missing.
            return True
        if line == b"pong" and self._asked_s is not None:
            if self.is_subscribed:
                self.lead.note_alive(self._asked_s)
            self._asked_s = None
        name = self.lead.sentinels.name
        if promotion := re.fullmatch(_PROMOTED, line.decode(errors="replace")):
            told, host, port = promotion.groups()
            if told == name:
                self.lead.hold((host, int(port)))
        return line.startswith(f"{name} ".encode())

    def _receive(self) -> bytes:
        self.sock.settimeout(0)
        try:
            data: bytes = self.sock.recv(MOST_SAID)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        if not data:
            raise ConnectionResetError("it has closed the connection")
        return data

    def _send(self, *command: str) -> None:
        # This bounds the wait for a Sentinel that reads nothing.
        self.sock.settimeout(PATIENCE_S[0])
        self.sock.sendall(b"".join(self._connection.pack_command(*command)))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ResponseError) and not self._is_refusal_told:
            self._is_refusal_told = True
            logger.warning(
                "cannot listen to the Sentinel %s:%d, so calls ask where the primary is: %s",
                *self._address,
                redact(str(error)),
            )
        logger.debug("cannot listen to a Sentinel: %s", redact(str(error)))
        self.close()
        self.lead.sentinels.leave_out(self._address, self._pause_s + HEARD_S)
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S[1])

    def close(self) -> None:
        """End the subscription."""
        self.sock, self.is_subscribed = None, False
        self._asked_s, self._line = None, b""
        self._connection.disconnect()


class _Listener:
    """The thread that listens to all Sentinels of this process, as long as some connection is led by them."""

    def __init__(self) -> None:
        self.is_ended = False
        self.thread = threading.Thread(
            target=self._run, name="delayq-sentinel", daemon=True
        )
        # Owned by the thread, once it runs.
        self.ears: dict[Lead, list[_Ear]] = {}

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: none can start, or it could not wait for several sockets, as on Windows and with eventlet.
        """
        if not hasattr(select, "poll"):
            raise RuntimeError("there is no select.poll")
        self.thread.start()

    def _run(self) -> None:
        try:
            while self._has_work():
                self._wait()
                for lead, ears in self.ears.items():
                    lead.is_heard = any(ear.is_subscribed for ear in ears)
        finally:
            self._retire()
            for lead in list(self.ears):
                self._leave(lead)

    def _has_work(self) -> bool:
        with _lock:
            used: set[Lead] = {
                each.lead for each in connections() if hasattr(each, "lead")
            }
            if self.is_ended or not used:
                self._retire()
                return False
        for lead in used - set(self.ears):
            addresses = lead.sentinels.addresses
            self.ears[lead] = [_Ear(lead, address) for address in addresses]
        for lead in set(self.ears) - used:
            self._leave(lead)
        return True

    def _retire(self) -> None:
        """Have the next connection start another thread."""
        global _listener
        if _listener is self:
            _listener = None

    def _leave(self, lead: Lead) -> None:
        lead.is_heard = False
        for ear in self.ears.pop(lead):
            ear.close()

    def _wait(self) -> None:
        ears = [ear for ears in self.ears.values() for ear in ears]
        poll = select.poll()
        by_number = {ear.sock.fileno(): ear for ear in ears if ear.sock is not None}
        for number in by_number:
            poll.register(number, select.POLLIN)
        next_s = min(min(ear.next_s for ear in ears) - time.monotonic(), FRESH_S)
        doubtful = set()
        for number, _ in poll.poll(max(0.0, next_s * 1000)):
            if by_number[number].hear():
                doubtful.add(by_number[number].lead)
        for lead in doubtful:
            try:
                lead.take(lead.sentinels.find())
            except _FAILURES as error:
                logger.debug("cannot ask for the primary: %s", redact(str(error)))
        # One at a time: whoever hangs holds the others up.
        min(ears, key=lambda ear: ear.next_s).tend()

    def end(self) -> None:
        """End the thread and wait for that."""
        self.is_ended = True
        for ears in list(self.ears.values()):
            for ear in ears:
                if (sock := ear.sock) is not None:
                    shut_socket(sock)
        self.thread.join()

    def close_after_fork(self) -> None:
        """Close the sockets in a child: they are its parent's."""
        for ears in self.ears.values():
            for ear in ears:
                ear.close()


def lead_of(sentinels: Sentinels) -> Lead:
    """Return what this process knows of the primary of some Sentinels."""
    return _leads.setdefault(sentinels, Lead(sentinels))


def listen() -> None:
    """Have a thread listen to the Sentinels that lead connections of this process. Where none can start, do nothing."""
    global _listener
    if _listener is not None:
        return
    with _lock:
        if _listener is None:
            listener = _Listener()
            try:
                listener.start()
            except RuntimeError as error:
                logger.debug(
                    "cannot start a thread that listens to the Sentinels: %s", error
                )
            else:
                _listener = listener


def stop_listening() -> None:
    """End the thread. The next connection starts it again."""
    if (listener := _listener) is not None:
        listener.end()


_leads: "weakref.WeakValueDictionary[Sentinels, Lead]" = weakref.WeakValueDictionary()
_lock = threading.Lock()
_listener: _Listener | None = None


def _forget_after_fork() -> None:
    global _lock, _listener
    _lock = threading.Lock()
    if _listener is not None:
        _listener.close_after_fork()
    _listener = None
    for lead in list(_leads.values()):
        lead.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
