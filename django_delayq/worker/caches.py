"""The caches of a thread or a context, made before its jobs: a job runs in a copy, and what it made would go with that."""

from typing import Any

from django.core.cache import caches

from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")


def make_caches() -> dict[str, Any]:
    """Make the caches of this thread, or of this context, which connect when they are used; return them by alias.

    Django keeps them in the context, and each job has a copy of that: a cache that a job made would go with it, and its
    connections too. Database connections are the thread's.
    """
    made = {}
    for alias in caches:
        try:
            made[alias] = caches[alias]
        except Exception as error:
            # The task that uses it gets the error.
            logger.debug("cache %s cannot be created: %s", alias, error)
    return made


def take_over(made: dict[str, Any]) -> None:
    """Use the caches of a thread that has ended. A context of that thread would not do: asgiref hides them from others."""
    for alias, cache in made.items():
        caches[alias] = cache
