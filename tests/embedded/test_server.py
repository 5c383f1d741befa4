"""The embedded server with real processes: users that come, go and are killed."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from django_delayq.embedded import embedded_server as embedded
from django_delayq.embedded import guardian
from django_delayq.embedded.embedded_server import (
    ensure_server,
    find_binary,
    wheel_binary,
)
from django_delayq.exceptions import EmbeddedServerError
from tests import forked
from tests.polling import wait_until

ROOT = Path(__file__).parents[2]

#: Short, so that tests that wait for a server to stop do not take long.
LINGER_S = 0.2

USER = """
import sys
from pathlib import Path
from django_delayq.embedded.embedded_server import ensure_server, wheel_binary
for line in sys.stdin:
    print(ensure_server(Path(line.rstrip("\\n")), linger_s=float(sys.argv[1]), binary=wheel_binary()), flush=True)
"""


class User:
    """A process that calls ensure_server when asked to, and lives until it is made to leave."""

    def __init__(self, program: str = USER, linger_s: float = LINGER_S) -> None:
        self.process = forked.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                textwrap.dedent(program),
                str(linger_s),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, directory: Path) -> "User":
        assert self.process.stdin is not None
        self.process.stdin.write(f"{directory}\n")
        self.process.stdin.flush()
        return self

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ensure(self, directory: Path) -> str:
        return self.ask(directory).answer()

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def come(program: str = USER, linger_s: float = LINGER_S) -> User:
        users.append(User(program, linger_s))
        return users[-1]

    yield come
    for one in users:
        one.kill()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project whose server has stopped when the test has ended: its users leave first."""
    directory = tmp_path / "project"
    directory.mkdir()
    yield directory
    # Release the lock of this process, as the end of the process would.
    if (fd := embedded._users_locks.pop(directory / ".delayq", None)) is not None:
        os.close(fd)
    if (directory / ".delayq").exists():
        if is_served(directory) and not is_guarded(directory):
            # The guardian of the next user takes over.
            orphan = User()
            orphan.ensure(directory)
            orphan.kill()
        wait_until_stopped(directory)


# The order matters: users leave before the project waits for their server to stop.
@pytest.fixture
def come(project: Path, user: Callable[..., User]) -> Callable[..., User]:
    return user


def make_program(path: Path, version: str, then: str = "exit 1") -> Path:
    """Write a program that prints a version when asked for it, and does something else otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; else {then}; fi\n'
    )
    path.chmod(0o700)
    return path


def is_guarded(project: Path) -> bool:
    return guardian.is_locked(project / ".delayq" / "guardian.lock")


def is_served(project: Path) -> bool:
    return guardian.is_locked(project / ".delayq" / "server.lock")


def pid_of(project: Path, who: str) -> int:
    return int((project / ".delayq" / f"{who}.pid").read_text())


def log_of(project: Path, who: str) -> str:
    return (project / ".delayq" / f"{who}.log").read_text()


def wait_until_stopped(project: Path) -> None:
    wait_until(
        lambda: not is_guarded(project) and not is_served(project),
        description="the guardian and the server have ended",
        timeout=30,
    )


@contextlib.contextmanager
def connected(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, retry=None, decode_responses=True) as client:
        yield client


def answers(url: str) -> bool:
    with connected(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


def run_id(url: str) -> str:
    with connected(url) as client:
        info = client.info("server")
    return str(info["run_id"])


def is_another(url: str, before: str) -> bool:
    """Return whether a server answers that has another run id than the one before."""
    try:
        return run_id(url) != before
    except redis.ConnectionError:
        return False


def test_ensure_server_starts_a_server_that_loses_nothing_and_listens_on_no_port(
    project, come
):
    url = come().ensure(project)

    with connected(url) as client:
        told = client.config_get(
            "port", "appendonly", "appendfsync", "save", "maxmemory-policy", "dir"
        )
    assert told == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "dir": str(project / ".delayq" / "data"),
    }


def test_processes_that_come_at_once_share_one_server(project, come):
    users = [come() for _ in range(8)]

    for one in users:
        one.ask(project)
    urls = {one.answer() for one in users}

    assert len(urls) == 1
    assert answers(urls.pop())
    assert log_of(project, "server").count("Ready to accept connections") == 1
    assert log_of(project, "guardian").count("answers at") == 1


#: A user that pauses between writing a file and renaming it, so that another user can come between.
SLOW_USER = (
    """
import os, time
rename = os.rename
def rename_late(*args, **kwargs):
    time.sleep(0.3)
    rename(*args, **kwargs)
os.rename = rename_late
"""
    + USER
)


def test_processes_that_come_at_once_do_not_write_into_each_others_files(project, come):
    users = [come(SLOW_USER) for _ in range(2)]
    for one in users:  # both are up, and in a folder of their own
        one.ensure(project)
    together = project / "together"
    together.mkdir()

    for one in users:
        one.ask(together)

    assert [one.answer() for one in users] == [users[0].ensure(together)] * 2
    assert (together / ".delayq" / ".gitignore").read_text() == "*\n"
    for one in users:
        one.leave()
    wait_until_stopped(together)


def test_calling_again_returns_the_same_url(project, come):
    one = come()

    assert one.ensure(project) == one.ensure(project)


def test_projects_have_servers_of_their_own(project, come):
    other = project / "other"
    other.mkdir()
    one = come()

    urls = {one.ensure(project), one.ensure(other)}

    assert len(urls) == 2
    one.leave()
    wait_until_stopped(other)


def test_copied_project_gets_a_server_of_its_own(project, come):
    url = come().ensure(project)
    copy = project.parent / "copy"
    shutil.copytree(project, copy)
    other = come()

    other_url = other.ensure(copy)

    assert other_url != url
    assert run_id(other_url) != run_id(url)
    other.leave()
    wait_until_stopped(copy)


def test_server_stops_after_its_last_user_and_not_before(project, come):
    first, last = come(), come()
    url = first.ensure(project)
    last.ensure(project)
    first.leave()
    before = run_id(url)

    with pytest.raises(AssertionError, match="not within"):
        wait_until(
            lambda: not is_served(project), description="stopped", timeout=4 * LINGER_S
        )
    assert run_id(url) == before

    last.leave()
    wait_until_stopped(project)
    assert not answers(url)
    assert "Valkey is now ready to exit" in log_of(project, "server")


def test_server_stops_after_its_last_user_was_killed(project, come):
    one = come()
    one.ensure(project)

    one.kill()

    wait_until_stopped(project)
    assert "Valkey is now ready to exit" in log_of(project, "server")


def test_data_survive_and_the_address_stays(project, come):
    one = come()
    url = one.ensure(project)
    with connected(url) as client:
        client.set("kept", "yes")
    one.leave()
    wait_until_stopped(project)

    again = come().ensure(project)

    assert again == url
    with connected(again) as client:
        assert client.get("kept") == "yes"


def test_commands_in_a_row_share_one_server(project, come):
    commands = [come(linger_s=8) for _ in range(5)]

    run_ids = set()
    for command in commands:
        run_ids.add(run_id(command.ensure(project)))
        command.leave()

    assert len(run_ids) == 1


def test_child_that_was_forked_counts_as_a_user(project, come):
    parent = come("""
        import os, sys
        from pathlib import Path
        from django_delayq.embedded.embedded_server import ensure_server, wheel_binary
        directory = Path(input())
        url = ensure_server(directory, linger_s=float(sys.argv[1]), binary=wheel_binary())
        if os.fork() == 0:
            print(url, os.getpid(), flush=True)
            sys.stdin.readline()
            # Calls of the child's own must not start anything either.
            print(ensure_server(directory, binary=wheel_binary()), flush=True)
            sys.stdin.readline()
            os._exit(0)
        os._exit(0)
    """)
    url, child = parent.ensure(project).split()
    parent.process.wait()

    with pytest.raises(AssertionError, match="not within"):
        wait_until(
            lambda: not is_served(project), description="stopped", timeout=4 * LINGER_S
        )
    assert parent.ensure(project) == url

    os.kill(int(child), signal.SIGKILL)
    wait_until_stopped(project)


def test_program_that_a_user_started_does_not_count(project, come):
    one = come("""
        import subprocess, sys
        from pathlib import Path
        from django_delayq.embedded.embedded_server import ensure_server, wheel_binary
        url = ensure_server(Path(input()), linger_s=float(sys.argv[1]), binary=wheel_binary())
        child = subprocess.Popen(["sleep", "300"], close_fds=False)
        print(url, child.pid, flush=True)
        input()
    """)
    _, child = one.ensure(project).split()

    one.kill()

    wait_until_stopped(project)
    os.kill(int(child), signal.SIGKILL)  # and it was still there


def test_killed_server_is_started_again_at_its_address_with_its_data(project, come):
    url = come().ensure(project)
    with connected(url) as client:
        client.set("kept", "yes")
        client.waitaof(1, 0, 5000)
    before = run_id(url)

    os.kill(pid_of(project, "server"), signal.SIGKILL)

    wait_until(lambda: is_another(url, before), description="the server is back")
    with connected(url) as client:
        assert client.get("kept") == "yes"


def test_next_user_replaces_the_server_of_a_killed_guardian_and_keeps_its_data(
    project, come
):
    first = come()
    url = first.ensure(project)
    before = run_id(url)
    with connected(url) as client:
        client.set("kept", "yes")
    killed = pid_of(project, "guardian")

    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_guarded(project), description="the guardian is dead")
    assert run_id(url) == before
    last = come()

    assert last.ensure(project) == url
    assert run_id(url) != before
    with connected(url) as client:
        assert client.get("kept") == "yes"
    assert pid_of(project, "guardian") != killed
    assert log_of(project, "server").count("Ready to accept connections") == 2

    first.leave()
    last.leave()
    wait_until_stopped(project)
    assert "Valkey is now ready to exit" in log_of(project, "server")


def test_server_whose_guardian_was_killed_before_it_noted_the_pid_is_replaced(
    project, come
):
    one = come()
    url = one.ensure(project)
    before = run_id(url)
    with connected(url) as client:
        client.set("kept", "yes")
    os.kill(pid_of(project, "guardian"), signal.SIGKILL)
    wait_until(lambda: not is_guarded(project), description="the guardian is dead")

    (project / ".delayq" / "server.pid").unlink()

    assert one.ensure(project) == url
    assert run_id(url) != before
    with connected(url) as client:
        assert client.get("kept") == "yes"


def test_server_that_replaced_an_orphan_is_started_again_when_killed(project, come):
    one = come()
    url = one.ensure(project)
    os.kill(pid_of(project, "guardian"), signal.SIGKILL)
    wait_until(lambda: not is_guarded(project), description="the guardian is dead")
    one.ensure(project)
    before = run_id(url)

    os.kill(pid_of(project, "server"), signal.SIGKILL)

    wait_until(lambda: is_another(url, before), description="the server is back")


def test_guardian_and_server_killed_together_are_replaced(project, come):
    one = come()
    url = one.ensure(project)

    os.kill(pid_of(project, "guardian"), signal.SIGKILL)
    os.kill(pid_of(project, "server"), signal.SIGKILL)
    wait_until(
        lambda: not is_guarded(project) and not is_served(project),
        description="both are dead",
    )

    assert one.ensure(project) == url
    assert answers(url)


def test_server_that_cannot_be_found_without_a_guardian_is_replaced(project, come):
    one = come()
    url = one.ensure(project)
    before = run_id(url)
    os.kill(pid_of(project, "guardian"), signal.SIGKILL)
    wait_until(lambda: not is_guarded(project), description="the guardian is dead")
    (project / ".delayq" / "place.json").unlink()  # so it cannot be found

    again = one.ensure(project)

    assert run_id(again) != before
    assert "lost its guardian" in log_of(project, "guardian")


def test_orphan_that_does_not_end_is_an_error_and_not_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(guardian, "STOP_TIMEOUT_S", 0.05)
    orphan = subprocess.Popen(["sleep", "300"])
    (tmp_path / "server.pid").write_text(f"{orphan.pid}\n")
    # Somebody else has a share in its lock, as the child that rewrites its file has.
    lock = guardian.open_lock(tmp_path / "server.lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    heir = guardian.Guardian(tmp_path, Path("no-server"), 0.0)

    try:
        with pytest.raises(guardian.ServerRefused, match="does not end"):
            heir._end_orphan()
    finally:
        orphan.kill()
        orphan.wait()
        for fd in (lock, heir._lock, heir._users_lock):
            os.close(fd)


def test_process_that_has_the_pid_of_a_dead_server_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(guardian, "STOP_TIMEOUT_S", 0.05)
    bystander = subprocess.Popen(["sleep", "300"])
    (tmp_path / "server.pid").write_text(f"{bystander.pid}\n")
    path = guardian.runtime_folder() / f"dead-{bystander.pid}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    record = {"home": str(tmp_path), "socket": str(path)}
    (tmp_path / "place.json").write_text(json.dumps(record))
    # As the child that rewrites the dead server's file holds it.
    lock = guardian.open_lock(tmp_path / "server.lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    heir = guardian.Guardian(tmp_path, Path("no-server"), 0.0)

    try:
        with pytest.raises(guardian.ServerRefused, match="cannot be reached"):
            heir._end_orphan()
        assert bystander.poll() is None
    finally:
        path.unlink()
        bystander.kill()
        bystander.wait()
        for fd in (lock, heir._lock, heir._users_lock):
            os.close(fd)


def test_server_that_hangs_without_its_guardian_is_replaced(project, come, monkeypatch):
    one = come()
    url = one.ensure(project)
    os.kill(pid_of(project, "guardian"), signal.SIGKILL)
    wait_until(lambda: not is_guarded(project), description="the guardian is dead")
    before = run_id(url)
    server = pid_of(project, "server")
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(guardian, "STOP_TIMEOUT_S", 0.2)
    heir = guardian.Guardian(project / ".delayq", Path("no-server"), 0.0)

    try:
        heir._end_orphan()
    finally:
        for fd in (heir._lock, heir._users_lock):
            os.close(fd)

    assert not is_served(project)
    assert one.ensure(project) == url
    assert run_id(url) != before


def test_leftovers_that_name_other_processes_harm_nobody(project, come):
    bystander = subprocess.Popen(["sleep", "300"])
    home = project / ".delayq"
    home.mkdir(mode=0o700)
    for who in ("server", "guardian"):
        (home / f"{who}.pid").write_text(f"{bystander.pid}\n")
    folder = guardian.runtime_folder()
    stale = folder / "stale-0.sock"
    stale.write_text("no socket at all")
    (home / "place.json").write_text(f'{{"home": "{home}", "socket": "{stale}"}}')

    url = come().ensure(project)

    assert answers(url)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 9_999, '{"home": 1}', '{"home": "/", "socket": 2}']
)
def test_mangled_record_of_the_place_is_replaced(project, come, content):
    home = project / ".delayq"
    home.mkdir(mode=0o700)
    (home / "place.json").write_text(content)

    assert answers(come().ensure(project))


def test_removed_socket_is_noticed(project, come):
    one = come()
    url = one.ensure(project)
    socket_path = guardian.recorded_socket(project / ".delayq")
    assert socket_path is not None

    socket_path.unlink()

    wait_until(lambda: answers(url), description="the socket is back", timeout=30)


def test_removed_folder_starts_anew_and_leaves_the_new_server_alone(project, come):
    old, new = come(), come()
    old_url = old.ensure(project)
    gone = (project / ".delayq").rename(project / "gone")
    shutil.rmtree(gone, ignore_errors=True)

    new_url = new.ensure(project)
    before = run_id(new_url)
    old.leave()

    assert new_url != old_url
    # The old guardian finds its folder gone, or itself without users.
    wait_until(
        lambda: not answers(old_url), description="the old server ended", timeout=30
    )
    assert run_id(new_url) == before


def test_long_path_of_a_project_is_no_problem(tmp_path, user):
    directory = tmp_path / ("ü " + "long" * 30) / "quote\" ' \\ %41"
    directory.mkdir(parents=True)
    assert len(os.fsencode(directory)) > 107
    one = user()

    url = one.ensure(directory)

    assert answers(url)
    one.leave()
    wait_until_stopped(directory)


def test_address_with_odd_characters_can_be_used(
    project, come, monkeypatch, tmp_path_factory
):
    odd = Path("/tmp") / f"d q%41?#{os.getpid()}"
    odd.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))

    one = come()

    assert answers(one.ensure(project))
    one.leave()
    wait_until_stopped(project)
    shutil.rmtree(odd)


def test_server_that_refuses_to_start_is_an_error_with_its_last_words(project):
    binary = project / "valkey-server"
    make_program(binary, "Valkey server v=9.0.0", "echo no such luck; exit 3")

    with pytest.raises(EmbeddedServerError) as raised:
        ensure_server(project, linger_s=0, binary=binary)

    assert "exit status 3\nno such luck" in str(raised.value)
    assert str(project / ".delayq" / "server.log") in str(raised.value)
    assert 'DELAYQ["CONNECTION"]' in str(raised.value)


def test_corrupt_data_are_an_error_with_the_reason(project, come):
    one = come()
    one.ensure(project)
    one.leave()
    wait_until_stopped(project)
    (manifest,) = (project / ".delayq" / "data").rglob("*.manifest")
    manifest.write_text("not a manifest\n")

    with pytest.raises(EmbeddedServerError, match=r"(?i)manifest"):
        ensure_server(project, linger_s=0, binary=wheel_binary())


def test_guardian_that_cannot_run_is_an_error_with_its_log(project, monkeypatch):
    monkeypatch.setattr(guardian, "__file__", "/no/such/guardian.py")

    with pytest.raises(
        EmbeddedServerError, match=r"(?s)No such file.*guardian\.log"
    ) as raised:
        ensure_server(project)

    assert "exit status 2" in str(raised.value)


def test_missing_server_is_an_error_that_says_what_to_install(project, monkeypatch):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(project))

    with pytest.raises(EmbeddedServerError) as raised:
        ensure_server(project)

    assert 'pip install "django-delayq[embedded]"' in str(raised.value)
    assert 'DELAYQ["CONNECTION"]' in str(raised.value)


def test_running_server_needs_no_program_to_be_found(project, come, monkeypatch):
    url = come().ensure(project)
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(project))

    assert ensure_server(project) == url


def test_folder_that_cannot_be_used_is_an_error(project):
    (project / ".delayq").write_text("a file")

    with pytest.raises(EmbeddedServerError, match="cannot use"):
        ensure_server(project)

    (project / ".delayq").unlink()


def test_files_of_the_server_are_private_and_kept_out_of_git(project, come):
    come().ensure(project)

    home = project / ".delayq"
    socket_path = guardian.recorded_socket(home)
    assert socket_path is not None
    for folder in (home, socket_path.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (home / ".gitignore").read_text() == "*\n"


def test_runtime_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    theirs = tmp_path / f"delayq-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)

    assert guardian.runtime_folder() != theirs


def test_runtime_folder_that_is_too_long_is_not_used(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))

    assert len(os.fsencode(guardian.runtime_folder())) < guardian.SOCKET_PATH_LIMIT


# Whose folder it is


@pytest.fixture
def tampered(tmp_path: Path) -> Path:
    """A project whose folder somebody else has prepared; no server may start in it."""
    directory = tmp_path / "tampered"
    directory.mkdir()
    return directory


def plant(project: Path, *, mode: int = 0o700) -> Path:
    home = project / ".delayq"
    home.mkdir(mode=0o700)
    home.chmod(mode)
    return home


NAMES = [
    *("users.lock", "start.lock", "guardian.lock", "server.lock", "place.json"),
    *("guardian.log", "server.log", "guardian.pid.new", "server.pid.new"),
    *("engine.json", "engine.json.new", "place.json.new", ".gitignore.new"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("link", "is_there"),
    [(os.symlink, True), (os.symlink, False), (os.link, True)],
    ids=["link", "dangling", "second name"],
)
def test_link_in_the_folder_is_not_followed(tampered, tmp_path, name, link, is_there):
    victim = tmp_path / "victim"
    if is_there:
        victim.write_text("precious")
    home = plant(tampered)
    if name == "engine.json":
        (home / "data").mkdir(mode=0o700)
    link(victim, home / name)

    with pytest.raises(EmbeddedServerError) as refused:
        ensure_server(tampered, linger_s=0, binary=wheel_binary())

    assert name in str(refused.value)
    assert re.search("is a link|has a second name", str(refused.value))
    assert (victim.read_text() if victim.exists() else None) == (
        "precious" if is_there else None
    )


def test_file_that_the_record_names_as_the_socket_is_left_alone(project, come):
    """A server removes whatever lies at the path where it will listen."""
    victim = project / "private" / "victim"
    victim.parent.mkdir(mode=0o700)
    victim.write_text("precious")
    home = plant(project)
    record = {"home": str(home), "socket": str(victim)}
    (home / "place.json").write_text(json.dumps(record))

    assert answers(come().ensure(project))

    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["data", "data/appendonlydir", "data/dump.rdb"])
def test_link_among_the_data_is_not_followed(tampered, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    home = plant(tampered)
    path = home / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(outside)
    engine = guardian.engine_of(wheel_binary())
    version = ".".join(map(str, engine.version))
    (home / "engine.json").write_text(f'{{"engine": "Valkey", "version": "{version}"}}')

    with pytest.raises(EmbeddedServerError, match=r"is a link|is not a file"):
        ensure_server(tampered, linger_s=0, binary=wheel_binary())

    assert list(outside.iterdir()) == []


def test_folder_that_is_a_link_is_refused(tampered, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (tampered / ".delayq").symlink_to(outside)

    with pytest.raises(EmbeddedServerError, match=r"delayq' is a link.*EMBEDDED_DIR"):
        ensure_server(tampered, linger_s=0)

    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o701])
def test_folder_that_others_may_enter_is_refused(tampered, mode):
    home = plant(tampered, mode=mode)

    with pytest.raises(EmbeddedServerError, match=f"mode is {mode:o}.*chmod 700"):
        ensure_server(tampered, linger_s=0)

    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_folder_of_another_user_is_refused_to_root(tampered, what):
    home = plant(tampered)
    (home / "server.log").write_text("")
    os.chown(home if what == "folder" else home / "server.log", 12345, 12345)

    with pytest.raises(EmbeddedServerError, match="belongs to user 12345, but this"):
        ensure_server(tampered, linger_s=0, binary=wheel_binary())


def test_pipe_instead_of_a_file_is_refused_and_not_waited_for(tampered):
    os.mkfifo(plant(tampered) / "place.json")

    with pytest.raises(EmbeddedServerError, match="is not a file"):
        ensure_server(tampered, linger_s=0, binary=wheel_binary())


# Which server


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that has only what the test puts on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_record(project: Path, text: str) -> Path:
    home = plant(project)
    (home / "data").mkdir(mode=0o700)
    (home / "engine.json").write_text(text)
    return home


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("valkey-server", "Valkey server v=7.2.5 sha=0"),
        ("redis-server", "Redis server v=6.2.0 sha=0"),
        ("redis-server", "Redis server v=8.10.1 sha=0"),
    ],
)
def test_server_on_path_is_preferred(path, name, version):
    program = make_program(path / name, version)

    assert find_binary() == program


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("valkey-server", "Valkey server v=7.0.0"),
        ("redis-server", "Redis server v=6.0.16"),
        ("redis-server", "Valkey server v=9.0.0"),  # a distribution's link
        ("redis-server", "something else"),
    ],
)
def test_server_on_path_that_will_not_do_is_passed_over(path, name, version):
    make_program(path / name, version)

    assert find_binary() == wheel_binary()


def test_data_are_opened_by_the_engine_that_wrote_them(project, path):
    older = make_program(path / "redis-server", "Redis server v=7.0.15")
    home = write_record(project, '{"engine": "Valkey", "version": "9.0.0"}')

    assert find_binary() == older
    assert find_binary(home) == wheel_binary()


def test_data_of_a_later_version_are_left_to_it(project, path, monkeypatch):
    monkeypatch.setattr(embedded, "wheel_binary", lambda: None)
    make_program(path / "redis-server", "Redis server v=7.0.15")
    valkey = make_program(path / "valkey-server", "Valkey server v=9.0.0")
    home = write_record(project, '{"engine": "Redis", "version": "7.2.0"}')

    with pytest.raises(EmbeddedServerError) as refused:
        ensure_server(project)

    text = str(refused.value)
    assert "written by Redis 7.2.0" in text
    assert "redis-server' is Redis 7.0.15" in text
    assert f"{str(valkey)!r} is Valkey 9.0.0" in text
    assert "Put Redis 7.2.0 or a later version on PATH" in text
    assert not (home / "server.log").exists()


@pytest.mark.parametrize(
    "record",
    [
        '{"engine": "Redis", "version": "7.0.15"}',
        '{"engine": "Valkey", "version": "99.0.0"}',
    ],
)
def test_guardian_opens_no_data_of_another_engine(project, record):
    home = write_record(project, record)

    with pytest.raises(EmbeddedServerError, match="the data were written by"):
        ensure_server(project, linger_s=0, binary=wheel_binary())

    assert (home / "engine.json").read_text() == record
    assert list((home / "data").iterdir()) == []


@pytest.mark.parametrize(
    "record", ["", "[]", "[" * 9_999, '{"engine": "Valkey", "version": 9}']
)
def test_data_of_nobody_knows_whom_are_refused(project, record):
    write_record(project, record)

    with pytest.raises(EmbeddedServerError, match=r"engine\.json' cannot be read"):
        ensure_server(project, linger_s=0)


def test_data_without_a_record_are_refused(project):
    (plant(project) / "data").mkdir(mode=0o700)

    with pytest.raises(EmbeddedServerError, match="nothing says which server wrote"):
        ensure_server(project, linger_s=0)


def test_engine_is_recorded_and_a_later_version_takes_over(project, come):
    home = project / ".delayq"
    one = come()
    one.ensure(project)
    recorded = (home / "engine.json").read_text()
    one.leave()
    wait_until_stopped(project)
    (home / "engine.json").write_text('{"engine": "Valkey", "version": "7.2.0"}')

    assert answers(come().ensure(project))

    assert '"engine": "Valkey"' in recorded
    assert (home / "engine.json").read_text() == recorded
