"""A task that the workers of before the deploy do not know."""

from django_delayq import delayed_task
from tests.worker.records import record


@delayed_task(keep_result=600)
def brand_new(number: int) -> int:
    record("run")
    return number
