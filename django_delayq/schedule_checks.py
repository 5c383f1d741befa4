"""Checks of the schedules that `@periodic` declares."""

from collections.abc import Iterator

from django.core import checks

from django_delayq.exceptions import DelayqError, QueueNotFound
from django_delayq.features.schedules import periodic
from django_delayq.jobs import registry


def check_schedules() -> Iterator[checks.CheckMessage]:
    """Report schedules that cannot run, and those that share a name."""
    for schedule in periodic.all_schedules():
        try:
            periodic.check(schedule)
        except DelayqError as error:
            task = registry.find_task(schedule.task.name)
            is_of_task = task is not None and task.options.queue == schedule.queue
            if isinstance(error, QueueNotFound) and is_of_task:
                # E007 names the task.
                continue
            yield checks.Error(
                f"Schedule {schedule.name!r} of task {schedule.task.name!r} cannot run:"
                f" {str(error).removesuffix('.')}.",
                hint="Correct its @periodic. A worker that starts with --skip-checks leaves this schedule out.",
                id="django_delayq.E013",
            )
    for schedule in periodic.doubles():
        yield checks.Error(
            f"Task {schedule.task.name!r} has a schedule named {schedule.name!r}, and so has another task of queue"
            f" {schedule.queue!r}: workers run only one of the two.",
            hint="Give one of them another name=.",
            id="django_delayq.E014",
        )
