"""What takes the foreign payloads of a test's queue."""

import os

from django_delayq import queue_handler
from tests.worker.records import record


@queue_handler(os.environ["WAY_TEST_QUEUE"])
def take_foreign(value: list[object]) -> None:
    record("foreign", size=len(value))
