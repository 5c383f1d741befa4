"""``make demo`` as a child, in a folder of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.example.project import ROOT, environment
from tests.polling import wait_until

#: A tour in which a minute lasts half a second.
QUICK = {"EXAMPLE_MINUTE_SECONDS": "0.5"}


@contextmanager
def demo(
    data: Path, *, stdin: int = subprocess.DEVNULL, **more: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a demo; what it says is in the file."""
    said = data / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "demo")],
            env=environment(data, **QUICK, **more),
            stdin=stdin,
            stdout=output,
            stderr=output,
        )
    try:
        yield process, said
    finally:
        # It ends its children at this signal, and they end without it at the next.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def port_of(said: Path) -> int:
    found = re.search(r"site +http://127\.0\.0\.1:(\d+)/", said.read_text())
    return int(found[1]) if found else 0


def wait_for_the_end_of_the_tour(process: subprocess.Popen[bytes], said: Path) -> None:
    wait_until(
        lambda: "Ctrl-C" in said.read_text() or process.poll() is not None,
        description="the tour is over",
        timeout=240,
    )
    assert "Every step held." in said.read_text(), said.read_text()
