"""A paused queue, whose claims lease nothing, and a paused task, whose jobs are held."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.core import stored_pauses
from django_delayq.core.claim import Mode
from django_delayq.core.hold import HeldNames, Released
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.core.stored_pauses import Pause, StoredPauses
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.pauses.calls import MAX_PAUSED_TASKS
from tests.core.rig import LEASE, T0, Rig, names_of, token
from tests.core.tour import hold_paused, mix

BEGIN = datetime.fromtimestamp(T0 / 1000, UTC)


def commands(rig: Rig) -> int:
    """Count the commands that scripts have run on the server so far."""
    stats = rig.client.info("commandstats").items()
    return sum(each["calls"] for name, each in stats if name != "cmdstat_info")


def fill(rig: Rig) -> None:
    """Bring one job into each place that a claim takes jobs from, all due at 2 * LEASE."""
    rig.schedule({"lost": 0})
    rig.claim(owner=b"owner--2")
    rig.schedule({"retried": 0})
    rig.retry(rig.lease())
    rig.schedule({"back": 0})
    rig.give_back(rig.lease())
    rig.lay("lying")
    rig.schedule({"frame": 5})
    rig.schedule({"listless": 6}, insertion_list=False)
    rig.now = 2 * LEASE
    rig.is_checked = False  # Java could have laid something there


ALL = ["back", "frame", "listless", "lost", "lying", "retried"]


def test_claim_on_a_paused_queue_leases_nothing_from_any_place(rig: Rig) -> None:
    fill(rig)
    before = rig.state()

    assert rig.pause(reason="migration", by="ops") == 1

    claimed = rig.claim()
    assert (claimed.jobs, claimed.wait_us, claimed.transferred) == ([], -1, 0)
    assert rig.claim_few() is None
    assert rig.state() == before
    assert rig.resume() == 1
    assert sorted(names_of(rig.claim())) == ALL


def test_claim_on_a_paused_queue_says_when_to_look_again(rig: Rig) -> None:
    fill(rig)
    rig.pause(until="+1500")

    assert rig.claim().wait_us == 1_500_000
    rig.now += 1499.5
    assert rig.claim().wait_us == 500
    rig.now += 0.5
    claimed = rig.claim()
    assert sorted(names_of(claimed)) == ALL
    assert claimed.pauses is None


def test_pause_that_has_ended_costs_no_later_claim_anything(rig: Rig) -> None:
    rig.schedule({"first": 0}, insertion_list=False)
    rig.pause(until="+5")
    rig.now = 5
    rig.claim()
    rig.schedule({"a": 0}, insertion_list=False)

    few = rig.claim_few()

    assert few is not None
    assert names_of(few) == ["a"]
    assert not rig.client.hexists(rig.keys.control, "paused")


def test_what_claims_of_a_paused_queue_cost_does_not_grow_with_what_waits(
    rig: Rig,
) -> None:
    rig.pause()

    def cost() -> int:
        before = commands(rig)
        rig.claim(500)
        return commands(rig) - before

    rig.claim()
    few = cost()
    rig.schedule({f"j{n}": 0 for n in range(400)})
    assert cost() == few


def test_repeat_of_a_claim_gets_its_leases_on_a_paused_queue(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    first = rig.claim(1, request=b"12345678")
    rig.pause()

    again = rig.claim(1, request=b"12345678")

    assert names_of(again) == names_of(first)
    assert again.jobs[0].fence == first.jobs[0].fence


def test_what_runs_goes_on_under_a_pause(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0, "c": 0, "d": 0})
    a, b, c, d = rig.claim().jobs
    rig.pause()

    assert rig.renew(a, b, c, d) == []
    assert rig.acknowledge(a) == []
    assert rig.retry(b, wait=0) == []
    assert rig.bury(c) == []
    assert rig.give_back(d) == []
    assert rig.claim().jobs == []
    rig.resume()
    assert sorted(names_of(rig.claim())) == ["b", "d"]


def test_lease_of_a_dead_worker_is_taken_up_after_the_pause(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.lease(owner=b"owner--2")
    rig.pause(until=f"+{3 * LEASE}")
    rig.recover(b"owner--2")
    rig.now = 3 * LEASE - 1
    assert rig.claim().jobs == []

    rig.now = 3 * LEASE

    (job,) = rig.claim().jobs
    assert (job.token, job.kills) == (token("a"), 1)


@pytest.mark.parametrize("format", ["direct", "shared"])
def test_only_a_shared_queue_transfers_under_a_pause(rig: Rig, format: str) -> None:
    mix(rig)
    rig.pause(until="+1000")

    claimed = rig.claim(20, mode=Mode(format))

    assert claimed.jobs == []
    is_shared = format == "shared"
    assert (claimed.transferred > 0) == is_shared
    assert ("destination" in rig.state()) == is_shared
    # The next frame is due in a ms, and only Java could take it.
    assert claimed.wait_us == (1_000 if is_shared else 1_000_000)


def test_consumer_of_the_destination_queue_is_no_worker_and_goes_on(rig: Rig) -> None:
    rig.lay("a")
    rig.pause()

    claimed = rig.claim(mode=Mode.TAKE)

    assert names_of(claimed) == ["a"]
    assert claimed.pauses is None


def test_pause_says_who_when_until_when_and_why(rig: Rig) -> None:
    name = rig.keys.queue.name
    rig.now = 7
    rig.pause(until="+1000", by="ann", reason="migration")
    rig.pause("shop.mail", by="bob", until=f"={T0 + 60_000}")
    rig.pause("shop.bill")
    at = BEGIN + timedelta(milliseconds=7)

    expected = [
        Pause(name, None, at, at + timedelta(seconds=1), "ann", "migration"),
        Pause(name, "shop.bill", at, None, "", ""),
        Pause(name, "shop.mail", at, BEGIN + timedelta(minutes=1), "bob", ""),
    ]
    assert rig.pauses() == expected
    stored = rig.claim().pauses
    assert stored is not None
    assert stored_pauses.read_pauses(name, stored, T0 + 7) == expected
    # Each ends by itself, by the server's clock.
    rig.now = 60_000
    assert rig.pauses() == expected[1:2]


def test_pause_in_words() -> None:
    pause = Pause("mail", None, BEGIN, None, "ann@web1", "migration")

    assert (
        str(pause)
        == "queue mail has been paused since 2023-11-14T22:13:20.000+00:00, by ann@web1: migration"
    )
    assert str(pause._replace(reason="a\nb  c")).endswith(", by ann@web1: a b c")
    assert (
        str(pause._replace(task="shop.mail", until=BEGIN, by="", reason=""))
        == "task shop.mail on queue mail has been paused since 2023-11-14T22:13:20.000+00:00, until 2023-11-14T22:13:20.000+00:00"
    )


@pytest.mark.parametrize("task", [None, "shop.mail"])
def test_pausing_again_changes_end_and_reason_and_not_the_beginning(
    rig: Rig, task: str | None
) -> None:
    rig.pause(task, until="+10", reason="one")
    rig.now = 5
    rig.pause(task, reason="two")

    (pause,) = rig.pauses()
    assert (pause.since, pause.until, pause.reason) == (BEGIN, None, "two")


@pytest.mark.parametrize("task", [None, "shop.mail"])
def test_pause_that_would_be_over_at_once_changes_nothing(
    rig: Rig, task: str | None
) -> None:
    rig.pause(task, reason="one")
    before = rig.client.hgetall(rig.keys.control)
    rig.now = 10

    assert rig.pause(task, until="+0") == 0
    assert rig.pause(task, until=f"={T0 + 10}") == 0
    assert rig.client.hgetall(rig.keys.control) == before


@pytest.mark.parametrize("task", [None, "shop.mail"])
def test_resume_says_whether_it_was_paused(rig: Rig, task: str | None) -> None:
    assert rig.resume(task) == 0
    rig.pause(task, until="+10")
    assert rig.resume(task) == 1
    assert rig.resume(task) == 0
    rig.pause(task, until="+10")
    rig.now = 10
    assert rig.resume(task) == 0
    assert {b"paused", b"paused_tasks"}.isdisjoint(rig.client.hgetall(rig.keys.control))


@pytest.mark.parametrize("task", [None, "shop.mail"])
def test_pause_and_resume_whose_replies_were_lost_answer_as_the_first_time(
    rig: Rig, task: str | None
) -> None:
    pause = pause_calls.pause(rig.keys, task=task, until="+10")
    assert rig.run(pause) == 1
    before = rig.pauses()
    assert rig.run(pause.again()) == 1
    assert rig.pauses() == before

    resume = pause_calls.resume(rig.keys, task=task)
    assert rig.run(resume) == 1
    assert rig.run(resume.again()) == 1
    assert rig.resume(task) == 0


def test_repeat_of_a_resume_ends_no_pause_that_came_after_it(rig: Rig) -> None:
    rig.pause()
    resume = pause_calls.resume(rig.keys)
    rig.run(resume)
    rig.pause(reason="another")

    rig.run(resume.again())

    assert [pause.reason for pause in rig.pauses()] == ["another"]


def test_pause_and_resume_wake_idle_workers(rig: Rig) -> None:
    with rig.listening(rig.keys.channel) as heard:
        rig.now = 3
        rig.pause()
        assert heard() == [3]
        rig.pause("shop.mail")
        assert heard() == [3]
        rig.resume("shop.mail")
        assert heard() == [3]
        rig.resume()
        assert heard() == [3]
        rig.resume()
        assert heard() == []


def test_jobs_of_a_paused_task_are_held_until_it_is_resumed(rig: Rig) -> None:
    rig.schedule({"d": 4}, unique="ek")
    rig.schedule({"c": 3, "a": 1, "b": 2})
    rig.now = 4
    rig.pause("shop.mail")
    jobs = rig.claim().jobs
    rig.hold(*jobs, task=Reason(Kind.PAUSED, "shop.mail"), hold_ms=None)

    assert rig.held_names() == HeldNames({Reason(Kind.PAUSED, "shop.mail"): 4}, 0)
    assert rig.inspect("a").state is State.HELD
    assert rig.schedule({"e": 0}, unique="ek")[0].holder == "d"
    # No worker releases it, however long that takes, even if it knows the task.
    rig.now = 10**9
    assert rig.release("shop.mail") == Released(0, 0, b"")
    rig.resume("shop.mail")
    released = rig.release(Reason(Kind.PAUSED, "shop.mail"), is_worker=False, limit=2)
    assert released.released == 2
    rig.now += 1
    rig.release(
        Reason(Kind.PAUSED, "shop.mail"), is_worker=False, cursor=released.cursor
    )
    claimed = rig.claim()
    assert names_of(claimed) == ["a", "b", "c", "d"]
    assert [(job.attempts, job.kills) for job in claimed.jobs] == [(0, 0)] * 4


def test_worker_releases_what_a_pause_held_that_ended_by_itself(rig: Rig) -> None:
    hold_paused(rig, "a")
    rig.pause("shop.mail", until="+50")
    rig.now = 49
    assert rig.release("shop.mail").released == 0

    rig.now = 50

    # Even one that does not know the task: then nobody else might come.
    assert rig.release("shop.other").released == 1
    assert names_of(rig.claim()) == ["a"]


def test_release_for_another_reason_leaves_paused_jobs_alone(rig: Rig) -> None:
    hold_paused(rig, "a")
    rig.resume("shop.mail")

    assert rig.release(Reason(Kind.KEY, "abcd"), is_worker=False).released == 0
    assert rig.release(Reason(Kind.PAUSED, "shop.mail"), is_worker=False).released == 1


def test_release_for_a_paused_task_releases_nothing(rig: Rig) -> None:
    hold_paused(rig, "a")

    assert rig.release(Reason(Kind.PAUSED, "shop.mail"), is_worker=False).released == 0


def test_job_whose_pause_ends_before_it_is_held_is_due_again(rig: Rig) -> None:
    rig.schedule({"a": 0, "b": 0})
    rig.pause("shop.mail", until="+10")
    rig.pause("shop.bill")
    a, b = rig.claim().jobs
    rig.now = 10

    with rig.listening(rig.keys.channel) as heard:
        rig.hold(b, task=Reason(Kind.PAUSED, "shop.bill"), hold_ms=None)
        assert heard() == []
        rig.hold(a, task=Reason(Kind.PAUSED, "shop.mail"), hold_ms=None)
        # A worker that looked when the pause ended did not see the job.
        assert heard() == [10]

    assert list(rig.state()["held"]) == ["b"]
    assert names_of(rig.claim()) == ["a"]


def test_release_that_is_no_workers_wakes_the_workers(rig: Rig) -> None:
    hold_paused(rig, "a")
    rig.resume("shop.mail")
    with rig.listening(rig.keys.channel) as heard:
        rig.release(Reason(Kind.PAUSED, "shop.mail"), is_worker=False)
        assert heard() == [0]


def test_held_job_of_a_paused_task_can_be_cancelled_and_moved(rig: Rig) -> None:
    hold_paused(rig, "a", "b")

    assert rig.cancel("a") == "cancelled"
    assert rig.reschedule("b", 5) == ("rescheduled", 5)

    assert rig.state() == {"returned": {"b": 5}}
    assert rig.held_names() == HeldNames({}, 0)


def test_claims_carry_the_pauses_of_tasks(rig: Rig) -> None:
    rig.schedule({"first": 0}, insertion_list=False)
    rig.claim()
    rig.pause("shop.mail")
    rig.schedule({"a": 0}, insertion_list=False)

    few = rig.claim_few()

    assert few is not None
    assert names_of(few) == ["a"]
    for claimed in (few, rig.claim(), rig.claim(mode=Mode.SHARED)):
        assert claimed.pauses is not None
        assert claimed.pauses.of_queue is None
        assert list(json.loads(claimed.pauses.of_tasks or b"")) == ["shop.mail"]


def test_repeat_of_a_claim_carries_the_pauses_of_tasks(rig: Rig) -> None:
    rig.schedule({"a": 0})
    rig.claim(request=b"12345678")
    rig.pause("shop.mail")

    again = rig.claim(request=b"12345678")

    assert names_of(again) == ["a"]
    assert again.pauses is not None


def test_so_many_tasks_of_a_queue_may_be_paused(rig: Rig) -> None:
    for n in range(MAX_PAUSED_TASKS):
        assert rig.pause(f"t{n}", until="+10") == 1

    assert rig.pause("one.more") == -1
    assert rig.pause("t0", reason="again") == 1
    assert len(rig.pauses()) == MAX_PAUSED_TASKS
    # What is over makes room.
    rig.now = 10
    assert rig.pause("one.more") == 1
    assert [pause.task for pause in rig.pauses()] == ["one.more", "t0"]


def test_pauses_that_are_over_are_forgotten_and_no_others(rig: Rig) -> None:
    rig.pause("a", until="+10")
    rig.pause("b")
    rig.now = 10

    assert rig.run(pause_calls.forget_over(rig.keys)) == 0

    stored = json.loads(rig.client.hget(rig.keys.control, "paused_tasks") or b"")
    assert list(stored) == ["b"]


FORGED = [
    b"",
    b"x",
    b"[]",
    b"{}",
    b"3",
    b"null",
    b'{"till":{}}',
    b'{"till":"x"}',
    b'{"till":"nan","since":"0"}',
    b'{"till":"inf","since":"0"}',
    b"[" * 100_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("bytes_", FORGED, ids=range(len(FORGED)))
def test_what_no_script_of_ours_wrote_is_no_pause(rig: Rig, bytes_: bytes) -> None:
    rig.schedule({"a": 0, "b": 0})
    tasks = b'{"shop.mail":%b}' % (bytes_ or b"3")
    for value in (bytes_, tasks):
        rig.client.hset(
            rig.keys.control, mapping={"paused": bytes_, "paused_tasks": value}
        )
        assert rig.pauses() == []
        claimed = rig.claim(1)
        assert len(claimed.jobs) == 1
        rig.hold(*claimed.jobs, task=Reason(Kind.PAUSED, "shop.mail"), hold_ms=None)
        assert "held" not in rig.state()
        assert rig.resume("shop.mail") == 0
        assert rig.resume() == 0
        assert rig.pause("shop.mail") == 1
        assert rig.resume("shop.mail") == 1


def test_times_that_no_clock_shows_are_read_as_the_last_that_it_shows() -> None:
    stored = StoredPauses(b'{"since":"-5","till":"9007199254740990"}', None)

    (pause,) = stored_pauses.read_pauses("mail", stored, T0)

    assert pause.since == datetime(1970, 1, 1, tzinfo=UTC)
    assert pause.until is not None
    assert pause.until.year == 9999
