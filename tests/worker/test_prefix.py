"""Two projects on one server: each has its own PREFIX, and neither sees, takes or stops anything of the other."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import (
    BlockingQueue,
    DelayedQueue,
    State,
    conf,
    every,
    find_jobs,
    get_schedules,
    limits,
    pause,
    paused,
    schedule,
    schedule_many,
    set_limit,
    store_schedule,
)
from django_delayq.core import prefixes, queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.jobs.workers import quiet_worker, workers
from django_delayq.management.commands import delayq_worker
from django_delayq.server_checks import server_problems
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.waiting.watch import DestinationWatch
from django_delayq.wire.queue_keys import hash_tag
from django_delayq.worker import reports
from tests.conftest import keys_of
from tests.polling import wait_until
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS

SECRETS = {"one": "the secret of project one", "two": "the secret of project two"}
JAVA = {"REDISSON": "3.27.2"}


@pytest.fixture
def use(
    configure: Any, settings: Any, queue_name: str, client: Any
) -> Iterator[Callable[..., str]]:
    """Be one of two projects, and return its prefix."""

    def use(project: str, options: Any = None, **more: Any) -> str:
        configure(options, java=JAVA)
        prefix = f"{queue_name}-{project}-"
        settings.DELAYQ |= {"PREFIX": prefix, "KEYS": [SECRETS[project]], **more}
        settings.DELAYQ = settings.DELAYQ
        return prefix

    yield use
    names = [f"{queue_name}-{project}-" for project in SECRETS]
    client.hdel(prefixes.PREFIXES, *names)


def note(queue: str, text: str) -> Any:
    return schedule(tasks.note.using(queue=queue), 0, text)


def texts(records: Any) -> list[str]:
    return [line["text"] for line in records.all("run")]


@pytest.mark.parametrize("options", [{}, {"SHARDS": 2}], ids=["plain", "shards"])
def test_a_worker_takes_no_job_of_the_other_project(
    use: Any,
    work: Any,
    program: Any,
    records: Any,
    queue_name: str,
    client: Any,
    options: dict[str, Any],
) -> None:
    use("one", options)
    program("--queue", queue_name).wait_for_processes()
    prefix = use("two", options)
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0, "two") for _ in range(9)
    )
    use("one", options)
    schedule_many(
        tasks.note.using(queue=queue_name).prepare(0, "one") for _ in range(9)
    )
    wait_until(lambda: texts(records) == ["one"] * 9, description="its own jobs ran")

    use("two", options)
    assert {job.refresh() for job in jobs} == {State.DUE}
    assert {job.id.partition(":")[0] for job in jobs} == {queue_name}
    work()
    wait_until(lambda: len(texts(records)) == 18, description="the others ran")

    assert texts(records)[9:] == ["two"] * 9
    ours = [key.decode() for key in keys_of(client, queue_name)]
    assert [key for key in ours if prefix not in key and "-one-" not in key] == []


def test_what_one_project_does_is_not_seen_in_the_other(
    use: Any,
    work: Any,
    program: Any,
    records: Any,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "REGISTER_EVERY_MS", 50.0)
    use("one")
    described = program.describe(
        "--queue", queue_name, environment={"WORKER_TEST_REGISTER_MS": "50"}
    )
    described.start()
    (theirs,) = wait_until(workers, description="it is in the registry")
    held = schedule(tasks.note.using(queue=queue_name), 3_600, "later")
    use("two")
    worker = work()
    (ours,) = wait_until(workers, description="so is ours")
    note(queue_name, "two")
    wait_until(lambda: texts(records) == ["two"], description="our job has run")

    assert ours.id != theirs.id
    assert not quiet_worker(theirs.id)
    wait_until(lambda: find_jobs().count() == 0, description="no job is seen")
    pause(queue_name)
    set_limit(queue_name, concurrency=1)
    store_schedule("ours", tasks.note, every(3_600), queue=queue_name, args=["two"])
    # In this process, it would go on with the settings of the other project.
    worker.stop()

    use("one")
    assert [each.id for each in workers()] == [theirs.id]
    assert (paused(), get_schedules()) == ([], [])
    # Tasks have limits in both.
    assert [each for each in limits() if each.limit is None] == []
    assert find_jobs().count() == 1
    assert held.refresh() is State.SCHEDULED
    note(queue_name, "one")
    wait_until(lambda: texts(records)[1:] == ["one"], description="it is not paused")


def test_a_queue_that_is_shared_with_java_keeps_its_bare_name(
    use: Any, work: Any, records: Any, queue_name: str, client: Any
) -> None:
    name = f"{queue_name}-java"
    prefix = use("one")
    schedule(tasks.note.using(queue=name), 3_600, "later")

    found = {key.decode() for key in keys_of(client, name)}

    assert f"redisson_delay_queue_timeout:{{{name}}}" in found
    assert f"delayq_locators:{{{name}}}" in found
    assert not any(prefix in key for key in found)
    # Of what the server has once, it has the prefix.
    assert conf.get_settings().registry.workers == f"delayq_workers:{{{prefix}delayq}}"
    work([name])
    note(name, "java")
    wait_until(lambda: texts(records) == ["java"], description="it is served")


def test_objects_by_name_are_queues_of_the_settings_or_of_the_server(
    use: Any, queue_name: str, client: Any
) -> None:
    prefix = use("one")
    bare = f"{queue_name}-unknown"

    assert BlockingQueue(queue_name).offer("ours")
    assert BlockingQueue(queue_name, connection=client).offer("ours")
    assert BlockingQueue(bare).offer("theirs")
    assert BlockingQueue(f"{queue_name}-java").offer("java")

    assert client.llen(f"{prefix}{queue_name}") == 2
    assert client.llen(bare) == client.llen(f"{queue_name}-java") == 1
    assert BlockingQueue(bare).poll_from_any(1, queue_name) == "theirs"
    assert BlockingQueue(bare).poll_from_any(1, queue_name) == "ours"
    assert BlockingQueue(f"{prefix}{queue_name}").poll(1) == "ours"
    delayed = DelayedQueue(queue_name)
    delayed.offer("delayed", 3_600)
    assert client.zcard(f"redisson_delay_queue_timeout:{{{prefix}{queue_name}}}") == 1
    assert delayed.poll_last_and_offer_first_to(f"{queue_name}-java") == "delayed"
    assert client.llen(f"{queue_name}-java") == 2
    delayed.destroy()


def test_a_worker_does_not_start_while_jobs_wait_under_another_prefix(
    use: Any, settings: Any, queue_name: str
) -> None:
    use("one")
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": ""}
    job = schedule(tasks.note.using(queue=queue_name), 3_600, "left")
    prefix = use("one")

    with pytest.raises(CommandError) as refused:
        call_command("delayq_worker", "--queue", queue_name)

    assert str(refused.value) == (
        f"1 job waits in {queue_name} on the server (PREFIX ''). Workers with these settings serve"
        f" {prefix}{queue_name} (PREFIX {prefix!r}). To move them, run manage.py delayq_import --from-prefix=''. Or change PREFIX,"
        " or REDISSON of the queue, back. If the prefix belongs to another project with the same secret, give each project its"
        " own KEYS."
    )
    call_command("delayq_import", "--from-prefix=", verbosity=0)
    assert job.refresh() is State.SCHEDULED


def test_a_worker_notes_its_prefix_for_those_that_come_later(
    use: Any, work: Any, records: Any, queue_name: str, settings: Any, client: Any
) -> None:
    prefix = use("one")
    before = client.hgetall(prefixes.PREFIXES)
    assert prefix.encode() not in before
    schedule(tasks.note.using(queue=queue_name), 3_600, "left")

    work()

    wait_until(
        lambda: prefix in run(client, prefixes.noted_prefixes()),
        description="it is noted",
    )
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": f"{queue_name}-two-"}
    with pytest.raises(CommandError, match=rf"\(PREFIX {prefix!r}\)"):
        call_command("delayq_worker", "--queue", queue_name)


def test_worker_watches_the_list_under_its_prefix(
    use: Any, work: Any, queue_name: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("one")
    keys = conf.keys_of(queue_name)
    watched = set()
    arm = DestinationWatch.arm

    def note(self: Any, key: str, callback: Any) -> None:
        watched.add(key)
        arm(self, key, callback)

    monkeypatch.setattr(DestinationWatch, "arm", note)
    state = work(cap_ms=NEVER_MS).loop.queues[queue_name]
    wait_until(lambda: state.is_watched, description="it watches the list")

    # As Java does, which publishes nothing.
    client.rpush(keys.queue.destination, b"17")

    wait_until(
        lambda: run(client, queue_reads.counts(keys)).held == 1,
        description="it is seen",
    )
    assert watched == {keys.queue.destination}


def test_prefix_lies_in_the_tag_of_a_cluster(
    use: Any, settings: Any, work: Any, records: Any, queue_name: str, cluster: Any
) -> None:
    name = f"{queue_name}-cluster"
    prefix = use("one")
    queues = {"default": {}, name: {}, f"{name}-shards": {"SHARDS": 4}}
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": cluster.url, "QUEUES": queues}
    shown = [f"{prefix}{name}", *(f"{prefix}{name}-shards:{n}" for n in range(4))]
    served = [
        queue.keys for queue in conf.get_settings().queues_of(name, f"{name}-shards")
    ]
    schedule_many(tasks.note.using(queue=name).prepare(0, "one") for _ in range(3))
    schedule_many(
        tasks.note.using(queue=f"{name}-shards").prepare(0, "one") for _ in range(20)
    )

    worker = work([name, f"{name}-shards"], cap_ms=NEVER_MS)
    wait_until(lambda: len(texts(records)) == 23, description="all have run")

    for keys, destination in zip(served, shown, strict=False):
        assert {hash_tag(key) for key in (keys.control, keys.queue.timeout_set)} == {
            destination
        }
        assert keys.queue.destination == destination
    worker.stop()
    # It is noted under the key of the server, on whichever node that lies.
    left_job = schedule(tasks.note.using(queue=f"{name}-shards"), 3_600, "left")
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": f"{queue_name}-two-"}
    (left,) = [problem for problem in server_problems() if problem.is_fatal]
    assert f"(PREFIX {prefix!r})" in left.message
    call_command("delayq_import", f"--from-prefix={prefix}", verbosity=0)
    assert left_job.refresh() is State.SCHEDULED
    cluster.clear([f"{queue_name}-two-{each}" for each in queues])
    for number in range(4):
        cluster.clear([f"{queue_name}-two-{name}-shards:{number}"])

    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": prefix}
    client = own_clients.of_thread()
    for key in conf.get_settings().registry:
        client.delete(key)
    client.hdel(prefixes.PREFIXES, prefix)
    cluster.clear([*shown, *(f"{prefix}{each}" for each in queues)])


def test_without_a_prefix_a_worker_notes_nothing(
    configure: Any, work: Any, records: Any, queue_name: str, client: Any
) -> None:
    work()
    note(queue_name, "done")
    wait_until(lambda: texts(records) == ["done"], description="it works")

    # Other tests may note theirs meanwhile.
    assert not client.hexists(prefixes.PREFIXES, "")
    assert conf.keys_of(queue_name) == DeliveryKeys.of(queue_name)


def test_first_lines_of_the_log_say_that_another_project_shares_a_queue(
    configure: Any,
    settings: Any,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": [SECRETS["one"]]}
    theirs = conf.get_keyring().ids[0]
    schedule(tasks.note.using(queue=queue_name), 3_600, "theirs")
    settings.DELAYQ = {**settings.DELAYQ, "KEYS": [SECRETS["two"]]}

    def begin(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(delayq_worker, "Supervisor", begin)
    with pytest.raises(KeyboardInterrupt):
        call_command("delayq_worker", "--queue", queue_name)

    (line,) = [line for line in caplog.messages if "signed with" in line]
    assert line.startswith(
        f"At least 1 job in queue {queue_name!r} is signed with key {theirs!r},"
    )
    assert "set DELAYQ['PREFIX'] in one of them" in line
