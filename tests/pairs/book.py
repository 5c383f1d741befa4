"""What is known of each job of the model, and what must hold of it: kept, and checked, while jobs run.

The model tells its `Book` about each call, each start and each end. The book uses only what users can: `get_job`,
`find_jobs`, `ended_jobs`.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from django.contrib.auth.models import Group

from django_delayq import (
    Cancel,
    Job,
    MaybeScheduled,
    QueueFull,
    Retry,
    Snooze,
    State,
    conf,
    current_job,
    ended_jobs,
    find_jobs,
    get_job,
)
from django_delayq.core.queue_reads import counts
from django_delayq.transport.run import run
from django_delayq.worker.attempt import Attempt, Verdict
from tests.pairs.features import FEATURES
from tests.pairs.stage import Stage

#: Clocks are read one after the other, on a busy machine; all waits are longer by far.
SLACK_MS = 2_000
#: What no log may say.
SECRET = "cannot-be-shown"
#: The states of jobs that are given up, and may be retried or discarded.
GIVEN_UP = ("dead", "quarantined")

_book: "Book | None" = None


def body(n: int, key: int = 0, token: str = "") -> int:
    """What every task of the model does: whatever its call was to do this time."""
    assert _book is not None
    return _book.act(n, token)


class Fatal(Exception):
    """An error after which no attempt follows."""


@dataclass
class Call:
    """One call of a task: what it was asked to do, with which features."""

    n: int
    task: str
    key: int
    #: What its attempts do, one after the other; the last one again and again.
    acts: list[str]
    features: set[str]
    #: Epoch ms; None: when the job before it has ended, so long after.
    start_ms: float | None
    delay_ms: float
    expires_ms: float | None = None
    spread_ms: float = 0.0
    #: What it does to a job that holds its unique key.
    modes: tuple[str, ...] = ("keep",)
    runs: int = 0


@dataclass(eq=False, repr=False)
class Life:
    """What is known of one job."""

    id: str
    call: Call
    handle: Job[Any]
    #: The calls whose arguments were replaced.
    replaced: list[Call] = field(default_factory=list)
    state: str = "waiting"
    #: It may not begin before, epoch ms.
    earliest_ms: float = 0.0
    #: Somebody moved it, or gave it other arguments: some bounds hold no more.
    is_moved: bool = False
    #: Its worker was killed after its function was called.
    was_killed: bool = False
    #: It holds its unique key no more, or another job may have it as well.
    has_lost_key: bool = False
    ends: list[str] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    #: By what it runs: the limit and its key, and the unique key.
    slot: tuple[str, ...] = ()
    then: list["Life"] = field(default_factory=list)
    on_dead: list["Life"] = field(default_factory=list)
    #: Of a callback, the jobs of its batch.
    members: list["Life"] = field(default_factory=list)
    #: What it does in the database is done once: so its task says at its last run.
    is_once: bool = False
    schedule: str = ""

    def __repr__(self) -> str:
        return f"<{self.id} {self.state}, call {self.call.n} of {self.call.task}>"

    @property
    def queue(self) -> str:
        return self.id.rpartition(":")[0]

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running", "unsent")


class Broken(BaseException):
    """Something that must hold does not. No attempt takes it for a failure of its task."""


def open_book(book: "Book") -> None:
    """Have tasks of the model tell this book that they run."""
    global _book
    _book = book


class Book:
    """The jobs of one seed."""

    def __init__(self, seed: int, stage: Stage) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        #: The options of each queue.
        self.queues: dict[str, dict[str, Any]] = {}
        self.stage = stage
        self.lives: dict[str, Life] = {}
        self.calls: dict[int, Call] = {}
        self.story: list[str] = []
        self.tasks: dict[str, dict[str, Any]] = {}
        #: The queues, and tasks of queues, that are paused; since when; and the pauses that are over, with their ends.
        self.paused: set[tuple[str, str | None]] = set()
        self.paused_ms: dict[tuple[str, str | None], float] = {}
        self.pauses: list[tuple[str, str | None, float, float]] = []
        self.limits_set: dict[str, int | None] = {}
        #: When jobs of a limit and its key started in the last minute, epoch ms.
        self.starts: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self.schedules: dict[str, dict[str, Any]] = {}
        #: Of each schedule and moment, the jobs that were seen for it.
        self.moments: dict[tuple[str, float], set[str]] = defaultdict(set)
        self.occurred: Counter[frozenset[str]] = Counter()
        #: Jobs that somebody has moved with many others.
        self.moved_ids: set[str] = set()
        #: Jobs of schedules that came beside their moments.
        self.fired: set[str] = set()
        #: Jobs of schedules that became dead letters without a run.
        self.buried: set[str] = set()
        #: What the server has lost.
        self.lost: set[str] = set()
        self.has_lost_key = False
        self.stepped = 0
        stage.chance = random.Random(seed + 1)
        stage.on_end = self.on_end
        stage.on_claim = self.on_claim
        stage.before_claim = self.before_claim
        stage.after_claim = self.after_claim
        stage.losses = 0.03

    def say(self, text: str) -> None:
        self.story.append(f"{self.stage.server_ms() / 1000 % 100_000:.3f} {text}")

    def fail(self, text: str) -> None:
        self.say(f"broken: {text}")
        raise Broken(f"seed {self.seed}: {text}")

    @property
    def now_ms(self) -> float:
        return self.stage.server_ms()

    def count(self, queue: str) -> int:
        return run(
            self.stage.client, counts(conf.get_settings().queue(queue).keys)
        ).jobs

    def waiting(self) -> list[Life]:
        return [life for life in self.lives.values() if life.state == "waiting"]

    def disturb(self) -> None:
        """Note that somebody has changed what waits, so that not each moment of a schedule has a run."""
        for each in self.schedules.values():
            each["is_whole"] = False

    def store(
        self,
        job: Job[Any],
        call: Call,
        life: Life,
        send: Callable[[], Any],
        *,
        is_promised: bool = False,
    ) -> bool:
        """Send a call, and note what became of it; return whether it is a job of its own."""
        before = self.holder_of(call)
        try:
            send()
        except MaybeScheduled as error:
            if not self.has_lost_key:
                self.say(
                    f"could not store {call}: {get_job(found.id) if (found := self.holder_of(call)) else None}"
                )
                raise
            self.say(
                f"not stored {job.id}, as who holds its key cannot be read: {error}"
            )
            return False
        except QueueFull as error:
            self.say(f"full {job.id} {call}")
            if error.count < error.limit and error.count + 1 <= error.limit:
                self.fail(f"QueueFull with {error.count} of {error.limit}")
            return False
        if job.created:
            if before is not None and job.id != before.id:
                self.fail(f"{job.id} was stored although {before} holds its key")
            self.lives[job.id] = life
            life.earliest_ms = (call.start_ms or 0) - SLACK_MS
            self.say(f"stored {job.id} {call}")
            most = self.queues[life.queue].get("MAX_JOBS")
            if not is_promised and most is not None and self.count(life.queue) > most:
                self.fail(f"{job.id} was stored: {self.count(life.queue)} of {most}")
            return True
        found = self.lives.get(job.id)
        if found is None:
            self.fail(f"{call} found {job.id}, which is not known")
        assert found is not None
        self.say(f"merged into {job.id} replaced={job.replaced} {call}")
        if found.is_over:
            self.fail(f"{call} was merged into {found}, which has ended")
        if found.call.task != call.task or found.call.key != call.key:
            self.fail(f"{call} was merged into {found}, of another key")
        modes = call.modes
        found.call.features |= {
            f"met {f}" for f in call.features if f.startswith("unique")
        }
        if job.replaced:
            found.is_moved = True
            if "replace" in modes:
                found.replaced.append(found.call)
                kept = {
                    "then",
                    "on_dead",
                    "batch",
                    "outbox",
                    "bulk changes",
                    "pause",
                    "retry",
                }
                call.features |= {
                    f for f in found.call.features if f in kept or f.startswith("met ")
                }
                found.call = call
                found.was_killed = False
            if "postpone" in modes:
                found.earliest_ms = max(
                    found.earliest_ms, (call.start_ms or 0) - SLACK_MS
                )
            else:
                found.earliest_ms = 0
        elif modes != ("keep",) and found.state == "waiting" and "replace" in modes:
            self.fail(
                f"{call} met {found}, which waits, and did not replace its arguments"
            )
        return False

    def holder_of(self, call: Call) -> Life | None:
        """Return the job that surely holds the unique key of a call, and waits."""
        options = self.tasks[call.task]
        if not options.get("unique"):
            return None
        for life in self.lives.values():
            if (
                life.call.task == call.task
                and life.call.key == call.key
                and life.state == "waiting"
                and not life.has_lost_key
                and not life.schedule
                and life.handle.task == call.task
                and life.call.expires_ms is None
                and "unique, keep" in str(life.call.features)
                and not life.started
            ):
                return life
        return None

    def act(self, n: int, token: str) -> int:
        """Do what a call was to do this time; called as the task."""
        job = current_job()
        assert job is not None
        now_ms = self.now_ms
        call = self.calls[n]
        life = self.lives.get(job.id)
        if job.schedule_name:
            life = self.of_schedule(job, call, now_ms)
        if life is None:
            self.fail(f"{job.id} runs with {call}, and nobody has stored it")
            raise AssertionError
        self.check_start(life, call, now_ms)
        life.started.append(now_ms)
        life.state = "running"
        act = call.acts[min(call.runs, len(call.acts) - 1)]
        call.runs += 1
        life.is_once = bool(self.tasks[call.task].get("once"))
        if life.is_once:
            Group.objects.create(name=f"{job.id} {n} {len(life.started)}")
        self.stage.lasts_us = self.rng.choice((0, 0, 0, 3, 12, 45)) * 1_000_000
        self.say(f"run {job.id} {n} {act} lasts {self.stage.lasts_us // 1_000_000}")
        match act:
            case "fail":
                raise ValueError(f"call {n} {token}")
            case "die":
                raise Fatal(f"call {n} {token}")
            case "snooze":
                raise Snooze(11)
            case "retry":
                raise Retry(13)
            case "cancel":
                raise Cancel("as asked")
        return n

    def of_schedule(self, job: Job[Any], call: Call, now_ms: float) -> Life:
        name = job.schedule_name
        life = self.lives.get(job.id)
        if life is None:
            if name not in self.schedules:
                self.schedules[name] = {"overlap": True, "is_whole": False}
            its = Call(call.n, call.task, 0, call.acts, set(call.features), None, 0)
            life = self.lives[job.id] = Life(job.id, its, job, schedule=name)
            life.is_moved = job.id in self.moved_ids
            if life.is_moved:
                its.features.add("bulk changes")
        assert job.occurrence is not None
        occurrence_ms = job.occurrence.timestamp() * 1000
        ids = self.moments[name, occurrence_ms] if job.id not in self.fired else set()
        ids.add(job.id)
        if len(ids) > 1:
            self.fail(f"{name} has two jobs for {job.occurrence}: {ids}")
        if any(
            queue == life.queue
            and task in (None, call.task)
            and since <= occurrence_ms < till
            for queue, task, since, till in self.pauses
        ):
            life.call.features.add("pause")
        if now_ms < occurrence_ms - SLACK_MS and not life.is_moved and not self.stepped:
            self.fail(f"{name} ran {occurrence_ms - now_ms} ms before {job.occurrence}")
        # A limit that the task has got since takes the place of the schedule's own; and jobs of a definition before may
        # overlap if that allowed it.
        has_limit = bool(self.tasks[call.task].get("limit"))
        is_alone = "overlap=False" in call.features and not has_limit
        if (
            is_alone
            and not self.schedules[name]["overlap"]
            and "slots" not in self.lost
        ):
            for other in self.lives.values():
                if (
                    other.schedule == name
                    and other.state == "running"
                    and "overlap=False" in other.call.features
                    and other is not life
                ):
                    self.fail(f"{name} runs {other} and {life} at once")
        # Each job of the schedule makes its own attempts.
        call.runs = life.call.runs
        life.call.runs += 1
        return life

    def check_start(self, life: Life, call: Call, now_ms: float) -> None:
        if life.is_over:
            self.fail(f"{life} runs at {now_ms}, and has ended")
        if life.state == "unsent":
            self.fail(f"{life} follows a job that has not ended, and runs")
        if not life.schedule and life.call.n != call.n:
            self.fail(f"{life} runs with the arguments of call {call.n}")
        if now_ms < life.earliest_ms:
            self.fail(f"{life} runs {life.earliest_ms - now_ms} ms early")
        options = self.tasks[call.task]
        for queue, task in self.paused:
            if queue == life.queue and task in (None, call.task):
                self.fail(f"{life} runs while {queue} {task} is paused")
        if (
            call.expires_ms is not None
            and call.start_ms is not None
            and not life.started
            and not life.is_moved
            and not self.stepped
            and now_ms > call.start_ms + call.expires_ms + call.spread_ms + SLACK_MS
        ):
            self.fail(f"{life} runs at {now_ms}, too late")
        running = [each for each in self.lives.values() if each.state == "running"]
        self.check_limits(life, call, now_ms, running)
        holds = "unique" in str(call.features) and not life.schedule
        if holds and options.get("unique_until") != "start":
            for other in running:
                if (
                    other.call.task == call.task
                    and other.call.key == call.key
                    and not (other.has_lost_key or life.has_lost_key)
                    and "unique" in str(other.call.features)
                    and "unique until start" not in other.call.features
                ):
                    self.fail(f"{life} runs beside {other}, which has its key")
        left = [each for each in life.members if not (each.is_over or each.ends)]
        if left and not life.is_moved:
            self.fail(f"{life} runs, and {left} of its batch have not ended")

    def check_limits(
        self, life: Life, call: Call, now_ms: float, running: list[Life]
    ) -> None:
        """Make sure that no limit runs more jobs than it may, nor starts them too soon."""
        limit = self.tasks[call.task].get("limit")
        life.slot = ()
        if limit is not None and "overlap=False" not in call.features:
            key = str(call.key) if limit.key else ""
            life.slot = (life.queue, limit.name, key)
            most = self.limits_set.get(limit.name, limit.concurrency)
            beside = [each for each in running if each.slot == life.slot]
            if most is not None and len(beside) >= most and "slots" not in self.lost:
                self.fail(f"{life} runs beside {beside}, limit {most}")
            if limit.rate and not self.lost & {"paces", "code"} and not self.stepped:
                starts = self.starts[life.slot]
                starts[:] = [each for each in starts if each > now_ms - 60_000]
                starts.append(now_ms)
                # All rates here are six a minute, one of which may be late.
                if len(starts) > 7:
                    self.fail(f"{life} starts, with {starts} within a minute")
        most = self.queues[life.queue].get("CONCURRENCY")
        beside = [each for each in running if each.queue == life.queue]
        if most is not None and len(beside) >= most and "slots" not in self.lost:
            self.fail(f"{life} runs beside {beside}, CONCURRENCY {most}")

    def on_end(self, attempt: Attempt, verdict: Verdict, begin_ms: float) -> None:
        life = self.lives.get(attempt.id)
        if life is None:
            if verdict is not Verdict.HOLD and verdict is not Verdict.GIVE_BACK:
                self.say(
                    f"end {attempt.id} {verdict} {attempt.message}, of a schedule, which did not run"
                )
                if verdict is Verdict.BURY:
                    self.buried.add(attempt.id)
            return
        self.say(f"end {attempt.id} {verdict} {attempt.message}")
        if (
            attempt.secrets
            and SECRET.encode() in attempt.error + attempt.message.encode()
        ):
            self.fail(
                f"{life} tells what is sensitive: {attempt.error!r} {attempt.message}"
            )
        if attempt.encrypts and SECRET.encode() in attempt.error + attempt.result:
            self.fail(f"{life} leaves readable what is encrypted")
        if verdict in (Verdict.HOLD, Verdict.GIVE_BACK):
            if life.state == "running":
                self.fail(f"{life} is held while it runs")
            if attempt.hold is not None:
                life.call.features.add("pause")
            if "unique until start" in life.call.features:
                life.has_lost_key = True
            return
        if verdict is Verdict.DROP:
            self.fail(f"{life} was dropped as a double")
        if verdict in (Verdict.RETRY, Verdict.SNOOZE):
            life.state = "waiting"
            wait_ms = {"fail": 7, "snooze": 11, "retry": 13}
            last = life.call.acts[min(life.call.runs - 1, len(life.call.acts) - 1)]
            life.earliest_ms = begin_ms + wait_ms.get(last, 0) * 1000 - SLACK_MS
            life.call.features.add("retry" if verdict is Verdict.RETRY else "snooze")
            return
        if verdict is Verdict.QUARANTINE:
            self.fail(f"{life} went to quarantine: {attempt.error!r}")
        if verdict is Verdict.EXPIRE and life.state == "running":
            self.fail(f"{life} has expired while it ran")
        self.end(life, verdict.value, begin_ms)
        keeps = attempt.options is not None and attempt.options.keep_result
        if verdict is Verdict.SUCCEED and keeps and not life.schedule:
            found = get_job(life.id).wait(timeout=1)
            # A second run of what is done once returns nothing.
            was_before = life.was_killed or "succeeded" in life.ends[:-1]
            is_second = was_before and "once" in life.call.features and found is None
            if found != life.call.n and not is_second:
                self.fail(f"{life} returned {life.call.n}, and its result is {found}")

    def end(self, life: Life, how: str, begin_ms: float = 0) -> None:
        if life.is_over:
            self.fail(f"{life} ends as {how}, and had ended")
        life.state = how
        life.ends.append(how)
        shown = sorted(self.shown(life, how))
        self.occurred.update(frozenset(pair) for pair in combinations(shown, 2))
        follows = (
            life.then if how == "succeeded" else life.on_dead if how == "dead" else []
        )
        for each in follows:
            # After a retry they come once more, unless they are still there.
            if each.state == "unsent" or (each.is_over and each.state not in GIVEN_UP):
                each.state, each.call.runs = "waiting", 0
                each.earliest_ms = begin_ms + each.call.delay_ms - SLACK_MS
                self.lives[each.id] = each
                self.say(f"{each.id} follows {life.id} {each.call}")
        if life.is_once and life.started and how == "succeeded":
            effects = Group.objects.filter(
                name__startswith=f"{life.id} {life.call.n} "
            ).count()
            if effects != 1 and not life.replaced:
                self.fail(f"{life} has done {effects} times what it does once")

    def revive(self, life: Life) -> None:
        life.state = "waiting"
        life.is_moved = life.has_lost_key = True
        life.earliest_ms = 0
        life.call.runs = 0

    def shown(self, life: Life, how: str) -> set[str]:
        """Return the features of a job that have touched what they touch, now that it ends."""
        features = life.call.features
        shown = {f.removeprefix("met ") for f in features if f.startswith("met ")}
        if life.started or how in ("expired", "dead"):
            shown |= {f for f in features if not f.startswith(("unique", "met "))}
            if "unique until start" in features and shown & {
                "unique, keep",
                "unique, replace",
                "unique, postpone",
                "unique, sooner",
            }:
                shown.add("unique until start")
        else:
            shown |= features & {
                "bulk changes",
                "pause",
                "MAX_JOBS",
                "REDISSON",
                "KEEP_ENDED",
                "batch",
                "outbox",
            }
        return shown & FEATURES.keys()

    def on_claim(self, queue: str, reply: Any) -> None:
        for end in reply.ends or ():
            life = self.lives.get(f"{queue}:{end.token}")
            self.say(f"claim ended {queue}:{end.token} {end.state} {end.why}")
            if life is not None and end.state is State.CANCELLED and not life.is_over:
                self.end(life, "cancelled")

    def before_claim(self, queue: str) -> dict[str, int]:
        """Return the jobs that are due on a queue, and the priority of each."""
        if "REDISSON" in self.queues.get(queue, {}):
            return {}
        if (queue, None) in self.paused or "ranked" in self.lost:
            return {}
        if not self.may_have_priorities(queue):
            return {}
        return {job.id: job.priority for job in find_jobs(queue=queue, state="due")}

    def may_have_priorities(self, queue: str) -> bool:
        """Whether a job that is due on a queue may have a priority."""
        now_ms = self.now_ms
        # A schedule whose call is not known has been replaced, or is to be.
        return any(
            "n" not in each or "priority" in self.calls[each["n"]].features
            for each in self.schedules.values()
        ) or any(
            life.state == "waiting"
            and life.queue == queue
            and life.earliest_ms <= now_ms
            and "priority" in life.call.features
            for life in self.lives.values()
        )

    def after_claim(
        self, queue: str, due: dict[str, int], leased: Sequence[Any]
    ) -> None:
        """Make sure that no job was passed over by one of a lower priority."""
        for one in leased:
            its = due.get(f"{queue}:{one.token}")
            if its is None:
                continue
            for other, priority in due.items():
                if priority > its and get_job_state(other) == "due":
                    self.fail(
                        f"{queue}:{one.token} of priority {its} came before {other} of {priority}"
                    )

    def check_schedules(self) -> None:
        """Make sure that a schedule that catches up has had each of its moments."""
        for name, mine in self.schedules.items():
            if not mine["is_whole"] or self.stepped:
                continue
            call = self.calls[mine["n"]]
            if call.features & {"expires", "overlap=False"}:
                continue
            every_ms = mine["every"] * 1000
            until_ms = (mine["until_ms"] or self.drained_ms) - 2_000
            occurrence_ms = (mine["from_ms"] // every_ms + 1) * every_ms
            while occurrence_ms < until_ms:
                if not self.moments[name, occurrence_ms]:
                    self.fail(f"{name} left out {occurrence_ms / 1000 % 100_000:.0f}")
                occurrence_ms += every_ms

    def check_ended(self) -> None:
        for name, options in self.queues.items():
            if options.get("KEEP_ENDED", 1) == 0 or "last_ended" in self.lost:
                continue
            records: dict[str, list[str]] = defaultdict(list)
            for record in ended_jobs(name, limit=1000):
                records[record.id].insert(0, record.outcome.value)
            for life in self.lives.values():
                if (
                    life.queue == name
                    and life.ends
                    and not (life.was_killed or life.id in self.buried)
                    and life.ends != records[life.id]
                ):
                    self.fail(
                        f"{life} has ended as {life.ends}, and the queue remembers {records[life.id]}"
                    )

    def check_keys(self, name: str) -> None:
        keys = conf.get_settings().queue(name).keys
        left = {}
        for field_name in [
            "locators",
            "headers",
            "payloads",
            "errors",
            "notes",
            "unique",
            "leases",
            "retries",
            "returned",
            "held",
            "held_tasks",
            "moving",
            "moving_from",
            "ranked",
            "slots",
            "batches",
            "dead",
            "quarantine",
            "progress",
            "periods",
        ]:
            if self.stage.client.exists(getattr(keys, field_name)):
                left[field_name] = _content(
                    self.stage.client, getattr(keys, field_name)
                )
        for key in (
            keys.queue.timeout_set,
            keys.queue.delay_queue,
            keys.queue.destination,
        ):
            if self.stage.client.exists(key):
                left[key] = _content(self.stage.client, key)
        if left:
            self.fail(f"queue {name} keeps {left}")


def get_job_state(job_id: str) -> str:
    from django_delayq import JobNotFound

    try:
        return get_job(job_id).state.value
    except JobNotFound:
        return "missing"


def _content(client: Any, key: str) -> Any:
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"list":
            return client.lrange(key, 0, -1)
    return client.type(key)
