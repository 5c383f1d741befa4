"""The users that the pages describe: they may do all that we do, and nothing else."""

import io
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.test import Client
from redis.exceptions import NoPermissionError, ResponseError

from django_delayq import (
    Batch,
    BlockingQueue,
    DelayedQueue,
    State,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.core.worker_registry import RegistryKeys, give_order, read_workers
from django_delayq.health.problem import Level
from django_delayq.health.problems import find_server_problems
from django_delayq.transport.run import run
from django_delayq.waiting.connection import DedicatedConnection
from tests.clusters import TestCluster
from tests.core.rig import Rig
from tests.core.tour import TOUR
from tests.polling import wait_until
from tests.sentinels import Watched
from tests.servers import Server
from tests.worker.conftest import every_server
from tests.worker.project import tasks

PAGES = Path(__file__).parents[2] / "docs" / "howto"
#: What redis-py and the start-up check try, and do without.
DONE_WITHOUT = {
    "client|setinfo",
    "client",
    "config|get",
    "config",
    "client|maint_notifications",
}


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text("utf-8")


def documented(user: str = "jobs") -> list[str]:
    """Return the words of the documented line of a user: of workers, or ``web``."""
    blocks = re.findall(r"^```\n(ACL SETUSER .*?)^```", page("deploy"), re.M | re.S)
    found = {line[2]: line for line in map(shlex.split, blocks)}
    assert list(found) == ["jobs", "web"]
    return found[user]


class Limited:
    """A documented user on one server, for a queue of another name."""

    def __init__(self, server: Any, queue_name: str, user: str = "jobs") -> None:
        self.admin = server.client()
        self.name = f"{user}-{uuid.uuid4().hex[:8]}"
        words = [word.replace("default", queue_name) for word in documented(user)]
        words[2] = self.name
        self.admin.execute_command(*words)
        self.admin.execute_command("ACL", "LOG", "RESET")
        account = f"username={self.name}&password=password"
        self.url = f"{server.socket_url}&{account}"
        self.client = server.client(username=self.name, password="password")

    def refused(self) -> list[str]:
        return refused(self.admin, self.name)

    def end(self) -> None:
        self.admin.execute_command("ACL", "DELUSER", self.name)


def refused(admin: "redis.Redis[bytes]", user: str) -> list[str]:
    """Return what a user was refused, but for what we do without."""
    log: list[Any] = admin.execute_command("ACL", "LOG", 100)
    entries = [
        dict(zip(item[::2], item[1::2], strict=True))
        if isinstance(item, list)
        else item
        for item in log
    ]
    told = [
        {_text(key): _text(value) for key, value in entry.items()} for entry in entries
    ]
    return [
        f"{entry['reason']} {entry['object']} ({entry['context']})"
        for entry in told
        if entry["username"] == user and entry["object"].lower() not in DONE_WITHOUT
    ]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture
def limited(server: Any, queue_name: str) -> Iterator[Limited]:
    limited = Limited(server, queue_name)
    yield limited
    limited.end()


@pytest.fixture
def web(server: Any, queue_name: str) -> Iterator[Limited]:
    limited = Limited(server, queue_name, "web")
    yield limited
    limited.end()


@pytest.fixture(params=["jobs", "web"])
def either(
    server: Any, queue_name: str, request: pytest.FixtureRequest
) -> Iterator[Limited]:
    limited = Limited(server, queue_name, request.param)
    yield limited
    limited.end()


#: What a process that only schedules calls; how the names of stops of the tour begin.
PRODUCES = (
    *("store", "schedule", "forward rows", "have sooner", "inspect", "read progress"),
    *("cancel", "reschedule", "postpone", "replace"),
)
#: Calls of workers and of the admin.
OF_OTHERS = (
    *("claim", "give back", "sweep"),
    "read schedules",
)


@every_server
@pytest.mark.parametrize(
    "stop",
    [
        each
        for each in TOUR
        if each.startswith(PRODUCES)
        # Moves from another server are made by a command of the worker's account.
        and each not in ("store a page", "store a schedule of another server")
    ],
)
def test_documented_web_user_may_make_the_calls_of_a_producer(
    web: Limited, queue_name: str, stop: str
) -> None:
    rig = Rig(web.admin, queue_name)
    call = TOUR[stop](rig)

    rig.client = web.client
    call()

    assert web.refused() == []


@every_server
@pytest.mark.parametrize("stop", OF_OTHERS)
def test_documented_web_user_makes_no_call_of_a_worker(
    web: Limited, queue_name: str, stop: str
) -> None:
    rig = Rig(web.admin, queue_name)
    call = TOUR[stop](rig)

    rig.client = web.client
    with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)perm|acl|can't"):
        call()


@every_server
def test_documented_web_user_sees_no_workers(web: Limited) -> None:
    registry = RegistryKeys.of()
    for call in (
        read_workers(registry, first=1, count=1),
        give_order(registry, "nobody", b"order"),
    ):
        with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)perm|acl"):
            run(web.client, call)


@every_server
@pytest.mark.parametrize(
    "command",
    [
        *("FLUSHALL", "KEYS *", "SCAN 0", "UNLINK {}", "RENAME {} x"),
        *("LPOP {}", "BLPOP {} 1", "HGETALL {}", "GET x", "SCRIPT FLUSH"),
        *("CONFIG GET *", "SUBSCRIBE x", "HGET delayq_workers:{{delayq}} x"),
    ],
)
def test_documented_web_user_may_do_nothing_else(
    web: Limited, queue_name: str, command: str
) -> None:
    with pytest.raises(NoPermissionError):
        web.client.execute_command(*command.format(queue_name).split())


# What it may


@every_server
@pytest.mark.parametrize("stop", TOUR)
def test_documented_user_may_make_every_call(
    limited: Limited, queue_name: str, stop: str
) -> None:
    rig = Rig(limited.admin, queue_name)
    call = TOUR[stop](rig)

    rig.client = limited.client
    call()

    rig.client = limited.admin
    assert limited.refused() == []


@every_server
def test_documented_line_as_it_stands_serves_its_queue(
    private_server: Callable[..., Server], settings: Any
) -> None:
    server = private_server()
    server.client().execute_command(*documented())
    account = "username=jobs&password=password"
    settings.DELAYQ = {
        "CONNECTION": f"{server.socket_url}&{account}",
        "QUEUES": {"default": {}},
    }

    job = schedule(tasks.note.using(queue="default"), 60)
    client = server.client(username="jobs", password="password")
    found = find_server_problems(client, ["default"])

    assert job.cancel()
    assert [
        problem.message for problem in found if problem.level is not Level.WARNING
    ] == []
    assert ["append-only file is off" in problem.message for problem in found] == [True]


@every_server
def test_documented_user_may_schedule_look_and_change(
    either: Limited, queue_name: str, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": either.url, "QUEUES": {queue_name: {}}}
    task = tasks.note.using(queue=queue_name)

    jobs = schedule_many([task.prepare(60, n) for n in range(3)])
    once = schedule(task.using(unique=True), 60)
    assert get_job(jobs[0].id).state is State.SCHEDULED
    assert jobs[0].reschedule(90)
    assert jobs[0].run_now()
    assert [job.cancel() for job in [*jobs, once]] == [True] * 4
    with pytest.raises(TimeoutError):
        schedule(task.using(keep_result=60), 60).wait(timeout=0.1)
    Batch(task.prepare(0, 7)).schedule([task.prepare(60, 8)])

    assert either.refused() == []


@every_server
async def test_documented_user_may_do_so_on_the_event_loop(
    limited: Limited, queue_name: str, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": limited.url, "QUEUES": {queue_name: {}}}
    task = tasks.note.using(queue=queue_name)

    job = await task.aschedule(60)
    assert await job.areschedule(90)
    assert await job.acancel()
    async with DelayedQueue(queue_name) as queue:
        await queue.aoffer("a", 60)
        assert await queue.acontains("a")
        assert await queue.aremove("a")

    assert limited.refused() == []


@every_server
def test_documented_user_may_use_queues(
    limited: Limited, queue_name: str, settings: Any
) -> None:
    settings.DELAYQ = {
        "CONNECTION": limited.url,
        "QUEUES": {queue_name: {"REDISSON": "3.27.2"}},
    }
    queue = DelayedQueue(queue_name)
    taken = BlockingQueue(queue_name)

    for value in "abcd":
        queue.offer(value, 60)
    assert (queue.peek(), len(queue), queue.read_all()) == (
        "a",
        4,
        ["a", "b", "c", "d"],
    )
    assert queue.contains_all(["a", "b"])
    assert queue.poll() == "a"
    assert queue.poll_last_and_offer_first_to(queue_name) == "d"
    assert taken.take() == "d"
    assert queue.remove("b")
    assert queue.retain_all(["x"])
    queue.offer("e", timedelta(milliseconds=10))
    assert taken.poll(30) == "e"
    assert taken.poll(0.05) is None
    for value in "xyz":
        taken.offer(value)
    assert (taken.peek(), len(taken), taken.contains("y")) == ("x", 3, True)
    assert taken.remove("y")
    assert taken.drain_to(1) == ["x"]
    taken.clear()
    queue.clear()
    queue.destroy()
    taken.close()

    assert limited.refused() == []


@every_server
def test_documented_user_may_run_a_worker(
    limited: Limited, queue_name: str, use: Any, programs: Any
) -> None:
    use(limited.url, {"RETRY": {"BASE": 0.01, "JITTER": 0}})
    again = tasks.fail_until.using(queue=queue_name)

    (worker,) = programs(1)
    jobs = [
        schedule(tasks.note.using(queue=queue_name, keep_result=60), 0.2),
        schedule(tasks.note_async.using(queue=queue_name, keep_result=60), 0),
        schedule(again.using(keep_result=60), 0, 2),
    ]
    for job in jobs:
        job.wait(timeout=60)
    BlockingQueue(queue_name).offer("nobody's")
    wait_until(lambda: "no handler" in worker.log, description="quarantine")
    worker.process.terminate()

    assert worker.wait() == 0, worker.log
    assert without_others(limited.refused()) == [], worker.log
    assert not re.search(r"NOPERM|may not|cannot", worker.log), worker.log


def run_a_job(use: Any, programs: Any, queue_name: str, url: str) -> None:
    """Run a job on a worker program, both as the users that a URL names."""
    use(url)
    (worker,) = programs(1)
    task = tasks.note.using(queue=queue_name, keep_result=60)
    first = schedule(task, 0.2)
    for job in (first, *schedule_many([task.prepare(0, n) for n in range(2)])):
        job.wait(timeout=60)
    assert get_job(first.id).state is State.SUCCEEDED
    worker.process.terminate()
    assert worker.wait() == 0, worker.log
    assert not re.search(r"NOPERM|may not|cannot", worker.log), worker.log


@every_server
def test_documented_users_of_sentinels_and_their_servers_suffice(
    watched: Watched, queue_name: str, use: Any, programs: Any
) -> None:
    (of_sentinels,) = re.findall(r"`(ACL SETUSER watch .*?)`", page("sentinel"))
    assert "add `+role`" in page("sentinel")
    words = [word.replace("default", queue_name) for word in documented()] + ["+role"]
    lines = dict.fromkeys(watched.servers, words)
    lines |= dict.fromkeys(watched.sentinels, of_sentinels.split())
    try:
        for server, line in lines.items():
            watched.client(server).execute_command("ACL", "LOG", "RESET")
            watched.client(server).execute_command(*line)
        url = watched.url.replace("://", "://jobs:password@")
        url += "?sentinel_username=watch&sentinel_password=password"

        run_a_job(use, programs, queue_name, url)

        found = [
            each
            for server, line in lines.items()
            for each in refused(watched.client(server), line[2])
        ]
        assert without_others(found) == []
    finally:
        for server, line in lines.items():
            watched.client(server).execute_command("ACL", "DELUSER", line[2])


@every_server
def test_documented_user_of_a_cluster_suffices(
    cluster: TestCluster, queue_name: str, use: Any, programs: Any
) -> None:
    (more,) = re.findall(
        r"An account with an ACL needs (.*?) on each node", page("cluster")
    )
    words = [word.replace("default", queue_name) for word in documented()]
    words += re.findall(r"`(.*?)`", more)
    clients = [node.client() for node in cluster.nodes]
    try:
        for client in clients:
            client.execute_command("ACL", "LOG", "RESET")
            client.execute_command(*words)

        run_a_job(
            use, programs, queue_name, cluster.url.replace("://", "://jobs:password@")
        )

        found = [each for client in clients for each in refused(client, "jobs")]
        assert without_others(found) == []
    finally:
        for client in clients:
            client.execute_command("ACL", "DELUSER", "jobs")
            client.close()
        cluster.clear([queue_name])


def without_others(refusals: list[str]) -> list[str]:
    """Leave out that a worker looks once whether anybody serves the other queues of the settings."""
    return [each for each in refusals if "{default}" not in each]


@every_server
def test_documented_user_may_use_the_admin(
    limited: Limited, queue_name: str, settings: Any, admin_client: Client
) -> None:
    settings.DELAYQ = {"CONNECTION": limited.url, "QUEUES": {queue_name: {}}}
    jobs = [schedule(tasks.note.using(queue=queue_name), 60) for _ in range(2)]
    root = "/admin/django_delayq/job/"
    pages = [root, f"{root}{queue_name}/"]
    pages += [
        f"{root}{queue_name}/?state={state}"
        for state in ("dead", "quarantined", "retrying", "running")
    ]
    pages += [f"{root}{jobs[0].id}/"]

    for page in pages:
        assert admin_client.get(page).status_code == 200, page
    for job, action in zip(jobs, ("run-now", "cancel"), strict=True):
        admin_client.post(f"{root}{job.id}/{action}/")

    assert [job.refresh() for job in jobs] == [State.DUE, State.CANCELLED]
    assert limited.refused() == []


@every_server
def test_documented_user_may_mend_frames(
    limited: Limited, queue_name: str, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": limited.url, "QUEUES": {queue_name: {}}}
    schedule(tasks.note.using(queue=queue_name), 60)
    told = io.StringIO()

    for options in ([], ["--to", "3.16.6", "--dry-run"], ["--to", "3.16.6"]):
        # Its status tells whether frames were found that some Redisson cannot read.
        with suppress(SystemExit):
            call_command(
                "delayq_frames", queue_name, *options, stdout=told, stderr=told
            )

    assert "NOPERM" not in told.getvalue()
    assert limited.refused() == []


@every_server
def test_command_that_may_not_search_says_so(
    limited: Limited, queue_name: str, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": limited.url, "QUEUES": {queue_name: {}}}
    told = io.StringIO()

    call_command("delayq_frames", queue_name, stdout=told, stderr=told)

    assert "may not search for queues with similar names" in told.getvalue()


# What it may not

FORBIDDEN = [
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "SWAPDB 0 1",
    "MIGRATE 127.0.0.1 1 orders 0 10",
    "CONFIG SET maxmemory 1",
    "CONFIG GET requirepass",
    "SHUTDOWN NOSAVE",
    "DEBUG SLEEP 0",
    "SAVE",
    "BGREWRITEAOF",
    "REPLICAOF NO ONE",
    "MONITOR",
    "ACL SETUSER jobs +@all",
    "ACL LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT LIST",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION FLUSH",
    "MODULE LIST",
    "SORT orders",
    "RESTORE orders 0 x",
    "OBJECT ENCODING orders",
    "SET orders x",
    "GETDEL orders",
    "LRANGE other 0 -1",
    "RPUSH other x",
    "DEL other",
    "RENAME orders other",
    "LMOVE orders other LEFT LEFT",
    "HGETALL delayq_headers:{other}",
    "EVAL \"return redis.call('GET','other')\" 0",
    "EVAL \"return redis.call('RPUSH','other','x')\" 0",
    "EVAL \"return redis.call('FLUSHALL')\" 0",
    "EVAL \"return redis.call('KEYS','*')\" 0",
    "EVAL \"return redis.call('PUBLISH','other','x')\" 0",
    "PUBLISH other x",
    "PUBLISH redisson_delay_queue_channel:{other} 0",
    "SUBSCRIBE other",
    "PSUBSCRIBE *",
]


@every_server
@pytest.mark.parametrize("line", FORBIDDEN)
def test_documented_user_may_not(limited: Limited, queue_name: str, line: str) -> None:
    limited.admin.rpush(queue_name, "1")
    words = [word if word != "orders" else queue_name for word in shlex.split(line)]

    # One of its own: what came after a SUBSCRIBE that succeeded would not be its reply.
    connection = DedicatedConnection(limited.client, deadline_s=30)
    with closing(connection), pytest.raises(ResponseError) as refused:
        connection.command(*words)

    said = str(refused.value)
    # What a script is refused reads in three ways, on 6.2, 7.0 and later; and 6.2 does not know every command.
    ways = r"can't run this command|can't access|can't publish|ACL failure|NOPERM|unknown command"
    assert isinstance(refused.value, NoPermissionError) or re.search(ways, said), said
