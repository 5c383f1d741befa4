import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.example.demo import QUICK, demo, port_of, wait_for_the_end_of_the_tour
from tests.example.project import ROOT, environment, run
from tests.polling import wait_until

pytestmark = pytest.mark.slow


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_tour_holds_twice_in_a_row_and_the_site_stays_up_until_ctrl_c(
    tmp_path: Path,
):
    """The first is east of Greenwich, the second in German."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # by somebody else: just as well
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        in_kolkata = environment(
            tmp_path, DEMO_EXIT="1", EXAMPLE_TIME_ZONE="Asia/Kolkata", **QUICK
        )
        first = run(in_kolkata, str(ROOT / "demo"))

    assert "Every step held." in first
    assert "/admin/, user demo, password demo" in first
    assert not (tmp_path / ".demo" / "visitors.log").exists()

    with (
        person_with_a_screen(tmp_path) as person,
        demo(tmp_path, EXAMPLE_LANGUAGE_CODE="de", **person) as (process, said),
    ):
        wait_for_the_end_of_the_tour(process, said)
        port = port_of(said)
        wait_until(
            lambda: opened(tmp_path) == f"http://127.0.0.1:{port}",
            description="the site opens in the browser",
        )
        assert is_open(port)
        before = last_order(port)
        wait_until(lambda: last_order(port) > before, description="a visitor orders")

        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 0, said.read_text()
        assert said.read_text().endswith("\nStopping.\n")
        assert not is_open(port)
        assert users_of(tmp_path) == []


@contextmanager
def person_with_a_screen(data: Path) -> Iterator[dict[str, Any]]:
    """What a demo finds of a person: a terminal, a display, and a browser, which notes what it opens."""
    browser = data / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {data / "opened"}\n')
    browser.chmod(0o755)
    ours, terminal = os.openpty()
    try:
        yield {"stdin": terminal, "DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    finally:
        os.close(terminal)
        os.close(ours)


def opened(data: Path) -> str:
    with suppress(FileNotFoundError):
        return (data / "opened").read_text().strip()
    return ""


def last_order(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/orders/") as page:
        return max(map(int, re.findall(r"/orders/(\d+)/", page.read().decode())))


def test_ctrl_c_before_the_end_of_the_tour_is_no_success(tmp_path: Path):
    with demo(tmp_path, DEMO_EXIT="1") as (process, said):
        wait_until(lambda: port_of(said), description="the tour begins", timeout=180)

        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 1
        assert "Traceback" not in said.read_text()


def test_site_and_worker_end_though_the_demo_is_killed(tmp_path: Path):
    with demo(tmp_path) as (process, said):
        port = wait_until(
            lambda: port_of(said), description="the tour begins", timeout=180
        )

        os.kill(process.pid, signal.SIGKILL)

        wait_until(lambda: not is_open(port), description="the site is gone")
        wait_until(
            lambda: not users_of(tmp_path),
            description="the worker is gone",
            timeout=30,
        )


def users_of(data: Path) -> list[str]:
    """Return the workers and visitors whose data are in a folder, as Linux tells them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            if (b"delayq_worker" in command or b"sample_data" in command) and bytes(
                data
            ) in (process / "environ").read_bytes():
                found.append(command.decode())
    return found


def test_what_fails_is_told_with_the_logs(tmp_path: Path):
    nobody = "redis://127.0.0.1:1"

    with demo(tmp_path, DELAYQ_URL=nobody, DEMO_EXIT="1") as (process, said):
        status = process.wait(180)

    assert status == 1
    told = said.read_text()
    assert "FAILED: /delays/" in told
    assert "site.log" in told
    assert "ConnectionError" in told
