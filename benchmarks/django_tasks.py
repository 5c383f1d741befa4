"""A function as a task of Django's, and the same as a delayed task."""

from datetime import timedelta

from django_delayq import delayed_task
from django_delayq.backend import upstream

if upstream.Task.__module__.startswith("django."):
    from django.tasks import task
else:
    from django_tasks import task

#: No worker runs here; a queue holds what is deferred as it holds what is due.
SOON = timedelta(minutes=1)


@task(queue_name="flat")
def call(number: int) -> None:
    """Do nothing."""


@delayed_task(queue="flat")
def scheduled(number: int) -> None:
    """Do nothing."""
