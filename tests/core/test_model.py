"""Random operations of Django, workers and Java against a model in Python: no job is lost, and none comes twice."""

import math
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import queue_reads, scripts, worker_code
from django_delayq.core import replace as replace_calls
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.bounds import MAX_BATCH, SKEW_MS
from django_delayq.core.claim import LOOKS_A_LEASE, Claimed, Leased, Mode
from django_delayq.core.rates import numbers_of
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob, Scheduled
from django_delayq.features.limits import calls as limit_calls
from django_delayq.wire.frame import FrameFormat
from tests.core.rig import LEASE, OWNER, T0, Rig, name_in, payload, token
from tests.core.tour import follower

#: For so long after a gap, leases that ended in it are spared.
SPARED = LEASE * 5 / 12
#: For so many gaps in a row, no living worker loses a lease.
MOST_GAPS = 3
formats = st.sampled_from(list(FrameFormat))
waits = st.sampled_from([0, 0, 1, 5, 50, 1_000])

#: A job with more kills is a suspect, if the claim says so.
SAFE_KILLS = 0
PUT_OFF_MS = 20
#: Of the jobs that are held because it is paused; no script sees which task a job is of.
TASK = "shop.mail"
#: The limit of some jobs.
LIMIT = "stripe"


class Numbers:
    """Stands in for `secrets`, so that jobs that are due together come in the same order whenever an example runs."""

    def __init__(self) -> None:
        self.last = 0

    def token_urlsafe(self, size: int) -> str:
        self.last += 1
        return f"{self.last:0{size * 4 // 3}}"


class QueueMachine(RuleBasedStateMachine):
    """One queue. The model knows only where each job may be, and what must never happen to it."""

    def __init__(self, client: "redis.Redis[bytes]", name: str) -> None:
        super().__init__()
        self.client = client
        self.name = name
        self.rig = Rig(client, name)
        # The clock may step back often.
        self.rig.now = self.renewed = 200 * 3_600_000
        if keys := self.keys():
            client.delete(*keys)
        self.count = 0
        #: Where the model has each element that is not over yet: waiting, destination, leased, retrying, dead.
        self.places: dict[str, str] = {}
        self.due: dict[str, int] = {}
        #: The payload of each job whose arguments were replaced.
        self.bodies: dict[str, bytes] = {}
        #: The unique key of each job that has one, until its end; who holds it; and which job another waits behind.
        self.keys_of: dict[str, str] = {}
        self.holders: dict[str, str] = {}
        self.ahead: dict[str, str] = {}
        #: The priority of each job of ours that has one.
        self.priorities: dict[str, int] = {}
        self.leases: dict[str, Leased] = {}
        #: Leased to a living process, which renews every third of a lease, whatever clock and server do.
        self.living: set[str] = set()
        #: Gaps since living processes could last renew.
        self.gaps = 0
        #: Jobs that we ended, and that the server still remembers.
        self.over: set[str] = set()
        #: Until when the queue is paused, ms after T0.
        self.paused_till = self.task_paused_till = -math.inf
        #: When each job that is held for a pause was due first.
        self.held: dict[str, int] = {}
        #: The key of each job that has a limit; how many of a key may run; and who has a slot, or had one.
        self.limited: dict[str, str] = {}
        self.most = 2
        self.slotted: set[str] = set()
        #: Payloads in the destination queue whose jobs are elsewhere, or over.
        self.doubles: list[str] = []
        #: The jobs of the batch that have not ended; and how many of it Java took, which never end.
        self.batched: set[str] = set()
        self.strayed = 0

    @initialize(
        mode=st.sampled_from([Mode.DIRECT, Mode.SHARED]), has_priorities=st.booleans()
    )
    def configure(self, mode: Mode, has_priorities: bool) -> None:
        """If no Java works on a queue, an element in its destination queue is a job only if we transferred it."""
        self.mode = mode
        self.has_priorities = has_priorities and mode is Mode.DIRECT
        self.declare_limit()

    def keys(self) -> list[bytes]:
        return list(self.client.scan_iter(match=f"*{self.name}*", count=1000))

    def new_name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def names(self, *places: str) -> list[str]:
        return [name for name, place in self.places.items() if place in places]

    def pick(self, data: Any, *places: str) -> str:
        return data.draw(st.sampled_from(self.names(*places)))

    # Producers.

    @rule(
        wait=waits,
        format=formats,
        listed=st.booleans(),
        many=st.integers(1, 12),
        priority=st.sampled_from([0, 0, -5, 5]),
        key=st.sampled_from(["", "", "k", "l"]),
        is_batched=st.booleans(),
    )
    def schedule(
        self,
        wait: int,
        format: FrameFormat,
        listed: bool,
        many: int,
        priority: int,
        key: str,
        is_batched: bool,
    ) -> None:
        priority = priority if self.has_priorities else 0
        names = [self.new_name("j") for _ in range(many)]
        batch = {name: wait + n % 3 for n, name in enumerate(names)}
        replies = self.rig.schedule(
            batch,
            frame_format=format,
            insertion_list=listed,
            priority=priority,
            limit=f"{LIMIT}\0{key}" if key else "",
            batch="cb" if is_batched else "",
        )
        if is_batched:
            self.batched |= set(names)
        for name, reply in zip(names, replies, strict=True):
            self.priorities[name] = priority
            self.places[name], self.due[name] = "waiting", reply.start_time_ms
            if key:
                self.limited[name] = key

    @rule(wait=waits, room=st.integers(0, 12), many=st.integers(1, 12))
    def schedule_within(self, wait: int, room: int, many: int) -> None:
        """A queue of limited size takes all jobs of a call or none, and then nothing changes."""
        rig, keys = self.rig, self.rig.keys
        sets = (keys.leases, keys.retries, keys.returned, keys.held)
        held = self.client.llen(keys.queue.destination) + sum(
            map(self.client.zcard, (keys.queue.timeout_set, *sets))
        )
        there = self.names(
            "waiting", "destination", "leased", "retrying", "held", "limited"
        )
        assert held == len(there) + len(self.doubles)
        names = [self.new_name("j") for _ in range(many)]
        before = rig.state(), rig.counters()
        replies = rig.schedule(dict.fromkeys(names, wait), max_jobs=held + room)
        if many <= room:
            for name, reply in zip(names, replies, strict=True):
                self.places[name], self.due[name] = "waiting", reply.start_time_ms
        else:
            assert replies == [Scheduled(0, "", State.UNCOMMITTED, held)] * many
            assert (rig.state(), rig.counters()) == before

    # Jobs with unique keys.

    def is_alive(self, name: str) -> bool:
        return name in self.keys_of

    def end(self, name: str) -> None:
        """Note that a job holds its key no more."""
        key = self.keys_of.pop(name, "")
        if self.holders.get(key) == name:
            del self.holders[key]

    @rule(wait=waits, key=st.sampled_from("kl"), data=st.data())
    def schedule_unique(self, wait: int, key: str, data: Any) -> None:
        """A call that meets a job of its key changes it, or waits behind it if it runs."""
        name, holder = self.new_name("j"), self.holders.get(key)
        (reply,) = self.rig.schedule({name: wait}, unique=f"e{key}", may_go_behind=True)
        if holder is not None and self.places[holder] != "leased":
            assert reply.holder == holder
            self.change_holder(holder, key, wait, data)
            return
        assert reply.holder == ""
        if holder is not None:
            self.ahead[name] = holder
        self.keys_of[name], self.holders[key] = key, name
        self.places[name], self.due[name] = "waiting", reply.start_time_ms

    def change_holder(self, name: str, key: str, wait: int, data: Any) -> None:
        moves = data.draw(st.sampled_from(["", "later", "sooner"]))
        later = NewJob(token(self.new_name("r")), f"+{wait}", f"e{key}", b"")
        body = b""
        # What a jammed Java delivers again has the arguments of before.
        if not moves or (name not in self.doubles and data.draw(st.booleans())):
            if name in self.doubles:
                return
            body = payload(name, signature=later.token)
        call = replace_calls.replace(
            self.rig.keys, token(name), later, payload=body, moves=moves
        )
        reply = self.rig.run(call)
        assert reply.seen is not None
        assert reply.outcome in (Change.REPLACED, Change.KEPT)
        if body:
            self.bodies[name] = body
            assert reply.seen.payload == body
        before = self.rig.state()
        assert self.rig.run(call).seen == reply.seen
        assert self.rig.state() == before
        due = reply.seen.score_ms - T0
        place = self.places[name]
        if reply.outcome is Change.REPLACED and (
            place == "held" or (place == "destination" and due != self.due[name])
        ):
            self.places[name] = "retrying"
        if moves == "later" and self.places[name] != "held":
            assert due >= self.rig.at(wait) - T0
        if self.places[name] != "held":
            self.due[name] = due

    def follow_put_back(self) -> None:
        """Jobs that wait behind others are put back while those hold the key as well."""
        found = self.client.zrange(self.rig.keys.returned, 0, -1, withscores=True)
        for member, score in found:
            name, due = member.decode().rstrip("-"), int(score) - T0
            ahead = self.ahead.get(name)
            if ahead is None or self.due.get(name) == due:
                continue
            assert self.is_alive(ahead), f"{name} waits for nobody"
            # What was transferred before the clock stepped back is due all the same.
            assert (
                self.due[name] <= self.rig.now or self.places[name] == "destination"
            ), f"{name} was put back early"
            # After 50 ms at least, and then at the next lower multiple of them.
            assert 0 < due - math.floor(self.rig.now) <= 30_000
            self.places[name], self.due[name] = "retrying", due

    @precondition(lambda self: self.count)
    @rule(n=st.integers(0, 1_000), wait=waits)
    def schedule_again(self, n: int, wait: int) -> None:
        name = f"j{n % self.count + 1}"
        is_known = name in self.places or name in self.over
        if is_known:
            before = self.rig.state()
            self.rig.schedule({name: wait}, again=True)
            assert self.rig.state() == before

    @rule(wait=waits, format=formats)
    def java_offers(self, wait: int, format: FrameFormat) -> None:
        name = self.new_name("x")
        self.rig.java_offer(name, wait, frame_format=format)
        self.places[name], self.due[name] = "waiting", self.rig.at(wait) - T0

    @rule()
    def java_offers_to_the_destination_queue(self) -> None:
        name = self.new_name("x")
        self.client.rpush(self.rig.keys.queue.destination, name)
        self.places[name] = "destination"

    # Movers.

    @precondition(lambda self: self.mode is Mode.SHARED)
    @rule(format=formats, limit=st.integers(1, 5))
    def java_transfers(self, format: FrameFormat, limit: int) -> None:
        """Java transfers only what it can read; test_destination.py has frames of the other format, which jam it."""
        due = self.client.zrangebyscore(
            self.rig.keys.queue.timeout_set, 0, self.rig.now_us // 1000, 0, limit
        )
        if all(
            (frame[:1] == b"\x08") == (format is FrameFormat.BC0LC0) for frame in due
        ):
            self.rig.java_transfer(limit, frame_format=format)
            self.follow_transfer()

    @rule(batch=st.integers(1, 20))
    def transfer(self, batch: int) -> None:
        self.rig.transfer(batch)
        self.follow_transfer()

    def follow_transfer(self) -> None:
        for name in self.rig.state().get("destination", []):
            if name in self.doubles:
                continue
            if self.places[name] == "waiting":
                assert self.due[name] <= self.rig.now, f"{name} was transferred early"
            assert self.places[name] in ("waiting", "destination")
            self.places[name] = "destination"

    @rule(data=st.data())
    def jammed_java_delivers_again(self, data: Any) -> None:
        names = [*self.names("leased", "retrying", "dead"), *self.over]
        if ours := sorted(name for name in names if name.startswith("j")):
            name = data.draw(st.sampled_from(ours))
            body = self.bodies.get(name, payload(name))
            self.client.rpush(self.rig.keys.queue.destination, body)
            self.doubles.append(name)

    @rule()
    def java_takes(self) -> None:
        name = self.rig.java_take()
        if name in self.doubles:
            self.doubles.remove(name)
        elif name is not None:
            assert self.places.pop(name) == "destination"
            if name.startswith("j"):
                self.rig.reschedule(name, 0)  # as the sweep would, sooner or later
                self.strayed += name in self.batched
                self.batched.discard(name)
                self.end(name)

    # Consumers.

    @rule(
        is_take=st.sampled_from([False, False, True]),
        limit=st.integers(0, 15),
        again=st.booleans(),
        is_living=st.booleans(),
        suspects=st.sampled_from([None, 1, 0]),
    )
    def claim(
        self,
        is_take: bool,
        limit: int,
        again: bool,
        is_living: bool,
        suspects: int | None,
    ) -> None:
        mode = Mode.TAKE if is_take else self.mode
        self.take(mode, limit, again=again, is_living=is_living, suspects=suspects)

    def take_due(self, *, is_living: bool) -> None:
        """Lease whatever is due."""
        if self.mode is Mode.SHARED:
            # It is transferred first.
            self.rig.claim(0, mode=self.mode, transfer_limit=MAX_BATCH)
            self.forget_pause_that_is_over()
            self.follow_transfer()
        self.take(self.mode, MAX_BATCH, again=False, is_living=is_living)

    def take(
        self,
        mode: Mode,
        limit: int,
        *,
        again: bool,
        is_living: bool,
        suspects: int | None = None,
    ) -> None:
        """Claim, with at most so many suspects; None: any number."""
        request = self.rig.request()
        rule: dict[str, Any] = {}
        if suspects is not None:
            rule = {"safe_kills": SAFE_KILLS, "put_off_ms": PUT_OFF_MS}
            rule["takes_suspect"] = suspects == 1
            before = self.retrying()
        limited = set(self.names("limited"))
        few = None
        if mode is Mode.DIRECT and limit and suspects is None:
            few = self.rig.claim_few(limit, request=request)
        claimed = few or self.rig.claim(
            limit, mode=mode, request=request, transfer_limit=5, **rule
        )
        if suspects is not None:
            kills = [job.kills for job in claimed.jobs]
            assert sum(count > SAFE_KILLS for count in kills) <= suspects
            self.follow_put_off(before)
        else:
            assert claimed.put_off == 0
        self.follow_put_back()
        self.follow_limits()
        if few is None and mode is Mode.DIRECT and not self.is_paused:
            # What the claim itself has let go comes with the next one.
            self.check_order(claimed, limited - set(self.names("limited")))
        if again and claimed.jobs:
            repeated = self.rig.claim(limit, mode=mode, request=request)
            assert {job.token for job in repeated.jobs} == {
                job.token for job in claimed.jobs
            }
        if self.is_paused and mode is not Mode.TAKE:
            assert (claimed.jobs, claimed.put_off, claimed.doubles) == ([], 0, 0)
            if mode is Mode.DIRECT:
                left_us = (T0 + self.paused_till) * 1000 - claimed.now_us
                assert claimed.wait_us == (-1 if left_us == math.inf else left_us)
        elif mode is not Mode.TAKE:
            self.forget_pause_that_is_over()
        lying = self.rig.state().get("destination", [])
        self.doubles = [name for name in lying if name in self.doubles]
        for job in claimed.jobs:
            name = name_in(job.payload)
            if job.is_foreign and name.startswith("j"):
                # Only its payload says that it is a job, which has ended. A worker checks that, and drops it.
                assert job.is_known
                assert name in self.over
                assert self.rig.acknowledge(job, state=State.MISSING) == []
                continue
            place = self.places[name]
            ahead = self.ahead.pop(name, None)
            if mode is not Mode.TAKE:
                assert ahead is None or not self.is_alive(ahead)
            if name.startswith("j"):
                assert job.payload == self.bodies.get(name, payload(name))
            assert name not in self.living, f"{name} runs, and came again"
            if place in ("waiting", "retrying"):
                assert self.due[name] <= self.rig.now, f"{name} came early"
                assert mode is not Mode.TAKE
            elif place == "leased":
                held_until = self.due[name]
                assert held_until <= self.rig.now, f"{name} came twice"
            assert place != "dead"
            assert job.is_foreign == name.startswith("x")
            self.places[name], self.leases[name] = "leased", job
            self.due[name] = int(self.rig.now) + LEASE
            self.slotted.discard(name)
            if name in self.limited and mode is not Mode.TAKE:
                self.slotted.add(name)
                assert self.running_of(self.limited[name]) <= self.most
            if is_living:
                self.living.add(name)
        if mode is Mode.SHARED:
            self.follow_transfer()

    def check_order(self, claimed: Claimed, let_go: set[str]) -> None:
        """Check that no job waits on that should have come before one that was claimed."""
        taken = {
            name: self.priorities.get(name, 0)
            for name in (name_in(job.payload) for job in claimed.jobs)
            if self.places.get(name) in ("waiting", "retrying")
        }
        put_off = self.retrying()
        for name in self.names("waiting", "retrying"):
            is_due = self.due[name] <= self.rig.now
            is_due = is_due and name not in taken and name not in let_go
            if name in put_off:
                is_due = is_due and put_off[name][0] <= self.rig.now
            priority = self.priorities.get(name, 0)
            if is_due and taken and priority > 0:
                assert priority <= min(taken.values()), f"{name} should have come"

    @precondition(
        lambda self: self.has_priorities and self.names("waiting", "retrying")
    )
    @rule(data=st.data(), priority=st.sampled_from([-7, 0, 7]))
    def reprioritize(self, data: Any, priority: int) -> None:
        name = self.pick(data, "waiting", "retrying")
        if name.startswith("x"):
            return
        call = change_calls.reprioritize(self.rig.keys, token(name), priority)
        assert self.rig.run(call) is Change.REPRIORITIZED
        self.priorities[name] = priority
        assert self.rig.inspect(name).priority == priority

    @precondition(lambda self: self.has_priorities)
    @rule()
    def sweep_ranks(self) -> None:
        self.rig.run(sweep_calls.sweep(self.rig.keys, count=1_000))

    def retrying(self) -> dict[str, tuple[int, int]]:
        """Return the jobs among the retries by name: when each is due, and its kills."""
        found = self.client.zrange(self.rig.keys.retries, 0, -1, withscores=True)
        if not found:
            return {}
        tokens = [member for member, _ in found]
        payloads = self.client.hmget(self.rig.keys.payloads, tokens)
        headers = self.client.hmget(self.rig.keys.headers, tokens)
        return {
            name_in(body or b""): (
                int(score) - T0,
                int.from_bytes((header or b"")[4:8], "little") % 2**31,
            )
            for (_, score), body, header in zip(found, payloads, headers, strict=True)
        }

    def follow_put_off(self, before: dict[str, tuple[int, int]]) -> None:
        for name, (due, kills) in self.retrying().items():
            if before.get(name) == (due, kills):
                continue
            if self.places[name] == "limited":
                if due <= self.rig.now:
                    # Its limit has let it go.
                    continue
                # A claim before this one did, and now it is a suspect.
                self.places[name] = "retrying"
            assert kills > SAFE_KILLS
            assert name not in self.living, f"{name} runs, and was put off"
            assert self.places[name] in ("leased", "retrying")
            assert self.due[name] <= self.rig.now, f"{name} was put off early"
            assert due == int(self.rig.now) + PUT_OFF_MS
            self.places[name], self.due[name] = "retrying", due

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        way=st.sampled_from("AAAARRSBGHHN"),
        wait=waits,
        again=st.booleans(),
        followers=st.sampled_from([0, 0, 1, 3]),
    )
    def settle(
        self, data: Any, way: str, wait: int, again: bool, followers: int
    ) -> None:
        name = data.draw(st.sampled_from(sorted(self.leases)))
        # Jobs that follow it are stored with its end, or not at all.
        names = [self.new_name("j") for _ in range(followers if way in "AB" else 0)]
        follow = [(0, follower(each, f"+{wait}")) for each in names]
        job = self.leases[name]
        is_held = self.places.get(name) == "leased"
        call = {
            "A": lambda: self.rig.acknowledge(job, followers=follow),
            "R": lambda: self.rig.retry(job, wait=wait),
            "S": lambda: self.rig.snooze(job, wait=wait),
            "B": lambda: self.rig.bury(job, followers=follow),
            "G": lambda: self.rig.give_back(job),
            "H": lambda: self.rig.hold(
                job, task=Reason(Kind.PAUSED, TASK), hold_ms=None
            ),
            "N": lambda: self.rig.renew(job),
        }[way]
        assert call() == ([] if is_held else [0])
        if again and way != "N":
            # Its reply was lost.
            before = self.rig.state()
            assert call() == [0]
            assert self.rig.state() == before
        if not is_held:
            return
        for each in names:
            self.places[each], self.due[each] = "waiting", self.rig.at(wait) - T0
            self.priorities[each] = 0
        if way == "N":
            self.due[name] = self.rig.at(LEASE) - T0
            return
        del self.leases[name]
        self.living.discard(name)
        if way in "AB":
            self.end(name)
        if way == "A":
            del self.places[name]
            self.over.add(name)
        elif way == "B":
            self.places[name] = "dead"
        elif way == "H" and self.is_task_paused:
            self.places[name] = "held"
            self.held[name] = job.start_time_ms - T0
        elif (
            way == "G"
            and job.is_foreign
            and not job.came_in_frame
            and not job.attempts + job.kills
        ):
            self.places[name] = "destination"
        else:
            self.places[name] = "retrying"
            due = self.rig.at(wait) - T0
            if way in "GH":
                # At the time when it was due first; a clock that is set back puts that into the future again.
                due = min(job.start_time_ms - T0, math.floor(self.rig.now))
            self.due[name] = due
            if way == "S":
                seen = self.rig.run(queue_reads.inspect(self.rig.keys, job.token))
                assert (seen.attempts, seen.kills) == (job.attempts, job.kills)
                assert (seen.start_time_ms, seen.score_ms) == (
                    job.start_time_ms,
                    T0 + due,
                )
        self.follow_limits()

    @rule(suspects=st.sampled_from([None, 1, 0]))
    def worker_dies(self, suspects: int | None) -> None:
        """The worker dies with all its leases; its jobs are suspects for the next worker."""
        rank = 0
        while rank >= 0:
            _, rank = self.rig.recover(OWNER, first_rank=rank, batch=7)
        for name in self.names("leased"):
            self.due[name] = 0
        self.living.clear()
        if suspects is not None:
            self.take(self.mode, 5, again=False, is_living=False, suspects=suspects)

    # Pauses.

    @property
    def is_paused(self) -> bool:
        return math.floor(self.rig.now) < self.paused_till

    @rule(ms=st.sampled_from([None, 1, 60, 1_000, LEASE]))
    def pause(self, ms: int | None) -> None:
        assert self.rig.pause(until="" if ms is None else f"+{ms}") == 1
        self.paused_till = math.inf if ms is None else math.ceil(self.rig.now) + ms

    def forget_pause_that_is_over(self) -> None:
        """A claim deletes it, so that a clock that is set back does not bring it back."""
        if not self.is_paused:
            self.paused_till = -math.inf

    @rule()
    def resume(self) -> None:
        assert self.rig.resume() == self.is_paused
        self.paused_till = -math.inf

    @property
    def is_task_paused(self) -> bool:
        return math.floor(self.rig.now) < self.task_paused_till

    @rule(ms=st.sampled_from([None, 60, 1_000]))
    def pause_task(self, ms: int | None) -> None:
        assert self.rig.pause(TASK, until="" if ms is None else f"+{ms}") == 1
        self.task_paused_till = math.inf if ms is None else math.ceil(self.rig.now) + ms

    @rule()
    def resume_task(self) -> None:
        assert self.rig.resume(TASK) == self.is_task_paused
        self.task_paused_till = -math.inf
        self.release(Reason(Kind.PAUSED, TASK), is_worker=False)

    @rule()
    def worker_looks_at_held_jobs(self) -> None:
        self.loosen()
        self.release(TASK, is_worker=True)

    def release(self, name: str, *, is_worker: bool) -> None:
        held = [] if self.is_task_paused else self.names("held")
        reply = self.rig.release(name, is_worker=is_worker)
        assert reply[:2] == (len(held), 0)
        for each in held:
            self.places[each] = "retrying"
            # Its place does not change, but it is not late yet.
            self.due[each] = math.floor(self.rig.now)

    # Limits.

    def running_of(self, key: str) -> int:
        """Return how many jobs of a key have a slot."""
        return sum(
            self.places.get(name) == "leased" and self.limited[name] == key
            for name in self.slotted
        )

    def declare_limit(self) -> None:
        declared = [(LIMIT, numbers_of(concurrency=self.most))]
        self.rig.run(
            worker_code.declare(self.rig.keys, declared, owner=b"process1", loaded_ms=0)
        )

    def loosen(self) -> None:
        self.rig.run(limit_calls.loosen(self.rig.keys))
        self.follow_limits()

    @rule(most=st.integers(1, 3))
    def change_limit(self, most: int) -> None:
        self.most = most
        self.declare_limit()
        self.loosen()

    def follow_limits(self) -> None:
        """Jobs are held while their limit is full, and go on when there is room."""
        keys, now = self.rig.keys, math.floor(self.rig.now)
        # By name: the token of a foreign element is none.
        held = set(self.rig.state().get("held", {}))
        for name in self.names("limited"):
            if name not in held:
                scores = [
                    self.client.zscore(key, token(name))
                    for key in (keys.retries, keys.returned)
                ]
                (due,) = (int(score) - T0 for score in scores if score is not None)
                # The script rounds the time up.
                assert due <= self.rig.at(0) - T0
                self.places[name], self.due[name] = "retrying", due
        for name in held - {*self.names("held", "limited")}:
            assert name in self.limited
            assert self.places[name] == "destination" or self.due[name] <= now
            assert name not in self.living
            self.places[name] = "limited"

    # By id.

    @precondition(
        lambda self: self.names(
            "waiting", "destination", "retrying", "leased", "limited"
        )
    )
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        name = self.pick(
            data, "waiting", "destination", "retrying", "leased", "limited"
        )
        if name.startswith("x"):
            return
        is_running = self.places[name] == "leased" and self.due[name] > 0
        assert self.rig.cancel(name) == ("running" if is_running else "cancelled")
        if not is_running:
            del self.places[name]
            self.over.add(name)
            key, ahead = self.keys_of.get(name, ""), self.ahead.pop(name, "")
            was_holder = self.holders.get(key) == name
            self.end(name)
            if was_holder and self.is_alive(ahead):
                self.holders[key] = ahead
            self.follow_limits()

    @precondition(
        lambda self: self.names(
            "waiting", "destination", "retrying", "leased", "limited"
        )
    )
    @rule(data=st.data(), wait=waits)
    def reschedule(self, data: Any, wait: int) -> None:
        name = self.pick(
            data, "waiting", "destination", "retrying", "leased", "limited"
        )
        if name.startswith("x"):
            return
        is_running = self.places[name] == "leased" and self.due[name] > 0
        outcome, start_time = self.rig.reschedule(name, wait)
        if is_running:
            assert outcome == "running"
            return
        assert outcome == "rescheduled"
        if self.places[name] != "waiting":
            self.places[name] = "retrying"
        assert start_time is not None
        self.due[name] = start_time
        self.follow_limits()

    @precondition(lambda self: self.names("dead"))
    @rule(data=st.data(), is_replayed=st.booleans())
    def bring_back(self, data: Any, is_replayed: bool) -> None:
        name = self.pick(data, "dead")
        if name.startswith("x") or name in self.doubles:
            return
        if is_replayed:
            assert self.rig.replay(name) == 1
            self.places[name], self.due[name] = "retrying", self.rig.at(0) - T0
        else:
            assert self.rig.discard(name) == 1
            del self.places[name]

    # Time, in steps so small that the server remembers every end.

    @rule(ms=st.sampled_from([0.5, 1, 7, 60, 400]))
    def time_passes(self, ms: float) -> None:
        self.pass_time(ms)

    @precondition(lambda self: self.names("leased") and not self.doubles)
    @rule()
    def leases_expire(self) -> None:
        self.over.clear()  # their memory goes with the time
        self.pass_time(LEASE + 1)

    def pass_time(self, ms: float) -> None:
        """Let time pass, in which living processes renew their leases."""
        until = self.rig.now + ms
        while until >= self.renewed + LEASE / 3:
            self.rig.now = max(self.rig.now, self.renewed + LEASE / 3)
            self.renew_living()
        self.rig.now = until

    def renew_living(self) -> None:
        self.renewed = self.rig.now
        held = sorted(self.living)
        assert self.rig.renew(*(self.leases[name] for name in held)) == []
        for name in held:
            self.due[name] = self.rig.at(LEASE) - T0

    @precondition(lambda self: not self.doubles)
    @rule(
        ms=st.sampled_from([14_000, LEASE, 100_000]),
        times=st.integers(1, MOST_GAPS),
        is_take=st.booleans(),
    )
    def nobody_is_served(self, ms: float, times: int, is_take: bool) -> None:
        """The server is away, or its clock makes a step: living processes come back within a third of a lease."""
        self.over.clear()
        if not self.living:
            self.begin(is_living=True)
        self.end_row()
        for _ in range(times):
            self.step(ms)
            # A stranger is the first to come back.
            mode = Mode.TAKE if is_take else self.mode
            self.take(mode, 15, again=False, is_living=False)

    @precondition(lambda self: not self.doubles)
    @rule(ms=st.sampled_from([LEASE, 100_000]))
    def worker_dies_while_nobody_is_served(self, ms: float) -> None:
        """This happens again and again: the first time counts no kill, and each later time counts one."""
        self.over.clear()
        self.end_row()
        name = self.begin(is_living=False)
        for kills in range(3):
            before = self.leases[name]
            self.step(ms)
            self.take_due(is_living=False)
            assert self.leases[name] is before, f"{name} came before its time"
            self.pass_time(SPARED)
            self.take_due(is_living=False)
            assert self.leases[name] is not before, f"{name} did not come again"
            assert self.leases[name].kills == kills
        self.pass_time(LEASE)
        self.take_due(is_living=False)
        assert self.leases[name].kills == 3

    def end_row(self) -> None:
        """Let all processes come back: after more than three gaps in a row, scripts wait for nobody."""
        self.pass_time(SPARED + LEASE / LOOKS_A_LEASE)
        self.gaps = 0

    def begin(self, *, is_living: bool) -> str:
        """Schedule a job, and lease it with whatever else is due."""
        self.resume()
        name = self.new_name("j")
        (reply,) = self.rig.schedule({name: 0})
        self.places[name], self.due[name] = "waiting", reply.start_time_ms
        # The job is due when the millisecond is over.
        self.pass_time(1)
        self.take_due(is_living=is_living)
        return name

    @rule(ms=st.sampled_from([2, 14_000, 3_600_000]))
    def clock_steps_back(self, ms: float) -> None:
        if ms > SKEW_MS:
            if self.doubles:
                return
            self.over.clear()  # what was noted so far ahead counts no more
        if self.gaps == MOST_GAPS:
            self.end_row()
        self.step(-ms)
        for name in self.names("leased"):
            # The next call that serves the queue cuts them.
            self.due[name] = min(self.due[name], int(self.rig.now) + LEASE)
        if ms > LEASE:
            self.take(Mode.TAKE, 0, again=False, is_living=False)
            ends = self.rig.state().get("leases", {}).values()
            assert max(ends, default=0) <= self.rig.at(LEASE) - T0

    def step(self, ms: float) -> None:
        self.gaps += abs(ms) > SPARED
        # A lease that was to be renewed at the moment of the step is renewed so long after it.
        due_in = max(0.0, self.renewed + LEASE / 3 - self.rig.now)
        self.rig.is_served = False
        self.rig.now += ms
        self.rig.is_served = True
        self.renewed = self.rig.now + due_in - LEASE / 3

    # What is always true.

    @invariant()
    def queue_is_consistent(self) -> None:
        self.rig.check()

    @invariant()
    def each_element_is_where_the_model_has_it(self) -> None:
        state = self.rig.state()
        found = {
            "waiting": [name for name, _ in state.get("timeout_set", [])],
            "destination": state.get("destination", []),
            "leased": list(state.get("leases", {})),
            "retrying": [*state.get("retries", {}), *state.get("returned", {})],
            "held": list(state.get("held", {})),
            "dead": list(state.get("dead", {})),
        }
        for place, names in found.items():
            expected = self.names(place)
            if place == "destination":
                expected += self.doubles
            elif place == "held":
                expected += self.names("limited")
            assert sorted(names) == sorted(expected), place

    @invariant()
    def batch_counts_its_jobs_that_have_not_ended(self) -> None:
        self.batched = {
            name for name in self.batched if self.places.get(name, "dead") != "dead"
        }
        assert self.rig.left("cb") == len(self.batched) + self.strayed

    @invariant()
    def each_job_with_a_limit_has_a_slot_while_it_is_leased(self) -> None:
        slots = self.client.zrange(self.rig.keys.slots, 0, -1)
        found = [
            tuple(part.decode().rstrip("-") for part in slot.split(b"\0"))
            for slot in slots
        ]
        assert sorted(found) == sorted(
            (LIMIT, self.limited[name], name)
            for name in self.slotted
            if self.places.get(name) == "leased"
        )

    @invariant()
    def a_search_finds_each_element_where_the_model_has_it(self) -> None:
        found = self.rig.search(count=4)
        for place, places in {
            "waiting": ("timeout_set",),
            "destination": ("destination",),
            "leased": ("leases",),
            "retrying": ("retries", "returned"),
            "dead": ("dead",),
        }.items():
            expected = self.names(place)
            if place == "destination":
                expected += self.doubles
            names = [name_in(one.payload) for one in found if one.place in places]
            assert sorted(names) == sorted(expected), place
        for one in found:
            name = name_in(one.payload)
            if one.place in ("timeout_set", "returned"):
                # Jobs that are due again together have fractions of a millisecond, which keep their order.
                assert one.due_ms in (self.due[name] + T0, self.due[name] + T0 - 1)
                is_due = self.due[name] <= math.floor(self.rig.now)
                assert one.state is (State.DUE if is_due else State.SCHEDULED)

    def run_all_into(self, ran: list[str]) -> None:
        while True:
            claimed = self.rig.claim(100, mode=self.mode)
            ran += [name for name in map(self.name_of, claimed.jobs) if name]
            assert self.rig.acknowledge(*claimed.jobs) == []
            if not claimed.jobs and claimed.wait_us != 0:
                return

    def name_of(self, job: Leased) -> str:
        """Return its name; empty if it is a double of a job that has ended."""
        name = name_in(job.payload)
        return "" if job.is_foreign and name.startswith("j") else name

    def teardown(self) -> None:
        """Run all jobs that are left: each runs exactly once, and no key stays."""
        rig = self.rig
        self.resume()
        self.resume_task()
        self.living.clear()
        if dead := self.names("dead"):
            tokens = self.client.zrange(rig.keys.dead, 0, -1)
            rig.run(change_calls.replay(rig.keys, [t.decode() for t in tokens]))
            assert len(tokens) == len(dead)
        ran: list[str] = []
        rig.open("cb")
        rig.close("cb")
        self.run_all_into(ran)
        rig.now = max([rig.now, *self.due.values()]) + 10 * LEASE
        self.run_all_into(ran)
        # Those behind others are looked at again.
        rig.now += 30_000
        self.run_all_into(ran)
        if self.strayed:
            assert rig.cancel("cb") is Change.CANCELLED
            rig.client.delete(rig.keys.batches)
        else:
            ran.remove("cb")
        assert sorted(ran) == sorted(self.places)
        rig.recover()
        assert rig.leftovers() == []


def test_random_operations_lose_nothing_and_deliver_nothing_twice(
    client: "redis.Redis[bytes]", queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def machine() -> QueueMachine:
        numbers = Numbers()
        for module in (scripts, claim_calls):
            monkeypatch.setattr(module, "secrets", numbers)
        return QueueMachine(client, queue_name)

    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
