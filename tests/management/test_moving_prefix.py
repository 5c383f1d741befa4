"""Tests of a changed PREFIX: the worker says which jobs wait under the old one, and delayq_import moves them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq import (
    Batch,
    JobNotFound,
    conf,
    every,
    get_job,
    get_schedule,
    get_schedules,
    limits,
    pause,
    paused,
    schedule,
    set_limit,
    store_schedule,
)
from django_delayq.core import prefixes, queue_reads
from django_delayq.core.states import State
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.server_checks import server_problems
from django_delayq.transport.run import run
from tests.jobs import samples
from tests.jobs.adding import add, add_of_each_state
from tests.jobs.hand import Hand
from tests.management.conftest import Call
from tests.servers import Server

pytestmark = pytest.mark.redis

Use = Callable[..., str]


@pytest.fixture
def use(settings: Any, queue: str, client: "redis.Redis[bytes]") -> Iterator[Use]:
    """Set PREFIX to something of this test, and return it; ``note`` it as a worker does that starts."""
    noted = []

    def use(name: str, *, note: bool = False, **more: Any) -> str:
        prefix = name and f"{queue}-{name}-"
        settings.DELAYQ = {**settings.DELAYQ, "PREFIX": prefix, **more}
        if note:
            noted.append(prefix)
            key_id = conf.get_keyring().ids[0]
            run(client, prefixes.note_prefix(prefix, key_id))
        return prefix

    yield use
    if noted:
        client.hdel(prefixes.PREFIXES, *noted)


@pytest.fixture
def hand(hand: Hand, queue: str) -> Callable[[], Hand]:
    """Play the worker of the present settings."""

    def of_now() -> Hand:
        hand.keys = conf.keys_of(queue)
        return hand

    return of_now


def fatal() -> list[ServerProblem]:
    return [problem for problem in server_problems() if problem.is_fatal]


def jobs_under(client: "redis.Redis[bytes]", queue: str) -> int:
    return run(client, queue_reads.counts(conf.keys_of(queue))).jobs


def states(ids: list[str]) -> list[State]:
    return [get_job(id).state for id in ids]


def test_commands_leave_the_prefix_out(
    queue: str, hand: Callable[[], Hand], settings: Any, call: Call, tmp_path: Path
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "zqx-"}
    add_of_each_state(queue, hand())
    job = add(queue, 1)
    store_schedule("nightly", samples.add, every(3_600), args=[1], queue=queue)

    for command, *arguments in [
        ["delayq_status"],
        ["delayq_status", "--json"],
        ["delayq_jobs", "list", "--queue", queue],
        ["delayq_jobs", "list", "--queue", queue, "--json"],
        ["delayq_jobs", "show", job.id],
        ["delayq_pause", queue, "--reason", "test"],
        ["delayq_pause"],
        ["delayq_status"],
        ["delayq_resume", queue],
        ["delayq_schedules"],
        ["delayq_resign", queue],
        ["delayq_frames", queue],
        ["delayq_health", "--json"],
        ["delayq_export", tmp_path / "jobs", "--queue", queue],
        ["delayq_export", "--release", "--queue", queue],
        ["delayq_jobs", "cancel", job.id],
    ]:
        said = call(command, *arguments)
        assert "zqx-" not in said.out + said.err, (command, arguments)
        is_of_queues = command != "delayq_health"
        assert (queue in said.out + said.err) is is_of_queues, (command, arguments)
    assert "zqx-" not in (tmp_path / "jobs").read_text()


@pytest.mark.parametrize("before", ["", "old"])
@pytest.mark.parametrize("is_named", [True, False])
def test_jobs_in_all_states_move_to_the_new_prefix_of_the_same_server(
    queue: str,
    hand: Callable[[], Hand],
    use: Use,
    server: Server,
    client: "redis.Redis[bytes]",
    call: Call,
    before: str,
    is_named: bool,
) -> None:
    old = use(before, note=bool(before))
    add_of_each_state(queue, hand())
    unique = schedule(samples.once.using(queue=queue), 3_600, "k")
    ids = [f"{queue}:{token.decode()}" for token in client.hkeys(hand().keys.headers)]
    ids += [f"{queue}:{token.decode()}" for token in client.hkeys(hand().keys.locators)]
    known = dict(zip(ids, states(ids), strict=True))
    new = use("new")
    with pytest.raises(JobNotFound):
        get_job(unique.id)
    # A web process of the new settings has scheduled something meanwhile.
    newer = add(queue, "newer")

    (found,) = fatal()
    where = ("--from", server.socket_url) if is_named else ()
    said = call("delayq_import", *where, f"--from-prefix={old}")

    assert found.level is Level.ERROR
    assert f" in {old}{queue} on the server (PREFIX {old!r})." in found.message
    assert f"serve {new}{queue} (PREFIX {new!r})." in found.message
    assert "--from-prefix=" + (old or "''") in found.hint
    assert f"queue {queue}: {len(known) - 1} moved" in said.lines
    assert f"queue {queue}: 1 are left on the source, 1 of them running" in said.out
    assert (said.status, said.err) == (1, "")
    (running,) = [id for id, state in known.items() if state is State.RUNNING]
    del known[running]
    assert dict(zip(known, states(list(known)), strict=True)) == known
    assert set(known.values()) == {
        *(State.SCHEDULED, State.DUE, State.RETRYING, State.DEAD)
    }
    assert newer.refresh() is State.SCHEDULED
    assert not schedule(samples.once.using(queue=queue), 3_600, "k").created
    # What runs there counts as well. Its worker dies.
    assert len(fatal()) == 1
    use(before)
    hand().die()
    use("new")
    assert call("delayq_import", *where, f"--from-prefix={old}").status == 0
    assert get_job(running).state is State.DUE
    assert fatal() == []


def test_what_somebody_has_set_moves_with_the_jobs(
    queue: str, use: Use, client: "redis.Redis[bytes]", call: Call
) -> None:
    store_schedule("nightly", samples.add, every(3_600), args=[1, 2], queue=queue)
    pause(queue, reason="a move")
    set_limit(queue, concurrency=3)
    use("new")
    assert not paused(queue)

    said = call("delayq_import", "--from-prefix=")

    assert (said.status, said.err) == (0, "")
    assert [each.reason for each in paused(queue)] == ["a move"]
    assert [each.concurrency for each in limits(queue)] == [3]
    assert get_schedule("nightly", queue=queue).args == [1, 2]
    assert fatal() == []


def test_members_of_a_batch_stay_and_are_told_of(
    queue: str, use: Use, call: Call
) -> None:
    batch = Batch(samples.add.using(queue=queue).prepare(0, 1))
    batch.schedule([samples.add.using(queue=queue).prepare(3_600, 1)])
    use("new")

    said = call("delayq_import", "--from-prefix=")

    assert said.status == 1
    assert "are left on the source" in said.out
    assert "wait for a job or a batch that must end on the source" in said.out
    assert len(fatal()) == 1
    use("")
    assert batch.left() == 1


def test_what_waits_under_the_new_prefix_moves_back_while_a_batch_is_open(
    queue: str, use: Use, call: Call
) -> None:
    """Workers that are to end the batch do not start before."""
    old = use("old", note=True)
    batch = Batch(samples.add.using(queue=queue).prepare(0, 1))
    batch.schedule([samples.add.using(queue=queue).prepare(3_600, 1)])
    use("")
    newer = add(queue, 5)
    assert call("delayq_import", f"--from-prefix={old}").status == 1
    use("old")
    assert len(fatal()) == 1

    assert call("delayq_import", "--from-prefix=").status == 0

    assert fatal() == []
    assert newer.refresh() is State.SCHEDULED
    assert batch.left() == 1


def test_shards_move_with_the_prefix(queue: str, use: Use, call: Call) -> None:
    use("old", note=True, QUEUES={"default": {}, queue: {"SHARDS": 3}})
    jobs = [add(queue, n) for n in range(20)]
    assert len({job.queue for job in jobs}) == 3
    new = use("new")
    (found,) = fatal()

    said = call("delayq_import", f"--from-prefix={queue}-old-")

    assert f"{new}{queue}:0" in found.message
    assert found.message.startswith("20 jobs wait in ")
    assert (said.status, said.err) == (0, "")
    assert set(states([job.id for job in jobs])) == {State.SCHEDULED}
    assert fatal() == []


def test_a_queue_that_is_shared_with_java_stays_where_it_is(
    queue: str, use: Use, server: Server, call: Call
) -> None:
    java = f"{queue}-2"
    use("", QUEUES={"default": {}, queue: {}, java: {"REDISSON": "3.27.2"}})
    ours, shared = add(queue, 1), add(java, 1)
    use("new")
    assert shared.refresh() is State.SCHEDULED

    said = call("delayq_import", "--from", server.socket_url, "--from-prefix=")

    assert f"queue {queue}: 1 moved" in said.lines
    assert java not in said.out
    assert (said.status, said.err) == (0, "")
    assert states([ours.id, shared.id]) == [State.SCHEDULED] * 2


def test_a_queue_that_is_now_shared_with_java_is_told_of_and_moves(
    queue: str, use: Use, call: Call
) -> None:
    prefix = use("p", note=True)
    job = add(queue, 1)
    use("p", QUEUES={"default": {}, queue: {"REDISSON": "3.27.2"}})
    (found,) = fatal()
    assert f"serve {queue} (" in found.message

    said = call("delayq_import", f"--from-prefix={prefix}", "--queue", queue)

    assert (said.status, said.err) == (0, "")
    assert job.refresh() is State.SCHEDULED
    assert fatal() == []
    # And back again.
    use("p", QUEUES={"default": {}, queue: {}})
    assert len(fatal()) == 1
    assert call("delayq_import", "--from-prefix=", "--queue", queue).status == 0
    assert job.refresh() is State.SCHEDULED
    assert fatal() == []


def test_a_file_gets_the_prefix_of_who_imports_it(
    queue: str,
    use: Use,
    client: "redis.Redis[bytes]",
    call: Call,
    tmp_path: Path,
) -> None:
    old = use("old")
    job = add(queue, 1)
    path = tmp_path / "jobs.jsonl"
    assert call("delayq_export", path, "--queue", queue).status == 0
    assert old not in path.read_text()
    use("new")

    said = call("delayq_import", path)

    assert (said.status, said.err) == (0, "")
    assert job.refresh() is State.SCHEDULED
    assert jobs_under(client, queue) == 1
    use("old")
    code = said.lines[-1].rpartition(" ")[2]
    assert call("delayq_export", "--queue", queue, "--confirm", code).status == 0
    assert jobs_under(client, queue) == 0


def test_only_queues_of_the_old_prefix_are_named_as_not_configured(
    queue: str, use: Use, settings: Any, call: Call
) -> None:
    use("old", note=True)
    add(f"{queue}-2", 1)
    use("other", note=True)
    add(f"{queue}-2", 1)
    use("new", QUEUES={"default": {}, queue: {}})

    said = call("delayq_import", f"--from-prefix={queue}-old-", "--queue", queue)
    assert said.status == 0
    said = call("delayq_import", f"--from-prefix={queue}-old-")

    assert said.status == 1
    assert said.lines[-1].endswith(f"does not have them: {queue}-2")


def test_jobs_and_schedules_of_another_project_stay(
    queue: str,
    use: Use,
    settings: Any,
    hand: Callable[[], Hand],
    client: "redis.Redis[bytes]",
    call: Call,
) -> None:
    ids = {}
    for project in ("one", "two"):
        use("", KEYS=[f"the secret of project {project}"])
        retried, dead = (add(queue, n, delay=0) for n in range(2))
        hand().retry(hand().take(), wait_ms=3_600_000)
        hand().bury(hand().take())
        ids[project] = [retried.id, dead.id, *(add(queue, n).id for n in range(3))]
        store_schedule(project, samples.add, every(3_600), args=[1], queue=queue)
    for project in ids:
        use("", KEYS=[f"the secret of project {project}"])
        ids[project].append(add(queue, 9, delay=0).id)
    known = [State.RETRYING, State.DEAD, *[State.SCHEDULED] * 3, State.DUE]
    use("", KEYS=["the secret of project one"])
    use("one")
    (found,) = fatal()
    # One retry, the scheduled and due jobs, and the job of the schedule. Jobs of the other project do not count.
    assert found.message.startswith(f"6 jobs wait in {queue} on the server")

    said = call("delayq_import", "--from-prefix=", "--queue", queue)

    assert "Jobs of another project stay there" in said.out
    assert states(ids["one"]) == known
    assert get_schedule("one", queue=queue).args == [1]
    assert fatal() == []
    use("", KEYS=["the secret of project two"])
    assert states(ids["two"]) == known
    assert get_schedule("two", queue=queue).args == [1]
    assert [each.name for each in get_schedules(queue)] == ["two"]


def test_foreign_element_with_a_mac_address_is_of_no_other_project(
    queue: str, use: Use, client: "redis.Redis[bytes]", call: Call
) -> None:
    element = b'{"device":"a","mac":"aa:bb:cc:dd:ee:ff"}'
    client.rpush(conf.keys_of(queue).queue.destination, element)
    assert not [each for each in server_problems() if "signed with" in each.message]
    use("new")

    said = call("delayq_import", "--from-prefix=", "--queue", queue)

    assert f"queue {queue}: 1 moved" in said.lines
    assert (said.status, said.err) == (0, "")


def test_jobs_of_another_project_are_none_that_were_left(
    queue: str, use: Use, settings: Any
) -> None:
    settings.DELAYQ["KEYS"] = ["the secret of the first project"]
    use("one", note=True)
    add(queue, 1)
    settings.DELAYQ["KEYS"] = ["the secret of the second project"]
    use("")
    add(queue, 1)
    settings.DELAYQ["KEYS"] = ["the secret of the third project"]

    use("three")

    assert fatal() == []


def test_a_prefix_that_two_projects_of_one_secret_use_is_taken_for_a_change(
    queue: str, use: Use
) -> None:
    use("one", note=True)
    add(queue, 1)
    use("two")
    (found,) = fatal()
    assert "give each project its own KEYS" in found.hint


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("file", "--from-prefix=x"), "--from-prefix is for a server"),
        (("--from-prefix=PREFIX",), "is the PREFIX of these settings"),
        (("--from-prefix={x}",), "without spaces and braces"),
        (("--until-empty",), "Name what to import"),
    ],
)
def test_import_refuses_a_prefix_that_cannot_be_meant(
    queue: str, use: Use, call: Call, arguments: tuple[str, ...], told: str
) -> None:
    prefix = use("new")

    said = call(
        "delayq_import", *(each.replace("PREFIX", prefix) for each in arguments)
    )

    assert said.status == 1
    assert told in said.err


def test_a_queue_cannot_move_to_itself_and_the_option_is_named(
    queue: str, use: Use, server: Server, call: Call
) -> None:
    use("new")
    job = add(queue, 1)

    said = call("delayq_import", "--from", server.socket_url, "--queue", queue)

    assert said.status == 1
    assert "give --from-prefix" in said.err
    assert job.refresh() is State.SCHEDULED
