"""The server that all share: of our own, on loopback, without persistence; and what it says of itself."""

from types import TracebackType

from tests.servers import Server


class MeasuredServer:
    """A server that runs while it is entered."""

    def __init__(self, kind: str) -> None:
        self._server = Server(kind)
        self.kind = kind

    def __enter__(self) -> "MeasuredServer":
        self._server.start()
        # A million keys take a while to go.
        self._client = self._server.client(socket_timeout=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._client.close()
        self._server.stop()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def version(self) -> str:
        return ".".join(map(str, self._server.version))

    def flush(self) -> None:
        """Forget everything, scripts as well."""
        self._client.flushall()
        self._client.script_flush()
        self._client.memory_purge()

    def used_memory(self) -> int:
        """Return the bytes that it has allocated."""
        return int(self._client.info("memory")["used_memory"])

    def reading(self) -> tuple[float, int]:
        """Return the CPU seconds that it has used, and how many commands it had run before, those of scripts included."""
        told = self._client.info()
        cpu_s = told["used_cpu_sys"] + told["used_cpu_user"]
        return float(cpu_s), int(told["total_commands_processed"])
