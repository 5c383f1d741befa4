"""A worker's part, played by hand: claims and settles on the server under test, by the server's clock."""

import os
from collections.abc import Sequence
from typing import Any

import redis

from django_delayq import Job
from django_delayq.core import claim as claim_calls
from django_delayq.core import hold as hold_calls
from django_delayq.core import lease_ends, queue_reads
from django_delayq.core.claim import Claimed, Leased, Mode
from django_delayq.core.hold import Held, Hold
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import Done, Failed, Rejected
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.jobs import stored_results
from django_delayq.jobs.envelope import Envelope
from django_delayq.transport.call import Call
from django_delayq.transport.run import run
from tests.polling import wait_until
from tests.signed import opened


class Hand:
    """Takes the jobs of one queue and ends them, one call at a time."""

    def __init__(self, client: "redis.Redis[bytes]", queue: str) -> None:
        self.client = client
        self.keys = DeliveryKeys.of(queue)
        #: Names this process, as a worker has it.
        self.owner = os.urandom(8)

    @property
    def node(self) -> "redis.Redis[bytes]":
        """The server that has the queue: of a cluster, one of its nodes."""
        of_key = getattr(self.client, "of_key", None)
        return self.client if of_key is None else of_key(self.keys.control)

    def run(self, call: Call[Any]) -> Any:
        return run(self.client, call)

    def claim(self, limit: int = 100, *, lease_ms: int = 30_000) -> list[Leased]:
        return self._claim(limit, lease_ms).jobs

    def _claim(self, limit: int, lease_ms: int) -> Claimed:
        call = claim_calls.claim(
            self.keys,
            owner=self.owner,
            request=os.urandom(8),
            limit=limit,
            lease_ms=lease_ms,
            mode=Mode.DIRECT,
        )
        claimed: Claimed = self.run(call)
        return claimed

    def take(self, *, lease_ms: int = 30_000) -> Leased:
        """Claim one job, waiting for it to be due."""
        (job,) = wait_until(
            lambda: self.claim(1, lease_ms=lease_ms), description="a job is due"
        )
        return job

    def wait_until_due(self, count: int) -> None:
        """Wait until so many jobs are due: one of no delay is, up to a ms later."""
        wait_until(
            lambda: self.run(queue_reads.counts(self.keys)).due == count,
            description=f"{count} jobs are due",
        )

    def take_many(self, count: int) -> list[Leased]:
        """Claim so many jobs, waiting for them to be due."""
        jobs: list[Leased] = []

        def claims_the_rest() -> bool:
            jobs.extend(self.claim(min(500, count - len(jobs))))
            return len(jobs) == count

        wait_until(claims_the_rest, description=f"{count} jobs are due")
        return jobs

    def hold_paused(self, jobs: Sequence[Leased], task: str) -> None:
        """Hold jobs of a paused task, as a worker does that has claimed them."""
        reason = Reason(Kind.PAUSED, task)
        held = [
            Held(job.token, job.fence, Hold(reason, f"task {task} is paused"))
            for job in jobs
        ]
        assert self.run(hold_calls.hold(self.keys, held)) == []

    def take_all(self) -> list[Envelope]:
        """Claim everything that is due and end it; returns the envelopes in order."""
        found: list[Envelope] = []
        while True:
            claimed = self._claim(100, 30_000)
            name = self.keys.queue.name
            found += [opened(job.payload, name) for job in claimed.jobs]
            done = [Done(job.token, job.fence) for job in claimed.jobs]
            self.run(lease_ends.acknowledge(self.keys, done))
            # What is due now is due at the next full millisecond.
            if not claimed.jobs and not 0 <= claimed.wait_us <= 1_000:
                return found

    def succeed(self, job: Leased, result: object = None, *, keep: bool = True) -> None:
        text = stored_results.result_text(State.SUCCEEDED, result=result)
        done = Done(job.token, job.fence, 60_000 if keep else None, text)
        assert self.run(lease_ends.acknowledge(self.keys, [done])) == []

    def retry(self, job: Leased, wait_ms: int = 0) -> None:
        error = stored_results.error_text("ValueError: no", kind="failed", at_ms=5)
        failed = Failed(job.token, job.fence, f"+{wait_ms}", error)
        assert self.run(lease_ends.retry(self.keys, [failed])) == []

    def bury(
        self,
        job: Leased,
        state: State = State.DEAD,
        *,
        keep: bool = False,
        said: str = "ValueError: no",
    ) -> None:
        error = stored_results.error_text(said, kind="failed", at_ms=5)
        text = stored_results.result_text(state, error=said)
        rejected = Rejected(job.token, job.fence, error, 60_000 if keep else None, text)
        assert self.run(lease_ends.bury(self.keys, [rejected], state=state)) == []

    def kill(self, job: Leased, *, max_kills: int) -> None:
        """Let the lease end as a dead worker's does, and claim as the next worker does."""
        self.die()
        call = claim_calls.claim(
            self.keys,
            owner=self.owner,
            request=os.urandom(8),
            limit=10,
            lease_ms=1,
            max_kills=max_kills,
        )
        self.run(call)

    def die(self) -> None:
        """End what is leased as the supervisor of a dead process does."""
        self.run(claim_calls.recover(self.keys, owner=self.owner))

    def tokens(self) -> list[str]:
        """Return the tokens of all frames that wait, in the order of their start times."""
        page = self.run(queue_reads.page(self.keys, State.SCHEDULED, count=5_000))
        return [row.token for row in page.rows]

    def start_times(self) -> dict[str, int]:
        page = self.run(queue_reads.page(self.keys, State.SCHEDULED, count=5_000))
        return {row.token: row.score_ms for row in page.rows}

    def counter(self, name: str) -> int:
        return int(self.run(queue_reads.counts(self.keys)).counters[name])

    def payload(self, job: Job[Any]) -> bytes:
        """Return what the server holds of a job."""
        return bytes(self.run(queue_reads.inspect(self.keys, job.token)).payload)
