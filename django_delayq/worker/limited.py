"""The gate for jobs whose task has a limit: a job that waited since before the limit was written or changed gets it."""

from django_delayq.delivery.holding import Hold
from django_delayq.delivery.limiting import held_for
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.worker.attempt import Attempt


def hold_for_limit(attempt: Attempt, task: TaskDefinition) -> Hold | None:
    """Give a job another limit than it has, instead of running it: the next claim decides whether there is room.

    A job that a worker has just given a limit to runs with it. Otherwise no job would start whose key is another each time.
    """
    limit, leased = task.options.limit, attempt.leased
    if limit is None or leased.limit == "" or leased.is_foreign:
        return None
    found = limit.of_call(task.name, tuple(attempt.args), attempt.kwargs)
    if found == leased.limit:
        return None
    return Hold(held_for(found), f"it gets its limit, {limit.name}")
