"""``manage.py delayq_jobs``: what it lists and shows, what it changes, and how it ends."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class

from django_delayq import State, delayed_task, pause, schedule
from django_delayq.conf import get_keyring
from django_delayq.core import claim as claim_calls
from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.lease_ends import Rejected
from django_delayq.core.progress import JobProgress, note_progress
from django_delayq.core.worker_registry import RegistryKeys, WorkerInfo, register
from django_delayq.display.attempts import read_attempts
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.jobs import stored_results, walk
from django_delayq.jobs.progress_report import stored_progress
from django_delayq.management import progress_line
from django_delayq.management.jobs_change import VERBS
from tests.jobs import samples
from tests.jobs.adding import add
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Call, Writes
from tests.servers import Server
from tests.worker.workers import MANAGE

ADD = samples.add.name


def one_dead(queue: str, hand: Hand, *args: Any) -> Any:
    job = add(queue, *args, delay=0)
    hand.bury(hand.take())
    return job


def ids_of(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


# List


def test_list_of_what_has_ended_has_the_last_ends_first(
    queue: str, hand: Hand, call: Call
) -> None:
    ends = [
        (State.SUCCEEDED, 1_000, ADD, "", 1),
        (State.EXPIRED, 3_000, "shop.tasks.late", "too late", ended_calls.NONE),
        (State.DEAD, 2_000, ADD, "ValueError: no", 10),
        (State.CANCELLED, 4_000, "", "", ended_calls.NONE),
    ]
    records = [
        EndRecord(f"{n:022}", task, outcome, at_ms, 1.5, 2.5, attempts, error)
        for n, (outcome, at_ms, task, error, attempts) in enumerate(ends)
    ]
    hand.run(ended_calls.note_ended(hand.keys, records, keep=10))

    def states(*arguments: str) -> list[str]:
        out = call("delayq_jobs", "list", "--json", *arguments).out
        return [json.loads(line)["state"] for line in out.splitlines()]

    newest_first = ["cancelled", "expired", "dead", "succeeded"]
    assert states("--state", "ended") == newest_first
    assert states("--state", "ended", "--queue", queue, "--queue", f"{queue}-2") == (
        newest_first
    )
    assert states("--state", "ended", "--limit", "2") == newest_first[:2]
    assert states("--state", "ended", "--task", ADD) == ["dead", "succeeded"]
    assert states("--state", "succeeded", "--state", "expired") == [
        "expired",
        "succeeded",
    ]
    said = call("delayq_jobs", "list", "--state", "ended")
    heading, cancelled, expired, dead, _ = said.lines
    assert heading.split() == ["ID", "STATE", "ENDED", "ATTEMPTS", "TASK"]
    assert cancelled.startswith(f"{queue}:{3:022}  cancelled  ")
    assert expired.endswith("shop.tasks.late: too late")
    assert dead.endswith(f" ago        10  {ADD}: ValueError: no")
    (found,) = call(
        "delayq_jobs", "list", "--state", "ended", "--limit", "1", "--json"
    ).out.splitlines()
    assert json.loads(found) == {
        "id": f"{queue}:{3:022}",
        "queue": queue,
        "state": "cancelled",
        "task": None,
        "at": "1970-01-01T00:00:04.000+00:00",
        "lateness_ms": 1.5,
        "duration_ms": 2.5,
        "attempts": None,
        "error": "",
    }


def test_list_of_what_has_ended_says_so_if_there_is_nothing(
    queue: str, call: Call
) -> None:
    assert call("delayq_jobs", "list", "--state", "expired").err == "no matching jobs\n"


def test_list_has_a_row_a_job_that_reads_as_its_call(queue: str, call: Call) -> None:
    job = add(queue, 4711, note="late")

    said = call("delayq_jobs", "list")

    heading, row = said.lines
    assert heading.split() == ["ID", "STATE", "DUE", "ATTEMPTS", "TASK"]
    assert row.startswith(f"{job.id}  scheduled  in ")
    assert row.endswith(f'{ADD}(a=4711, note="late")')
    assert (said.status, said.err) == (0, "")


def test_list_counts_failed_attempts_and_kills_apart(
    queue: str, hand: Hand, call: Call
) -> None:
    add(queue, 1, delay=0)
    hand.kill(hand.take(), max_kills=3)

    _, row = call("delayq_jobs", "list").lines

    assert "  0 + 1 killed  " in row


def test_masked_value_in_a_url_of_an_error_is_written_the_same_everywhere(
    queue: str, hand: Hand, call: Call
) -> None:
    job = add(queue, 1, delay=0)
    said = "HTTPError: 404 for https://x/?t=*** and https://user:hunter2@y/?u=hunter2"
    hand.bury(hand.take(), said=said)
    shown = "HTTPError: 404 for https://x/?t=*** and https://user:***@y/?***"

    assert call("delayq_jobs", "list").lines[1].endswith(shown)
    assert shown in call("delayq_jobs", "show", job.id).out
    assert (
        json.loads(call("delayq_jobs", "list", "--json").out)["error"]["error"] == shown
    )
    # The admin reads it like this.
    seen = hand.run(queue_reads.inspect(hand.keys, job.token))
    assert [each.message for each in read_attempts(seen)] == [shown]


def test_json_steers_no_terminal_and_has_a_line_a_job(queue: str, call: Call) -> None:
    strange = "\x1b[2J\x9b31m\u202e\u2028\x85ü"
    add(queue, strange)

    said = call("delayq_jobs", "list", "--json")

    (line,) = said.out.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["kwargs"] == {"a": strange}


def test_list_of_what_failed_has_the_error(queue: str, hand: Hand, call: Call) -> None:
    one_dead(queue, hand, 1)

    assert (
        call("delayq_jobs", "list", "--state", "dead")
        .lines[1]
        .endswith(f"{ADD}(a=1): ValueError: no")
    )


def test_filters_are_those_of_find_jobs(queue: str, hand: Hand, call: Call) -> None:
    dead = one_dead(queue, hand, 4711)
    soon, late = add(queue, 1), add(queue, 2, delay=5 * LATER)
    other = add(f"{queue}-2", 4711)

    def ids(*arguments: str) -> set[str]:
        return set(ids_of(call("delayq_jobs", "list", "--json", *arguments).out))

    assert ids() == {dead.id, soon.id, late.id, other.id}
    assert ids("--queue", queue, "--state", "scheduled") == {soon.id, late.id}
    assert ids("--queue", f"{queue}-2", "--queue", queue, "--text", "4711") == {
        dead.id,
        other.id,
    }
    assert ids("--queue", queue, "--due", "now..2h") == {soon.id}
    assert ids("--due", "..now") == ids("--due", "1h ago..now") == {dead.id}
    assert ids("--task", "gone.task") == set()
    assert len(ids("--limit", "2")) == 2


def test_json_says_all_of_each_job_in_a_line(
    queue: str, hand: Hand, call: Call
) -> None:
    job = one_dead(queue, hand, 3)

    found = json.loads(call("delayq_jobs", "list", "--json").out)

    assert found["id"] == job.id
    assert (found["queue"], found["state"], found["task"]) == (queue, "dead", ADD)
    assert (found["args"], found["kwargs"]) == ([], {"a": 3})
    assert found["attempts"] == 1
    assert found["error"]["error"] == "ValueError: no"
    assert found["error"]["at"] == "1970-01-01T00:00:00.005+00:00"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]{12}\+00:00", found["due"])


def test_list_says_that_there_may_be_more(queue: str, call: Call) -> None:
    for n in range(3):
        add(queue, n)

    said = call("delayq_jobs", "list", "--limit", "2")

    assert len(said.lines) == 3
    assert said.err == "2 shown; there may be more, see --limit\n"


def test_nothing_found_is_no_failure(queue: str, call: Call) -> None:
    said = call("delayq_jobs", "list")

    assert said.status == 0
    assert said.err == "no matching jobs\n"


def test_what_steers_a_terminal_is_written_as_escapes(queue: str, call: Call) -> None:
    add(queue, 1, note="\x1b[2J\u202e\x9b5m")
    schedule(samples.anything.using(queue=queue), LATER, "redis://user:secret@host/0")

    out = call("delayq_jobs", "list").out

    assert all(char.isprintable() or char == "\n" for char in out)
    assert "secret" not in out
    assert "redis://user:***@host/0" in out


def test_search_takes_a_call_for_a_hundred_jobs(
    queue: str, call: Call, writes: Writes
) -> None:
    for n in range(250):
        add(queue, n)
    call("delayq_jobs", "list", "--text", "none")

    # The time, the pages of one queue and of the other, and the count for the progress.
    assert writes.during(lambda: call("delayq_jobs", "list", "--text", "none")) == 6


def test_long_search_shows_how_far_it_has_come(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(250):
        add(queue, n)
    monkeypatch.setattr(progress_line, "LOG_EVERY_S", 0)

    said = call("delayq_jobs", "list", "--text", "none")

    assert said.err.splitlines()[1:] == [
        "searching: 200 of 250",
        "searching: 250 of 250",
        "searching: 250 of 250",
        "no matching jobs",
    ]


def test_reader_that_has_seen_enough_ends_the_list(
    queue: str, settings: Any, tmp_path: Path
) -> None:
    for n in range(300):
        add(queue, n, "x" * 1_000)
    with subprocess.Popen(
        [sys.executable, MANAGE, "delayq_jobs", "list", "--json", "--skip-checks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "WORKER_TEST_DELAYQ": json.dumps(settings.DELAYQ)},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (0, "")
    assert json.loads(first)["queue"] == queue


# Show


def test_show_tells_everything_of_a_dead_job(
    queue: str, hand: Hand, call: Call
) -> None:
    job = add(queue, 1, delay=0)
    hand.retry(hand.take())
    hand.bury(hand.take())
    pause(queue, reason="migration")

    said = call("delayq_jobs", "show", job.id)

    assert said.status == 0
    assert said.lines[0] == f"{ADD}(a=1)"
    shown = " ".join(said.out.split())
    for told in (
        f"ID {job.id}",
        "State dead",
        "Attempts 2 of 10 failed",
        "Arguments a=1",
        "Attempt 1",
        "Attempt 2",
        "ValueError: no",
        "has been paused since",
        "migration",
        f"manage.py delayq_resume {queue}",
    ):
        assert told in shown, told


def test_show_tells_who_runs_a_job_and_how_far_it_is(
    queue: str, hand: Hand, call: Call
) -> None:
    job = add(queue, 1, delay=0)
    leased = hand.take()
    hand.run(register(RegistryKeys.of(), hand.owner.hex(), WorkerInfo("web1", 4711)))
    stored = stored_progress(40, 200, "pictures")
    hand.run(
        note_progress(hand.keys, [JobProgress(leased.token, leased.fence, stored)])
    )

    shown = " ".join(call("delayq_jobs", "show", job.id).out.split())
    found = json.loads(call("delayq_jobs", "show", job.id, "--json").out)

    assert "worker web1:4711" in shown
    assert "Progress 40 of 200, 20 %, pictures" in shown
    assert found["worker"] == "web1:4711"
    assert found["progress"] == {
        "words": "40 of 200, 20 %",
        "percent": 20,
        "text": "pictures",
    }


def test_show_as_json_has_the_attempts(queue: str, hand: Hand, call: Call) -> None:
    job = add(queue, 1, delay=0)
    hand.retry(hand.take())
    hand.retry(hand.take(), wait_ms=LATER * 1000)

    found = json.loads(call("delayq_jobs", "show", job.id, "--json").out)

    assert (found["state"], found["attempts"]) == ("retrying", 2)
    assert [each["error"] for each in found["history"]] == ["ValueError: no"] * 2
    assert found["paused"] == []


def test_record_of_an_end_with_an_endless_time_is_missing(
    queue: str, hand: Hand, call: Call
) -> None:
    job = add(queue, 1, delay=0)
    hand.succeed(hand.take(), keep=False)
    forged = EndRecord(job.token, ADD, State.SUCCEEDED, 1_790_000_000_000, math.inf)
    hand.run(ended_calls.note_ended(hand.keys, [forged], keep=10))
    hand.client.delete(hand.keys.ended)

    said = call("delayq_jobs", "show", job.id, "--json")

    assert (said.status, said.out) == (1, "")
    assert job.id in said.err


def test_show_knows_how_a_job_has_ended(queue: str, hand: Hand, call: Call) -> None:
    job = add(queue, 1, delay=0)
    hand.succeed(hand.take(), keep=False)
    record = EndRecord(job.token, ADD, State.SUCCEEDED, 1_790_000_000_000, 12.5, 250, 1)
    hand.run(ended_calls.note_ended(hand.keys, [record], keep=10))
    # After half a minute, the record alone is left.
    hand.client.delete(hand.keys.ended)
    assert job.refresh() is State.MISSING

    said = call("delayq_jobs", "show", job.id)

    shown = " ".join(said.out.split())
    assert f"{ADD} State succeeded ID {job.id}" in shown
    assert "Lateness 12.5 ms Duration 250 ms Attempts 1" in shown


def test_show_says_which_ids_lead_nowhere_and_shows_the_others(
    queue: str, call: Call
) -> None:
    job = add(queue, 1)

    said = call("delayq_jobs", "show", f"{queue}:nowhere", "mails:X", "X", job.id)

    assert said.status == 1
    assert said.lines[0] == f"{ADD}(a=1)"
    told = said.err.splitlines()
    assert "no job has the id" in told[0]
    assert "'mails' is not configured" in told[1]
    assert "has the token 'X'" in told[2]


def test_show_finds_a_token_alone_on_any_queue_and_shard(
    settings: Any, queue: str, hand: Hand, call: Call
) -> None:
    shards = {f"{queue}-2": {"SHARDS": 3}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue: {}, **shards}}
    plain = add(queue, 1)
    sharded = [add(f"{queue}-2", n) for n in range(9)]
    over = EndRecord("e" * 22, ADD, State.SUCCEEDED, 1_790_000_000_000, 1.5, 2.5, 1)
    hand.run(ended_calls.note_ended(hand.keys, [over], keep=10))
    assert len({job.queue for job in sharded}) > 1

    for job_id in (plain.id, *(job.id for job in sharded), f"{queue}:{over.token}"):
        # A token may begin with a hyphen.
        said = call("delayq_jobs", "show", "--", job_id.rpartition(":")[2])

        assert said.status == 0
        assert f"ID {job_id}" in " ".join(said.out.split())


def test_jobs_are_changed_by_their_tokens_alone(
    queue: str, hand: Hand, call: Call
) -> None:
    one, two, three = (add(queue, n) for n in range(3))
    dead, worse = one_dead(queue, hand, 4), one_dead(queue, hand, 5)

    for job, verb, done in (
        (one, ["cancel"], "is cancelled and will not run"),
        (two, ["reschedule", "--in", "5h"], "is rescheduled"),
        (three, ["run"], "is due now"),
        (dead, ["retry"], "is retried: it is due now"),
        (worse, ["discard"], "is discarded for good"),
    ):
        # Both name the same job, which is changed once.
        said = call("delayq_jobs", *verb, "--", job.token, job.id)
        assert (said.status, said.out) == (0, f"{job.id} {done}\n")


def test_sensitive_arguments_are_shown_nowhere(queue: str, call: Call) -> None:
    job = schedule(samples.secretive.using(queue=queue), LATER, 1, token="hush-hush")

    for arguments in (
        ("list",),
        ("list", "--json"),
        ("show", job.id),
        ("show", job.id, "--json"),
    ):
        out = call("delayq_jobs", *arguments).out
        assert "hush" not in out
        assert "***" in out


# Change


def test_jobs_are_changed_by_their_ids(queue: str, hand: Hand, call: Call) -> None:
    one, two, three = (add(queue, n) for n in range(3))
    dead = one_dead(queue, hand, 4)

    said = call("delayq_jobs", "cancel", one.id)
    assert said.out == f"{one.id} is cancelled and will not run\n"
    said = call("delayq_jobs", "reschedule", two.id, "--in", "5h")
    assert said.out == f"{two.id} is rescheduled\n"
    assert call("delayq_jobs", "run", three.id).out == f"{three.id} is due now\n"
    said = call("delayq_jobs", "retry", dead.id)
    assert said.out == f"{dead.id} is retried: it is due now\n"

    assert one.refresh() is State.CANCELLED
    assert hand.start_times()[two.token] > hand.start_times().get(three.token, 0)
    assert two.refresh() is State.SCHEDULED
    assert {each.token for each in hand.take_many(2)} == {three.token, dead.token}


def test_dead_letter_is_discarded(queue: str, hand: Hand, call: Call) -> None:
    dead = one_dead(queue, hand, 4)

    said = call("delayq_jobs", "discard", dead.id)
    assert said.out == f"{dead.id} is discarded for good\n"
    assert dead.refresh() is State.DISCARDED


def test_job_that_has_begun_is_left_alone(queue: str, hand: Hand, call: Call) -> None:
    job = add(queue, 1, delay=0)
    leased = hand.take()

    for verb in (("cancel",), ("run",), ("reschedule", "--in", "1h"), ("retry",)):
        said = call("delayq_jobs", verb[0], job.id, *verb[1:])
        assert said.status == 1
        assert said.err == f"{job.id} is already running: a worker took it first\n"
    hand.succeed(leased)
    said = call("delayq_jobs", "cancel", job.id)
    assert (said.status, said.err) == (1, f"{job.id} has already succeeded\n")


def test_run_leaves_dead_letters_to_retry(queue: str, hand: Hand, call: Call) -> None:
    dead = one_dead(queue, hand, 4)

    said = call("delayq_jobs", "run", dead.id)

    assert (said.status, said.err) == (
        1,
        f"{dead.id} is a dead letter by now: retry or discard it instead\n",
    )
    assert dead.refresh() is State.DEAD


def test_one_id_that_leads_nowhere_stops_none_of_the_others(
    queue: str, call: Call
) -> None:
    job = add(queue, 1)

    said = call("delayq_jobs", "cancel", "--json", f"{queue}:nowhere", job.id)

    assert said.status == 1
    assert [json.loads(line) for line in said.lines] == [
        {"id": f"{queue}:nowhere", "changed": False, "state": None},
        {"id": job.id, "changed": True, "state": "cancelled"},
    ]


def test_found_jobs_are_changed_with_how_many_were_won_and_lost(
    queue: str, hand: Hand, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [add(queue, n) for n in range(5)]
    read = walk.Walk.read

    def claimed_meanwhile(self: Any, *args: Any) -> Any:
        found = yield from read(self, *args)
        if found is not None and jobs[0].refresh() is State.SCHEDULED:
            jobs[0].run_now()
            hand.take()
        return found

    monkeypatch.setattr(walk.Walk, "read", claimed_meanwhile)

    said = call("delayq_jobs", "cancel", "--queue", queue, "--yes")

    assert said.out == "4 jobs are cancelled; 1 was left alone (1 running)\n"
    assert said.status == 0


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (("cancel",), "3 jobs are cancelled\n"),
        (("reschedule", "--in", "9h"), "3 jobs are rescheduled\n"),
        (("run",), "3 jobs are due now\n"),
    ],
)
def test_what_waits_is_changed_and_nothing_else(
    queue: str, hand: Hand, call: Call, verb: tuple[str, ...], told: str
) -> None:
    dead = one_dead(queue, hand, 9)
    for n in range(3):
        add(queue, n)

    said = call("delayq_jobs", *verb, "--queue", queue, "--yes")

    assert (said.status, said.out) == (0, told)
    assert dead.refresh() is State.DEAD


def test_dead_letters_are_retried_and_discarded_by_a_filter(
    queue: str, hand: Hand, call: Call
) -> None:
    for n in range(3):
        one_dead(queue, hand, n)
    job = add(queue, 7)

    assert call("delayq_jobs", "discard", "--text", "2", "--yes").out == (
        "1 job is discarded\n"
    )
    said = call("delayq_jobs", "retry", "--queue", queue, "--yes", "--json")

    assert json.loads(said.out) == {"won": 2, "lost": {}}
    assert len(hand.take_many(2)) == 2
    assert job.refresh() is State.SCHEDULED


def test_dry_run_changes_nothing(queue: str, hand: Hand, call: Call) -> None:
    job, dead = add(queue, 1), one_dead(queue, hand, 2)

    said = call("delayq_jobs", "cancel", "--queue", queue, "--dry-run")
    assert said.lines[-1] == "1 job would be changed (1 scheduled)"
    said = call("delayq_jobs", "retry", "--queue", queue, "--dry-run", "--json")
    assert ids_of(said.out) == [dead.id]
    said = call("delayq_jobs", "cancel", job.id, dead.id, "--dry-run")
    assert said.out == f"{job.id} would be changed: it is scheduled\n"
    assert (
        said.err == f"{dead.id} is a dead letter by now: retry or discard it instead\n"
    )

    assert (job.refresh(), dead.refresh()) == (State.SCHEDULED, State.DEAD)


@pytest.mark.parametrize("verb", ["run", "reschedule", "cancel", "retry"])
def test_dry_run_says_what_would_be_if_a_job_is_deep_in_the_destination_queue(
    queue: str, hand: Hand, call: Call, verb: str
) -> None:
    hand.client.rpush(hand.keys.queue.destination, *["x"] * 1_050)
    job = add(queue, 1, delay=0)
    hand.wait_until_due(1)
    hand.run(claim_calls.transfer(hand.keys, batch=10))
    when = ["--in", "5m"] if verb == "reschedule" else []

    said = call("delayq_jobs", verb, job.id, *when, "--dry-run")

    assert (said.status, said.out) == (1, "")
    assert said.err == (
        f"{job.id} is left alone: it is unknown\n"
        if verb == "retry"
        else f"{job.id} is in a destination queue that is too long to search, or Java took it."
        " The change would apply only if a worker here takes it.\n"
    )
    assert not hand.client.hexists(hand.keys.notes, job.token)


@pytest.mark.parametrize(
    ("answer", "status", "state"),
    [("y", 0, State.CANCELLED), ("", 1, State.SCHEDULED), ("no", 1, State.SCHEDULED)],
)
def test_filter_is_asked_about_at_a_terminal(
    queue: str,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: int,
    state: State,
) -> None:
    jobs = [add(queue, n) for n in range(7)]
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)

    said = call("delayq_jobs", "cancel", "--queue", queue)

    assert asked == ["Cancel 7 jobs? (7 scheduled) [y/N] "]
    assert said.status == status
    assert {job.refresh() for job in jobs} == {state}
    # The first five are shown before the question.
    assert sum(job.id in said.out for job in jobs) == 5


def test_nothing_is_asked_where_nothing_is_found(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    assert call("delayq_jobs", "retry", "--queue", queue) == (
        0,
        "no matching jobs\n",
        "",
    )


def test_filter_needs_consent_where_nobody_can_be_asked(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add(queue, 1)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)

    said = call("delayq_jobs", "cancel", "--queue", queue)

    assert said.status == 1
    assert "Say --yes" in said.err
    assert job.refresh() is State.SCHEDULED


def test_interrupt_says_how_far_it_came(
    queue: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(150):
        add(queue, n)
    read, pages = walk.Walk.read, 0

    def interrupted(self: Any, *args: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise KeyboardInterrupt
        return (yield from read(self, *args))

    monkeypatch.setattr(walk.Walk, "read", interrupted)

    said = call("delayq_jobs", "cancel", "--queue", queue, "--yes")

    assert said.status == 1
    assert (
        said.err == "Interrupted: 100 jobs are cancelled. Run it again to continue.\n"
    )


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--due", "soon"], "not a range FROM..TO"),
        (["list", "--due", ".."], "not a range FROM..TO"),
        (["list", "--due", "9:00..10:00"], "'9:00' is neither a time from now"),
        (["list", "--limit", "all"], "invalid int value"),
        (["reschedule", "--queue", "NAME"], "one of the arguments --in --at"),
        (["reschedule", "--queue", "NAME", "--in", "-5"], "not a time such as"),
        (["reschedule", "--queue", "NAME", "--in", "soon"], "not a time such as"),
        (["replay"], "invalid choice"),
        ([], "VERB"),
    ],
)
def test_call_that_cannot_be_parsed_changes_nothing_and_says_what_to_do(
    queue: str, call: Call, arguments: list[str], message: str
) -> None:
    _assert_refused(queue, call, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--queue", "mails"], "'mails' is not configured"),
        (["cancel", "--state", "succeeded"], "cannot be found"),
        (["list", "--state", "failed"], "that failed are retrying, or dead or quarant"),
        (
            ["retry", "--state", "failed"],
            "that failed are retrying, or dead or quarant",
        ),
        (["list", "--state", "ended", "--state", "due"], "leave out --state due"),
        (["list", "--state", "ended", "--due", "..now"], "leave out --due"),
        (["list", "--state", "ended", "--limit", "-1"], "0 or more"),
        (["list", "--state", "ended", "--queue", "mails"], "is not configured"),
        (["list", "--state", "deed"], "'deed' is not a state"),
        (["cancel", "--state", "ended"], "delayq_jobs list --state ended"),
        (["list", "--due", "2h..1h"], "due begins after its end"),
        (["list", "--limit", "-1"], "0 or more"),
        (["list", "--text", ""], "not empty"),
        (["cancel"], "Say which jobs to cancel"),
        (["cancel", "--state", "running"], "cancel changes no job that is running"),
        (["retry", "--state", "scheduled"], "it takes those that are dead"),
        (["discard", "--state", "dead", "--state", "due"], "that is due"),
        (["cancel", "default:X", "--queue", "NAME"], "leave out --queue"),
        (["reschedule", "--queue", "NAME", "--at", "2020-01-01"], "has passed"),
    ],
)
def test_call_that_makes_no_sense_ends_with_status_2(
    queue: str, call: Call, arguments: list[str], message: str
) -> None:
    status = _assert_refused(queue, call, arguments, message)

    assert status == 2


def _assert_refused(queue: str, call: Call, arguments: list[str], message: str) -> int:
    job = add(queue, 1)

    said = call(
        "delayq_jobs", *(queue if each == "NAME" else each for each in arguments)
    )

    assert said.status
    assert message in said.err
    assert job.refresh() is State.SCHEDULED
    return said.status


def test_server_that_is_away_is_explained(
    queue: str, settings: Any, call: Call
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "redis://localhost:1/0"}

    for arguments in (
        ("list",),
        ("show", f"{queue}:X"),
        ("cancel", f"{queue}:X"),
        ("cancel", "--queue", queue, "--yes"),
    ):
        said = call("delayq_jobs", *arguments)
        assert said.status == 1
        assert "The server does not answer." in said.err
        assert "refused" in said.err


def test_replica_lists_and_refuses_changes(
    queue: str, settings: Any, call: Call, private_server: Callable[..., Server]
) -> None:
    server = private_server()
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": server.socket_url}
    job = add(queue, 1)
    client = server.client()
    # Of a primary that is not there it keeps what it has.
    client.replicaof("127.0.0.1", 1)

    assert call("delayq_jobs", "list").lines[1].startswith(job.id)
    for arguments in ((job.id,), ("--queue", queue, "--yes")):
        said = call("delayq_jobs", "cancel", *arguments)
        assert said.status == 1
        assert "replica" in said.err


def test_help_of_each_verb_speaks_the_readers_language() -> None:
    parser = load_command_class("django_delayq", "delayq_jobs").create_parser("", "")
    (verbs,) = (a for a in parser._actions if a.dest == "verb")

    assert list(verbs.choices) == ["list", "show", *VERBS]
    for name, verb in verbs.choices.items():
        assert "--settings" in {s for a in verb._actions for s in a.option_strings}
        assert f"{name} [-h]" in verb.format_usage()


# What is encrypted


@delayed_task(name="tests.jobs_command.guarded", encrypt=True)
def guarded(text: str) -> None: ...


def test_what_is_encrypted_is_shown_only_if_that_is_asked_for(
    queue: str, hand: Hand, call: Call
) -> None:
    job = schedule(guarded.using(queue=queue), LATER, "c4nary")
    add(queue, "another", delay=LATER)

    for arguments in (["list"], ["list", "--json"], ["show", job.id]):
        shut = call("delayq_jobs", *arguments)
        assert "c4nary" not in shut.out + shut.err
        assert "encrypted" in shut.out
        assert "c4nary" in call("delayq_jobs", *arguments, "--decrypt").out
    (shut,) = map(json.loads, call("delayq_jobs", "show", job.id, "--json").lines)
    assert (shut["args"], shut["kwargs"], shut["encrypted"]) == (None, None, True)
    (opened,) = map(
        json.loads, call("delayq_jobs", "show", job.id, "--json", "--decrypt").lines
    )
    assert opened["kwargs"] == {"text": "c4nary"}


def test_error_and_attempts_of_an_encrypted_job_are_shown_only_if_asked_for(
    queue: str, hand: Hand, call: Call
) -> None:
    job = schedule(guarded.using(queue=queue), 0, "x")
    leased = hand.take()
    keyring = get_keyring()
    error = stored_results.error_text(
        "c4nary",
        kind="failed",
        traceback="c4nary",
        at_ms=1,
        encrypt=lambda use, text: keyring.encrypt(use, job.token, text),
    )
    hand.run(lease_ends.bury(hand.keys, [Rejected(leased.token, leased.fence, error)]))

    for arguments in (["list"], ["list", "--json"], ["show", job.id]):
        shut = call("delayq_jobs", *arguments)
        assert "c4nary" not in shut.out + shut.err
        assert "c4nary" in call("delayq_jobs", *arguments, "--decrypt").out


def test_search_by_text_says_how_many_jobs_are_encrypted(
    queue: str, call: Call
) -> None:
    for n in range(2):
        schedule(guarded.using(queue=queue), LATER, f"c4nary {n}")
    add(queue, "c4nary and more", delay=LATER)

    said = call("delayq_jobs", "list", "--text", "c4nary", "--queue", queue)

    assert "c4nary and more" in said.out
    assert "2 encrypted jobs were not searched" in said.err
