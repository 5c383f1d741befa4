"""A server behind a line that fails on demand."""

import select
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server


@dataclass
class _Loss:
    """Requests that contain some bytes are to fail, so many times."""

    marker: bytes
    #: The server gets it, and only the reply is lost; else not even that.
    reaches_server: bool
    times: int
    #: From then on no connection is let through, until `Proxy.is_refusing` is reset.
    refuses: bool
    struck: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Passes connections on to a server, and cuts or holds them as told.

    It listens on a Unix socket, or ``on_port`` of the loopback.
    """

    def __init__(self, server: Any, *, on_port: bool = False) -> None:
        if not isinstance(server, Server):
            # It stands before one server whose socket it knows.
            pytest.skip("needs the server's socket")
        self._server_path = str(server.socket_path)
        self._directory = tempfile.mkdtemp(prefix="dq-")
        self._path = Path(self._directory, "p")
        if on_port:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._losses: list[_Loss] = []
        self._sockets: set[socket.socket] = set()
        self._frozen: set[socket.socket] = set()
        self.is_refusing = False
        #: Every piece that passes is held up by so many seconds; and how many were.
        self.delay_s = 0.0
        self.delayed = 0
        self._held_host = ""
        self._released = threading.Event()
        self._released.set()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"unix://{self._path}?db=0"

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def lose_reply_to(
        self, marker: bytes, times: int = 1, *, refuse: bool = False
    ) -> threading.Event:
        """Let the next requests with these bytes through, and cut the line before the reply."""
        return self._lose(_Loss(marker, True, times, refuse))

    def lose(
        self, marker: bytes, times: int = 1, *, refuse: bool = False
    ) -> threading.Event:
        """Cut the line when the next requests with these bytes come, before the server gets them."""
        return self._lose(_Loss(marker, False, times, refuse))

    def lead_to(self, server: Server) -> None:
        """Pass what connects from now on to another server."""
        self._server_path = str(server.socket_path)

    def cut(self) -> None:
        """Cut every connection now."""
        with self._lock:
            for sock in self._sockets:
                _shut(sock)

    def freeze(self) -> None:
        """Swallow whatever comes on the connections of this moment, without closing them: a cable was pulled."""
        with self._lock:
            self._frozen |= self._sockets

    def hold(self, host: str) -> None:
        """Let nothing through between the server and a host, whether its connections are old or new, until `release`.

        As on a network that is parted, neither side hears that the other one closes a connection, and what was sent
        arrives late.
        """
        self._held_host = host
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._is_closed = True
        self.release()
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
        shutil.rmtree(self._directory)

    def _lose(self, loss: _Loss) -> threading.Event:
        with self._lock:
            self._losses.append(loss)
        return loss.struck

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                if self.is_refusing:
                    raise ConnectionRefusedError
                server.connect(self._server_path)
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            # A client of a Unix socket has no address.
            host = address[0] if address else ""
            thread = threading.Thread(
                target=self._pass, args=(client, server, host), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _pass(self, client: socket.socket, server: socket.socket, host: str) -> None:
        other = {client: server, server: client}
        try:
            while True:
                for sock in select.select([client, server], [], [])[0]:
                    data = sock.recv(1 << 20)
                    self._wait_while_held(host)
                    if not data:
                        return
                    if sock in self._frozen:
                        continue
                    if sock is client and (loss := self._loss_for(data)) is not None:
                        if loss.reaches_server:
                            server.sendall(data)
                            server.recv(1 << 20)
                        self.is_refusing = self.is_refusing or loss.refuses
                        _shut(client)
                        loss.struck.set()
                        return
                    if self.delay_s:
                        time.sleep(self.delay_s)
                        self.delayed += 1
                    other[sock].sendall(data)
        except OSError:
            pass
        finally:
            self._wait_while_held(host)
            with self._lock:
                self._sockets -= {client, server}
                self._frozen -= {client, server}
            client.close()
            server.close()

    def _wait_while_held(self, host: str) -> None:
        if host == self._held_host:
            self._released.wait()

    def _loss_for(self, data: bytes) -> _Loss | None:
        with self._lock:
            for loss in self._losses:
                if loss.marker in data:
                    loss.times -= 1
                    if loss.times == 0:
                        self._losses.remove(loss)
                    return loss
        return None


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
