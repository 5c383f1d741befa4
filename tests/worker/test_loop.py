"""Who gets which job, and when: the claim loop, in workers inside this process."""

import logging
import os
import random
import threading
import time
from collections import Counter

import msgspec
import pytest

from django_delayq import schedule, schedule_many
from django_delayq.clock import monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.core import scripts
from django_delayq.core.states import State
from django_delayq.jobs.stop import Stop
from django_delayq.transport.batch_size import BatchSizer
from django_delayq.transport.primary import LONGEST_PAUSE_MS
from django_delayq.transport.run import run
from django_delayq.transport.script import load_script, variants_of
from django_delayq.waiting.alarm import Alarm
from django_delayq.worker import claims, queue_state, upkeep
from django_delayq.worker import loop as loops
from django_delayq.worker import queue_state as plan
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.dispatch import Dispatch
from django_delayq.worker.process import DONE, REPLACE_ME
from django_delayq.worker.settle import Settlement
from django_delayq.worker.thread_executor import Shared, ThreadExecutor
from tests.polling import wait_until
from tests.queues.proxy import Proxy
from tests.scripts import script_of
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.workers import NEVER_MS, InlineWorker, counts


def commandstats(client):
    """Return how often each command was called, those of scripts included."""
    return {
        name.removeprefix("cmdstat_"): told["calls"]
        for name, told in client.info("commandstats").items()
    }


# Due.


@every_server
def test_no_job_is_early_and_an_idle_worker_is_hardly_late(work, records, queue_name):
    work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    schedule(task, 0)
    wait_until(lambda: records.count("run") == 1, description="the worker works")

    jobs = {}
    for delay_ms in range(100, 900, 20):
        job = schedule(task, delay_ms / 1000)
        jobs[job.id] = job.start_time_ms
    wait_until(
        lambda: records.count("run") == 1 + len(jobs), description="all have run"
    )

    # The server's clock is this machine's.
    late = [line["at_ms"] - jobs[line["job"]] for line in records.all("run")[1:]]
    assert min(late) >= 0
    # Some 1 ms on an idle machine; this one may be anything but.
    assert sorted(late)[len(late) // 10] < 100


def test_no_job_is_early_under_load(work, records, queue_name):
    work()
    work()
    task = tasks.note.using(queue=queue_name)
    jobs = schedule_many(task.prepare(random.random()) for _ in range(1000))

    wait_until(lambda: records.count("run") == 1000, description="all have run")

    due = {job.id: job.start_time_ms for job in jobs}
    assert all(line["at_ms"] >= due[line["job"]] for line in records.all("run"))
    assert len(set(records.jobs("run"))) == 1000


def test_a_job_made_due_by_another_client_starts_at_once(work, records, queue_name):
    worker = work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    job = schedule(task, 3600)
    wait_until(
        lambda: not worker.loop.queues[queue_name].is_ready, description="it is idle"
    )

    assert job.run_now()

    wait_until(lambda: records.count("run") == 1, description="it has run")


def test_an_idle_worker_hardly_talks_to_the_server(work, private_server, settings):
    server = private_server()
    names = ["one", "two", "three"]
    settings.DELAYQ = {
        "CONNECTION": server.socket_url,
        "QUEUES": {name: {} for name in names},
    }
    client = server.client()
    queues = work(names).loop.queues.values()

    def published():
        return client.pubsub_numsub("redisson_delay_queue_channel:{three}")[0][1]

    wait_until(published, description="the worker listens")
    wait_until(
        lambda: client.info("clients")["blocked_clients"] == 3, description="it waits"
    )
    wait_until(
        lambda: all(each.upkeep.next_ms > monotonic_ms() + 10_000 for each in queues),
        description="all was looked after, and will not be again within a minute",
    )
    before, begun_s = commandstats(client), time.monotonic()
    wait_until(lambda: time.monotonic() > begun_s + 4.2, description="time to pass")
    after = commandstats(client)

    sent = {
        name: after.get(name, 0) - before.get(name, 0)
        for name in ("evalsha", "blmove", "ping", "subscribe")
    }
    seconds = time.monotonic() - begun_s
    # A claim and a peek every two seconds each, and those of a start that was slow; pings for all queues together.
    most = len(names) * (seconds / 2 + 2)
    assert sent["evalsha"] <= most, sent
    assert sent["blmove"] <= most, sent
    assert sent["ping"] + sent["subscribe"] <= len(names) + seconds, sent


# Room.


@pytest.fixture
def idle_loop(configure, queue_name):
    """The loop of a worker that was not started; it has got through ten jobs a ms."""
    worker = InlineWorker([queue_name], threads=8)
    worker.loop._planner._pace.rate = 10.0
    # Else there would have to be room for as many coroutines.
    worker.loop.dispatch.async_names = frozenset()
    worker.loop.queues[queue_name].sizer.size = 500
    yield worker.loop
    worker.stop()


@pytest.mark.parametrize(
    ("call_ms", "running", "room"),
    [
        # Nothing is claimed that does not begin within 10 ms.
        (0.5, 0, 100),
        (0.5, 90, 15),
        (10, 0, 100),
        # Or within what the call takes, however many there are: a scan of a long list.
        (30, 0, 300),
        (90, 0, 500),
        # What will have run when its reply comes leaves room.
        (30, 300, 300),
        (30, 450, 150),
        (30, 650, 0),
    ],
)
def test_a_claim_is_as_large_as_what_begins_while_another_takes(
    idle_loop, queue_name, call_ms, running, room
):
    queue = idle_loop.queues[queue_name]
    queue.sizer.call_ms = call_ms
    idle_loop.dispatch.running = dict.fromkeys(range(running))

    assert idle_loop._planner.plan(queue).limit == room


@pytest.mark.parametrize(
    ("call_ms", "running", "limit"),
    [(0.5, 90, 15), (0.5, 99, 0), (30, 450, 150), (30, 460, 0)],
)
def test_while_jobs_wait_here_no_scan_is_paid_for_a_few(
    idle_loop, queue_name, monkeypatch, call_ms, running, limit
):
    queue = idle_loop.queues[queue_name]
    queue.sizer.call_ms, queue.sizer.element_ms = call_ms, 0.05
    idle_loop.dispatch.running = dict.fromkeys(range(running))
    monkeypatch.setattr(idle_loop.dispatch.threads, "queued", lambda: 9)

    assert idle_loop._planner.plan(queue).limit == limit


def test_with_free_threads_a_scan_is_paid_for_a_single_job(idle_loop, queue_name):
    queue = idle_loop.queues[queue_name]
    queue.sizer.call_ms, queue.sizer.element_ms = 30, 0.05
    idle_loop._planner._pace.rate = 0.01
    idle_loop.dispatch.running = dict.fromkeys(range(7))

    assert idle_loop._planner.plan(queue).limit == 1


# What is asked, and how often.


@pytest.fixture
def few(monkeypatch):
    """The replies to claims of a few, as they come."""
    replies = []
    make = claim_calls.claim_few

    def claim_few(keys, **how):
        call = make(keys, **how)

        def read(reply):
            replies.append(call.read(reply))
            return replies[-1]

        return msgspec.structs.replace(call, read=read)

    monkeypatch.setattr(claim_calls, "claim_few", claim_few)
    return replies


@every_server
def test_jobs_that_come_one_by_one_are_claimed_by_the_script_for_a_few(
    configure, work, records, queue_name, few
):
    # The record of the service is new enough for two minutes.
    configure({"INSERTION_LIST": False})
    work(cap_ms=NEVER_MS, lease_s=3600)
    task = tasks.note.using(queue=queue_name)

    for number in range(1, 5):
        schedule(task, 0.01)
        wait_until(
            lambda number=number: records.count("run") == number,
            description="it has run",
        )

    assert sum(len(claimed.jobs) for claimed in few if claimed) == 3
    assert len(set(records.jobs("run"))) == 4


def test_a_queue_where_more_is_to_be_done_is_soon_asked_by_the_whole_script_alone(
    configure, work, records, queue_name, few
):
    configure({"INSERTION_LIST": True})
    work(cap_ms=NEVER_MS, lease_s=3600)
    task = tasks.note.using(queue=queue_name)

    for number in range(1, 11):
        schedule(task, 0)
        wait_until(
            lambda number=number: records.count("run") == number,
            description="it has run",
        )

    # Tried twice, and left alone for a second then.
    assert [claimed for claimed in few if claimed and claimed.jobs] == []
    assert len(set(records.jobs("run"))) == 10


def test_a_lost_reply_to_a_claim_of_a_few_costs_no_job(
    configure, work, records, queue_name, few, settings, server
):
    configure({"INSERTION_LIST": False})
    proxy = Proxy(server)
    direct = settings.DELAYQ
    try:
        settings.DELAYQ = {**direct, "CONNECTION": proxy.url}
        work(cap_ms=NEVER_MS, lease_s=3600)
        settings.DELAYQ = direct
        task = tasks.note.using(queue=queue_name)
        schedule(task, 0)
        wait_until(lambda: records.count("run") == 1, description="it works")
        sha = load_script(scripts.PACKAGES, "claim_few").sha
        struck = proxy.lose_reply_to(sha.encode())

        job = schedule(task, 0)
        wait_until(struck.is_set, description="a reply is lost")

        wait_until(lambda: records.count("run") == 2, description="it has run")
        wait_until(lambda: job.refresh() is State.SUCCEEDED, description="ended")
        assert len(set(records.jobs("run"))) == 2
        assert job.kills == 0
    finally:
        proxy.close()


def test_before_a_job_is_due_an_idle_server_is_asked_for_its_clock_only(
    configure, work, records, queue_name, monkeypatch
):
    # Nothing is written about the jobs before.
    configure({"KEEP_ENDED": 0})
    asked = []
    worker = work(cap_ms=NEVER_MS)
    ask = worker.loop._line.ask
    monkeypatch.setattr(
        worker.loop._line, "ask", lambda call: asked.append(call) or ask(call)
    )

    # A busy machine may wake the loop only once the job is due; then it need not ask.
    while loops.TIME not in asked:
        runs = records.count("run")
        schedule(tasks.note.using(queue=queue_name), 0.3)
        wait_until(lambda: records.count("run") > runs, description="it has run")  # noqa: B023

    before = asked.index(loops.TIME)
    # Every few seconds a process reports on itself, and on a busy machine that may be now.
    reports = {script_of("register"), script_of("add_figures")}
    later = [
        each
        for each in asked[before:]
        if each is not loops.TIME and getattr(each, "script", None) not in reports
    ]
    claims = {
        script
        for name in ("claim", "claim_few")
        for script in variants_of(scripts.PACKAGES, name)
    }
    assert later[0].script in claims


# Order and weights.


def test_without_weights_the_first_queue_comes_first(
    configure, work, records, queue_name, monkeypatch
):
    # On a busy machine the last of the first queue might be given back, and come after some of the second.
    monkeypatch.setattr(claims, "STALLED_MS", 1e9)
    configure(low={}, high={})
    low, high = f"{queue_name}-low", f"{queue_name}-high"
    schedule_many(tasks.note.using(queue=low).prepare(0, "low") for _ in range(100))
    schedule_many(tasks.note.using(queue=high).prepare(0, "high") for _ in range(300))

    work([high, low], threads=1)

    wait_until(lambda: records.count("run") == 400, description="all have run")
    assert [line["text"] for line in records.all("run")] == ["high"] * 300 + [
        "low"
    ] * 100


def test_an_urgent_job_overtakes_what_waits_in_a_later_queue(
    configure, work, records, queue_name
):
    configure(low={}, high={})
    low, high = f"{queue_name}-low", f"{queue_name}-high"
    schedule_many(tasks.nap.using(queue=low).prepare(0, 0.1) for _ in range(20))
    work([high, low], threads=2)
    wait_until(lambda: records.count("start") >= 2, description="they run")

    schedule(tasks.note.using(queue=high), 0)
    before = records.count("start")

    wait_until(lambda: records.count("run") == 1, description="the urgent one has run")
    steps = [line["step"] for line in records.all()]
    # Those that ran when it came, and perhaps those after them.
    assert steps[: steps.index("run")].count("start") <= before + 4


@pytest.fixture
def storm(configure, queue_name, monkeypatch):
    """A worker that is not started, whose second queue always has more jobs than a claim brings."""
    room = plan.Room(40, 40)
    monkeypatch.setattr(claims.Planner, "room", lambda *_: room)
    monkeypatch.setattr(
        queue_state, "BatchSizer", lambda **_: BatchSizer(first=4, least=4, most=4)
    )
    monkeypatch.setattr(claims, "STALLED_MS", 1e9)
    configure(few={}, many={})
    few, many = f"{queue_name}-few", f"{queue_name}-many"
    schedule_many(tasks.note.using(queue=many).prepare(0) for _ in range(1000))
    wait_until(lambda: counts(many).due == 1000, description="all of them are due")
    worker = InlineWorker([few, many], cap_ms=NEVER_MS)
    # Else a queue whose turn it is not would be looked at for async jobs.
    worker.loop.dispatch.async_names = frozenset()
    yield worker.loop
    worker.loop.stop(0)
    # It reads the answer that is under way.
    worker.loop.run()
    worker.loop.end(lambda: None)
    worker.stop()


def tell_by_message(loop, queue):
    loop.message_came(queue.settings.name, b"0")


def tell_by_alarm(loop, queue):
    loop.alarm.ring_in(queue.settings.name, 0)


def tell_by_early_alarm(loop, queue):
    """Let the alarm ring before the deadline, and nobody hear it until that has passed."""
    queue.next_us, queue.next_ms = 0, monotonic_ms() + 10
    loop.alarm.ring_in(queue.settings.name, 10_000)
    wait_until(lambda: monotonic_ms() > queue.next_ms, description="the deadline")


@pytest.mark.parametrize("tell", [tell_by_message, tell_by_alarm, tell_by_early_alarm])
def test_a_queue_with_more_to_claim_keeps_no_earlier_queue_waiting(
    storm, monkeypatch, tell
):
    few, many = storm.queues.values()
    turns = []

    def hand_out(dispatch, queue, reply, *rest):
        turns.append(queue)
        original(dispatch, queue, reply, *rest)

    original = Dispatch.hand_out
    monkeypatch.setattr(Dispatch, "hand_out", hand_out)
    storm._turn()
    assert turns == [many]
    assert many.under_way is not None, "its next jobs are asked for"
    job = schedule(tasks.note.using(queue=few.settings.name), 0)
    wait_until(lambda: job.refresh() is State.DUE, description="it is due")

    tell(storm, few)
    storm._turn()
    storm._turn()

    # The first turn ends with a look at what has rung.
    assert turns[1:] == [many, few, many]
    assert many.is_ready, "it still has more"


def test_jobs_that_may_have_killed_their_workers_come_while_a_later_queue_has_more(
    storm, client, monkeypatch
):
    # As good as always due again: the storm lasts for some hundred turns, whatever their time.
    monkeypatch.setattr("django_delayq.worker.dispatch.SUSPECT_MS", (1.0, 1.0))
    monkeypatch.setattr("django_delayq.worker.dispatch.SUSPECT_EACH_MS", 0.0)
    few, many = storm.queues.values()
    schedule(tasks.note.using(queue=few.settings.name), 0)
    lose_leases(client, few.settings.name, 1, times=2)
    few.expect_nothing()
    storm._turn()
    assert many.under_way is not None, "which might bring one as well"

    turns = 0
    while storm._suspects.held is None:
        few.expect_anything()
        storm._turn()
        turns += 1
        assert many.is_ready, f"it was put off, {turns} times"


def test_weights_share_the_claims(configure, work, records, queue_name):
    configure(heavy={}, light={})
    heavy, light = f"{queue_name}-heavy", f"{queue_name}-light"
    for queue in (heavy, light):
        schedule_many(
            tasks.nap.using(queue=queue).prepare(0, 0.004) for _ in range(400)
        )

    work({heavy: 4, light: 1}, threads=1)

    wait_until(lambda: records.count("start") >= 200, description="some have run")
    first = Counter(job.rpartition(":")[0] for job in records.jobs("start")[:200])
    # 160 and 40, give or take six standard deviations of the draw.
    assert 5 <= first[light] <= 75
    assert first[heavy] + first[light] == 200


# No more than can be started.


def test_a_worker_leaves_to_others_what_it_cannot_start(work, records, queue_name):
    task = tasks.hold.using(queue=queue_name)
    schedule_many(task.prepare(0) for _ in range(8))

    work(threads=4)
    wait_until(lambda: records.count("start") == 4, description="four run")
    waiting = counts(queue_name)
    work(threads=4)
    wait_until(lambda: records.count("start") == 8, description="all run")

    assert waiting.running == 4
    assert waiting.waiting == 4
    assert records.count("end") == 0


def test_jobs_that_were_claimed_ahead_of_slow_ones_are_given_back(
    work, records, queue_name, caplog
):
    caplog.set_level(logging.DEBUG, "django_delayq")
    worker = work(threads=2)
    nothing = tasks.nothing.using(queue=queue_name)
    for n in range(1, 11):
        schedule_many(nothing.prepare(0) for _ in range(2000))
        wait_until(
            lambda n=n: counts(queue_name).counters.get("succeeded") == 2000 * n,
            description="they have run",
        )
        # A pause of this machine makes the worker forget what it has learnt.
        if n > 1 and worker.loop._planner._pace.rate > 1:
            break
    assert worker.loop._planner._pace.rate > 1, "it has learnt that jobs take no time"

    schedule_many(tasks.hold.using(queue=queue_name).prepare(0) for _ in range(30))

    wait_until(
        lambda: counts(queue_name).running == 2 and records.count("start") >= 2,
        description="it keeps what it can run only",
    )
    given_back = counts(queue_name)
    work(threads=28)
    wait_until(
        lambda: records.count("start") == 30, description="another runs the rest"
    )
    assert given_back.retrying + given_back.waiting == 28
    levels = {
        record.levelname
        for record in caplog.records
        if getattr(record, "delayq", {}).get("outcome") == "given_back"
    }
    assert levels == {"DEBUG"}
    assert {line["attempt"] for line in records.all()} == {1}
    assert {line["kills"] for line in records.all()} == {0}


def test_settlement_do_not_wait_for_what_is_queued(
    work, records, queue_name, monkeypatch
):
    monkeypatch.setattr(claims, "STALLED_MS", 1e9)
    worker = work(threads=1)
    schedule(tasks.nothing.using(queue=queue_name), 0)
    wait_until(
        lambda: counts(queue_name).counters.get("succeeded"), description="it runs"
    )
    # It believes that ten jobs take no time.
    worker.loop._planner._pace.rate = 1.0
    worker.loop._planner._pace.measure = lambda count, is_busy: None

    schedule_many(
        tasks.nap.using(queue=queue_name, keep_result=60).prepare(0, 2)
        for _ in range(8)
    )

    wait_until(lambda: records.count("end") >= 1, description="the first has ended")
    wait_until(
        lambda: counts(queue_name).counters["succeeded"] >= 2,
        description="its end is known",
    )
    # The last one ends after 16 s.
    assert records.count("end") < 8, "others wait"


# Leases.


def test_the_watchdog_keeps_the_lease_of_a_long_job(work, records, queue_name):
    options = {"lease_s": 3, "threads": 2}
    work(**options)
    work(**options)
    schedule(tasks.hold.using(queue=queue_name), 0)
    schedule(tasks.hold_async.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 2, description="both run")

    two_leases_s = time.monotonic() + 2 * options["lease_s"]
    wait_until(lambda: time.monotonic() > two_leases_s, description="leases go by")
    records.let_go()

    wait_until(lambda: records.count("end") == 2, description="both have ended")
    wait_until(lambda: counts(queue_name).running == 0, description="all is settled")
    assert records.count("start") == 2
    assert counts(queue_name).counters["succeeded"] == 2


def test_two_jobs_that_may_have_killed_their_workers_never_run_together(
    work, records, queue_name, client
):
    jobs = schedule_many(
        tasks.nap.using(queue=queue_name).prepare(0, 0.05) for _ in range(6)
    )
    lose_leases(client, queue_name, len(jobs), times=2)
    innocent = schedule_many(
        tasks.nap.using(queue=queue_name).prepare(0, 0.05) for _ in range(6)
    )

    work(threads=8)

    wait_until(lambda: records.count("end") == 12, description="all have run")
    wait_until(lambda: counts(queue_name).running == 0, description="all is settled")
    suspects = {job.id for job in jobs}
    steps = [line for line in records.all() if line["job"] in suspects]
    # One after the other: start and end take turns.
    assert [line["step"] for line in steps] == ["start", "end"] * 6
    assert {line["kills"] for line in steps} == {2}
    assert counts(queue_name).counters["succeeded"] == 12
    assert {job.id for job in innocent} < set(records.jobs("end"))


@pytest.mark.parametrize("is_weighted", [False, True])
def test_two_jobs_that_may_have_killed_their_workers_are_never_leased_together(
    configure, work, records, queue_name, client, monkeypatch, is_weighted
):
    """Not even until one of them is given back: who dies in that time would have killed both."""
    configure(low={}, high={})
    queues = [f"{queue_name}-high", f"{queue_name}-low"]
    for queue in queues:
        schedule_many(tasks.nap.using(queue=queue).prepare(0, 0.02) for _ in range(4))
        lose_leases(client, queue, 4, times=2)
        # Quick ones, of which the next are asked for ahead.
        schedule_many(tasks.note.using(queue=queue).prepare(0) for _ in range(200))
    leased = watch_suspects(monkeypatch, kills=2)

    work(dict.fromkeys(queues, 1.0) if is_weighted else queues, threads=2)

    wait_until(lambda: records.count("end") == 8, description="all have run")
    wait_until(lambda: records.count("run") == 400, description="the quick ones, too")
    assert max(leased) == 1


def test_what_is_asked_ahead_brings_no_second_job_that_may_have_killed_its_workers(
    work, records, queue_name, client, monkeypatch
):
    # There is always room, and it asks for few at once: so it asks ahead whenever it may.
    room = plan.Room(40, 40)
    monkeypatch.setattr(claims.Planner, "room", lambda *_: room)
    monkeypatch.setattr(
        queue_state, "BatchSizer", lambda **_: BatchSizer(first=4, least=4, most=4)
    )
    monkeypatch.setattr(claims, "STALLED_MS", 1e9)
    leased = watch_suspects(monkeypatch, kills=3)
    schedule_many(tasks.nap.using(queue=queue_name).prepare(0, 0.1) for _ in range(8))
    lose_leases(client, queue_name, 8, times=1)
    # Expired leases come in the order of their tokens: suspects and others by turns.
    suspects, others = b"suspects", b"innocent"
    for owner in [suspects, others] * 4:
        lease(client, queue_name, 1, owner)
    recover(client, queue_name, 4, suspects)
    lease(client, queue_name, 4, suspects)
    recover(client, queue_name, 4, suspects)
    recover(client, queue_name, 4, others)

    work(threads=2, max_kills=4)

    wait_until(lambda: records.count("end") == 8, description="all have run")
    assert max(leased) == 1


def test_jobs_that_were_put_off_have_run_when_a_burst_ends(
    work, records, queue_name, client
):
    schedule_many(tasks.nap.using(queue=queue_name).prepare(0, 0.3) for _ in range(3))
    lose_leases(client, queue_name, 3, times=2)

    worker = work(is_burst=True)

    assert worker.join() == DONE
    assert records.count("end") == 3


def test_one_that_lost_its_lease_before_it_began_holds_up_no_other(
    work, records, queue_name, client, monkeypatch
):
    lost = []

    def may_start(attempt):
        if not lost:
            lost.append(attempt.id)
            attempt.is_lost = True
        return start(attempt)

    start = Attempt.may_start
    monkeypatch.setattr(Attempt, "may_start", may_start)
    jobs = schedule_many(
        tasks.note.using(queue=queue_name).prepare(0) for _ in range(3)
    )
    lose_leases(client, queue_name, len(jobs), times=2)

    # The lost one is free again after that: the others have so long.
    work(lease_s=8)

    wait_until(
        lambda: records.count("run") == 3, description="all have run", timeout=60
    )
    assert records.jobs("run")[2] == lost[0]


def watch_suspects(monkeypatch, *, kills):
    """Return how many suspects are leased, of each reply with jobs."""
    leased = []

    def hand_out(dispatch, queue, reply, *rest):
        suspects = sum(job.kills == kills for job in reply.jobs)
        leased.append(suspects + dispatch.suspects.has_one())
        original(dispatch, queue, reply, *rest)

    original = Dispatch.hand_out
    monkeypatch.setattr(Dispatch, "hand_out", hand_out)
    return leased


def lease(client, queue, count, owner):
    claim = claim_calls.claim(
        get_settings().queue(queue).keys,
        owner=owner,
        request=os.urandom(8),
        limit=count,
        lease_ms=60_000,
    )
    assert len(run(client, claim).jobs) == count


def recover(client, queue, count, owner):
    keys = get_settings().queue(queue).keys
    assert run(client, claim_calls.recover(keys, owner=owner)).ended == count


def lose_leases(client, queue, count, *, times):
    """Be a worker that dies with everything it has claimed."""
    # What was scheduled for now is due within a ms.
    wait_until(
        lambda: counts(queue).waiting == counts(queue).due,
        description="all of them are due",
    )
    for _ in range(times):
        lease(client, queue, count, b"the dead")
        recover(client, queue, count, b"the dead")


def test_a_job_that_killed_its_worker_too_often_is_buried(
    work, records, queue_name, client
):
    job = schedule(tasks.note.using(queue=queue_name), 0)
    lose_leases(client, queue_name, 1, times=4)

    work(max_kills=3)

    wait_until(lambda: job.refresh() is State.DEAD, description="it is dead")
    assert job.kills == 4
    assert job.error["kind"] == "killed"
    assert records.count("run") == 0


# Queues in trouble.


@every_server
def test_a_queue_with_keys_of_another_type_does_not_stop_the_others(
    configure, work, records, queue_name, client, caplog
):
    configure(broken={})
    broken = f"{queue_name}-broken"
    keys = get_settings().queue(broken).keys
    client.set(keys.queue.timeout_set, "no sorted set")

    work([broken, queue_name])
    schedule(tasks.note.using(queue=queue_name), 0, "works")

    wait_until(lambda: records.count("run") == 1, description="the other queue works")
    client.delete(keys.queue.timeout_set)
    schedule(tasks.note.using(queue=broken), 0, "works again")
    wait_until(lambda: records.count("run") == 2, description="the queue works again")
    assert any(f"queue {broken} cannot be served" in line for line in caplog.messages)


@pytest.fixture
def led(monkeypatch):
    """All clients count as led by Sentinels, which may soon name another server."""
    monkeypatch.setattr("django_delayq.transport.primary.led_by", lambda client: client)


def test_a_queue_that_its_server_refuses_is_asked_for_again_before_sentinels_name_another(
    configure, work, queue_name, client, led, monkeypatch
):
    rings = []
    ring_in = Alarm.ring_in

    def note(alarm, name, wait_us, *args):
        rings.append((name, wait_us))
        ring_in(alarm, name, wait_us, *args)

    monkeypatch.setattr(Alarm, "ring_in", note)
    configure(broken={})
    broken = f"{queue_name}-broken"
    client.set(get_settings().queue(broken).keys.queue.timeout_set, "no sorted set")

    work([broken])

    again = broken, 1000 * LONGEST_PAUSE_MS
    wait_until(lambda: rings.count(again) > 1, description="it is asked for again")


def test_ends_that_a_server_refuses_are_told_again_before_sentinels_name_another(
    configure, work, records, queue_name, client, led, monkeypatch
):
    monkeypatch.setattr("django_delayq.worker.settle.REFUSED_MS", NEVER_MS)
    keys = get_settings().queue(queue_name).keys
    work()
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    spoil_headers(client, keys)
    refused = Settlement._refuse
    refusals = []

    def note(*args):
        refused(*args)
        refusals.append(args)

    monkeypatch.setattr(Settlement, "_refuse", note)
    records.let_go()
    wait_until(lambda: refusals, description="its end is refused")

    client.rename(f"{keys.headers}-aside", keys.headers)

    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it is settled")


@every_server
def test_ends_that_the_server_refuses_do_not_block_the_others_and_are_told_again(
    configure, work, records, queue_name, client
):
    configure(broken={})
    broken = f"{queue_name}-broken"
    keys = get_settings().queue(broken).keys
    work([broken, queue_name], threads=2)
    held = [schedule(tasks.hold.using(queue=broken), 0) for _ in range(2)]
    wait_until(lambda: records.count("start") == 2, description="both threads are busy")
    spoil_headers(client, keys)
    records.let_go()
    wait_until(lambda: records.count("end") == 2, description="both have ended")

    # What the server did not take must not count as running: there are two threads.
    others = [schedule(tasks.note.using(queue=queue_name), 0) for _ in range(10)]
    wait_until(
        lambda: records.count("run") == len(others),
        description="the other queue goes on",
    )
    wait_until(lambda: counts(queue_name).running == 0, description="and is settled")
    # In one step: without headers the ends would count as told.
    client.rename(f"{keys.headers}-aside", keys.headers)

    for job in held:
        wait_until(
            lambda job=job: job.refresh() is State.SUCCEEDED,
            description="it is settled",
        )
    assert records.count("start") == 2


def test_leases_of_other_queues_are_renewed_while_one_is_broken(
    configure, work, records, queue_name, client
):
    configure(broken={})
    broken = f"{queue_name}-broken"
    keys = get_settings().queue(broken).keys
    work([broken, queue_name], lease_s=3)
    schedule(tasks.hold.using(queue=broken), 0)
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 2, description="both run")

    spoil_headers(client, keys)
    work([queue_name], lease_s=3)

    two_leases_s = time.monotonic() + 6
    wait_until(lambda: time.monotonic() > two_leases_s, description="leases go by")
    records.let_go()
    wait_until(lambda: records.count("end") == 2, description="both have ended")
    # In one step: without headers the ends would count as told.
    client.rename(f"{keys.headers}-aside", keys.headers)
    wait_until(lambda: counts(queue_name).running == 0, description="one is settled")
    # That of the broken queue may run again by now.
    assert records.jobs("start").count(job.id) == 1


def spoil_headers(client, keys):
    """Put something else where the headers of leases are; in one step, or a renewal would find none."""
    with client.pipeline(transaction=True) as pipeline:
        pipeline.rename(keys.headers, f"{keys.headers}-aside")
        pipeline.set(keys.headers, "no hash")
        pipeline.execute()


def test_a_long_insertion_list_is_worth_a_warning(
    configure, work, queue_name, monkeypatch, caplog
):
    configure({"INSERTION_LIST": True})
    monkeypatch.setattr(upkeep, "LONG_LIST", 10)
    schedule_many(
        tasks.nothing.using(queue=queue_name).prepare(3600) for _ in range(11)
    )

    work()

    wait_until(
        lambda: (
            f"queue {queue_name}: its insertion list holds 11 frames" in caplog.text
        ),
        description="the warning",
    )


# Shared with Java.


@pytest.fixture
def shared(configure, queue_name):
    configure({"REDISSON": "3.16.6"})
    return get_settings().queue(queue_name).keys.queue.destination


@every_server
def test_due_frames_of_a_shared_queue_are_transferred_while_all_threads_are_busy(
    work, records, queue_name, client, shared
):
    # All of it at once, and not when the cap comes by.
    work(threads=1, cap_ms=NEVER_MS)
    schedule(tasks.hold.using(queue=queue_name), 0)
    wait_until(lambda: records.count("start") == 1, description="the thread is busy")
    before = commandstats(client)

    task = tasks.nap.using(queue=queue_name)
    schedule_many(task.prepare(0.2, 0.001) for _ in range(20))
    wait_until(lambda: client.llen(shared) == 20, description="they are transferred")
    records.let_go()
    wait_until(lambda: records.count("end") >= 1, description="the thread is free")
    after = commandstats(client)
    wait_until(lambda: records.count("end") == 21, description="they have run")

    # A list that nobody here has room for is not watched: that would answer thousands of times a second.
    assert after["blmove"] - before.get("blmove", 0) < 20
    assert after["evalsha"] - before["evalsha"] < 60


@every_server
def test_a_blocked_java_consumer_is_not_starved(
    work, queue_name, client, shared, server
):
    taken = []
    stop = threading.Event()

    def consume():
        with server.client() as java:
            while not stop.is_set():
                element = java.blpop([shared], timeout=0.2)
                if element is not None:
                    taken.append(element[1])

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        work()
        task = tasks.nothing.using(queue=queue_name)

        def ours():
            return counts(queue_name).counters.get("succeeded", 0)

        # Whoever waits when one arrives gets it; the worker gets what nobody waits for, and all that falls due
        # while the machine pauses.
        for n in range(1, 6):
            schedule_many(task.prepare(i / 100) for i in range(100))
            wait_until(
                lambda n=n: ours() + len(taken) == 100 * n,
                description="each is taken once",
            )
            if len(taken) >= 20:
                break
    finally:
        stop.set()
        consumer.join()
    assert len(taken) >= 20


def test_what_java_puts_into_the_list_is_taken_at_once(
    work, records, queue_name, client, shared
):
    worker = work(cap_ms=NEVER_MS)
    task = tasks.note.using(queue=queue_name)
    wait_until(
        lambda: not worker.loop.queues[queue_name].is_ready, description="it is idle"
    )

    client.rpush(shared, task.prepare(0).draft.new.payload)

    wait_until(lambda: records.count("run") == 1, description="it has run")


# Burst and the number of jobs.


def test_burst_ends_when_nothing_is_due(work, records, queue_name):
    schedule(tasks.schedule_more.using(queue=queue_name), 0, 20)
    later = schedule(tasks.note.using(queue=queue_name), 3600)

    worker = work(is_burst=True)

    assert worker.join() == DONE
    assert [line["text"] for line in records.all("run")] == list(range(20, -1, -1))
    assert later.refresh() is State.SCHEDULED
    assert counts(queue_name).running == 0


def test_burst_tells_that_a_queue_could_not_be_served(
    configure, work, records, queue_name, client
):
    configure(broken={})
    broken = f"{queue_name}-broken"
    client.set(get_settings().queue(broken).keys.queue.timeout_set, "no sorted set")
    schedule(tasks.note.using(queue=queue_name), 0)

    worker = work([broken, queue_name], is_burst=True)

    assert worker.join() == 1
    assert records.count("run") == 1


def test_a_worker_ends_after_its_number_of_jobs(work, records, queue_name):
    schedule_many(tasks.note.using(queue=queue_name).prepare(0) for _ in range(10))

    worker = work(max_jobs=3)

    assert worker.join() == REPLACE_ME
    assert records.count("run") == 3
    assert counts(queue_name).running == 0
    assert counts(queue_name).waiting == 7


def test_a_job_that_was_given_back_before_it_began_is_none_of_the_number(
    work, records, queue_name, monkeypatch
):
    kept = []

    def submit(threads, attempt):
        # No thread comes to take the first one.
        if kept:
            take(threads, attempt)
        else:
            kept.append(attempt)

    def take_back(threads):
        return take_all(threads) + [
            attempt for attempt in kept if attempt.verdict is None
        ]

    def queued(threads):
        return count(threads) + sum(attempt.verdict is None for attempt in kept)

    take, take_all = ThreadExecutor.submit, ThreadExecutor.take_back
    count = ThreadExecutor.queued
    monkeypatch.setattr(ThreadExecutor, "submit", submit)
    monkeypatch.setattr(ThreadExecutor, "take_back", take_back)
    monkeypatch.setattr(ThreadExecutor, "queued", queued)
    schedule(tasks.note.using(queue=queue_name), 0)

    worker = work(max_jobs=1)

    assert worker.join() == REPLACE_ME
    assert records.count("run") == 1


def test_a_sign_of_life_that_is_asked_for_is_no_job_that_waits():
    """Else the job that ends beside it would leave it to the others to have itself settled."""

    def ignore(*args):
        pass

    shared = Shared(
        timer=None,
        stop=Stop(),
        done=ignore,
        stuck=ignore,
        died=ignore,
        found_async=ignore,
    )
    threads = ThreadExecutor(1, shared)
    assert not threads.has_shown_life()
    assert threads.queued() == 0

    threads.submit("an attempt")

    assert threads.queued() == 1
    assert threads.take_back() == ["an attempt"]
    assert threads.queued() == 0


# The end.


def test_a_stopped_worker_lets_running_jobs_end_and_starts_no_more(
    work, records, queue_name
):
    # It ends when they have ended, and not when the cap comes by, or the grace.
    worker = work(threads=2, cap_ms=NEVER_MS)
    task = tasks.hold.using(queue=queue_name)
    jobs = schedule_many(task.prepare(0) for _ in range(4))
    wait_until(lambda: records.count("start") == 2, description="two run")

    worker.loop.stop(100)
    records.let_go()
    worker.join()

    assert worker.status == DONE
    assert records.count("end") == 2
    told = counts(queue_name)
    assert told.counters["succeeded"] == 2
    assert told.running == 0
    assert told.waiting + told.retrying == 2
    assert len(jobs) == 4


def test_what_runs_longer_than_the_grace_is_given_back_uncounted(
    work, records, queue_name
):
    worker = work(threads=2)
    tasks_of_queue = [
        tasks.hold.using(queue=queue_name),
        tasks.hold_async.using(queue=queue_name),
    ]
    jobs = [schedule(task, 0) for task in tasks_of_queue]
    wait_until(lambda: records.count("start") == 2, description="both run")

    begun_s = time.monotonic()
    worker.stop(grace_s=0.2)

    assert time.monotonic() - begun_s < 60  # and not 120
    assert counts(queue_name).running == 0
    for job in jobs:
        assert job.refresh() is State.DUE
        assert (job.attempts, job.kills) == (0, 0)
