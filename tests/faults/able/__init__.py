"""An app of tasks that try to disable the worker that runs them."""

import errno
import itertools
import os

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
