"""Attempts of jobs whose task has a limit: a job that waited since before the limit was written or changed gets it."""

from django_delayq.clock import boottime_ms
from django_delayq.delivery.limiting import held_for
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.worker.attempt import Attempt, Verdict


class LimitedAttempt(Attempt):
    """An attempt that gives the job another limit than it has, instead of running it: the next claim decides whether there is
    room.

    A job that a worker has just given a limit to runs with it. Otherwise no job would start whose key is another each time.
    """

    def _take_limited(self) -> TaskDefinition | None:
        task = self.task
        assert task is not None
        if self.leased.limit == "" or self.leased.is_foreign:
            return task
        limit = task.options.limit
        assert limit is not None
        try:
            found = limit.of_call(task.name, tuple(self.args), self.kwargs)
        except Exception as error:
            self.fail(error)
            return None
        if found == self.leased.limit:
            return task
        self.held_for = held_for(found)
        self.message = f"it gets its limit, {limit.name}"
        self.hold_ms = None
        self.ended_ms = boottime_ms()
        self.verdict = Verdict.HOLD
        return None
