"""Tests without waiting: what was scheduled is captured, runs at once, or falls due when the test says so.

This package is imported with the app, so it imports nothing else before it is needed.
"""

from typing import TYPE_CHECKING

from django_delayq.later import import_later

if TYPE_CHECKING:
    from django_delayq.testing.capture import captured, immediate
    from django_delayq.testing.captured_jobs import Captured, CapturedJob
    from django_delayq.testing.frozen import FrozenQueue, Ran, frozen_queue
    from django_delayq.testing.runner import DelayqRunner

__all__ = [
    "Captured",
    "CapturedJob",
    "DelayqRunner",
    "FrozenQueue",
    "Ran",
    "captured",
    "frozen_queue",
    "immediate",
]

__getattr__ = import_later(
    __name__,
    {
        "Captured": "django_delayq.testing.captured_jobs",
        "CapturedJob": "django_delayq.testing.captured_jobs",
        "DelayqRunner": "django_delayq.testing.runner",
        "FrozenQueue": "django_delayq.testing.frozen",
        "Ran": "django_delayq.testing.frozen",
        "captured": "django_delayq.testing.capture",
        "frozen_queue": "django_delayq.testing.frozen",
        "immediate": "django_delayq.testing.capture",
    },
)
