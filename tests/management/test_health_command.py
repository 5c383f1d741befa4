"""``manage.py delayq_health``: the exit status for probes, and the line that says why."""

import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq import pause
from django_delayq.management.commands import delayq_health
from tests.health.conftest import user
from tests.jobs import samples
from tests.jobs.adding import add
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Call, Said, Writes, serve
from tests.pages import ROOT
from tests.servers import ExternalServer, Server

__all__ = ["user"]


def make_overdue(queue: str, hand: Hand, seconds: float) -> None:
    """Have a job that has been due for so long."""
    job = add(queue, 1)
    due_ms = hand.start_times()[job.token] - (LATER + seconds) * 1000
    ((member, _),) = hand.client.zscan_iter(hand.keys.queue.timeout_set)
    hand.client.zadd(hand.keys.queue.timeout_set, {member: due_ms})


def told(said: Said) -> str:
    (line,) = said.lines
    return line


def test_queues_without_jobs_are_healthy(queue: str, call: Call) -> None:
    said = call("delayq_health")

    assert said == (0, "healthy: 2 queues, nothing is late\n", "")


def test_jobs_that_wait_are_healthy_though_nobody_serves_them_yet(
    queue: str, call: Call
) -> None:
    add(queue, 1)

    assert call("delayq_health").status == 0


def test_due_job_that_nobody_serves_is_unhealthy(
    queue: str, hand: Hand, call: Call
) -> None:
    make_overdue(queue, hand, 250)

    said = call("delayq_health")

    assert said.status == 1
    assert told(said).startswith(f"unhealthy: Queue '{queue}' has 1 due job")
    assert told(said).endswith("and no worker serves it")
    assert call("delayq_health", "--queue", f"{queue}-2").status == 0


def test_late_queue_that_is_served_is_healthy_up_to_the_limit_that_is_given(
    queue: str, hand: Hand, call: Call
) -> None:
    make_overdue(queue, hand, 100_000)
    serve(hand, queue)

    said = call("delayq_health", "--queue", queue)
    assert said.status == 0
    assert told(said).endswith("the first due job has waited for 1 d 3 h")
    assert call("delayq_health", "--queue", queue, "--max-lateness", "2d").status == 0
    said = call("delayq_health", "--queue", queue, "--max-lateness", "30s")
    assert said.status == 1
    assert "has waited for 1 d 3 h" in told(said)
    assert told(said).endswith("and 1 worker process serves it")


def test_paused_queue_is_healthy(queue: str, hand: Hand, call: Call) -> None:
    make_overdue(queue, hand, 250)
    pause(queue)

    said = call("delayq_health", "--worker", "--max-lateness", "1s", "--queue", queue)

    assert said == (0, "healthy: 1 queue, 1 of them paused, nothing is late\n", "")


def test_paused_task_leaves_its_queue_judged(
    queue: str, hand: Hand, call: Call
) -> None:
    make_overdue(queue, hand, 250)
    pause(queue, task=samples.add)

    assert call("delayq_health").status == 1


@pytest.mark.parametrize("state", ["quiet", "stopping"])
def test_worker_has_to_serve_each_queue(
    queue: str, hand: Hand, call: Call, state: str
) -> None:
    said = call("delayq_health", "--worker")
    assert said.status == 1
    assert f"no worker serves queue {queue};" in told(said)
    assert f"no worker serves queue {queue}-2" in told(said)

    serve(hand, queue, f"{queue}-2")
    assert call("delayq_health", "--worker").status == 0

    serve(hand, queue, f"{queue}-2", state=state)
    assert call("delayq_health", "--worker").status == 1


def test_json_has_the_verdict_and_why(queue: str, call: Call) -> None:
    assert json.loads(call("delayq_health", "--json").out) == {
        "status": "healthy",
        "why": "2 queues, nothing is late",
    }


def test_probe_takes_few_round_trips(
    queue: str, hand: Hand, call: Call, writes: Writes
) -> None:
    def probe() -> None:
        assert call("delayq_health").status == 0

    probe()

    # A connection of its own greets; the server's facts, the workers, the queues.
    assert writes.during(probe) <= 6


# A worker by its files


def test_files_of_a_worker_are_judged_without_the_server(
    queue: str, settings: Any, call: Call, tmp_path: Path
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "redis://localhost:1/0"}
    file = tmp_path / "worker-1.json"

    assert call("delayq_health", "--heartbeat", tmp_path).status == 1
    file.touch()
    said = call("delayq_health", "--heartbeat", tmp_path)
    assert said == (0, "healthy: 1 worker process runs\n", "")
    (tmp_path / "worker-2.json").touch()
    long_ago_s = time.time() - 125
    os.utime(file, (long_ago_s, long_ago_s))
    said = call("delayq_health", "--heartbeat", tmp_path)
    assert said.status == 1
    assert "a process has not updated its file for 2 min" in told(said)
    assert str(file) in told(said)


def test_files_and_queues_are_judged_together(
    queue: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "worker-1.json").touch()

    said = call("delayq_health", "--heartbeat", tmp_path, "--queue", queue)
    assert told(said) == ("healthy: 1 worker process runs; 1 queue, nothing is late")
    said = call("delayq_health", "--heartbeat", tmp_path, "--worker")
    assert said.status == 1


def test_folder_that_is_not_there_tells_nothing(
    queue: str, call: Call, tmp_path: Path
) -> None:
    said = call("delayq_health", "--heartbeat", tmp_path / "none")

    assert said.status == 2
    assert told(said) == f"unknown: {tmp_path / 'none'} is not a folder"


# A server that does not answer as it should


def test_server_that_is_away_is_unhealthy(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "redis://localhost:1/0"}

    said = call("delayq_health")

    assert said.status == 1
    assert told(said).startswith("unhealthy: The server does not answer.")


def test_server_that_is_silent_is_unhealthy_after_the_time_out(
    queue: str, settings: Any, call: Call
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings.DELAYQ = {
            **settings.DELAYQ,
            "CONNECTION": f"redis://127.0.0.1:{port}/0?socket_timeout=60",
        }

        said = call("delayq_health", "--timeout", "0.2")

    assert said.status == 1
    assert told(said) == "unhealthy: no answer within 0.2 s"


def test_replica_is_unhealthy(
    queue: str, settings: Any, call: Call, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    server.client().replicaof("127.0.0.1", 1)

    said = call("delayq_health")

    assert said.status == 1
    assert "is a replica" in told(said)


def test_account_without_rights_tells_nothing(
    queue: str,
    settings: Any,
    call: Call,
    server: Server | ExternalServer,
    user: Callable[..., redis.Redis],
) -> None:
    client = user("~nothing", "&*", "+@all")
    name = client.connection_pool.connection_kwargs["username"]
    host = server.url.partition("://")[2]
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": f"redis://{name}:pw@{host}"}

    said = call("delayq_health")

    assert said.status == 2
    assert told(said).startswith("unknown: The account has no right to do this.")
    assert "pw" not in said.out


def test_password_that_is_wrong_is_unhealthy(
    queue: str, settings: Any, call: Call, server: Server | ExternalServer
) -> None:
    host = server.url.partition("://")[2]
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": f"redis://nobody:geheim@{host}"}

    said = call("delayq_health")

    assert said.status == 1
    assert told(said).startswith("unhealthy: The server does not accept the account.")
    assert "geheim" not in said.out


def test_keys_of_somebody_else_tell_nothing(queue: str, hand: Hand, call: Call) -> None:
    hand.client.set(hand.keys.dead, "somebody else's")

    said = call("delayq_health")

    assert said.status == 2
    assert "Something else uses a key of this queue" in told(said)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--queue", "mails"), 2, "'mails' is not configured"),
        (("--timeout", "0"), 2, "longer than 0 s"),
        # A shell gets 2 from these as well.
        (("--max-lateness", "soon"), 1, "not a time such as"),
        (("mail",), 1, "unrecognized arguments"),
    ],
)
def test_bad_call_says_what_to_do(
    queue: str, call: Call, arguments: tuple[str, ...], status: int, message: str
) -> None:
    said = call("delayq_health", *arguments)

    assert said.status == status
    assert message in said.out + said.err


def test_settings_that_are_wrong_tell_nothing(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = {"QUEUE": {}}

    said = call("delayq_health")

    assert said.status == 2
    assert "unknown key" in told(said)


def test_bug_is_no_verdict(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(delayq_health, "look_at_queues", broken)

    with pytest.raises(ZeroDivisionError):
        call("delayq_health")


def test_probes_of_the_page_are_commands_that_work(
    queue: str, call: Call, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text("utf-8")
    (tmp_path / "worker-1.json").touch()
    exec_form = re.findall(r'command: (\["python", .*"delayq_health".*\])', page)
    found = [json.loads(each)[2:] for each in exec_form]
    found += [
        each.split() for each in re.findall(r"manage\.py (delayq_health .+)", page)
    ]

    statuses = [
        call(*(each.replace("/run/delayq", str(tmp_path)) for each in words)).status
        for words in found
    ]

    # Nobody serves: the one that asks for a worker says so.
    assert sorted(statuses) == [0, 0, 1]
