"""One worker process: what it is made of, how it starts and how it ends."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.conf import QueueSettings, WorkerSettings
from django_delayq.transfer.channel import ChannelListener
from django_delayq.transfer.watch import DestinationWatch
from django_delayq.transfer.wheel import HashedWheelTimer
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.executors import LoopExecutor, ThreadExecutor
from django_delayq.worker.loop import ClaimLoop

logger = logging.getLogger("django_delayq.worker")

#: Exit status of a process that wants to be replaced: after --max-jobs, or because a task is stuck.
REPLACE_ME = 75
#: How long a thread may keep the interpreter while another wants it; Python's own is ten times as long.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What one worker, all its processes, is to do."""

    #: Queues and their weights, in order of priority.
    queues: Sequence[tuple[QueueSettings, float]]
    #: Weights decide, not the order.
    is_weighted: bool
    worker: WorkerSettings
    #: End when nothing is due.
    is_burst: bool = False
    #: Jobs after which a process ends, and is replaced unless in burst mode.
    max_jobs: int | None = None


class WorkerProcess:
    """Claims and runs jobs until SIGTERM, or until there is nothing left to do."""

    def __init__(self, options: WorkerOptions, *, owner: bytes) -> None:
        self._options = options
        worker = options.worker
        client = conf.make_client()
        self._timer = HashedWheelTimer(name="delayq-watchdog")
        self._threads = ThreadExecutor(
            worker.threads,
            timer=self._timer,
            done=self._job_ended,
            stuck=self._job_stuck,
        )
        self._coroutines = LoopExecutor(worker.coroutines, done=self._job_ended)
        self._listener = ChannelListener(client)
        self._destinations = DestinationWatch(client)
        self.loop = ClaimLoop(
            client,
            options.queues,
            worker,
            owner=owner,
            threads=self._threads,
            coroutines=self._coroutines,
            is_weighted=options.is_weighted,
            is_burst=options.is_burst,
            max_jobs=options.max_jobs,
            watch=self._watch,
        )
        self._stops = 0

    def _job_ended(self, attempt: Attempt) -> None:
        self.loop.job_ended(attempt)

    def _job_stuck(self, attempt: Attempt) -> None:
        self.loop.job_stuck(attempt)

    def _watch(self, queue: str) -> None:
        self._destinations.arm(queue, lambda: self.loop.destination_changed(queue))

    def run(self) -> int:
        """Work; returns the exit status."""
        # The loop has work for a fraction of a ms: it should not wait 5 ms for a busy task to let go of the interpreter.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._threads.start()
        for name, queue in self.loop.queues.items():
            for channel in (
                queue.settings.keys.queue.channel,
                queue.settings.keys.channel,
            ):
                self._listener.subscribe(
                    channel, lambda message, name=name: self.loop.alarm.wake(name)
                )  # type: ignore[misc]
        self._renew_later()
        self.loop.run()
        return self._end()

    def _renew_later(self) -> None:
        self.loop.renew_soon()
        self._timer.new_timeout(self._renew_later, self._options.worker.lease_ms / 3)

    def _end(self) -> int:
        self._timer.stop()
        self._coroutines.stop()
        try:
            self.loop.give_back_all()
        except (RedisError, OSError) as error:
            logger.error(
                "could not settle with the server before the end; the leases end by themselves: %s",
                error,
            )
            return 1
        return (
            REPLACE_ME
            if self.loop.is_stuck or self._options.max_jobs is not None
            else 0
        )

    # Signals.

    def handle_signals(self) -> None:
        """SIGTERM ends it gracefully, a second one at once. Ctrl-C is left to the supervisor."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1
        self.loop.stop(self._options.worker.grace_s if self._stops == 1 else 0)

    def end_with(self, pipe: int) -> None:
        """Stop when the other end of a pipe is closed: the supervisor has died."""

        def watch() -> None:
            os.read(pipe, 1)
            logger.warning("the supervisor is gone, ending")
            self.loop.stop(self._options.worker.grace_s)

        threading.Thread(
            target=watch, name="delayq-supervisor-watch", daemon=True
        ).start()


def flush_and_exit(status: int) -> None:
    """End this process without waiting for threads that may never end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
