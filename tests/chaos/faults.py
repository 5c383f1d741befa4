"""The faults of one server, its workers and the line between."""

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.chaos.arena import QUEUE, SETTLE_S, Arena, Span, kept
from tests.chaos.fault import Layout, NotHere, fault, trouble
from tests.chaos.lines import now_ms
from tests.chaos.tasks import CLOCK_FILE
from tests.faults.clock import ServerClock
from tests.polling import POLL_S, wait_until
from tests.queues.proxy import Proxy
from tests.replicas import Addressed
from tests.servers import LASTING, Server
from tests.worker.workers import ROOT

#: Longer than a call waits for an answer, s.
HANGING_S = 6.0
#: Longer than a lease, s.
CUT_S = 4.0


def restart(arena: Arena) -> None:
    """Kill the server and start it again; show that it is another process."""
    before = arena.run_id()
    arena.server.kill(signal.SIGKILL)
    arena.server.start()
    after = arena.run_id()
    assert before != after
    arena.prove(f"run_id {before[:8]} → {after[:8]}")


def wait_for_log(arena: Arena, text: str) -> None:
    wait_until(
        lambda: any(text in worker.log for worker in arena.workers),
        description=f"{text!r} in a worker's log; {arena.logs()}",
    )
    arena.prove(f"the worker says {text!r}")


@fault("kill -9 of the server, which starts again with its append-only file")
def kill_server(arena: Arena) -> None:
    for _ in range(3):
        arena.let_it_run()
        with trouble(arena):
            restart(arena)
    arena.let_it_run()


@fault("the server hangs for longer than a call waits (SIGSTOP, SIGCONT)")
def hang_server(arena: Arena) -> None:
    arena.let_it_run()
    with trouble(arena):
        arena.server.suspend()
        status = Path(f"/proc/{arena.server.pid}/status")
        wait_until(lambda: "T (stopped)" in status.read_text(), description="it hangs")
        arena.prove("the server's process is in state T (stopped)")
        time.sleep(HANGING_S)
        arena.server.resume()
        # What it finds on its connections then, it does.
        arena.let_it_run(20)
    arena.let_it_run()


@fault(
    "kill -9 of the server, which starts again with a snapshot of some seconds ago",
    options={"save": "", "appendonly": "no"},
)
def old_snapshot(arena: Arena) -> None:
    arena.let_it_run()
    from_ms = now_ms()
    with arena.client() as client:
        before = client.lastsave()
        client.save()
        arena.prove(f"LASTSAVE {before:%X} → {client.lastsave():%X}")
    arena.let_it_run()
    restart(arena)
    span = Span(from_ms, now_ms())
    arena.troubles.append(span)
    arena.excuses.append(span)
    wait_for_log(arena, "the server has forgotten")
    arena.let_it_run()


@fault(
    "kill -9 of the server, which starts again empty",
    options={"save": "", "appendonly": "no"},
)
def empty_restart(arena: Arena) -> None:
    arena.let_it_run()
    restart(arena)
    arena.excuses.append(Span(0.0, now_ms()))
    wait_for_log(arena, "the server has forgotten")
    arena.let_it_run()


@fault("FLUSHALL")
def flush_all(arena: Arena) -> None:
    arena.let_it_run()
    with arena.client() as client:
        held = client.dbsize()
        client.flushall()
        arena.excuses.append(Span(0.0, now_ms()))
        calls = client.info("commandstats")["cmdstat_flushall"]["calls"]
        arena.prove(f"{held} keys were there; FLUSHALL ran {calls} time")
    wait_for_log(arena, "the server has forgotten")
    arena.let_it_run()


@fault("SCRIPT FLUSH, again and again")
def script_flush(arena: Arena) -> None:
    arena.let_it_run()
    least = arena.count("end") + 300
    flushes = 0
    with arena.client() as client:
        while arena.count("end") < least:
            client.script_flush()
            flushes += 1
            time.sleep(10 * POLL_S)
        told = client.info("commandstats")
        calls = sum(
            stats["calls"]
            for name, stats in told.items()
            if name.startswith("cmdstat_script")
        )
        arena.prove(f"SCRIPT FLUSH ran {calls} times")
    assert calls >= flushes > 10


@fault("the server's memory is full; then it gets more")
def full_memory(arena: Arena) -> None:
    (load,) = arena.loads
    arena.let_it_run()
    with arena.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        load.wait_for_more(20, "refused")
        # All that is there still runs, although the server takes nothing new.
        last_ms = max(
            told["after_ms"] + told["delay_ms"] for told in load.told("stored")
        )
        jobs = {told["job"] for told in load.told("stored")}
        wait_until(
            lambda: (
                now_ms() > last_ms
                and jobs & set(kept(load.told()))
                <= {line["job"] for line in arena.records.all("end")}
            ),
            description=f"what was stored has run; {arena.logs()}",
        )
        refused = load.told("refused")
        assert all("OutOfMemoryError" in told["error"] for told in refused), refused[-1]
        arena.prove(
            f"maxmemory {client.config_get('maxmemory')['maxmemory']}; {len(refused)} calls refused, all stored ran"
        )
        client.config_set("maxmemory", 0)
    load.wait_for_more()
    arena.let_it_run()


@contextmanager
def proxied(arena: Arena) -> Iterator[Proxy]:
    proxy = Proxy(arena.server)
    try:
        yield proxy
    finally:
        proxy.close()


@fault("a worker is cut off, its connections die in silence, and it comes back")
def partition(arena: Arena) -> None:
    with proxied(arena) as proxy:
        cut_off = arena.start_worker(connection=proxy.url)
        wait_until(
            lambda: (
                cut_off.children()
                and {line["pid"] for line in arena.records.all("start")}
                >= set(cut_off.children())
            ),
            description="it works",
        )
        with trouble(arena):
            proxy.is_refusing = True
            proxy.freeze()
            begun_ms = now_ms()
            wait_until(
                lambda: now_ms() > begun_ms + CUT_S * 1000, description="it lasts"
            )
            proxy.cut()
            pids = set(cut_off.children())
            last_ms = max(
                line["now_ms"]
                for line in arena.records.all("start")
                if line["pid"] in pids
            )
            arena.prove(
                f"cut off for {CUT_S:g} s; its last job began {last_ms - begun_ms:.0f} ms after the cut"
            )
            proxy.is_refusing = False
        back_ms = now_ms()
        wait_until(
            lambda: any(
                line["now_ms"] > back_ms and line["pid"] in pids
                for line in arena.records.all("start")
            ),
            description=f"it works again; {cut_off.log}",
        )
        arena.let_it_run()
        assert cut_off.stop() == 0, cut_off.log


@fault("every reply and request of a worker takes 100 ms")
def slow_line(arena: Arena) -> None:
    (quick,) = arena.workers
    with proxied(arena) as proxy:
        slow = arena.start_worker(connection=proxy.url)
        # It would leave the other nothing to do.
        assert quick.stop() == 0, quick.log
        proxy.delay_s = 0.1
        arena.let_it_run()
        arena.prove(f"{proxy.delayed} pieces were held up by 100 ms")
        proxy.delay_s = 0.0
        assert slow.stop() == 0, slow.log
    arena.start_worker()


#: A call that began so long before a step may have reached the server after it, ms.
SLACK_OF_STEP_MS = 1_000.0


def step_clock(arena: Arena, clock: ServerClock, seconds: int) -> None:
    before_ms = arena.clock_ms()
    if not arena.clocks:
        arena.clocks.append((Span(0.0, now_ms()), before_ms))
    with trouble(arena):
        from_ms = now_ms()
        clock.step(arena.server, seconds)
        after_ms = arena.clock_ms()
        arena.clocks.append((Span(from_ms, now_ms()), after_ms))
    arena.prove(
        f"the server's TIME made a step of {(after_ms - before_ms) / 1000:+.1f} s"
    )
    assert abs((after_ms - before_ms) / 1000 - seconds) < 5


def stepping(directory: Path) -> dict[str, Any]:
    clock = ServerClock(directory / "clock")
    return {"environment": clock.environment, "clock": clock}


@fault("the server's clock makes steps, forward and back", prepare=stepping)
def server_clock(arena: Arena) -> None:
    clock = arena.clock
    assert clock is not None
    arena.let_it_run()
    for seconds in (30, -20, -600, 3_600):
        step_clock(arena, clock, seconds)
        arena.let_it_run(50)
    arena.let_it_run()


def clock_of(arena: Arena, pids: set[int], seconds: int, *, jobs: int = 50) -> float:
    """Return by how many s the clock of processes is ahead, once so many of their jobs have ended by it; 0: not yet."""
    to_epoch_ms = time.time() * 1000 - now_ms()
    ahead = [
        (line["at_ms"] - line["now_ms"] - to_epoch_ms) / 1000
        for line in arena.records.all("end")
        if line["pid"] in pids
    ]
    ahead = [ahead_s for ahead_s in ahead if abs(ahead_s - seconds) < 60]
    return ahead[-1] if len(ahead) >= jobs else 0.0


@fault("a worker's clock is an hour ahead, then an hour behind")
def worker_clock(arena: Arena) -> None:
    file = arena.directory / "clock"
    file.write_text("0")
    moved = arena.start_worker(environment={CLOCK_FILE: str(file)})
    for seconds in (3_600, -3_600):
        file.write_text(str(seconds))

        pids = set(moved.children())
        ahead_s = wait_until(
            lambda seconds=seconds, pids=pids: clock_of(arena, pids, seconds),
            description=f"it works by that clock; {moved.log[-2_000:]}",
        )
        arena.prove(f"the worker's clock was {ahead_s:+.0f} s from ours")
    assert moved.stop() == 0, moved.log


@fault("a job eats memory until the kernel kills its worker")
def out_of_memory(arena: Arena) -> None:
    (load,), (worker,) = arena.loads, arena.workers
    group = limit_memory(arena)
    arena.let_it_run()
    with trouble(arena):
        job = load.schedule_eater()
        said = wait_until(
            lambda: re.search(f"job={job} .*outcome=dead.*", worker.log),
            description=f"it is given up; {arena.logs()}",
        )
    killed = group.kills()
    assert killed >= 1, group.events()
    assert arena.count("eat") > 1
    assert arena.count("ate") == 0
    arena.prove(f"the kernel killed {killed} processes for memory; {said[0][-60:]}")
    arena.let_it_run()
    assert worker.is_running


#: What a worker of one process needs, four times.
GROUP_BYTES = 220 << 20


class MemoryGroup:
    """A control group of the kernel's, of either version."""

    def __init__(self, path: Path, limit_name: str) -> None:
        self.path = path
        self._limit = path / limit_name

    @classmethod
    def make(cls, name: str) -> "MemoryGroup":
        for root, limit_name in (
            (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
            (Path("/sys/fs/cgroup"), "memory.max"),
        ):
            path = root / name
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / limit_name).exists():
                return cls(path, limit_name)
            path.rmdir()
        raise NotHere("no control group for memory may be made on this machine")

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        self._limit.write_text(str(size))
        swap = self.path / "memory.swap.max"
        with suppress(OSError):
            swap.write_text("0")

    def remove(self) -> None:
        """Remove the group, once its processes are gone."""
        wait_until(
            lambda: not (self.path / "cgroup.procs").read_text().split(),
            description="its processes are gone",
        )
        self.path.rmdir()

    def events(self) -> str:
        names = ("memory.events", "memory.oom_control")
        return "".join(
            (self.path / name).read_text()
            for name in names
            if (self.path / name).exists()
        )

    def kills(self) -> int:
        for line in self.events().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0


def limit_memory(arena: Arena) -> MemoryGroup:
    """Have the worker and its processes share so much memory that a hungry job gets none of it for long."""
    group = MemoryGroup.make(f"delayq-chaos-{os.getpid()}")
    arena.at_end.append(group.remove)
    group.limit(GROUP_BYTES)
    for worker in arena.workers:
        for pid in (worker.pid, *worker.children()):
            group.add(pid)
    return group


def ignoring_full_files(directory: Path) -> dict[str, Any]:
    """A disk is full for a process whose files may not grow: it gets an error instead of a signal."""
    return {"wrapper": 'trap \'\' XFSZ; exec "$0" "$@"'}


@fault(
    "the disk of the append-only file is full; then there is room again",
    options={**LASTING, "auto_aof_rewrite_percentage": "0"},
    prepare=ignoring_full_files,
)
def full_disk(arena: Arena) -> None:
    (load,) = arena.loads
    arena.let_it_run()
    files = arena.server.data_directory.rglob("*.aof*")
    size = max(path.stat().st_size for path in files)
    pid = arena.server.pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10_000, unlimited[1]))
    with trouble(arena):
        load.wait_for_more(10, "refused")
        with arena.client() as client:
            status = client.info("persistence")["aof_last_write_status"]
        said = [line for line in arena.server.log().splitlines() if "AOF" in line][-1]
        arena.prove(f"aof_last_write_status {status}: {said.split('# ')[-1][:90]}")
        assert status == "err"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        load.wait_for_more()
    arena.let_it_run()


def addressed(kind: str) -> Layout:
    return Addressed(kind), {QUEUE: {}}


@fault(
    "an address moves to the replica, and the old primary becomes a replica and closes no connection",
    layout=addressed,
    ticks=True,
)
def moved_address(arena: Arena) -> None:
    place = arena.place
    assert isinstance(place, Addressed)
    source = Server(place.kind, LASTING)
    arena.at_end.append(source.stop)
    source.start()
    looping = arena.start_load(how="loop")
    elsewhere = arena.start_load(connection=source.socket_url)
    for load in (looping, elsewhere):
        load.wait_for_more(1)
    importing = arena.start_import(source)
    arena.at_end.append(importing.kill)
    run_id = arena.run_id()
    arena.let_it_run()
    with place.primary.client() as old, trouble(arena):
        held = {each["id"] for each in old.client_list(_type="normal")}
        place.move(SETTLE_S)
        for load in arena.loads:
            load.wait_for_more()
        arena.let_it_run()
        wait_until(
            lambda: held.isdisjoint(
                each["id"]
                for each in old.client_list(_type="normal")
                if each["cmd"] != "client|list"
            ),
            description=f"nobody holds a connection to the old server; {arena.logs()}",
            timeout=SETTLE_S,
        )
        refusals = old.info("errorstats")["errorstat_READONLY"]["count"]
    arena.prove(f"run_id {run_id[:8]} → {arena.run_id()[:8]}")
    arena.prove(
        f"the old server refused {refusals} calls with READONLY, and all {len(held)} connections to it were closed"
    )
    elsewhere.stop()
    arena.prove(arena.finish_import(importing, source))
    # Jobs that came through the import must run, as all others.
    arena.prove_ticks(at_least=10)
    arena.let_it_run()


#: A commit whose code is another version than this one's, and writes the same format: the first that writes no other.
EARLIER = "f2b5aa20"


def earlier(directory: Path) -> Path:
    """Bring the earlier version, with the task of the load."""
    root = directory / "earlier"
    root.mkdir()
    packed = subprocess.run(
        ["git", "archive", EARLIER, "django_delayq", "tests", ":!tests/chaos"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        raise NotHere(f"needs the history of the project: {packed.stderr.decode()}")
    subprocess.run(["tar", "-x"], input=packed.stdout, cwd=root, check=True)
    shutil.copytree(ROOT / "tests" / "chaos", root / "tests" / "chaos")
    return root


@fault("a rolling deploy of an earlier version and this one, forth, back and forth")
def rolling_deploy(arena: Arena) -> None:
    root = earlier(arena.directory)
    (new,) = arena.workers
    for _ in range(2):
        old = arena.start_worker(root=root)
        load = arena.start_load(root=root)
        load.wait_for_more(1)
        arena.wait_for_work(old)
        assert new.stop() == 0, new.log
        arena.let_it_run()
        new = arena.start_worker()
        arena.wait_for_work(new)
        assert old.stop() == 0, old.log
        load.stop()
        arena.let_it_run()
    arena.prove(f"jobs of {EARLIER} and of this version ran on workers of both")
