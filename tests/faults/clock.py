"""A server's clock that a test can step while the server runs: Debian's ``faketime`` around that process alone.

Its monotonic clock is left alone, as a step by an administrator or by NTP would. A server that is linked with the
distribution's jemalloc, as Debian's own Redis is, does not start under ``faketime``: these tests use the others.
"""

import os
import platform
from pathlib import Path

import pytest

from tests.polling import wait_until
from tests.servers import Server

#: Servers that start under faketime.
KINDS = ("valkey", "redis6")
LIBRARIES = (
    Path(f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib/faketime/libfaketimeMT.so.1"),
)


class ServerClock:
    """The clock of one server: `environment` is for its start, `step` for any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset_s = 0
        self._write()
        library = next((path for path in LIBRARIES if path.exists()), None)
        if library is None:
            if os.environ.get("DELAYQ_TEST_REQUIRE_FAKETIME") == "1":
                pytest.fail(
                    "faketime is missing, and DELAYQ_TEST_REQUIRE_FAKETIME is set"
                )
            pytest.skip("faketime is missing (apt-get install faketime)")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, server: Server, seconds: int) -> None:
        """Set the clock forward, or back where it is negative; return when the server goes by that."""
        self.offset_s += seconds
        with server.client() as client:
            before_s = client.time()[0]
            self._write()
            wait_until(
                lambda: abs(client.time()[0] - before_s) > abs(seconds) / 2,
                description=f"the server's clock has made a step of {seconds} s",
            )

    def _write(self) -> None:
        # The server reads the file at any time, and must not see half of it.
        new = self.path.with_suffix(".new")
        new.write_text(f"{self.offset_s:+d}")
        new.replace(self.path)
