"""The way of a reply's jobs to the threads and the event loop that run them, or back to the server."""

from django_delayq.clock import monotonic_ms
from django_delayq.delivery.claiming import Claimed
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.parts import Parts
from django_delayq.worker.plan import Room
from django_delayq.worker.queue_state import QueueState


class Dispatch:
    """Makes attempts of leased jobs and hands them out. Owned by the claim loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._crew, self._ends, self._shutdown = parts.crew, parts.ends, parts.shutdown
        self._settlement, self._suspects = parts.ends.settlement, parts.suspects
        #: Whether jobs have come since the loop last set this to False.
        self.has_had_jobs = True

    def hand_out(
        self,
        queue: QueueState,
        reply: Claimed,
        only: Room | None,
        lease_end_ms: float,
        offset_ms: float,
    ) -> None:
        """Begin the jobs of a reply, and give back those that must not begin.

        ``only``: how many of each kind may begin; None: all. ``lease_end_ms`` is by `boottime_ms`; adding ``offset_ms``
        to that clock gives the server's.
        """
        crew, suspects = self._crew, self._suspects
        self.has_had_jobs = True
        left = list(only or ())
        had = [False, False]
        put_back: list[Attempt] = []
        begun, is_async = 0, False
        # Every job pays for each line of this loop, so what stays the same is looked up before it.
        is_stopping, safe_kills = (
            self._shutdown.stop_ms is not None,
            suspects.safe_kills,
        )
        settings, name = queue.settings, queue.settings.name
        async_names, guess = crew.async_names, crew.is_async
        running, submit = crew.running, crew.threads.submit
        gates = queue.gates
        self._ends.note_busy()
        for leased in reply.jobs:
            attempt = Attempt(settings, leased, lease_end_ms, offset_ms, gates)
            running[attempt] = None
            if async_names:
                is_async = attempt.is_async = guess(name, leased)
            had[is_async] = True
            if is_stopping or (left and not left[is_async]):
                put_back.append(attempt)
                continue
            if left:
                left[is_async] -= 1
            if leased.kills > safe_kills:
                if leased.kills > suspects.max_kills:
                    # It does not run, and so endangers nobody.
                    attempt.is_out_of_kills = True
                    crew.begin(attempt)
                else:
                    suspects.take_in(attempt)
            elif is_async:
                crew.begin(attempt)
            else:
                begun += 1
                submit(attempt)
        queue.had_sync, queue.had_async = had
        queue.had_ms = monotonic_ms()
        if begun:
            crew.note_submitted(begun, queue.had_ms)
        if put_back:
            self._settlement.give_back(put_back)
            # The jobs that were given back wait in the queue.
            queue.is_ready = True
