"""The caches of a thread or a context, made before its jobs: a job runs in a copy, and what it made would go with that."""

from django.core.cache import caches

from django_delayq.logs import get_log

logger = get_log("django_delayq.worker")


def make_caches() -> None:
    """Make the caches of this thread, or of this context, which connect when they are used.

    Django keeps them in the context, and each job has a copy of that: a cache that a job made would go with it, and its
    connections too. Database connections are the thread's.
    """
    for alias in caches:
        try:
            caches[alias]
        except Exception as error:
            # The task that uses it gets the error.
            logger.debug("cache %s cannot be made: %s", alias, error)
