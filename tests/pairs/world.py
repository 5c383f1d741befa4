"""One seed of the model: queues, tasks and schedules with features by chance, and what somebody does with them.

At the end everything may run, and nothing may be left.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import transaction

from django_delayq import (
    Backoff,
    Batch,
    Job,
    Limit,
    QueueFull,
    clear_limit,
    conf,
    delayed_task,
    every,
    find_jobs,
    get_job,
    get_schedules,
    pause,
    periodic,
    resume,
    schedule,
    set_limit,
    store_schedule,
)
from django_delayq.exceptions import InvalidSchedule
from django_delayq.jobs import registry
from django_delayq.jobs.registry import get_task
from django_delayq.outbox.relay import Relay
from tests.pairs.book import (
    GIVEN_UP,
    SECRET,
    SLACK_MS,
    Book,
    Call,
    Fatal,
    Life,
    body,
    get_job_state,
    open_book,
)
from tests.pairs.stage import LiveStage, Stage

#: What the project signs with: the key that comes first, and may be lost for a while.
KEYS = ("the first key of these models", "the second key of these models")
#: What a call may do that meets a job of its key.
MODES = (
    "keep",
    "replace",
    "postpone",
    "sooner",
    "sooner",
    ("replace", "postpone"),
    ("replace", "sooner"),
)
#: What the server has beside the jobs: without it limits and priorities may be wrong for a while, and nothing is lost.
LOSABLE = ("ranked", "slots", "paces", "claims", "minute", "last_ended")


class World(Book):
    """A project, its users, and what befalls its servers and workers."""

    def __init__(
        self, seed: int, stage: Stage, apply: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(seed, stage)
        self._apply = apply
        #: How likely a task has a schedule. Where there are few, queues have no priorities now and then.
        self.schedules_chance = self.rng.choice((0.2, 0.6))

    def begin(self) -> None:
        """Write settings and tasks."""
        open_book(self)
        rng = self.rng
        for name in ("default", "two", "java"):
            options: dict[str, Any] = {}
            if rng.random() < 0.3:
                options["CONCURRENCY"] = rng.choice((1, 2))
            if rng.random() < 0.2:
                options["RATE"] = rng.choice(("1/5s", "30/m"))
            if rng.random() < 0.3:
                options["MAX_JOBS"] = rng.choice((8, 15))
            if rng.random() < 0.3:
                options["KEEP_ENDED"] = 0
            if name == "java":
                options["REDISSON"] = "3.52.0"
            self.queues[name] = options
        self.write_settings(KEYS[:1])
        for number in range(8):
            self.define(f"pairs.t{number}")
        self.say(f"queues {self.queues}")

    def write_settings(self, keys: tuple[str, ...]) -> None:
        self._apply(
            {
                "QUEUES": self.queues,
                "KEYS": list(keys),
                "TEST": "connection",
            }
        )

    def define(self, name: str) -> None:
        """Make a task, or give one that there is other options."""
        rng = self.rng
        number = name[-1]
        before = self.tasks.get(name)
        options: dict[str, Any] = {
            "queue": before["queue"]
            if before
            else rng.choice(("default", "two", "java", "default", "two")),
            "max_attempts": rng.choice((1, 2, 3)),
            "backoff": Backoff(base=7, factor=1, jitter=0),
            "no_retry_on": Fatal,
        }
        shared = options["queue"] == "java"
        if rng.random() < 0.45:
            limit: dict[str, Any] = {}
            if rng.random() < 0.4:
                limit["rate"] = rng.choice(("1/10s", "6/m"))
            if not limit or rng.random() < 0.6:
                limit["concurrency"] = rng.choice((1, 1, 2))
            if rng.random() < 0.6:
                limit["key"] = lambda n, key=0, token="": key
            options["limit"] = Limit(f"limit{number}{rng.choice('ab')}", **limit)
        if rng.random() < 0.5:
            options["unique"] = ("key",)
            options["on_duplicate"] = rng.choice(MODES)
            if rng.random() < 0.5:
                options["unique_until"] = "start"
        if rng.random() < 0.3:
            options["expires"] = rng.choice((15, 60))
            options["on_expiry"] = rng.choice(("drop", "dead"))
        if rng.random() < 0.35 and not shared:
            options["priority"] = rng.choice((-10, 5, 10))
        if rng.random() < 0.2:
            options["spread"] = 20
        if rng.random() < 0.3:
            options["keep_result"] = 600
        if rng.random() < 0.35:
            options["once"] = True
        if rng.random() < 0.25:
            options["sensitive"] = ("token",)
        if rng.random() < 0.25 and not shared:
            options["encrypt"] = True
        self.tasks[name] = options
        registry._tasks.pop(name, None)
        task = delayed_task(name=name, **options)(body)
        self.schedules.pop(f"code{number}", None)
        if rng.random() < self.schedules_chance and not options.get("unique"):
            self.define_schedule(f"code{number}", name, periodic, task)
        self.say(f"define {name} {options}")

    def make(
        self,
        name: str,
        *,
        follows: bool = False,
        own_chance: float = 1,
        key: int | None = None,
        **own: Any,
    ) -> tuple[Job[Any], Call]:
        """Prepare a call of a task, with options of its own by chance."""
        rng = self.rng
        options = dict(self.tasks[name])
        shared = options["queue"] == "java"
        if rng.random() < own_chance * 0.15 and not shared:
            own["priority"] = rng.choice((-5, 20))
        if rng.random() < own_chance * 0.1:
            own["expires"] = rng.choice((10, 100))
        if rng.random() < own_chance * 0.1:
            own["keep_result"] = 600
        if rng.random() < own_chance * 0.1:
            own["spread"] = 20
        if (
            rng.random() < own_chance * 0.15
            and isinstance(self.stage, LiveStage)
            and not follows
        ):
            own["durable"] = "disk"
        if (
            options.get("unique")
            and not follows
            and not own.keys() & {"outbox", "on_duplicate"}
            and rng.random() < own_chance * 0.4
        ):
            own["on_duplicate"] = rng.choice(MODES)
        options |= own
        n = len(self.calls) + 1
        key = rng.randrange(3) if key is None else key
        delay = rng.choice((0, 0, 0, 5, 20, 60, 150))
        acts = rng.choice(
            (
                ["ok"],
                ["ok"],
                ["ok"],
                ["fail", "ok"],
                ["fail", "fail", "fail", "ok"],
                ["snooze", "ok"],
                ["retry", "ok"],
                ["die"],
                ["cancel"],
                ["snooze", "fail", "ok"],
            )
        )
        task = get_task(name).using(**own)
        job = task.prepare(delay, n, key=key, token=f"{SECRET}-{n}")
        features = {"delay"} if delay else set()
        limit = options.get("limit")
        if limit is not None:
            features |= {
                name
                for name, has in (
                    ("rate of a task", limit.rate),
                    ("limit of a task", limit.concurrency),
                    ("limit of a key", limit.key),
                )
                if has
            }
        queue = self.queues[options["queue"]]
        features |= {
            feature
            for option, feature in (
                ("CONCURRENCY", "limit of a queue"),
                ("RATE", "limit of a queue"),
                ("MAX_JOBS", "MAX_JOBS"),
                ("REDISSON", "REDISSON"),
            )
            if option in queue
        }
        if queue.get("KEEP_ENDED", 1):
            features.add("KEEP_ENDED")
        if options.get("unique"):
            features |= {f"unique, {mode}" for mode in modes_of(options)}
            if options.get("unique_until") == "start":
                features.add("unique until start")
        features |= {
            name
            for name in (
                "expires",
                "spread",
                "once",
                "keep_result",
                "sensitive",
                "encrypt",
                "durable",
                "outbox",
            )
            if options.get(name)
        }
        if options.get("priority"):
            features.add("priority")
        call = Call(
            n,
            name,
            key,
            acts,
            features,
            None if follows else self.now_ms + delay * 1000,
            delay * 1000,
            options["expires"] * 1000 if "expires" in options else None,
            options.get("spread", 0) * 1000,
            modes_of(options),
        )
        self.calls[n] = call
        return job, call

    def call_one(self) -> None:
        """Schedule a job, and often call its task again with the same unique key."""
        name = self.rng.choice(list(self.tasks))
        key = self.rng.randrange(3)
        self.call_once(name, key)
        while self.tasks[name].get("unique") and self.rng.random() < 0.6:
            if self.rng.random() < 0.3:
                self.advance(self.rng.choice((1, 4, 10)))
            self.call_once(name, key)

    def call_once(self, name: str, key: int) -> None:
        rng = self.rng
        how = rng.choice(("", "", "", "", "commit", "outbox"))
        own = {"outbox": {"outbox": True}, "commit": {"on_commit": True}}.get(how, {})
        if how == "outbox" and self.tasks[name].get("unique"):
            own["on_duplicate"] = "keep"
        job, call = self.make(name, key=key, **own)
        life = Life(job.id, call, job)
        own_queue = self.queues[life.queue]
        if (
            rng.random() < 0.35
            and "REDISSON" not in own_queue
            and call.modes == ("keep",)
        ):
            for attribute in ("then", "on_dead"):
                if rng.random() < 0.7:
                    self.add_followers(life, attribute)
        if own:
            self.in_transaction(life)
        else:
            self.store(job, call, life, lambda: schedule(job))

    def add_followers(self, life: Life, attribute: str) -> None:
        jobs = []
        for _ in range(self.rng.choice((1, 2))):
            name = self.rng.choice(
                [n for n, o in self.tasks.items() if not o.get("unique")] or [""]
            )
            if not name:
                return
            job, call = self.make(name, follows=True)
            follower = Life(job.id, call, job, state="unsent")
            getattr(life, attribute).append(follower)
            jobs.append(job)
        getattr(life.handle, attribute)(*jobs)
        life.call.features.add(attribute)

    def in_transaction(self, life: Life) -> None:
        """Schedule in a transaction, by the commit or by the outbox."""
        job, call = life.handle, life.call
        is_kept = self.rng.random() < 0.7

        def send() -> None:
            with suppress(_Rollback), transaction.atomic():
                schedule(job)
                if not is_kept:
                    raise _Rollback

        if is_kept:
            self.store(job, call, life, send, is_promised=True)
        else:
            try:
                send()
            except QueueFull:
                return
            self.say(f"rolled back {job.id}")
            if (state := get_job_state(job.id)) != "missing":
                self.fail(f"{job.id} was rolled back, and is {state}")

    def call_batch(self) -> None:
        """Schedule a batch with its callback."""
        rng = self.rng
        alone = [
            n
            for n, o in self.tasks.items()
            if o["queue"] != "java" and not o.get("unique")
        ]
        plain = [n for n, o in self.tasks.items() if o["queue"] != "java"]
        if not alone:
            return
        callback_task = rng.choice(alone)
        queue = self.tasks[callback_task]["queue"]
        names = [n for n in plain if self.tasks[n]["queue"] == queue]
        callback, call = self.make(callback_task, follows=True)
        owner = Life(callback.id, call, callback)
        members = []
        for _ in range(rng.choice((1, 2, 3))):
            unique = [each for each in names if self.tasks[each].get("unique")]
            name = rng.choice(unique or names)
            own = {"on_duplicate": "keep"} if self.tasks[name].get("unique") else {}
            job, its = self.make(name, **own)
            its.features.add("batch")
            member = Life(job.id, its, job)
            for attribute in ("then", "on_dead"):
                if rng.random() < 0.3:
                    self.add_followers(member, attribute)
            members.append(member)
        call.features.add("batch")
        batch = Batch(callback)
        try:
            batch.schedule([each.handle for each in members])
        except QueueFull as error:
            if any(each.created for each in error.scheduled):
                self.fail("a small batch was stored in part")
            self.say(f"batch refused {callback.id}")
            return
        members = [each for each in members if each.handle.created]
        for each in members:
            each.earliest_ms = (each.call.start_ms or 0) - SLACK_MS
            self.lives[each.id] = each
        owner.members = members
        self.lives[owner.id] = owner
        self.say(f"batch {callback.id} of {[(m.id, m.call) for m in members]}")
        for each in members:
            if self.tasks[each.call.task].get("unique") and self.rng.random() < 0.8:
                self.call_once(each.call.task, each.call.key)

    def store_schedule(self) -> None:
        names = [n for n, o in self.tasks.items() if not o.get("unique")]
        name = f"stored{len(self.schedules)}"
        if not names or name in self.schedules or self.has_lost_key:
            return
        task = self.rng.choice(names)

        def store(when: Any, **options: Any) -> Callable[[Any], Any]:
            return lambda task: store_schedule(
                options.pop("name"), task, when, **options
            )

        self.define_schedule(name, task, store, get_task(task))

    def define_schedule(
        self,
        name: str,
        task_name: str,
        give: Callable[..., Callable[[Any], Any]],
        task: Any,
    ) -> None:
        """Give a task a schedule, in code or stored."""
        rng = self.rng
        options: dict[str, Any] = {
            "catch_up": rng.choice(("none", "one", "all")),
            "overlap": rng.random() < 0.6 or bool(self.tasks[task_name].get("limit")),
        }
        if rng.random() < 0.3:
            options["spread"] = 8
        if rng.random() < 0.2:
            options["queue"] = rng.choice(("default", "two"))
        seconds = rng.choice((20, 45, 90))
        acts = rng.choice((["ok"], ["ok"], ["fail", "ok"], ["snooze", "ok"], ["die"]))
        # Its jobs have the features of its task.
        _, call = self.make(task_name, follows=True, own_chance=0)
        call.features -= {"delay", "outbox"}
        call.features.add(f"catch_up {options['catch_up']}")
        # Its jobs have the one argument.
        call.acts, call.key = acts, 0
        if "spread" in options:
            call.features.add("spread")
        if not options["overlap"]:
            call.features.add("overlap=False")
        give(every(seconds), name=name, args=[call.n], **options)(task)
        queue = options.get("queue", self.tasks[task_name]["queue"])
        self.schedules[name] = {
            "overlap": True,
            **options,
            "every": seconds,
            "n": call.n,
            "from_ms": self.now_ms,
            "until_ms": None,
            "is_whole": options["catch_up"] == "all"
            and name.startswith("stored")
            and (queue, None) not in self.paused,
        }
        self.say(f"schedule {name} of {task_name} every {seconds} s {options} {call}")

    def change_schedule(self) -> None:
        """Pause, fire, override or delete a schedule."""
        found = [each for each in get_schedules() if each.name in self.schedules]
        if not found or self.has_lost_key:
            return
        chosen = self.rng.choice(found)
        mine = self.schedules[chosen.name]
        what = self.rng.choice(
            ("pause", "resume", "fire", "override", "as before", "delete")
        )
        try:
            match what:
                case "pause":
                    chosen.pause()
                case "resume":
                    chosen.resume()
                case "fire":
                    job = chosen.fire()
                    self.fired.add(job.id)
                case "override":
                    chosen.override(every(self.rng.choice((7, 40))))
                case "as before":
                    chosen.override(None)
                case "delete":
                    if not chosen.name.startswith("stored") or not chosen.delete():
                        return
                    mine["until_ms"] = self.now_ms
        except InvalidSchedule as error:
            what = f"{what}, refused: {error}"
        if not what.startswith(("fire", "delete")):
            mine["is_whole"] = False
        self.say(f"{what} {chosen.name}")

    def change_one(self) -> None:
        """Change a job that waits, or one that was given up."""
        rng = self.rng
        waiting = self.waiting()
        given_up = [life for life in self.lives.values() if life.state in GIVEN_UP]
        if given_up and rng.random() < 0.4:
            life = rng.choice(given_up)
            job = get_job(life.id)
            if rng.random() < 0.5:
                if not job.retry():
                    self.fail(f"{life} cannot be retried, it is {job.state}")
                self.say(f"retry {life.id}")
                self.revive(life)
            else:
                if not job.discard():
                    self.fail(f"{life} cannot be discarded, it is {job.state}")
                self.say(f"discard {life.id}")
                life.state = "discarded"
            return
        if not waiting:
            return
        life = rng.choice(waiting)
        job = get_job(life.id)
        match rng.randrange(4):
            case 0:
                if job.cancel():
                    self.say(f"cancel {life.id}")
                    self.end(life, "cancelled")
            case 1:
                delay, begin_ms = rng.choice((0, 15, 90)), self.now_ms
                if job.reschedule(delay):
                    self.say(f"reschedule {life.id} {delay}")
                    life.is_moved = life.has_lost_key = True
                    life.earliest_ms = (
                        begin_ms + delay * 1000 - SLACK_MS if life.call.acts else 0
                    )
            case 2:
                if job.run_now():
                    self.say(f"run_now {life.id}")
                    life.is_moved = life.has_lost_key = True
                    life.earliest_ms = 0
            case 3:
                if "REDISSON" not in self.queues[life.queue] and job.reprioritize(
                    rng.choice((-20, 0, 30))
                ):
                    self.say(f"reprioritize {life.id}")
                    life.call.features.add("priority")

    def change_many(self) -> None:
        """Change all jobs of a queue in a state."""
        rng = self.rng
        queue = rng.choice(list(self.queues))
        what = rng.choice(("cancel", "reschedule", "run_now", "retry", "discard"))
        state = (
            "dead"
            if what in ("retry", "discard")
            else rng.choice(("scheduled", "due", "held", "retrying"))
        )
        states = (
            [state]
            if rng.random() < 0.6 or state == "dead"
            else ["scheduled", "due", "held", "retrying"]
        )
        ours = [life for life in self.lives.values() if life.queue == queue]
        search = find_jobs(queue=queue, state=states)
        ids = {job.id for job in search}
        match what:
            case "cancel":
                changed = search.cancel()
            case "reschedule":
                changed = search.reschedule(30)
            case "run_now":
                changed = search.run_now()
            case "retry":
                changed = search.retry()
            case "discard":
                changed = search.discard()
        self.disturb()
        self.say(f"bulk {what} {queue} {state} {changed} {sorted(ids)}")
        self.moved_ids |= ids
        for life in ours:
            if what in ("cancel", "discard"):
                # The change searches for itself, and may find what was about to come when we looked.
                was = GIVEN_UP if what == "discard" else ("waiting",)
                gone = ("cancelled", "discarded", "expired", "missing")
                if life.state not in was or get_job_state(life.id) not in gone:
                    continue
            elif life.id not in ids or (
                # It died in this millisecond, and such a change looks at what had died before.
                what == "retry" and get_job_state(life.id) == "dead"
            ):
                continue
            elif life.is_over and what != "retry":
                self.fail(f"{life} has ended, and was found {state}")
            life.call.features.add("bulk changes")
            match what:
                case "cancel":
                    self.end(life, "cancelled")
                case "discard":
                    life.state = "discarded"
                case "retry":
                    self.revive(life)
                case _:
                    life.is_moved = life.has_lost_key = True
                    life.earliest_ms = 0

    def pause_some(self) -> None:
        rng = self.rng
        if self.paused and rng.random() < 0.6:
            queue, task = rng.choice(sorted(self.paused, key=str))
            resume(queue, task=task) if task else resume(queue)
            self.paused.remove((queue, task))
            self.pauses.append(
                (queue, task, self.paused_ms.pop((queue, task)), self.now_ms)
            )
            for life in self.waiting():
                if life.queue == queue and not task and life.earliest_ms < self.now_ms:
                    life.call.features.add("pause")
            self.say(f"resume {queue} {task}")
            return
        name = rng.choice(list(self.tasks))
        queue = self.tasks[name]["queue"]
        task = name if rng.random() < 0.6 else None
        pause(queue, task=task) if task else pause(queue)
        self.paused.add((queue, task))
        self.paused_ms.setdefault((queue, task), self.now_ms)
        self.disturb()
        self.say(f"pause {queue} {task}")

    def change_limit(self) -> None:
        """Set the numbers of a limit, or go back to those of the code."""
        rng = self.rng
        limited = [o["limit"] for o in self.tasks.values() if o.get("limit")]
        limited = [limit for limit in limited if limit.concurrency]
        if not limited:
            return
        limit = rng.choice(limited)
        key = limit.name
        if key in self.limits_set and rng.random() < 0.5:
            clear_limit(limit=limit.name)
            del self.limits_set[key]
        else:
            most = rng.choice((1, 3))
            set_limit(limit=limit.name, concurrency=most)
            self.limits_set[key] = most
        self.say(f"limit {limit.name} {self.limits_set.get(key)}")

    def kill(self) -> None:
        """Kill the worker with all that it runs, and start another."""
        killed = self.stage.kill()
        for attempt in killed:
            life = self.lives[attempt.id]
            life.state = "waiting"
            life.was_killed = True
            life.earliest_ms = 0
        self.say(f"kill {[each.id for each in killed]}")

    def deploy(self) -> None:
        """Change the definitions of some tasks, and go on as new processes."""
        self.kill()
        self.lost.add("code")
        self.disturb()
        for name in self.rng.sample(sorted(self.tasks), 2):
            old = self.tasks[name]
            self.define(name)
            if old.get("unique") != self.tasks[name].get("unique"):
                for life in self.lives.values():
                    if life.call.task == name:
                        life.has_lost_key = True
            for life in self.lives.values():
                if life.call.task == name:
                    life.is_moved = True
        self.stage.deploy()

    def lose_key(self) -> None:
        """Have the key gone with which jobs are signed; or have it back."""
        self.has_lost_key = not self.has_lost_key
        self.write_settings(KEYS[1:] if self.has_lost_key else KEYS[::-1])
        self.kill()
        for life in self.lives.values():
            life.has_lost_key = True
        self.disturb()
        self.say(f"keys {'lost' if self.has_lost_key else 'back'}")

    def lose_data(self) -> None:
        """Delete what the server has beside the jobs of a queue, as somebody might by mistake."""
        name = self.rng.choice(list(self.queues))
        what = self.rng.choice(LOSABLE)
        self.stage.client.delete(getattr(conf.get_settings().queue(name).keys, what))
        self.lost.add(what)
        self.say(f"lost {what} of {name}")

    def move(self) -> None:
        stage = self.stage
        choices: list[Callable[[], Any]] = [
            self.kill,
            self.deploy,
            self.lose_key,
            self.lose_data,
        ]
        if isinstance(stage, LiveStage):
            choices += [self.restart, self.step]
        self.rng.choice(choices)()

    def restart(self) -> None:
        assert isinstance(self.stage, LiveStage)
        self.stage.restart()
        self.say("restart")

    def step(self) -> None:
        assert isinstance(self.stage, LiveStage)
        seconds = self.rng.choice((-40, -5, 5, 40, 600))
        self.stage.step(seconds)
        self.stepped += 1
        for life in self.lives.values():
            life.is_moved = True
            life.earliest_ms = (
                min(life.earliest_ms, self.now_ms) if seconds < 0 else life.earliest_ms
            )
        self.say(f"step {seconds}")

    def run(self, steps: int, *, moves: bool) -> None:
        """Do this many things, and bring all to its end."""
        rng = self.rng
        doing: list[tuple[float, Callable[[], None]]] = [
            (12, self.call_one),
            (2.5, self.call_batch),
            (1.2, self.store_schedule),
            (0.6, self.change_schedule),
            (3, self.change_one),
            (1.4, self.change_many),
            (1.4, self.pause_some),
            (0.4, self.change_limit),
        ]
        if moves:
            doing.append((0.8, self.move))
        weights, actions = zip(*doing, strict=True)
        for _ in range(steps):
            rng.choices(actions, weights)[0]()
            if rng.random() < 0.5:
                self.advance(rng.choice((1, 4, 10, 30)))
        self.drain()

    def advance(self, seconds: float) -> None:
        self.stage.advance(seconds)
        for _ in Relay("default").sweep(fresh_ms=0, by_hand=True):
            continue

    def drain(self) -> None:
        """Let everything run, and see that nothing is left."""
        self.say("drain")
        if self.has_lost_key:
            self.lose_key()
        for queue, task in self.paused:
            resume(queue, task=task) if task else resume(queue)
        self.paused.clear()
        self.drained_ms = self.now_ms
        for name in self.tasks:
            get_task(name).schedules = ()
        self.kill()
        self.stage.deploy()
        for each in get_schedules():
            each.delete()
        for _ in range(60):
            self.advance(60)
            if not self.stage.running and not any(map(self.count, self.queues)):
                break
        if self.stage.running:
            self.fail(f"{self.stage.running} still run")
        for life in list(self.lives.values()):
            if life.is_over:
                continue
            state = get_job_state(life.id)
            if life.schedule and life.is_moved and state in ("cancelled", "missing"):
                # It had begun before its moment, and waited again when its schedule was changed, or deleted.
                life.state = "cancelled"
                continue
            if life.was_killed and state == "dead":
                # A claim has buried it, which had lost its worker too often.
                life.state = state
                continue
            self.fail(f"{life} has not ended, it is {state}")
        found = [job.id for job in find_jobs()]
        given_up = {each.id for each in self.lives.values() if each.state in GIVEN_UP}
        found = sorted(set(found) - given_up - self.buried)
        if found:
            self.fail(
                f"are left: {[(j.id, j.state.value, j.schedule_name, j.error) for j in map(get_job, found)]}"
            )
        self.check_schedules()
        self.check_ended()
        find_jobs(state="dead").discard()
        for _ in range(6):
            self.advance(20)
        for name in self.queues:
            self.check_keys(name)


def modes_of(options: dict[str, Any]) -> tuple[str, ...]:
    modes = options.get("on_duplicate", "keep")
    return (modes,) if isinstance(modes, str) else modes


class _Rollback(Exception):
    pass
