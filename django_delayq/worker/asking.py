"""Sends claims: what each asks of its queue, and when the next goes out before the last one's jobs are handed out."""

import os
from collections.abc import Sequence

from django_delayq.clock import boottime_ms, monotonic_ms
from django_delayq.delivery import claiming
from django_delayq.delivery.claiming import Leased, Mode
from django_delayq.worker.parts import Parts
from django_delayq.worker.plan import Asked, Plan
from django_delayq.worker.planning import Planner
from django_delayq.worker.queue_state import QueueState

#: So often a worker tries to tell that a job has lost its worker too often; then the job is buried without that.
MOST_TOLD = 3


class Asking:
    """Sends claims. Owned by the claim loop's thread."""

    def __init__(self, parts: Parts, planner: Planner) -> None:
        self._line, self._queues, self._owner = parts.line, parts.queues, parts.owner
        self._lease_ms = parts.options.worker.lease_ms
        self._max_kills = parts.options.worker.max_kills
        self._dispatch, self._shutdown = parts.dispatch, parts.shutdown
        self._suspects = parts.dispatch.suspects
        self._planner = planner

    def ask(self, queue: QueueState, plan: Plan) -> Asked:
        sent_ms = monotonic_ms()
        settings = queue.settings
        is_few = (
            queue.open_request is None
            and plan.limit > 0
            and queue.few.is_worth_it(sent_ms)
            and queue.mode is Mode.DIRECT
            and not settings.limit_text
        )
        # The request is kept until its reply comes: if the reply is lost, only the same request brings its leases back.
        # Those leases begin no earlier than the request was first sent.
        if queue.open_request is None:
            queue.open_request, queue.open_since_ms = os.urandom(8), boottime_ms()
        if is_few:
            few = claiming.claim_few(
                settings.keys,
                owner=self._owner,
                request=queue.open_request,
                limit=plan.limit,
                lease_ms=self._lease_ms,
                frame_format=settings.frame_format,
            )
            # `claim_few` puts no suspects off.
            return Asked(self._line.ask(few), plan, sent_ms, 0.0, False)
        suspects = self._suspects
        put_off_ms = suspects.put_off_ms()
        call = claiming.claim(
            settings.keys,
            owner=self._owner,
            request=queue.open_request,
            limit=plan.limit,
            lease_ms=self._lease_ms,
            mode=queue.mode,
            transfer_limit=queue.transfer_sizer.size,
            # A worker buries the job, so that it is logged, counted and told: a claim could only say so once, and a reply
            # can be lost. But who kills its process even then is not called for ever.
            max_kills=self._max_kills + MOST_TOLD,
            safe_kills=suspects.safe_kills,
            takes_suspect=suspects.may_come_from(queue, self._queues.values()),
            put_off_ms=put_off_ms,
            priority_step_ms=settings.priority_step_ms,
            keeps_ended=settings.keep_ended > 0,
            has_slots=queue.has_slots,
            has_declared=queue.upkeep.has_declared,
            limit_text=settings.limit_text,
            frame_format=settings.frame_format,
        )
        return Asked(self._line.ask(call), plan, sent_ms, put_off_ms, True)

    def ask_ahead(self, queue: QueueState, jobs: Sequence[Leased]) -> None:
        """Send the next claim before the jobs of the last are handed out, if the queue has more and there is room."""
        if not queue.is_ready or queue.mode is not Mode.DIRECT:
            return
        if self._shutdown.stop_ms is not None or self._dispatch.jobs_left is not None:
            return
        if any(other.is_ready for other in self._queues.values() if other is not queue):
            # The next round decides which queue's turn it is.
            return
        planner, safe_kills = self._planner, self._suspects.safe_kills
        room = planner.common(planner.room(queue.sizer.call_ms, len(jobs)))
        if room < planner.enough(queue):
            return
        # A suspect among these jobs is not noted yet, and the next claim must not bring a second one.
        if all(job.kills <= safe_kills for job in jobs):
            queue.under_way = self.ask(queue, Plan(min(room, queue.sizer.size)))
            self._line.flush()
