"""``python -m benchmarks.durability``: what does each level of ``durable=`` survive, and what does it cost?

Threads schedule jobs, and note outside the server each id for which ``schedule()`` returned. Then something happens to
the servers, and what they still have is counted against those notes.

* *killed*: ``kill -9`` of the primary, which starts again with its append-only file. The kernel keeps what was written.
* *power lost*: the same, and the file is cut behind what is known to be on disk: a mark that WAITAOF has confirmed to a
  connection beside, and the last job whose call had it synced. A disk may have had more.
* *failover*: the primary is lost for good, and its replica, which hears it 20 ms late, becomes the primary.
* *cut off*: the replica loses the primary and becomes the primary; jobs go on to the old one for a second.
* *suspended*: the primary is suspended for good, and the replica becomes the primary.
* *failover, power lost*: the primary is lost for good, and the file of its replica is cut as above before it starts again.
"""

import argparse
import queue
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from redis.exceptions import RedisError

from benchmarks import bench
from django_delayq.core.durability import Durable
from django_delayq.exceptions import NotDurable
from tests.polling import wait_until
from tests.servers import Server, available_kinds

QUEUE = "durable"
#: As `durable=` has them.
LEVELS: dict[str, Any] = {
    "none": False,
    "replicas": 1,
    "disk": "disk",
    "both": Durable(replicas=1, disk=True),
}
#: How late a replica hears its primary, s, where something is to be lost on the way.
LAG_S = 0.02
#: How long jobs are scheduled before something happens.
BEFORE_S = 5.0
#: Threads that schedule.
WRITERS = 16


class _Link:
    """Passes a replica's connection on to the primary, and what the primary says late; it can break with it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                replica, _ = self._listener.accept()
                primary = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [replica, primary]
                for source, target, wait_s in (
                    (replica, primary, 0.0),
                    (primary, replica, LAG_S),
                ):
                    on_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
                    for act in (self._take, self._give):
                        threading.Thread(
                            target=act,
                            args=(source if act == self._take else target, on_way),
                            kwargs={"wait_s": wait_s},
                            daemon=True,
                        ).start()

    def _take(self, source: socket.socket, on_way: Any, *, wait_s: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                on_way.put((time.monotonic() + wait_s, data))

    def _give(self, target: socket.socket, on_way: Any, *, wait_s: float) -> None:
        with suppress(OSError):
            while True:
                at, data = on_way.get()
                time.sleep(max(0.0, at - time.monotonic()))
                if self._is_cut:
                    return
                target.sendall(data)

    def cut(self) -> None:
        """Lose what is on the way."""
        self._is_cut = True
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Writers:
    """Schedule jobs, and note which are stored."""

    def __init__(self, durable: Any) -> None:
        self.durable = durable
        self._has_ended = threading.Event()
        #: Tokens of the jobs whose call returned. Only `append`, which is atomic.
        self.noted: list[str] = []
        #: Calls that raised NotDurable.
        self.short: list[NotDurable] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(WRITERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        from benchmarks.tasks import noop

        task = noop.using(queue=QUEUE, durable=self.durable)
        while not self._has_ended.is_set():
            try:
                job = task.schedule(86_400, 1)
            except NotDurable as error:
                self.short.append(error)
            except RedisError:
                # The server has gone; the call says that the job may be stored, so it is not noted.
                continue
            else:
                self.noted.append(job.token)


class _Synced:
    """Learns from WAITAOF which mark is on the disks of so many primaries (0 or 1) and replicas."""

    def __init__(self, primary: Server, disks: tuple[int, int]) -> None:
        self._primary, self._disks = primary, disks
        self._mark = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._primary.client(retry=None) as client, suppress(RedisError):
            # It ends with the primary.
            while True:
                mark = secrets.token_hex(16)
                client.set("mark", mark)
                told = client.execute_command("WAITAOF", *self._disks, 2_000)
                if tuple(told) >= self._disks:
                    self._mark = mark

    def cut(self, server: Server, synced: Sequence[str]) -> None:
        """Cut the file of a server behind the mark, and behind jobs that are known to be on its disk."""
        self._thread.join()
        file = sorted(server.data_directory.rglob("*.incr.aof"))[-1]
        data = file.read_bytes()
        end = data.index(b"\r\n", data.index(self._mark.encode())) + 2
        # A call that had its job synced may have ended before others whose jobs lie before it.
        for token in synced:
            found = data.rfind(token.encode())
            assert found >= 0, f"job {token} was synced, and is not in {file}"
            end = max(end, data.index(b"EXEC\r\n", found) + 6)
        with file.open("r+b") as opened:
            opened.truncate(end)


@contextmanager
def pair(
    kind: str, fsync: str, *, is_late: bool
) -> Iterator[tuple[Server, Server, _Link]]:
    options = {
        "appendonly": "yes",
        "appendfsync": fsync,
        "aof_load_truncated": "yes",
        "repl_diskless_sync_delay": "0",
    }
    with ExitStack() as stack:
        primary = Server(kind, options).start()
        stack.callback(primary.stop)
        link = _Link(primary.port)
        stack.callback(link.cut)
        port = link.port if is_late else primary.port
        replica = Server(kind, {**options, "replicaof": f"127.0.0.1 {port}"}).start()
        stack.callback(replica.stop)
        with primary.client() as client:
            wait_until(
                lambda: client.info("replication")["connected_slaves"] == 1,
                description="the replica is connected",
            )
            client.set("ready", 1, px=1)
            assert client.wait(1, 30_000) == 1
        yield primary, replica, link


def use(server: Server) -> None:
    from django.conf import settings

    from django_delayq import conf

    settings.DELAYQ = {
        "CONNECTION": f"{server.url}?socket_timeout=6",
        "QUEUES": {QUEUE: {}},
    }
    conf.forget_connections()


def promote(replica: Server) -> Server:
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    return replica


# Each of these happens while jobs are scheduled, and returns the server that is left.
Fault = Callable[[_Writers, Server, Server, _Link, bool], Server]


def killed(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    primary.kill()
    writers.stop()
    return primary.start()


def power_lost(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    watch = _Synced(primary, (1, 0))
    time.sleep(BEFORE_S)
    primary.kill()
    writers.stop()
    watch.cut(primary, writers.noted[-2 * WRITERS :] if is_synced else ())
    return primary.start()


def failover(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    link.cut()
    primary.kill()
    writers.stop()
    return promote(replica)


def cut_off(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    link.cut()
    promoted = promote(replica)
    time.sleep(1)
    writers.stop()
    return promoted


def suspended(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    primary.suspend()
    promoted = promote(replica)
    primary.kill()
    writers.stop()
    return promoted


def failover_without_power(
    writers: _Writers, primary: Server, replica: Server, link: _Link, is_synced: bool
) -> Server:
    watch = _Synced(primary, (0, 1))
    time.sleep(BEFORE_S)
    link.cut()
    primary.kill()
    replica.kill()
    writers.stop()
    is_there = writers.durable == LEVELS["both"]
    watch.cut(replica, writers.noted[-2 * WRITERS :] if is_there else ())
    del replica.options["replicaof"]
    return replica.start()


FAULTS: list[tuple[str, str, Fault]] = [
    ("killed, appendfsync always", "always", killed),
    ("killed, appendfsync everysec", "everysec", killed),
    ("killed, appendfsync no", "no", killed),
    ("power lost, appendfsync always", "always", power_lost),
    ("power lost, appendfsync everysec", "everysec", power_lost),
    ("failover", "everysec", failover),
    ("cut off", "everysec", cut_off),
    ("suspended", "everysec", suspended),
    ("failover, power lost", "everysec", failover_without_power),
]


def survive(kind: str, fsync: str, fault: Fault, durable: Any) -> str:
    from benchmarks.tasks import noop
    from django_delayq.core.keys import DeliveryKeys

    with pair(kind, fsync, is_late=True) as (primary, replica, link):
        use(primary)
        # The server knows the scripts from now on.
        noop.using(queue=QUEUE).schedule(0, 1)
        writers = _Writers(durable)
        writers.start()
        time.sleep(BEFORE_S)
        is_synced = fsync == "always" or durable in (LEVELS["disk"], LEVELS["both"])
        left = fault(writers, primary, replica, link, is_synced)
        noted = writers.noted
        with left.client() as client:
            locators = DeliveryKeys.of(QUEUE).locators
            found = client.hmget(locators, noted) if noted else []
        lost = sum(each is None for each in found)
        text = f"{lost:,} of {len(noted):,}"
        return text + (f"; {len(writers.short)} told" if writers.short else "")


def costs(kind: str, rounds: int) -> list[list[str]]:
    from benchmarks.tasks import noop
    from django_delayq import schedule_many

    waits: dict[str, list[float]] = {name: [] for name in LEVELS}
    rates: dict[str, list[float]] = {name: [] for name in LEVELS}
    with pair(kind, "everysec", is_late=False) as (primary, _, _):
        use(primary)
        for _ in range(rounds):
            for name, durable in LEVELS.items():
                task = noop.using(queue=QUEUE, durable=durable)
                count = 3 if name in ("disk", "both") else 300
                for _ in range(count):
                    begun = time.perf_counter()
                    task.schedule(86_400, 1)
                    waits[name].append(1000 * (time.perf_counter() - begun))
                rates[name].append(
                    bench.rate(
                        lambda task=task: len(  # type: ignore[misc]
                            schedule_many(
                                task.prepare(86_400, 1) for _ in range(20_000)
                            )
                        )
                    )
                )
    base_ms = statistics.median(waits["none"])
    base = statistics.median(rates["none"])
    return [
        [
            name,
            f"{statistics.median(waits[name]):.2f} ms",
            f"{bench.percentile(waits[name], 0.99):.2f} ms",
            f"{statistics.median(waits[name]) / base_ms:.1f}",
            f"{statistics.median(rates[name]) / base:.2f}",
        ]
        for name in LEVELS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.durability", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("faults", "costs"))
    parser.add_argument(
        "--server", default=available_kinds()[0], choices=available_kinds()
    )
    options = parser.parse_args()
    with bench.serving(options.server):
        if options.only != "faults":
            print("What it costs, appendfsync everysec\n")
            bench.table(
                [
                    "durable",
                    "schedule(), p50",
                    "p99",
                    "of none",
                    "schedule_many, of none",
                ],
                costs(options.server, options.rounds),
            )
        if options.only != "costs":
            print(
                "Jobs lost, of those whose call had returned; and calls that raised NotDurable\n"
            )
            rows = [
                [
                    name,
                    *(
                        survive(options.server, fsync, fault, d)
                        for d in LEVELS.values()
                    ),
                ]
                for name, fsync, fault in FAULTS
            ]
            bench.table(["what happens", *LEVELS], rows)


if __name__ == "__main__":
    main()
