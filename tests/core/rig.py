"""One queue on a real server, under a clock that stands still, described by names instead of bytes.

Times are ms after `T0`. A job named ``a`` has the token ``a---…``; a payload that somebody else offered is its own
name. `Rig.state` tells what the server holds, without empty parts; `Rig.check` checks the rules that are true between
any two calls.
"""

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, TypeVar

import redis

from django_delayq.core import (
    bounds,
    forward_calls,
    lease_ends,
    queue_reads,
    search_calls,
    stored_pauses,
)
from django_delayq.core import change as change_calls
from django_delayq.core import claim as claim_calls
from django_delayq.core import hold as hold_calls
from django_delayq.core import store as store_calls
from django_delayq.core.claim import (
    LOOKS_A_LEASE,
    Claimed,
    Leased,
    Mode,
    Recovered,
    Transferred,
)
from django_delayq.core.followers import Following
from django_delayq.core.forward_calls import Forward, Forwards, Received
from django_delayq.core.hold import Held, HeldNames, Hold, Released
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import Done, Failed, Rejected
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.search_calls import (
    ALWAYS,
    PLACES,
    Found,
    FoundPage,
    Place,
    Window,
)
from django_delayq.core.states import Change, State
from django_delayq.core.store import NewJob, Scheduled, Target, tail_of
from django_delayq.core.stored_pauses import Pause
from django_delayq.features.batches import calls as batch_calls
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.schedules import calls as schedule_calls
from django_delayq.features.schedules.calls import KEPT, Advanced, Entry
from django_delayq.transport.call import Call
from django_delayq.transport.run import run
from django_delayq.wire import frame as frames
from django_delayq.wire import signatures
from django_delayq.wire.frame import FrameFormat
from tests.clock import at

T = TypeVar("T")
#: Epoch ms at which every test begins.
T0 = 1_700_000_000_000
#: The number before the first frame of a test: four a millisecond since 1970.
FIRST = 4 * T0
LEASE = 30_000
HOLD = 900_000
OWNER = b"owner--1"
LISTED, UNLISTED = b"\xd9L", b"\xd9U"
#: What Redisson's transfer does, in its order: push and unlist each frame, and take all of them out at the end. A frame
#: of the other format stops it in the middle.
JAVA_TRANSFER = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, ARGV[2])
for _, frame in ipairs(due) do
  local _, payload = struct.unpack(ARGV[3], frame)
  redis.call('RPUSH', KEYS[3], payload)
  redis.call('LREM', KEYS[2], 1, frame)
end
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return #due
"""
JAVA_FORMATS = {FrameFormat.DLC0: "dLc0", FrameFormat.BC0LC0: "Bc0Lc0"}


def token(name: str) -> str:
    """Return the token of the job with this name."""
    return name.ljust(signatures.TOKEN_LENGTH, "-")


def payload(name: str, size: int = 0, *, signature: str = "") -> bytes:
    """Return the shortest envelope that scripts accept, padded to a size, and signed with the name or another text."""
    signed = mac(signature or name).encode()
    text = b'{"delayq":"%b","mac":"2key1%b"}' % (token(name).encode(), signed)
    return text[:-1] + b"," + b" " * (size - len(text) - 1) + b"}" if size else text


def locator(name: str, *, signature: str = "") -> bytes:
    """Return the locator of a job that was transferred at T0."""
    half = mac(signature or name).encode()[:16]
    return struct.pack("<dB8s16s", T0, 0, bytes(8), half)


def mac(name: str) -> str:
    """Return 32 hexadecimal digits, different for each name."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def name_in(payload: bytes) -> str:
    """Return the name of a job, or a foreign payload as it is."""
    if payload.startswith(b'{"delayq":"'):
        return payload[11:33].decode().rstrip("-")
    return payload.decode(errors="backslashreplace")


def reason_of(task: str | Reason) -> Reason:
    """Return what jobs of an unknown task are held for; or the reason itself."""
    return task if isinstance(task, Reason) else Reason(Kind.TASK, task)


class Rig:
    """A queue's keys, a clock, and each operation under that clock."""

    def __init__(
        self,
        client: "redis.Redis[bytes]",
        name: str,
        *,
        frame_format: FrameFormat = FrameFormat.BC0LC0,
        insertion_list: bool = True,
    ) -> None:
        self.client = client
        self.keys = DeliveryKeys.of(name)
        self.frame_format = frame_format
        self.insertion_list = insertion_list
        self._now = 0.0
        # The fencing tokens of all leases given.
        self._shortest_ms = LEASE
        #: True: somebody looks at the queue all the time, as an idle worker does. False: time passes without any call.
        self.is_served = True
        #: False: the test broke a rule on purpose, so its end checks no rules.
        self.is_checked = True
        #: Every frame that Java offered: its random bytes may look like ours.
        self.java_frames: set[bytes] = set()
        #: Those of Java's frames that a command has taken out of the delay queue.
        self.delisted: set[bytes] = set()
        #: A claim has said that there are limits: from then on, ends of leases free slots.
        self.has_slots = False
        self._numbers = itertools.count(1)

    @property
    def now(self) -> float:
        """The time, ms after T0; a fraction is allowed. Set it to let time pass, or to let the clock step back."""
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        for _ in range(2 * LOOKS_A_LEASE * LEASE // self._shortest_ms):
            look_ms = self._shortest_ms / LOOKS_A_LEASE
            if not self.is_served or now <= self._now + look_ms:
                break
            if not self.client.exists(self.keys.leases):
                break
            self._now += look_ms
            self.claim(0, mode=Mode.TAKE, owner=b"idle----")
        self._now = now

    @property
    def now_us(self) -> int:
        return T0 * 1000 + round(self.now * 1000)

    def run(self, call: Call[T]) -> T:
        return run(self.client, at(self.now_us, call))

    # Operations, with names for tokens and ms after T0 for times.

    def schedule(
        self,
        waits: Mapping[str, int | str],
        *,
        unique: str = "",
        size: int = 0,
        insertion_list: bool | None = None,
        frame_format: FrameFormat | None = None,
        max_jobs: int | None = None,
        again: bool = False,
        priority: int = 0,
        may_go_behind: bool = False,
        limit: str = "",
        drops: bool = False,
        in_turn: bool = False,
        batch: str = "",
    ) -> list[Scheduled]:
        """Schedule jobs by name. A number is a wait in ms; text goes to the script as it is.

        ``again`` marks the repeat that a client makes when the reply to its call was lost.
        """
        jobs = [
            NewJob(
                token(name),
                wait if isinstance(wait, str) else f"+{wait}",
                tail_of(
                    unique,
                    priority,
                    limit,
                    drops=drops,
                    in_turn=in_turn,
                    may_go_behind=may_go_behind,
                    batch=token(batch) if batch else "",
                ),
                payload(name, size),
            )
            for name, wait in waits.items()
        ]
        return self.send(
            jobs,
            insertion_list=insertion_list,
            frame_format=frame_format,
            max_jobs=max_jobs,
            again=again,
            has_batches=bool(batch),
        )

    def send(
        self,
        jobs: Sequence[NewJob],
        *,
        insertion_list: bool | None = None,
        frame_format: FrameFormat | None = None,
        max_jobs: int | None = None,
        again: bool = False,
        has_batches: bool = False,
    ) -> list[Scheduled]:
        """Send jobs; of one that a full queue refused, the reply is as the script gave it."""
        listed = self.insertion_list if insertion_list is None else insertion_list
        frame_format = frame_format or self.frame_format
        target = Target(self.keys, frame_format, listed, max_jobs=max_jobs)
        call = (
            store_calls.store(target, jobs[0], has_batches=has_batches)
            if len(jobs) == 1
            else store_calls.schedule(target, jobs, has_batches=has_batches)
        )
        return [
            reply
            if reply.beyond is State.UNCOMMITTED
            else Scheduled(reply.start_time_ms - T0, reply.holder.rstrip("-"))
            for reply in self.run(call.again() if again else call)
        ]

    def open(
        self, name: str, wait: int | str = 0, *, priority: int = 0, limit: str = ""
    ) -> bool:
        """Begin the batch that has this callback."""
        when = wait if isinstance(wait, str) else f"+{wait}"
        new = NewJob(token(name), when, tail_of("", priority, limit), payload(name))
        return self.run(batch_calls.open_batch(self.keys, new, "why"))

    def withdraw(self, name: str) -> bool:
        """Take away the callback of a batch without jobs."""
        return self.run(batch_calls.withdraw_batch(self.keys, token(name)))

    def close(self, name: str) -> bool:
        """Say that no more jobs come to a batch."""
        return self.run(batch_calls.close_batch(self.keys, token(name)))

    def left(self, name: str) -> int:
        """Return how many jobs of a batch have not ended."""
        return run(self.client, batch_calls.count_left(self.keys, token(name)))

    def store_rows(self, *names: str, unique: str = "") -> list[Scheduled]:
        """Send rows of a database."""
        jobs = [NewJob(token(name), "+0", unique, payload(name)) for name in names]
        target = Target(self.keys, self.frame_format, self.insertion_list)
        return self.run(store_calls.store_rows(target, jobs))

    def receive(
        self, *forwards: Forward, good_ms: int = forward_calls.GOOD_MS
    ) -> Received:
        """Store jobs that follow ones of another queue."""
        return self.run(
            forward_calls.receive(
                self.keys,
                forwards,
                until_ms=self.now_us // 1000 + good_ms,
                frame_format=self.frame_format,
                insertion_list=self.insertion_list,
            )
        )

    def forwards(self) -> Forwards:
        """Count the forwards."""
        return self.run(forward_calls.forwards(self.keys))

    def request(self) -> bytes:
        """Return a request id that no claim had before."""
        return b"%08d" % next(self._numbers)

    def claim(
        self,
        limit: int = 10,
        *,
        request: bytes | None = None,
        owner: bytes = OWNER,
        mode: Mode = Mode.DIRECT,
        lease_ms: int = LEASE,
        transfer_limit: int = 100,
        max_kills: int = -1,
        safe_kills: int = -1,
        takes_suspect: bool = True,
        put_off_ms: int = 0,
        priority_step_ms: int | None = None,
        keeps_ended: bool = False,
        limit_text: str = "",
        byte_budget: int = bounds.BYTE_BUDGET,
    ) -> Claimed:
        self._shortest_ms = min(self._shortest_ms, lease_ms)
        claimed = self.run(
            claim_calls.claim(
                self.keys,
                owner=owner,
                request=request or self.request(),
                limit=limit,
                lease_ms=lease_ms,
                mode=mode,
                transfer_limit=transfer_limit,
                max_kills=max_kills,
                safe_kills=safe_kills,
                takes_suspect=takes_suspect,
                put_off_ms=put_off_ms,
                priority_step_ms=priority_step_ms,
                keeps_ended=keeps_ended,
                limit_text=limit_text,
                frame_format=self.frame_format,
                byte_budget=byte_budget,
            )
        )
        if claimed.limits is not None and claimed.limits.has_slots:
            self.has_slots = True
        return claimed

    def claim_few(
        self,
        limit: int = 10,
        *,
        request: bytes | None = None,
        owner: bytes = OWNER,
        lease_ms: int = LEASE,
    ) -> Claimed | None:
        """Claim with `claim_few`; None: there is more to do than it does, and nothing was done."""
        self._shortest_ms = min(self._shortest_ms, lease_ms)
        return self.run(
            claim_calls.claim_few(
                self.keys,
                owner=owner,
                request=request or self.request(),
                limit=limit,
                lease_ms=lease_ms,
                frame_format=self.frame_format,
            )
        )

    def lease(self, **options: Any) -> Leased:
        """Claim the one job that is due."""
        (job,) = self.claim(1, **options).jobs
        return job

    def transfer(
        self, batch: int = 100, byte_budget: int = bounds.BYTE_BUDGET
    ) -> Transferred:
        return self.run(
            claim_calls.transfer(
                self.keys,
                batch=batch,
                frame_format=self.frame_format,
                byte_budget=byte_budget,
            )
        )

    def acknowledge(
        self,
        *jobs: Leased | Done,
        state: State = State.SUCCEEDED,
        followers: Sequence[tuple[int, NewJob]] = (),
        forwards: Sequence[tuple[int, str, NewJob]] = (),
    ) -> list[int]:
        done = [
            job if isinstance(job, Done) else Done(job.token, job.fence) for job in jobs
        ]
        return self.run(
            lease_ends.acknowledge(
                self.keys,
                done,
                state=state,
                has_slots=self.has_slots,
                following=self.following(followers, forwards),
            )
        )

    def following(
        self,
        followers: Sequence[tuple[int, NewJob]],
        forwards: Sequence[tuple[int, str, NewJob]],
    ) -> Following | None:
        """Describe the jobs that follow others, each with the index of the one before it."""
        if not followers and not forwards:
            return None
        return Following(followers, self.frame_format, self.insertion_list, forwards)

    def retry(
        self, *jobs: Leased, wait: int | str = 1_000, error: bytes = b"{}"
    ) -> list[int]:
        """Fail attempts. A number is a wait in ms; text goes to the script as it is."""
        when = wait if isinstance(wait, str) else f"+{wait}"
        failed = [Failed(job.token, job.fence, when, error) for job in jobs]
        return self.run(lease_ends.retry(self.keys, failed, has_slots=self.has_slots))

    def snooze(self, *jobs: Leased, wait: int | str = 1_000) -> list[int]:
        """End attempts that count as nothing."""
        when = wait if isinstance(wait, str) else f"+{wait}"
        snoozing = [Failed(job.token, job.fence, when) for job in jobs]
        return self.run(
            lease_ends.retry(
                self.keys, snoozing, attempt_failed=False, has_slots=self.has_slots
            )
        )

    def bury(
        self,
        *jobs: Leased | Rejected,
        state: State = State.DEAD,
        attempt_failed: bool = True,
        followers: Sequence[tuple[int, NewJob]] = (),
        forwards: Sequence[tuple[int, str, NewJob]] = (),
    ) -> list[int]:
        rejected = [
            job
            if isinstance(job, Rejected)
            else Rejected(job.token, job.fence, b'{"error":"e"}')
            for job in jobs
        ]
        return self.run(
            lease_ends.bury(
                self.keys,
                rejected,
                state=state,
                attempt_failed=attempt_failed,
                has_slots=self.has_slots,
                following=self.following(followers, forwards),
            )
        )

    def give_back(self, *jobs: Leased, have_begun: bool = False) -> list[int]:
        return self.run(
            lease_ends.give_back(
                self.keys,
                jobs,
                begun={job.token for job in jobs} if have_begun else (),
                has_slots=self.has_slots,
            )
        )

    def hold(
        self,
        *jobs: Leased,
        task: str | Reason = "shop.new",
        hold_ms: int | None = HOLD,
    ) -> Any:
        reason = reason_of(task)
        held = [
            Held(job.token, job.fence, Hold(reason, f"no task {reason.name}.", hold_ms))
            for job in jobs
        ]
        return self.run(hold_calls.hold(self.keys, held, has_slots=self.has_slots))

    def release(
        self, *names: str | Reason, limit: int = 500, **options: Any
    ) -> Released:
        known = map(reason_of, names)
        return self.run(hold_calls.release(self.keys, known, limit=limit, **options))

    def held_names(self, **options: Any) -> HeldNames:
        return self.run(hold_calls.held_names(self.keys, **options))

    def pause(self, task: str | None = None, *, until: str = "", **options: Any) -> int:
        return self.run(pause_calls.pause(self.keys, task=task, until=until, **options))

    def resume(self, task: str | None = None) -> int:
        return self.run(pause_calls.resume(self.keys, task=task))

    def pauses(self) -> list[Pause]:
        return self.run(stored_pauses.pauses(self.keys))

    def renew(self, *jobs: Leased, lease_ms: int = LEASE) -> list[int]:
        held = [(job.token, job.fence) for job in jobs]
        return self.run(lease_ends.renew(self.keys, held, lease_ms=lease_ms))

    def recover(
        self, owner: bytes = OWNER, *, first_rank: int = 0, batch: int = 500
    ) -> Recovered:
        return self.run(
            claim_calls.recover(
                self.keys, owner=owner, first_rank=first_rank, batch=batch
            )
        )

    def arranging(
        self,
        name: str,
        next_at: int | str | None = KEPT,
        *,
        job: str = "",
        start: int | None = None,
        version: int | None = None,
        print: str = "p1",
        insertion_list: bool | None = None,
        **definitions: bytes | str,
    ) -> Call[int]:
        """Return a call that changes a schedule; ``job`` is the name of its waiting job. Made twice, it is a repeat.

        The job is due at ``start``, by default at its moment.
        """
        if version is None:
            version = self.version()
        at = next_at if next_at is None or isinstance(next_at, str) else T0 + next_at
        when = at if start is None else T0 + start
        new = NewJob(token(job), f"={when}", "", payload(job)) if job else None
        listed = self.insertion_list if insertion_list is None else insertion_list
        return schedule_calls.arrange(
            Target(self.keys, self.frame_format, listed),
            name,
            version=version,
            print=print,
            next_ms=at,
            job=new,
            **definitions,
        )

    def arrange(
        self, name: str, next_at: int | str | None = KEPT, **options: Any
    ) -> int:
        """Change a schedule, as `arranging` has it."""
        return self.run(self.arranging(name, next_at, **options))

    def advance(
        self,
        name: str,
        seen: int,
        jobs: Mapping[str, int],
        next_at: int | None,
        *,
        print: str = "p1",
        behind: int = 0,
        priority: int = 0,
    ) -> Advanced:
        """Move a schedule on; ``jobs`` are the names of jobs and their moments."""
        moments = [seen, *jobs.values()]
        return self.run(
            schedule_calls.advance(
                Target(self.keys, self.frame_format, self.insertion_list),
                name,
                [
                    NewJob(
                        token(job), f"={T0 + at}", tail_of("", priority), payload(job)
                    )
                    for job, at in jobs.items()
                ],
                print=print,
                seen_ms=T0 + seen,
                next_ms=None if next_at is None else T0 + next_at,
                fired_ms=T0 + (moments[-2] if len(moments) > 1 else seen),
                behind=behind,
            )
        )

    def version(self) -> int:
        """Return the version of the definitions of schedules."""
        field = self.client.hget(self.keys.schedules, "version")
        return schedule_calls.read_version(field)

    def schedules(self) -> dict[str, Entry]:
        """Read what the queue knows of its schedules, with moments as ms after `T0`."""
        entries: dict[str, Entry] = {}
        page = self.run(schedule_calls.page(self.keys))
        for each in page.fields:
            schedule_calls.add_field(entries, *each)
        for entry in entries.values():
            if entry.occurrence_ms is not None:
                entry.occurrence_ms -= T0
        return entries

    def cancel(self, name: str, **options: Any) -> Change | State:
        (outcome,) = self.cancel_many([name], **options).values()
        return outcome

    def cancel_many(
        self, names: Iterable[str], **options: Any
    ) -> dict[str, Change | State]:
        outcomes: dict[str, Change | State] = {}
        for call in change_calls.cancel_many(self.keys, map(token, names), **options):
            outcomes |= self.run(call)
        return {each.rstrip("-"): outcome for each, outcome in outcomes.items()}

    def reschedule(
        self, name: str, wait: int | str
    ) -> tuple[Change | State, int | None]:
        """Move a job; the start time in the answer is ms after T0, or None."""
        when = wait if isinstance(wait, str) else f"+{wait}"
        outcome, start_time_ms = self.run(
            change_calls.reschedule(self.keys, token(name), when)
        )
        return outcome, start_time_ms - T0 if start_time_ms else None

    def note_ended(self, *records: EndRecord, keep: int = 1_000) -> None:
        self.run(ended_calls.note_ended(self.keys, records, keep=keep))

    def ended(self, **options: Any) -> list[EndRecord]:
        """Return what the queue remembers of ended jobs, the newest first."""
        return ended_calls.read_records(
            self.run(ended_calls.read_ended(self.keys, **options)).stored
        )

    def inspect(self, name: str) -> Inspected:
        return self.run(queue_reads.inspect(self.keys, token(name)))

    def search_from(self, place: Place, *, count: int = 3) -> FoundPage:
        """Read on in a search, a few elements a call."""
        return self.run(
            search_calls.search(
                self.keys,
                place,
                count=count,
                payload_bytes=1 << 20,
                frame_format=self.frame_format,
            )
        )

    def search(
        self, *states: State, window: Window = ALWAYS, count: int = 3
    ) -> list[Found]:
        """Return all elements, or what a search for some states reads."""
        wanted = states or (*PLACES.values(), State.DUE)
        place = search_calls.first_place(wanted, window, now_ms=self.now_us // 1000)
        found = []
        while not place.is_at_end:
            page = self.search_from(place, count=count)
            assert len(page.found) <= count
            found += page.found
            place = page.place
        return found

    def replay(self, *names: str, state: State = State.DEAD, when: str = "+0") -> int:
        tokens = [token(name) for name in names]
        return self.run(change_calls.replay(self.keys, tokens, state=state, when=when))

    def discard(self, *names: str, state: State = State.DEAD) -> int:
        tokens = [token(name) for name in names]
        return self.run(change_calls.discard(self.keys, tokens, state=state))

    def counters(self) -> dict[str, int]:
        """Return the counters since the queue began."""
        return self.run(queue_reads.counts(self.keys)).counters

    def lay(self, *names: str, size: int = 0) -> None:
        """Put jobs into the destination queue as a transfer leaves them."""
        self.client.hset(
            self.keys.locators, mapping={token(name): locator(name) for name in names}
        )
        bodies = [payload(name, size) for name in names]
        self.client.rpush(self.keys.queue.destination, *bodies)

    # What a Java service does, with the clock above.

    def java_offer(
        self,
        payload: str | bytes,
        wait: int,
        *,
        frame_format: FrameFormat | None = None,
        random_id: bytes = b"",
    ) -> bytes:
        """Offer as Redisson does, and return the frame."""
        body = payload.encode() if isinstance(payload, str) else payload
        number = next(self._numbers)
        frame = frames.pack(
            random_id or b"java" + number.to_bytes(4, "big"),
            body,
            frame_format or self.frame_format,
        )
        self.java_frames.add(frame)
        # In one step, as Redisson's script does.
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.zadd(self.keys.queue.timeout_set, {frame: self.at(wait)})
            pipeline.rpush(self.keys.queue.delay_queue, frame)
            pipeline.execute()
        return frame

    def java_transfer(
        self, limit: int = 100, *, frame_format: FrameFormat | None = None
    ) -> int:
        queue = self.keys.queue
        moved = self.client.eval(
            JAVA_TRANSFER,
            3,
            queue.timeout_set,
            queue.delay_queue,
            queue.destination,
            self.now_us // 1000,
            limit,
            JAVA_FORMATS[frame_format or self.frame_format],
        )
        return int(moved)

    def java_take(self) -> str | None:
        taken = self.client.lpop(self.keys.queue.destination)
        return None if taken is None else name_in(taken)

    def java_remove(self, frame: bytes) -> None:
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.zrem(self.keys.queue.timeout_set, frame)
            pipeline.lrem(self.keys.queue.delay_queue, 1, frame)
            pipeline.execute()

    def at(self, wait: float) -> int:
        """Return the epoch ms of a time so many ms after now."""
        return -(-self.now_us // 1000) + int(wait)

    @contextmanager
    def listening(self, channel: str) -> Iterator[Callable[[], list[int]]]:
        """Subscribe; yields a function that returns what was published since, in ms after T0."""
        with self.client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(channel)
            pubsub.get_message(timeout=10)

            def heard() -> list[int]:
                # What was published before this echo has arrived before it.
                self.client.publish(channel, "end")
                messages = []
                while True:
                    message = pubsub.get_message(timeout=10)
                    if message is None:
                        continue
                    if message["data"] == b"end":
                        return messages
                    messages.append(int(message["data"]) - T0)

            yield heard

    # What the server holds.

    def frames(self) -> list[bytes]:
        """Return the delay queue, Redisson's list of all that was offered."""
        return self.client.lrange(self.keys.queue.delay_queue, 0, -1)

    def read(self, *, hashes: str, sets: str, lists: str = "") -> SimpleNamespace:
        """Read parts of the queue by their names, in one go."""
        pipe = self.client.pipeline(transaction=False)
        names = [*hashes.split(), *sets.split(), *lists.split()]
        for name in hashes.split():
            pipe.hgetall(self.key(name))
        for name in sets.split():
            pipe.zrange(self.key(name), 0, -1, withscores=True)
        for name in lists.split():
            pipe.lrange(self.key(name), 0, -1)
        read = SimpleNamespace(**dict(zip(names, pipe.execute(), strict=True)))
        for name in sets.split():
            setattr(read, name, dict(getattr(read, name)))
        return read

    def key(self, name: str) -> str:
        """Return the key of a part, ours or one that Redisson knows."""
        key: str = getattr(self.keys, name, "") or getattr(self.keys.queue, name)
        return key

    def state(self) -> dict[str, Any]:
        """Describe the whole queue by names, with times as ms after T0 and without empty parts."""
        places = "leases retries returned held dead quarantine"
        read = self.read(
            hashes="payloads unique notes locators",
            sets=f"timeout_set {places}",
            lists="delay_queue destination",
        )

        def label(token: bytes) -> str:
            body = read.payloads.get(token)
            return name_in(body) if body else token.decode().rstrip("-")

        def scores(place: str) -> dict[str, int]:
            return {
                label(member): int(score) - T0 if score else 0
                for member, score in getattr(read, place).items()
            }

        told: dict[str, Any] = {
            "timeout_set": [
                (name_in(_payload_of(frame)), int(score) - T0)
                for frame, score in read.timeout_set.items()
            ],
            "delay_queue": [name_in(_payload_of(frame)) for frame in read.delay_queue],
            "destination": [name_in(payload) for payload in read.destination],
            **{place: scores(place) for place in places.split()},
            "unique": {
                key.decode(): label(holder) for key, holder in read.unique.items()
            },
            "notes": {
                label(token): note.decode() for token, note in read.notes.items()
            },
            "locators": sorted(map(label, read.locators)),
        }
        return {part: value for part, value in told.items() if value}

    def leftovers(self) -> list[str]:
        """Return every key of the queue but those that outlive its jobs."""
        kept = {self.keys.counters, self.keys.ended, self.keys.control}
        found = self.client.scan_iter(match=f"*{self.keys.queue.name}*", count=1000)
        return sorted({key.decode() for key in found} - kept)

    def check(self) -> None:
        """Check the rules that are true between any two calls."""
        read = self.read(
            hashes="counters headers payloads errors batches locators unique",
            sets="timeout_set leases retries returned held held_tasks dead quarantine slots",
            lists="delay_queue destination",
        )
        waiting = list(read.timeout_set)
        assert Counter(read.delay_queue) == Counter(
            frame
            for frame in waiting
            if (frame in self.java_frames or not is_unlisted(frame))
            and frame not in self.delisted
        ), "the delay queue holds each listed frame that waits, once, and nothing else"
        ours = [frame for frame in read.delay_queue if frame not in self.java_frames]
        numbers = [n for n in map(listed_number, ours) if n is not None]
        assert numbers == sorted(set(numbers)), "numbers rise along the delay queue"
        assert b"sweeping" not in read.counters, "no sweep is open"

        headers, payloads = set(read.headers), set(read.payloads)
        errors = {field.removeprefix(b"history:") for field in read.errors}
        places = Counter[bytes]()
        for place in (
            read.leases,
            read.retries,
            read.returned,
            read.held,
            read.dead,
            read.quarantine,
        ):
            places.update(list(place))
        assert sorted(m.rpartition(b"\0")[2] for m in read.held_tasks) == sorted(
            read.held
        ), "what is held is found by its task"
        for place, has_tried in ((read.retries, True), (read.returned, False)):
            for name in place:
                attempts, kills = struct.unpack_from("<II", read.headers[name])
                # The highest bit says that the end of a lease was not counted.
                was_tried = attempts + kills % 2**31 > 0
                assert was_tried == has_tried, "only what was tried is among retries"
        assert set(places.values()) <= {1}, "a job is in one place"
        assert payloads == set(places), "a payload belongs to a job, and each has one"
        assert headers <= set(places)
        assert set(places) - headers <= set(read.quarantine), (
            "only a bad frame has no header"
        )
        assert errors <= set(places), "an error belongs to a job"
        assert {slot.rpartition(b"\0")[2] for slot in read.slots} <= set(read.leases), (
            "a slot belongs to a lease"
        )

        tails = [_tail_of_header(each) for each in read.headers.values()]
        tails += [each[21:] for each in read.locators.values()]
        open_ = Counter(filter(None, map(batch_in, tails)))
        counts = {
            batch: int(count)
            for batch, count in read.batches.items()
            if not batch.startswith((b"then:", b"open:"))
        }
        assert all(counts.get(batch, 0) >= count for batch, count in open_.items()), (
            "a batch counts its jobs that have not ended"
        )

        bodies = [*map(_payload_of, waiting), *read.destination]
        there = {body[11:33] for body in bodies if body.startswith(b'{"delayq":"')}
        assert set(read.locators) <= there, "a locator belongs to a job that waits"
        holders = set(read.unique.values())
        assert holders <= there | headers, "a unique key belongs to a job"


def _tail_of_header(header: bytes) -> bytes:
    return header[39:] if header[32:33] == b"c" else header[32:]


def batch_in(tail: bytes) -> bytes:
    """Return the batch of a tail, or nothing."""
    if tail[:1] != b"x" or not tail[1] & 16:
        return b""
    at = 5 + int.from_bytes(tail[3:5], "big")
    at += 18 * (tail[1] & 64 != 0) + 22 * (tail[1] & 128 != 0)
    return tail[at : at + 22]


def _payload_of(frame: bytes) -> bytes:
    try:
        return frames.unpack(frame).payload
    except frames.DecodeError:
        return frame


def is_unlisted(frame: bytes) -> bool:
    return frame[1:3] == UNLISTED if frame[:1] == b"\x08" else frame[:2] == UNLISTED


def listed_number(frame: bytes) -> int | None:
    """Return the number of a frame that the scripts take for a listed frame of ours."""
    at = 1 if frame[:1] == b"\x08" else 0
    if frame[at : at + 2] != LISTED:
        return None
    return int(struct.unpack(">Q", b"\0\0" + frame[at + 2 : at + 8])[0])


def names_of(claimed: Claimed) -> list[str]:
    """Return the jobs of a claim by name, in order."""
    return [name_in(job.payload) for job in claimed.jobs]
