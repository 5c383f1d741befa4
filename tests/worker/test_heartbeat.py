"""The heartbeat: a file whose age says whether a process is able to run jobs."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.worker import watchdog as heartbeats
from django_delayq.worker import watchdog as watchdogs
from django_delayq.worker.watchdog import Heartbeat, is_stopped
from tests.faults.able import tasks as able
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import ROOT, kill

PAGE = ROOT / "docs" / "howto" / "deploy.md"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "heart" / "beats"


def written_ns(path):
    """When a file was written, 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def is_probe_content(directory):
    """Run the command of the page, as a kubelet does."""
    line = re.search(r'command: (\["sh", "-c", .*\])\n', PAGE.read_text())
    assert line is not None
    command = [
        word.replace("/run/delayq", str(directory)) for word in json.loads(line[1])
    ]
    return subprocess.run(command, check=False, stderr=subprocess.PIPE).returncode == 0


def test_a_process_that_is_able_writes_its_file_anew_and_one_that_stopped_does_not(
    program, queue_name, directory, records
):
    directory.mkdir(parents=True)
    (directory / "worker-1.json").touch()
    worker = program("--queue", queue_name, "--heartbeat", str(directory))
    (child,) = wait_until(worker.children, description="its process")
    path = directory / f"worker-{child}.json"
    first_ns = wait_until(lambda: written_ns(path), description="it beats")

    # What an earlier worker left is gone.
    assert [each.name for each in directory.glob("*.json")] == [path.name]
    told = json.loads(path.read_text())
    assert (told["pid"], told["queues"], told["able"]) == (child, [queue_name], True)
    assert abs(told["at"] - time.time() * 1000) < 60_000
    assert is_probe_content(directory)
    wait_until(lambda: written_ns(path) > first_ns, description="it beats again")

    kill(child, signal.SIGSTOP)
    wait_until(lambda: is_stopped(child), description="it is stopped")
    an_hour_ago_s = time.time() - 3600
    os.utime(path, (an_hour_ago_s, an_hour_ago_s))
    assert not is_probe_content(directory)
    kill(child, signal.SIGCONT)
    wait_until(lambda: is_probe_content(directory), description="it goes on")

    kill(child, signal.SIGKILL)
    wait_until(lambda: not path.exists(), description="its file went with it")
    wait_until(lambda: list(directory.glob("*.json")), description="the next one's")
    assert worker.stop() == 0
    assert list(directory.iterdir()) == []
    assert not is_probe_content(directory)


def test_a_process_whose_event_loop_is_blocked_is_not_able(
    work, records, queue_name, directory, monkeypatch
):
    monkeypatch.setattr(heartbeats, "BEAT_EVERY_MS", 100)
    monkeypatch.setattr(watchdogs, "STUCK_AFTER_MS", 600_000)
    heartbeats.clear(directory)
    work(lease_s=1, heartbeat=directory)
    path = directory / f"worker-{os.getpid()}.json"
    wait_until(lambda: written_ns(path), description="it beats")
    schedule(able.block_until_told.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it blocks the loop")

    def is_silent(seen=[0, 0.0]):  # noqa: B006
        if written_ns(path) != seen[0]:
            seen[:] = [written_ns(path), time.monotonic()]
        return time.monotonic() > seen[1] + 2

    # Its other half goes on: it is only not able.
    wait_until(is_silent, description="it beats no more")
    silent_ns = written_ns(path)
    note = schedule(tasks.note.using(queue=queue_name), 0)
    wait_until(lambda: note.id in records.jobs("run"), description="a thread works")
    records.let_go()
    wait_until(lambda: written_ns(path) > silent_ns, description="it beats again")


def test_a_claim_loop_that_stands_still_is_not_able(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeats, "BEAT_EVERY_MS", 0)
    turns = [1]
    heart = Heartbeat(tmp_path, queues=["q"], turns=lambda: turns[0])
    path = tmp_path / f"worker-{os.getpid()}.json"
    heart.beat()
    path.unlink()

    heart.beat()
    assert not path.exists()

    turns[0] += 1
    heart.beat()
    assert path.exists()


def test_a_directory_that_cannot_be_is_told_at_the_start(configure, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(CommandError, match=r"heartbeat's directory .* cannot be used"):
        call_command("delayq_worker", heartbeat=str(tmp_path / "file" / "below"))


def test_a_full_disk_is_told_once_and_harms_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(heartbeats, "BEAT_EVERY_MS", 0)
    turns = iter(range(9))
    heart = Heartbeat(tmp_path / "gone", queues=["q"], turns=lambda: next(turns))

    heart.beat()
    heart.beat()
    assert caplog.text.count("the heartbeat cannot be written") == 1

    Path(tmp_path / "gone").mkdir()
    heart.beat()
    assert (tmp_path / "gone" / f"worker-{os.getpid()}.json").exists()
