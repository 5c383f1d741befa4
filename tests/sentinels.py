"""A primary with two replicas, and three Sentinels that watch over it: real servers, on loopback ports.

The Sentinels are told to look several times a second, so that a failover takes about a second and not half a minute.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import redis

from tests.polling import PATIENCE_S, POLL_S, wait_until
from tests.servers import Server
from tests.tls import OURS, Tls

NAME = "mymaster"
#: A primary that is silent for so long is down, ms, for each Sentinel. If two of them notice at once, and each votes for
#: itself, the third decides.
DOWN_AFTER_MS = (500, 500, 1_000)
#: With these, no pause of a busy machine is taken for a failure.
PATIENT_MS = (60_000, 60_000, 60_000)
#: How often a Sentinel looks and speaks, ms: their own periods are seconds. And it is not to think that its clock jumps,
#: after which it does nothing for half a minute: on a loaded machine it is only late.
PERIODS = {
    "INFO-PERIOD": 100,
    # Of a replica whose last INFO is five of these old, a leader makes no primary, and while the primary is down it asks
    # for an INFO only once a second.
    "PING-PERIOD": 400,
    "ASK-PERIOD": 100,
    "PUBLISH-PERIOD": 100,
    "TILT-TRIGGER": 600_000,
}
#: Those that a Sentinel has if nobody tells it others. It demotes an old primary after four times the last one.
STOCK_PERIODS = {
    "INFO-PERIOD": 10_000,
    "PING-PERIOD": 1_000,
    "ASK-PERIOD": 1_000,
    "PUBLISH-PERIOD": 2_000,
}
#: How a Sentinel treats the primary.
TREATMENT = {"failover-timeout": 3_000, "parallel-syncs": 2}
#: A failover takes a second or two. On a loaded machine elections fail, and are held again after some seconds.
FAILOVER_S = 120.0


class Watched:
    """Three data servers and three Sentinels.

    ``password`` is that of the data servers, ``sentinel_password`` that of the Sentinels. ``options`` are lines of the
    data servers' configuration. With ``tls`` all six speak TLS alone, to each other as well. ``down_after_ms`` is for how
    long the primary may be silent, for each Sentinel.
    """

    def __init__(
        self,
        kind: str,
        *,
        password: str = "",
        sentinel_password: str = "",
        options: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        down_after_ms: Sequence[int] = DOWN_AFTER_MS,
    ) -> None:
        self.kind = kind
        self.tls = tls
        self.password = password
        self.sentinel_password = sentinel_password
        own = {
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
            "appendonly": "no",
            **(options or {}),
        }
        if password:
            own |= {"requirepass": password, "masterauth": password}
        of_sentinels: dict[str, str] = {}
        if sentinel_password:
            of_sentinels["requirepass"] = sentinel_password
            of_sentinels["sentinel sentinel-pass"] = sentinel_password
        if tls is not None:
            own |= tls.options()
            of_sentinels |= tls.options()
        self.servers = [Server(kind, own) for _ in range(3)]
        self._down_after_ms = down_after_ms
        self.sentinels = [
            Server(kind, of_sentinels, arguments=("--sentinel",)) for _ in range(3)
        ]
        self._clients: dict[Server, redis.Redis] = {}

    def start(self) -> "Watched":
        """Start all six, and return once every Sentinel knows the others and both replicas."""
        first, *others = self.servers
        first.start()
        for server in others:
            server.options["replicaof"] = f"127.0.0.1 {self.port_of(first)}"
            server.start()
        for sentinel in self.sentinels:
            sentinel.start()
            self._set_periods(sentinel, PERIODS)
            self._monitor(sentinel, first)
        self.wait_until_whole()
        return self

    def _monitor(self, sentinel: Server, primary: Server) -> None:
        execute = self.client(sentinel).execute_command
        execute("SENTINEL", "MONITOR", NAME, "127.0.0.1", self.port_of(primary), 2)
        own = {
            "down-after-milliseconds": self._down_after_ms[
                self.sentinels.index(sentinel)
            ],
            "auth-pass": self.password,
        }
        for name, value in {**TREATMENT, **own}.items():
            if value:
                execute("SENTINEL", "SET", NAME, name, value)

    def set_periods(self, periods: Mapping[str, int] = PERIODS) -> None:
        """Say how often to look and speak, to all Sentinels."""
        for sentinel in self.sentinels:
            self._set_periods(sentinel, periods)

    def _set_periods(self, sentinel: Server, periods: Mapping[str, int]) -> None:
        parts = [part for item in periods.items() for part in item]
        self.client(sentinel).execute_command("SENTINEL", "DEBUG", *parts)

    def set_down_after(self, times_ms: Sequence[int] = DOWN_AFTER_MS) -> None:
        """Say for how long the primary may be silent, to each Sentinel."""
        for sentinel, time_ms in zip(self.sentinels, times_ms, strict=True):
            self.client(sentinel).execute_command(
                "SENTINEL", "SET", NAME, "down-after-milliseconds", time_ms
            )

    def demote_unseen(self) -> Server:
        """Swap the primary behind the backs of the Sentinels, so that no connection is closed. Return the new primary."""
        old = self.primary
        chosen = next(server for server in self.servers if server is not old)
        for sentinel in self.sentinels:
            self.client(sentinel).execute_command("SENTINEL", "REMOVE", NAME)
        self.client(chosen).execute_command("REPLICAOF", "NO", "ONE")
        for server in self.servers:
            if server is not chosen:
                self.client(server).execute_command(
                    "REPLICAOF", "127.0.0.1", self.port_of(chosen)
                )
        wait_until(
            lambda: self.role(old) == "slave", description="the old primary to follow"
        )
        for sentinel in self.sentinels:
            self._monitor(sentinel, chosen)
        return chosen

    def stop(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()
        for server in (*self.sentinels, *self.servers):
            server.stop()

    def __enter__(self) -> "Watched":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What ``DELAYQ["CONNECTION"]`` takes."""
        account = f":{self.password}@" if self.password else ""
        scheme, parameters = "redis", []
        if self.sentinel_password:
            parameters.append(f"sentinel_password={self.sentinel_password}")
        if self.tls is not None:
            scheme = "rediss"
            parameters.append(self.tls.parameters(**OURS))
        query = "?" + "&".join(parameters) if parameters else ""
        places = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"{scheme}+sentinel://{account}{places}/{NAME}/0{query}"

    @property
    def socket_url(self) -> str:
        """The URL: Sentinels name ports only."""
        return self.url

    @property
    def sentinel_ports(self) -> list[int]:
        return [sentinel.port for sentinel in self.sentinels]

    def port_of(self, server: Server) -> int:
        """Return where replicas, Sentinels and clients look for a data server."""
        return server.port

    @property
    def primary(self) -> Server:
        """The server that answers and says that it is the primary. There is one, but while a failover runs."""
        found = [server for server in self.servers if self.role(server) == "master"]
        assert len(found) == 1, [self.role(server) for server in self.servers]
        return found[0]

    def role(self, server: Server) -> str:
        """Return what a server says about itself; empty if it does not answer."""
        # The first connection may be one to the server that was killed.
        for _ in range(2):
            if not server.is_running or server.is_suspended:
                break
            try:
                return str(self.client(server).execute_command("ROLE")[0].decode())
            except redis.ConnectionError:
                continue
        return ""

    def client(self, server: Server) -> redis.Redis:
        """Return the client of one server or Sentinel, whatever its role."""
        if server not in self._clients:
            own = self.sentinel_password if server in self.sentinels else self.password
            self._clients[server] = redis.Redis(
                "127.0.0.1",
                # Not its other socket, where redis-py 5.0 has no time-out.
                port=server.port,
                password=own or None,
                **self._tls_arguments(),
                retry=None,
                # A busy machine is no failure.
                socket_timeout=PATIENCE_S,
                protocol=2,
            )
        return self._clients[server]

    def _tls_arguments(self) -> dict[str, Any]:
        return {} if self.tls is None else {"ssl": True, **self.tls.files(**OURS)}

    def named_ports(self) -> set[int]:
        """Return where the Sentinels say that the primary is, each of them."""
        ports = set()
        for sentinel in self.sentinels:
            _, port = self.client(sentinel).execute_command(
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME
            )
            ports.add(int(port))
        return ports

    def switches(self) -> int:
        """Return how many switches the Sentinels logged. Failed elections are none, though each takes an epoch."""
        return max(each.log().count("+switch-master") for each in self.sentinels)

    def wait_for_switch(self, old: Server) -> tuple[float, int]:
        """Wait until a Sentinel names another primary than ``old``.

        Return that moment, by `time.monotonic`, and the port of the new primary.
        """
        others = wait_until(
            lambda: self.named_ports() - {self.port_of(old)},
            timeout=FAILOVER_S,
            description="a Sentinel to name another primary",
        )
        return time.monotonic(), others.pop()

    def fail_over(self, how: str) -> Server:
        """Have the primary fail: ``kill`` or ``suspend``. Return it once another one was named."""
        old = self.primary
        if how == "kill":
            old.kill()
        else:
            old.suspend()
        self.wait_for_switch(old)
        return old

    def hand_on(self, periods: Mapping[str, int] = PERIODS) -> Server:
        """Have a Sentinel promote a replica while all are healthy. Return the old primary once another one was named.

        The old one is demoted after four times the ``PUBLISH-PERIOD``, and takes writes until then.
        """
        old, leader = self.primary, self.client(self.sentinels[0])
        self.set_periods(periods)

        def is_named() -> bool:
            # On a busy machine a Sentinel gives up, and is asked again.
            with suppress(redis.ResponseError):
                leader.execute_command("SENTINEL", "FAILOVER", NAME)
            until_s = time.monotonic() + 2 * TREATMENT["failover-timeout"] / 1000
            while time.monotonic() < until_s:
                if self.named_ports() - {self.port_of(old)}:
                    return True
                time.sleep(POLL_S)
            return False

        wait_until(
            is_named, timeout=FAILOVER_S, description="another primary to be named"
        )
        return old

    def heal(self) -> None:
        """Bring failed servers back, and return once they are replicas that have what the primary has."""
        for server in self.servers:
            if not server.is_running:
                server.start()
            elif server.is_suspended:
                server.resume()
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        wait_until(
            self._is_whole,
            timeout=FAILOVER_S,
            description="one primary, two replicas in step, three Sentinels that know all",
        )

    def _is_whole(self) -> bool:
        # Asked once: a server that comes back says for a moment what it was.
        roles = {server: self.role(server) for server in self.servers}
        if sorted(roles.values()) != ["master", "slave", "slave"]:
            return False
        primary = next(server for server in roles if roles[server] == "master")
        links = self.client(primary).info("replication")
        in_step = [
            links.get(f"slave{i}", {}).get("state") == "online" for i in range(2)
        ]
        return all(in_step) and all(
            self._knows_all(sentinel, primary) for sentinel in self.sentinels
        )

    def _knows_all(self, sentinel: Server, primary: Server) -> bool:
        facts = self._facts(sentinel)
        return (
            int(facts["port"]) == self.port_of(primary)
            and facts["flags"] == "master"
            and int(facts["num-slaves"]) == 2
            and int(facts["num-other-sentinels"]) == 2
        )

    def _facts(self, sentinel: Server) -> dict[str, str]:
        told: Any = self.client(sentinel).execute_command("SENTINEL", "MASTER", NAME)
        if not isinstance(told, dict):
            told = dict(zip(told[::2], told[1::2], strict=True))
        return {_text(key): _text(value) for key, value in told.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
