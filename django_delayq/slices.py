"""The features of the package, and where each of them meets the worker and the admin.

A feature is a folder in ``features/``. Its ``api.py`` has the functions for users, ``calls.py`` the calls of the server,
``lua/`` its scripts and its parts of others, ``worker.py`` its service of a queue, ``pages.py`` and ``command.py`` the rest.
"""

from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One feature. Paths are those of its folder; a module is imported when somebody needs it."""

    name: str
    #: A `QueuePart`: what it does for each queue in a worker process.
    part: str = ""
    #: An `EndReport`: what it writes down of the ends of jobs in a worker process.
    report: str = ""
    #: Its pages in the admin: the address, the view, and the name of the address of each.
    pages: str = ""


#: In this order they have their turns, and their pages stand in the admin.
SLICES = (
    Slice(name="pauses", part="worker.PausesOfQueue", pages="pages.PAGES"),
    Slice(name="schedules", part="worker.SchedulesOfQueue", pages="pages.PAGES"),
    Slice(name="limits", part="worker.LimitsOfQueue", pages="pages.PAGES"),
    Slice(name="batches"),
    Slice(name="ended", report="worker.EndedReport"),
    Slice(name="statistics", report="worker.StatisticsReport"),
)


def loaded(seam: str, *, without: str = "") -> list[Any]:
    """Return what the features have at a seam: the name of a field of `Slice`. ``without`` leaves one feature out."""
    return [
        import_string(f"django_delayq.features.{each.name}.{path}")
        for each in SLICES
        if (path := getattr(each, seam)) and each.name != without
    ]
