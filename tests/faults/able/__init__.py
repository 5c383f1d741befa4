"""An app of tasks that try to disable the worker that runs them."""

import errno
import itertools
import os
import time

from django_delayq.worker import supervisor

if "ABLE_FAILING_FORKS" in os.environ:
    # Numbers of the forks of this process that fail, from 1. A limit on processes does not hold for root.
    _failing = {int(number) for number in os.environ["ABLE_FAILING_FORKS"].split(",")}
    _numbers = itertools.count(1)
    _fork = os.fork

    def _fork_or_fail() -> int:
        if next(_numbers) in _failing:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return _fork()

    os.fork = _fork_or_fail

if "ABLE_FAILING_PULSES" in os.environ:
    # Likewise, for the memory that a process shares with those it forks.
    _failing_pulses = {
        int(number) for number in os.environ["ABLE_FAILING_PULSES"].split(",")
    }
    _pulses = itertools.count(1)
    _Pulse = supervisor.Pulse

    def _share_or_fail() -> supervisor.Pulse:
        if next(_pulses) in _failing_pulses:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return _Pulse()

    supervisor.Pulse = _share_or_fail  # type: ignore[assignment, misc]

if "ABLE_LISTEN_MS" in os.environ:
    # How often the supervisor feels for a pulse; and a process without one is missed for less than the usual time.
    supervisor.LISTEN_EVERY_MS = float(os.environ["ABLE_LISTEN_MS"])
    supervisor.STUCK_AFTER_MS = 3_000

if "ABLE_SLOW_RECOVERY" in os.environ:
    _recover = supervisor.Supervisor._recover

    def _recover_slowly(self: supervisor.Supervisor) -> None:
        if self._orphans:
            time.sleep(float(os.environ["ABLE_SLOW_RECOVERY"]))
        _recover(self)

    supervisor.Supervisor._recover = _recover_slowly  # type: ignore[method-assign]
