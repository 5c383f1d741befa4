"""The site and the worker as child processes: started, watched, and ended with us."""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from browser import Browser
from failure import Failure
from signals import without_signals

#: How long a process may take to answer after its start.
START_TIMEOUT_S = 60.0
#: How long a process may take to end; running jobs are given half of it.
STOP_TIMEOUT_S = 10.0
#: What runserver of every Django says as soon as the port is its own.
HAS_PORT = "Quit the server with"
#: Between two looks.
POLL_S = 0.02
#: Lines of each log that are shown after a failure.
LOG_LINES = 30


class Child:
    """A command of manage.py with a log, which does not outlive us however we end."""

    def __init__(self, name: str, logs: Path, manage: Path, *command: str) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(manage), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, and we pass it on
            )
        # Reads until our end of the pipe is closed, which the kernel does if we are killed.
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill "$1"', "sh", str(self.process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        # An exception that a signal raises within poll() would leave its lock taken: nobody could wait for the process.
        with without_signals():
            return self.process.poll() is None

    def check(self) -> None:
        """Raises Failure if it has ended."""
        if not self.is_running:
            status = self.process.returncode
            raise Failure(f"the {self.name} has ended with status {status}")

    def end(self) -> None:
        # The reaper first: once the process is gone, another may have its id.
        self._reaper.kill()
        self._reaper.communicate()
        self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """Return the end of the log, without the requests that went well."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if '" 200 ' not in line][-LOG_LINES:])


def stop(children: list[Child]) -> None:
    """Tell all processes to end; after a while, or at a second Ctrl-C, kill those that have not."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with suppress(KeyboardInterrupt):
        for child in children:
            with without_signals():
                child.process.terminate()
        while time.monotonic() < deadline and any(
            child.is_running for child in children
        ):
            time.sleep(POLL_S)
    for child in children:
        child.end()


def manage(manage: Path, *command: str) -> None:
    """Run a command of manage.py to its end.

    Raises:
        Failure: it did not end well; with all it said.
    """
    done = subprocess.run(
        [sys.executable, str(manage), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        status = f"manage.py {command[0]} ended with status {done.returncode}"
        raise Failure(f"{status}:\n{done.stdout}")


def free_port() -> int:
    """Return 8000, or another port if that is taken."""
    for port in (8000, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Failure("no port is free on 127.0.0.1")


def start_site(manage: Path, logs: Path, children: list[Child]) -> str:
    """Start the site; return its address once it answers."""
    while True:
        address = f"127.0.0.1:{free_port()}"
        site = Child("site", logs, manage, "runserver", "--noreload", address)
        children.append(site)
        if _answers(site, Browser(f"http://{address}")):
            return f"http://{address}"
        if "already in use" not in site.tail():
            site.check()
        # Somebody took the port between our look and the site's.
        children.remove(site)
        site.end()


def _answers(site: Child, browser: Browser) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while site.is_running:
        # Refused, or closed without an answer: not yet.
        with suppress(OSError, HTTPException):
            browser.open("/")
            # Another demo's site, which was there first, may be the one that answers; ours says when it has the port.
            if HAS_PORT in site.tail():
                return site.is_running
        if time.monotonic() > deadline:
            raise Failure(f"the site does not answer within {START_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
    return False


def start_worker(
    manage: Path, logs: Path, children: list[Child], browser: Browser
) -> None:
    """Start the worker; return once it has run something."""
    grace = f"{STOP_TIMEOUT_S / 2:g}"
    worker = Child("worker", logs, manage, "delayq_worker", "--grace", grace)
    children.append(worker)
    element = browser.send("/delays/?data=is+the+worker+there&expire=0")
    deadline = time.monotonic() + START_TIMEOUT_S
    while element["id"] not in [
        one["id"] for one in browser.look("/delays/")["delays"]
    ]:
        worker.check()
        if time.monotonic() > deadline:
            raise Failure(f"the worker has done nothing in {START_TIMEOUT_S:g} s")
        time.sleep(POLL_S)
