"""Settles with the server: attempts that have ended in this process, until the server knows it."""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.core import hold as hold_calls
from django_delayq.core import lease_ends
from django_delayq.core.bounds import MAX_BATCH
from django_delayq.core.followers import Following
from django_delayq.core.forward_calls import Forward, forward_of
from django_delayq.core.states import GRAVES
from django_delayq.logs import get_log
from django_delayq.signals import job_scheduled
from django_delayq.transport.call import Call
from django_delayq.transport.errors import LOST, is_of_node
from django_delayq.transport.line import Line, UnderWay
from django_delayq.transport.primary import pause_ms
from django_delayq.transport.several import run_all
from django_delayq.worker import job_signals
from django_delayq.worker.attempt import Attempt, Verdict
from django_delayq.worker.dispatch import SETTLE_AFTER_MS, SETTLE_BATCH, Dispatch, Pace
from django_delayq.worker.outage import Outage, is_queues_own
from django_delayq.worker.reports import EndReport, Reports

logger = get_log("django_delayq.worker")

#: The fields of a log record that its format repeats.
_IN_FORMAT = frozenset({"task", "outcome"})
#: Verdicts that a task decides; no error led to them.
_DECISIONS = frozenset({Verdict.SNOOZE, Verdict.CANCEL})


def log_end(attempt: Attempt) -> None:
    """Log the end of the job in one line, with the exception that the task raised."""
    verdict, exception, hold = attempt.verdict, attempt.exception, attempt.hold
    # The traceback holds the task's frames and all that they refer to: let go of it.
    attempt.exception = None
    is_held_without_end = (
        verdict is Verdict.HOLD and hold is not None and hold.for_ms is None
    )
    level = logging.INFO
    if attempt.is_lost:
        level = logging.WARNING
    elif verdict is Verdict.GIVE_BACK and not attempt.started_ms:
        # The job has not begun, and a busy process gives back many jobs a second.
        level = logging.DEBUG
    elif verdict is not None and not is_held_without_end:
        # A pause or a missing key was logged once, however many jobs wait; a job that gets its limit needs nobody.
        level = verdict.level
    if not logger.isEnabledFor(level):
        return
    ended_ms = attempt.ended_ms or boottime_ms()
    # The outcome is plain text, so that a project's log can print it as it is.
    word = verdict.value if verdict else "running"
    fields: dict[str, Any] = {
        "job": attempt.id,
        "task": attempt.name,
        "outcome": "lost" if attempt.is_lost else word,
    }
    if not attempt.is_unrun:
        fields["attempt"] = attempt.leased.attempts + 1
    if attempt.started_ms:
        fields["lateness_ms"] = round(attempt.late_ms, 1)
        fields["duration_ms"] = round(ended_ms - attempt.started_ms, 1)
    if attempt.leased.kills:
        fields["kills"] = attempt.leased.kills
    if verdict is Verdict.RETRY:
        fields["retry_in_ms"] = attempt.wait_ms()
    elif verdict is Verdict.SNOOZE:
        fields["again_in_ms"] = attempt.wait_ms()
    # What groups log records by their format, as Sentry does, is to group them by task and outcome.
    args = [value for name, value in fields.items() if name not in _IN_FORMAT]
    text = " ".join(
        [
            f"{name}={str(value).replace('%', '%%')}"
            if name in _IN_FORMAT
            else f"{name}=%s"
            for name, value in fields.items()
        ]
    )
    if attempt.message:
        name = "reason" if verdict in _DECISIONS else "error"
        fields[name] = attempt.message
        text += f" {name}=%r"
        args.append(attempt.message)
    if attempt.is_lost:
        text += " (its lease ended before it did, so this end changes nothing; it may run elsewhere)"
    if attempt.masked:
        text += "\n%s"
        args.append(attempt.masked.rstrip("\n"))
    exc_info = None
    if exception is not None:
        exc_info = (type(exception), exception, exception.__traceback__)
    logger.log(level, text, *args, exc_info=exc_info, extra={"delayq": fields})


#: Takes over what a queue has for another one: see `Forwards.note`.
Forwarder = Callable[[QueueSettings, str, Sequence[Forward], float], object]

#: How long after a refusal the server is told again about the ends in that queue, at most.
REFUSED_MS = 1_000.0
#: About how many bytes of results and errors, or of payloads, go into one call.
BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class _Batch:
    call: Call[Any]
    attempts: list[Attempt]
    is_repeat: bool
    #: Whether jobs follow them into other queues.
    has_forwards: bool = False


class Settlement:
    """Attempts with a verdict, on their way to the server."""

    def __init__(
        self,
        line: Line,
        forward: Forwarder = lambda *_: None,
        ended: deque[Attempt] | None = None,
        reports: Sequence[EndReport] = (),
    ) -> None:
        """``forward`` takes over what has followed attempts into another queue, and is left in theirs.

        ``ended`` gets them from the threads that run jobs. ``reports`` note those that are settled.
        """
        self._line = line
        self._forward = forward
        self._reports = reports
        #: Attempts with a verdict, of which the server has not been told.
        self.ended: deque[Attempt] = deque() if ended is None else ended
        # Owned by the loop. Sent, but no reply has come.
        self._unsure: list[Attempt] = []
        # The calls that were made, until `learn` reads their replies.
        self._told: list[tuple[_Batch, UnderWay[list[int]]]] = []
        # By queue: attempts whose ends the server refused, and when to try again.
        self._refused: dict[str, list[Attempt]] = {}
        self._again_ms: dict[str, float] = {}
        #: Queues of which a claim has said that ends of leases have to free slots.
        self.limited: set[str] = set()
        # When the last of the sent attempts ended.
        self._last_ended_ms = 0.0

    def __bool__(self) -> bool:
        return bool(self.ended or self._unsure or self._refused)

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send now."""
        return bool(self.ended or self._unsure)

    @property
    def last_ended_ms(self) -> float:
        """When the last attempt ended, by `boottime_ms`."""
        return self.ended[-1].ended_ms if self.ended else self._last_ended_ms

    def count(self) -> int:
        """How many attempts have ended and are not settled."""
        return len(self.ended) + len(self._unsure) + self.count_refused()

    def count_refused(self) -> int:
        """How many ends the server has refused: those attempts wait, but nothing runs."""
        return sum(map(len, self._refused.values()))

    def is_refused(self, queue: str) -> bool:
        """Whether the server has refused ends in a queue."""
        return queue in self._refused

    def next_ms(self) -> float | None:
        """When to try the refused ends again."""
        return min(self._again_ms.values(), default=None)

    def settle(self, *, force: bool = False) -> tuple[list[Attempt], Exception | None]:
        """Tell the server; return the attempts that it has settled, and an error that concerns the others, if any.

        Raises:
            redis.exceptions.RedisError, OSError: no reply came; the next call repeats the ends, which is safe.
        """
        self.tell(force=force)
        return self.learn()

    def tell(self, *, force: bool = False) -> None:
        """Make the calls that report to the server; they go out with the line's next calls, or at `learn`."""
        popleft = self.ended.popleft
        fresh = [popleft() for _ in range(len(self.ended))]
        if fresh:
            self._last_ended_ms = fresh[-1].ended_ms
        repeated = self._unsure
        if self._refused:
            repeated = repeated + self._take_refused(force=force)
        batches = self._batches(fresh, is_repeat=False)
        if repeated:
            batches += self._batches(repeated, is_repeat=True)
        self._unsure = repeated + fresh
        self._told = [(batch, self._line.ask(batch.call)) for batch in batches]

    def learn(self) -> tuple[list[Attempt], Exception | None]:
        """Take in the replies to `tell`; return and raise as `settle` does."""
        told, self._told = self._told, []
        replies: list[list[int] | Exception] = []
        for _, under_way in told:
            try:
                replies.append(under_way.finish())
            except (ResponseError, *LOST) as error:
                if isinstance(error, LOST) and not is_of_node(error):
                    raise
                replies.append(error)
        settled = [attempt for attempt in self._unsure if attempt.is_lost]
        self._unsure = []
        failure: Exception | None = None
        for (batch, _), reply in zip(told, replies, strict=True):
            if not isinstance(reply, Exception):
                ended_ms = reply.pop() if batch.has_forwards else 0
                # A repeat may find its own first try done, so only a first try shows a lost lease.
                if not batch.is_repeat:
                    for index in reply:
                        batch.attempts[index].is_lost = True
                settled += batch.attempts
                ended = batch.attempts
                if reply:
                    ended = [attempt for attempt in ended if not attempt.is_lost]
                if batch.has_forwards:
                    self._hand_on(batch, set(reply), ended_ms)
                for report in self._reports:
                    report.note(ended)
            elif is_queues_own(reply):
                self._refuse(batch, reply)
            else:
                failure = reply
                self._unsure += batch.attempts
        if job_scheduled.receivers:
            self._tell_followers(settled)
        return settled, failure

    def _batches(self, attempts: Sequence[Attempt], *, is_repeat: bool) -> list[_Batch]:
        groups: dict[tuple[str, Verdict | None, bool], list[Attempt]] = defaultdict(
            list
        )
        queue = verdict = is_unrun = None
        members: list[Attempt] = []
        for attempt in attempts:
            if attempt.is_lost:
                continue
            # Most attempts are like the one before; comparing saves a look-up, as Python hashes enum members slowly.
            if (
                attempt.verdict is not verdict
                or attempt.queue is not queue
                or attempt.is_unrun is not is_unrun
            ):
                queue, verdict = attempt.queue, attempt.verdict
                is_unrun = attempt.is_unrun
                members = groups[queue.name, verdict, is_unrun]
            members.append(attempt)
        return [
            self._batch(verdict, part, is_repeat=is_repeat)
            for (_, verdict, _), group in groups.items()
            for part in _in_order(verdict, _parts(group))
        ]

    def _batch(
        self, verdict: Verdict | None, part: list[Attempt], *, is_repeat: bool
    ) -> _Batch:
        queue = part[0].queue
        follows = _following(queue, part)
        call = _call(queue, verdict, part, queue.name in self.limited, follows)
        has_forwards = follows is not None and bool(follows.forwards)
        return _Batch(call, part, is_repeat, has_forwards)

    def _hand_on(self, batch: _Batch, lost: set[int], ended_ms: int) -> None:
        """Have forwarded what these ends have left for other queues."""
        for index, attempt in enumerate(batch.attempts):
            if attempt.bound is None:
                continue
            for queue, jobs in attempt.bound.elsewhere.items():
                # Of a repeat, the first try may have ended it: then it is read from where it is.
                forwards = [forward_of(queue, job, ended_ms) for job in jobs]
                if index not in lost:
                    self._forward(attempt.queue, queue, forwards, attempt.ended_ms)
                elif batch.is_repeat:
                    self._forward(attempt.queue, queue, [], 0.0)

    @staticmethod
    def _tell_followers(settled: Sequence[Attempt]) -> None:
        for attempt in settled:
            bound = attempt.bound
            if bound is not None and not attempt.is_lost:
                job_signals.send_scheduled(attempt.queue.name, bound.here)

    def _take_refused(self, *, force: bool) -> list[Attempt]:
        now_ms = monotonic_ms()
        taken: list[Attempt] = []
        for name, again_ms in list(self._again_ms.items()):
            if force or now_ms >= again_ms:
                del self._again_ms[name]
                taken += self._refused.pop(name)
        for attempt in taken:
            attempt.is_refused = False
        return taken

    def _refuse(self, batch: _Batch, error: Exception) -> None:
        name = batch.attempts[0].queue.name
        self._refused.setdefault(name, []).extend(batch.attempts)
        again_ms = pause_ms(self._line.client, REFUSED_MS)
        self._again_ms[name] = monotonic_ms() + again_ms
        for attempt in batch.attempts:
            attempt.is_refused = True
        if not batch.is_repeat:
            logger.error(
                "queue %s: the server refuses to record that %d jobs have ended, trying again until it does: %s",
                name,
                len(batch.attempts),
                error,
            )


def _in_order(
    verdict: Verdict | None, parts: list[list[Attempt]]
) -> list[list[Attempt]]:
    # Given-back jobs go to the head of their list, so later parts are sent first.
    return parts[::-1] if verdict is Verdict.GIVE_BACK else parts


def _parts(attempts: list[Attempt]) -> list[list[Attempt]]:
    """Cut into parts that one call can take, by number and by size."""
    sizes = _sizes(attempts)
    if len(attempts) <= MAX_BATCH and sum(sizes) < BATCH_BYTES:
        return [attempts]
    parts: list[list[Attempt]] = [[]]
    size = 0
    for attempt, its_size in zip(attempts, sizes, strict=True):
        if len(parts[-1]) == MAX_BATCH or size >= BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(attempt)
        size += its_size
    return parts


def _sizes(attempts: list[Attempt]) -> list[int]:
    """Return how many bytes the server reads or moves for each attempt; all have the first one's verdict."""
    if attempts[0].verdict in (Verdict.GIVE_BACK, Verdict.HOLD):
        # Giving back puts a foreign payload at the head of its list; holding looks once more at the key of each.
        return [len(attempt.leased.payload) for attempt in attempts]
    sizes = [
        len(attempt.result) + len(attempt.error) + attempt.extra_bytes
        for attempt in attempts
    ]
    if attempts[0].verdict in _FORGOTTEN:
        for i, attempt in enumerate(attempts):
            if attempt.result and attempt.result_ttl_ms is not None:
                # It is kept with the result.
                sizes[i] += len(attempt.leased.payload)
    return sizes


#: The server forgets a job that has ended so, but for its result.
_FORGOTTEN = frozenset({Verdict.SUCCEED, Verdict.EXPIRE, Verdict.CANCEL, Verdict.DROP})


def _call(
    queue: QueueSettings,
    verdict: Verdict | None,
    attempts: list[Attempt],
    has_slots: bool,
    follows: Following | None,
) -> Call[list[int]]:
    keys = queue.keys
    assert verdict is not None
    if verdict in _FORGOTTEN:
        assert verdict.state is not None
        done = [attempt.as_done() for attempt in attempts]
        return lease_ends.acknowledge(
            keys,
            done,
            state=verdict.state,
            has_slots=has_slots,
            following=follows,
        )
    if verdict in (Verdict.RETRY, Verdict.SNOOZE):
        return lease_ends.retry(
            keys,
            [attempt.as_failed() for attempt in attempts],
            attempt_failed=verdict is Verdict.RETRY,
            has_slots=has_slots,
        )
    if verdict is Verdict.GIVE_BACK:
        return lease_ends.give_back(
            keys,
            [attempt.leased for attempt in attempts],
            late={attempt.leased.token for attempt in attempts if attempt.is_late},
            begun={attempt.leased.token for attempt in attempts if attempt.started_ms},
            has_slots=has_slots,
        )
    if verdict is Verdict.HOLD:
        return hold_calls.hold(
            keys, [attempt.as_held() for attempt in attempts], has_slots=has_slots
        )
    assert verdict.state in GRAVES
    return lease_ends.bury(
        keys,
        [attempt.as_rejected() for attempt in attempts],
        state=verdict.state,
        # A job that was too late did not run.
        attempt_failed=verdict is Verdict.BURY and not attempts[0].is_unrun,
        has_slots=has_slots,
        following=follows,
    )


def _following(queue: QueueSettings, attempts: list[Attempt]) -> Following | None:
    """Return the jobs that follow these; None: there are none."""
    bound = [
        (index, attempt.bound)
        for index, attempt in enumerate(attempts)
        if attempt.bound is not None
    ]
    if not bound:
        return None
    jobs = [(index, job) for index, each in bound for job in each.here]
    forwards = [
        (index, name, job)
        for index, each in bound
        for name, others in each.elsewhere.items()
        for job in others
    ]
    return Following(jobs, queue.frame_format, queue.keeps_list, forwards)


def renew(
    client: Redis, attempts: Sequence[Attempt], *, lease_ms: int
) -> tuple[list[Attempt], dict[str, Exception]]:
    """Extend the leases of running attempts; return those that were lost, and for each queue why others failed.

    Raises:
        redis.exceptions.RedisError, OSError: the server is away.
    """
    groups: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.queue.name].append(attempt)
    parts = [part for members in groups.values() for part in _parts(members)]
    calls: list[Call[Any]] = [
        lease_ends.renew(
            part[0].queue.keys,
            [(attempt.leased.token, attempt.leased.fence) for attempt in part],
            lease_ms=lease_ms,
        )
        for part in parts
    ]
    # The lease begins when the server reads the call, which is no earlier than now.
    lease_end_ms = boottime_ms() + lease_ms
    lost: list[Attempt] = []
    refusals: dict[str, Exception] = {}
    failure: Exception | None = None
    for part, reply in zip(parts, run_all(client, calls), strict=True):
        if isinstance(reply, Exception):
            if not is_queues_own(reply):
                failure = reply
            else:
                refusals[part[0].queue.name] = reply
            continue
        gone = set(reply)
        for index, attempt in enumerate(part):
            if index not in gone:
                attempt.lease_end_ms = lease_end_ms
            elif attempt.verdict is None:
                attempt.is_lost = True
                lost.append(attempt)
    if failure is not None:
        raise failure
    return lost, refusals


class Ends:
    """Decides when the settlement reports to the server, and reads the replies. Owned by the claim loop's thread."""

    def __init__(
        self,
        line: Line,
        dispatch: Dispatch,
        outage: Outage,
        forward: Forwarder,
        reports: Sequence[EndReport],
    ) -> None:
        self.settlement = Settlement(line, forward, dispatch.ended, reports)
        #: What is written down now and then.
        self.reports = Reports(*reports)
        self.pace = Pace()
        self._dispatch = dispatch
        self._outage = outage
        #: How many jobs have run here. Other threads read it.
        self.finished = 0
        # Until when ended attempts wait for more, to go out together.
        self._settle_ms: float | None = None
        # Ends were sent, and their replies are still to be read.
        self._has_told = False

    def settle(self, *, force: bool, is_last: bool = False) -> None:
        """Tell the server what has ended, and wait for its reply."""
        self.tell(force=force, is_last=is_last)
        self.learn()

    def tell(self, *, force: bool = False, is_last: bool = False) -> None:
        """Make the calls that report ended jobs to the server; they go out with the next claim, or at `learn`."""
        settlement = self.settlement
        now_ms = monotonic_ms()
        if now_ms >= self.reports.due_ms:
            self.reports.tell(now_ms)
        if not settlement:
            return
        if (
            not force
            and self._dispatch.queued()
            and len(settlement.ended) < SETTLE_BATCH
        ):
            if self._settle_ms is None:
                self._settle_ms = now_ms + SETTLE_AFTER_MS
            if now_ms < self._settle_ms:
                return
        self._settle_ms = None
        if not is_last and not settlement.is_waiting:
            again_ms = settlement.next_ms()
            if again_ms is not None and now_ms < again_ms:
                return
        settlement.tell(force=is_last)
        self.note_busy()
        self._has_told = True

    def learn(self) -> None:
        """Take in the replies to `tell`."""
        # They say nothing of how fast jobs run.
        self.reports.learn()
        if not self._has_told:
            return
        self._has_told = False
        settled, failure = self.settlement.learn()
        count = 0
        running, is_told = self._dispatch.running, logger.isEnabledFor(logging.INFO)
        for attempt in settled:
            running.pop(attempt, None)
            if attempt.verdict is Verdict.SUCCEED:
                count += 1
                if not is_told and not attempt.is_lost:
                    continue
            elif attempt.verdict is not Verdict.GIVE_BACK:
                # An attempt that was given back does not show how long jobs take.
                count += 1
            log_end(attempt)
        self.finished += count
        threads = self._dispatch.threads
        is_busy = threads.queued() > 0 or count >= threads.size
        self.pace.measure(count, is_busy=is_busy)
        if failure is not None:
            raise failure
        self._outage.note_reply()

    def record(self) -> None:
        """Write at once all that is written down now and then."""
        self.reports.tell(float("inf"))
        self.reports.learn()
        # A minute that these calls found to be over is packed by other calls.
        self.reports.tell(monotonic_ms())
        self.reports.learn()

    @property
    def record_ms(self) -> float:
        """When to write that next, by `monotonic_ms`; infinite while there is nothing to write."""
        return self.reports.due_ms

    def note_busy(self) -> None:
        """Note until when there were jobs to run; call this before others are handed out."""
        now_ms = until_ms = monotonic_ms()
        if not self._dispatch.threads.queued():
            until_ms += self.settlement.last_ended_ms - boottime_ms()
        self.pace.note(now_ms, until_ms)
