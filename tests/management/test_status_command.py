"""``manage.py delayq_status``: what it shows of queues, workers and problems, and in how many round trips."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_delayq import pause
from django_delayq.core import queue_reads
from django_delayq.core.worker_registry import RunningJob
from django_delayq.features.statistics.calls import (
    Figures,
    Outcome,
    add_figures,
    bucket_of,
)
from django_delayq.management import terminal
from django_delayq.management.commands import delayq_status
from tests.health.conftest import user
from tests.jobs import samples
from tests.jobs.adding import add, add_of_each_state
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Call, Writes, serve
from tests.sentinels import NAME, Watched
from tests.servers import ExternalServer, Server

ADD = samples.add.name
__all__ = ["user"]


def cells(said: str, heading: str, name: str) -> dict[str, str]:
    """Return the cells of a table's row by the words of its heading."""
    lines = said.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(heading))
    row = next(line for line in lines[first:] if line.startswith(name))
    titles = re.findall(r"\S+(?: \S+)*", lines[first])
    ends = [lines[first].index(title) + len(title) for title in titles]
    found, begin = {}, 0
    for title, end in zip(titles, ends, strict=True):
        is_last = end == ends[-1]
        # Numbers end with their heading, words begin with it.
        stop = len(row) if is_last else end
        while not is_last and stop < len(row) and row[stop] != " ":
            stop += 1
        found[title] = row[begin:stop].strip()
        begin = stop
    return found


def test_each_queue_is_counted_by_state(queue: str, hand: Hand, call: Call) -> None:
    add_of_each_state(queue, hand)

    said = call("delayq_status")

    found = cells(said.out, "QUEUE", queue)
    assert found["SCHEDULED"] == "4"
    assert found["DUE"] == "1"
    assert found["RUNNING"] == "1"
    assert found["RETRYING"] == "1"
    assert found["DEAD"] == "1"
    assert found["HELD"] == found["QUARANTINED"] == "0"
    assert cells(said.out, "QUEUE", f"{queue}-2")["SCHEDULED"] == "0"
    assert said.status == 0


def test_json_is_one_object(queue: str, hand: Hand, call: Call) -> None:
    add(queue, 1)
    pause(f"{queue}-2")
    serve(hand, queue, uptime_ms=60_000)

    found = json.loads(call("delayq_status", "--json").out)

    one, two = found["queues"]
    assert (one["name"], one["scheduled"], one["workers"]) == (queue, 1, 1)
    assert (one["paused"], two["paused"]) == (False, True)
    assert found["server"]["role"] == "primary"
    (worker,) = found["workers"]
    assert (worker["host"], worker["pid"], worker["queues"]) == ("web1", 4711, [queue])
    assert any("has been paused since" in each["message"] for each in found["problems"])


def test_figures_of_the_last_minutes_are_shown(
    queue: str, hand: Hand, call: Call
) -> None:
    figures = Figures()
    figures.outcomes[Outcome.SUCCEEDED] = 9
    figures.outcomes[Outcome.RETRYING] = 1
    figures.lateness.buckets[bucket_of(2_000)] = 10
    figures.duration.buckets[bucket_of(3_000_000)] = 10
    hand.run(add_figures(hand.keys, {"": figures, ADD: figures}, most_tasks=10))

    found = cells(call("delayq_status").out, "LAST 5 MINUTES", queue)

    assert (found["RUNS"], found["FAILED"]) == ("10", "1")
    assert found["LATENESS P99"].endswith(" ms")
    assert found["DURATION P50"].endswith(" s")
    assert 1.5 <= float(found["LATENESS P50"].split()[0]) <= 2.5
    assert 2.25 <= float(found["DURATION P99"].split()[0]) <= 3.75


def test_worker_is_shown_with_what_it_runs(queue: str, hand: Hand, call: Call) -> None:
    now_ms = hand.run(queue_reads.counts(hand.keys)).now_ms
    job = RunningJob(queue, "T", ADD, now_ms - 100_000_000)
    serve(hand, queue, busy_threads=1, jobs=[job], memory=45_000_000, uptime_ms=90_000)

    said = call("delayq_status").out

    row = next(line for line in said.splitlines() if line.startswith("web1:4711"))
    assert re.search(rf"working +1/8 +42\.9 MB .* {re.escape(ADD)} 1 d 3 h$", row)


@pytest.mark.parametrize(
    ("prepare", "level", "told"),
    [
        ("waits", "WARNING", "No worker serves queue"),
        ("overdue", "ERROR", "and no worker serves it"),
        ("late", "WARNING", "is late"),
        ("old", "WARNING", "runs django-delayq 0.0.1"),
        ("paused", "WARNING", "has been paused since"),
    ],
)
def test_what_is_wrong_comes_with_what_mends_it(
    queue: str, hand: Hand, call: Call, prepare: str, level: str, told: str
) -> None:
    job = add(queue, 1)
    if prepare in ("overdue", "late"):
        an_hour_ago_ms = hand.start_times()[job.token] - 2 * LATER * 1000
        ((member, _),) = hand.client.zscan_iter(hand.keys.queue.timeout_set)
        hand.client.zadd(hand.keys.queue.timeout_set, {member: an_hour_ago_ms})
    if prepare in ("late", "old"):
        serve(hand, queue, version="0.0.1" if prepare == "old" else "0")
    if prepare == "paused":
        pause(queue)

    said = " ".join(call("delayq_status").out.split())

    found = re.search(rf"{level} [^!]*?{re.escape(told)}", said)
    assert found is not None
    assert ("No worker serves" in said) is (prepare == "waits")
    for command in {
        "waits": f"manage.py delayq_worker --queue {queue}",
        "overdue": f"manage.py delayq_worker --queue {queue}",
        "paused": f"manage.py delayq_resume {queue}",
        "late": "start more",
        "old": "Restart it",
    }[prepare].splitlines():
        assert command in said


def test_paused_queue_is_marked_and_not_called_unserved(queue: str, call: Call) -> None:
    add(queue, 1)
    pause(queue)

    said = call("delayq_status").out

    assert f"{queue} (paused)" in said
    assert "No worker serves" not in said


def test_one_queue_is_asked_for(queue: str, call: Call) -> None:
    said = call("delayq_status", "--queue", queue).out

    assert f"{queue}-2" not in said


def test_a_look_takes_as_many_round_trips_for_many_queues(
    queue: str, settings: Any, call: Call, writes: Writes
) -> None:
    def look() -> None:
        assert call("delayq_status").status == 0

    look()
    of_two = writes.during(look)
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {f"{queue}-{n}": {} for n in range(20)},
    }
    look()

    # The first look of this connection has brought the scripts.
    assert writes.during(look) <= of_two + 2


def test_without_statistics_there_are_no_figures(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "STATISTICS": 0}

    said = call("delayq_status")

    assert said.status == 0
    assert "MINUTES" not in said.out


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def test_it_fits_a_terminal(
    queue: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    job = RunningJob(queue, "T", "a.task.of.a.very.long.name.indeed" * 3, 5)
    serve(hand, queue, jobs=[job])
    pause(queue, reason="because " * 40)
    terminal_ = Terminal()

    call_command("delayq_status", stdout=terminal_, no_color=True)

    assert max(map(len, terminal_.getvalue().splitlines())) <= 80


def looks(
    monkeypatch: pytest.MonkeyPatch, count: int, between: Callable[[], Any]
) -> None:
    """Let --watch look so often, and do something in the place of each wait."""
    left = iter(range(count - 1))

    def wait(seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        between()

    monkeypatch.setattr(delayq_status, "sleep", wait)


def test_watch_draws_anew_in_place_until_it_is_interrupted(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    looks(monkeypatch, 2, lambda: add(queue, 1))
    out = Terminal()

    call_command(
        "delayq_status", "--queue", queue, "--watch", stdout=out, no_color=True
    )

    cleared, first, second = re.split(r"\x1b\[(?:2J\x1b\[)?H", out.getvalue())
    assert cleared == ""
    shown = [
        part.replace("\x1b[K", "").replace("\x1b[J", "") for part in (first, second)
    ]
    assert [cells(part, "QUEUE", queue)["SCHEDULED"] for part in shown] == [
        "0",
        "1",
    ]
    assert second.endswith("\x1b[J")


def test_watch_prints_one_after_the_other_into_a_file(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(monkeypatch, 3, lambda: None)

    said = call("delayq_status", "--queue", queue, "--watch", "5")

    assert said.status == 0
    assert "\x1b" not in said.out
    assert said.out.count("QUEUE ") == 3


def test_watch_outlives_a_restart_of_the_server(
    queue: str,
    settings: Any,
    call: Call,
    private_server: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    steps = iter((server.kill, server.start))
    looks(monkeypatch, 3, lambda: next(steps)())

    said = call("delayq_status", "--watch", "--json")

    assert said.err == ""
    up, down, again = map(json.loads, filter(None, said.lines))
    assert "queues" in up
    assert "does not answer" in down["fault"]
    assert again["queues"] == up["queues"]


def test_checks_of_the_server_are_made_now_and_then(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    made = []
    monkeypatch.setattr(delayq_status, "monotonic_ms", fake_clock)
    monkeypatch.setattr(
        delayq_status, "server_problems", lambda queues: made.append(1) or []
    )
    looks(monkeypatch, 40, lambda: fake_clock.advance(2_000))

    call("delayq_status", "--watch")

    assert len(made) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--queue", "mails"), "'mails' is not configured"),
        (("--watch", "0"), "not a number of seconds"),
        (("--watch", "nan"), "not a number of seconds"),
        (("--watch", "soon"), "not a number of seconds"),
    ],
)
def test_bad_call_says_what_to_do(
    queue: str, call: Call, arguments: tuple[str, ...], message: str
) -> None:
    said = call("delayq_status", *arguments)

    assert said.status == 1
    assert message in said.err


def test_server_that_is_away_is_explained(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "redis://localhost:1/0"}

    said = call("delayq_status")

    assert said.status == 1
    assert "The server does not answer." in said.err


def test_sentinels_that_know_no_such_primary_are_explained(
    queue: str, settings: Any, call: Call, watched: Watched
) -> None:
    url = watched.url.replace("://", "://app:hunter2@").replace(NAME, "nobody")
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": url}

    said = call("delayq_status")

    assert said.status == 1
    assert "The Sentinels know no primary of this name." in said.err
    assert "hunter2" not in said.out + said.err


def test_primary_of_sentinels_is_shown(
    queue: str, settings: Any, call: Call, watched: Watched
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": watched.url}

    said = call("delayq_status")

    assert said.status == 0
    assert "redis+sentinel://" in said.out


def test_replica_is_shown_and_called_one(
    queue: str, settings: Any, call: Call, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    add(queue, 1)
    # Of a primary that is not there it keeps what it has.
    server.client().replicaof("127.0.0.1", 1)

    said = call("delayq_status")

    assert cells(said.out, "QUEUE", queue)["SCHEDULED"] == "1"
    assert "ERROR" in said.out
    assert "is a replica" in said.out


def test_queue_that_may_not_be_read_is_marked(
    queue: str, hand: Hand, settings: Any, call: Call
) -> None:
    hand.client.set(hand.keys.dead, "somebody else's")

    said = call("delayq_status")

    assert cells(said.out, "QUEUE", queue)["DEAD"] == "?"
    assert cells(said.out, "QUEUE", f"{queue}-2")["DEAD"] == "0"
    assert "somebody else's data" in " ".join(said.out.split())


def test_account_without_the_registry_of_workers_sees_the_queues(
    queue: str,
    settings: Any,
    call: Call,
    server: Server | ExternalServer,
    user: Callable[..., redis.Redis],
) -> None:
    client = user(f"~*{queue}*", "&*", "+@all")
    name = client.connection_pool.connection_kwargs["username"]
    host = server.url.partition("://")[2]
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": f"redis://{name}:pw@{host}"}
    add(queue, 1)

    said = call("delayq_status")

    assert said.status == 0
    assert cells(said.out, "QUEUE", queue)["SCHEDULED"] == "1"
    assert "may not read the list of workers" in said.out
    assert "No worker serves" not in said.out
    assert json.loads(call("delayq_status", "--json").out)["workers"] is None


def test_long_tables_are_drawn_as_their_rows_come() -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        for n in range(250):
            taken += 1
            yield [str(n)]

    lines = terminal.table([terminal.Column("N")], rows(), None)

    assert next(lines) == "N"
    assert next(lines) == "0"
    assert taken == 100
    assert len(list(lines)) == 249


def test_queue_with_shards_is_one_row_and_each_shard_is_another(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue: {"SHARDS": 3}}}
    jobs = [add(queue, n) for n in range(12)]

    said = call("delayq_status")
    told = json.loads(call("delayq_status", "--json").out)

    assert cells(said.out, "QUEUE", queue)["SCHEDULED"] == "12"
    assert f"{queue}:" not in said.out.replace(f"--queue {queue}:", "")
    (row,) = told["queues"]
    assert (row["name"], row["scheduled"]) == (queue, 12)
    in_shards = {each["name"]: each["scheduled"] for each in row["shards"]}
    assert in_shards == {
        f"{queue}:{n}": sum(job.queue == f"{queue}:{n}" for job in jobs)
        for n in range(3)
    }
    name = jobs[0].queue
    assert cells(call("delayq_status", "--queue", name).out, "QUEUE", name)[
        "SCHEDULED"
    ] == str(in_shards[name])
