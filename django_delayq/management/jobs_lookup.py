"""Jobs that a command names: by id, by token, or by the options that select them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.core.search_calls import SEARCH_PAGE
from django_delayq.exceptions import InvalidSearch, JobNotFound, QueueNotFound
from django_delayq.faults import fault_line
from django_delayq.jobs.answers import complete, leaving_out
from django_delayq.jobs.find import FoundJobs, find_jobs
from django_delayq.management.jobs_options import WRONG_CALL
from django_delayq.management.jobs_output import JobsOutput
from django_delayq.redaction import show
from django_delayq.translations import gettext
from django_delayq.transport.clients import own_clients
from django_delayq.transport.errors import is_of_node
from django_delayq.transport.steps import perform

T = TypeVar("T")


def search(
    out: JobsOutput,
    options: dict[str, Any],
    states: Iterable[str] | None,
    limit: int | None,
) -> FoundJobs[Any]:
    """Search as the options say, and show on the way how far the search has come."""
    try:
        everything = find_jobs(queue=options["queue"], state=states)
        found = find_jobs(
            queue=options["queue"],
            state=states,
            task=options["task"],
            text=options["text"],
            due=options["due"],
            limit=limit,
        )
    except (InvalidSearch, QueueNotFound) as error:
        raise CommandError(str(error), returncode=WRONG_CALL) from error
    total = 0

    def watch(looked: int) -> None:
        nonlocal total
        if looked > SEARCH_PAGE and not total:
            total = out.missing.part(everything.count)
        # Jobs come while the search goes on.
        out.progress(gettext("searching"), looked, max(looked, total))

    return found.watched(watch)


def by_id_or_token(look: Callable[[str], T], given: str) -> T:
    """Look for a job by its id; or, without a colon, by its token, on one queue of the settings after the other.

    Raises:
        JobNotFound: no job has this id or token, or it is neither.
        QueueNotFound: its queue is not configured.
        PartialAnswer: no queue has it that answers, and some do not.
    """
    if ":" in given:
        return look(given)
    rest = [queue.name for queue in conf.get_settings().queues_of()]
    count, missing = len(rest), dict[str, Exception]()
    while rest:
        queue = rest.pop(0)
        try:
            return look(f"{queue}:{given}")
        except JobNotFound:
            continue
        except RedisError as error:
            leaving = leaving_out(missing, queue, error, rest)
            rest = perform(own_clients.of_thread, leaving)
    if len(missing) == count:
        raise next(iter(missing.values()))
    complete(None, missing)
    raise JobNotFound(
        f"no job on the queues of the settings has the token {show(given)}; it has ended, or never existed"
    )


def why_not(error: Exception, ids: Sequence[str]) -> str:
    """Say why nothing can be done with a job, unless nothing can be done with the others either.

    Raises:
        redis.exceptions.RedisError: so it is.
    """
    if not isinstance(error, RedisError):
        return str(error)
    if len(ids) == 1 or not is_of_node(error):
        raise error
    return " ".join([fault_line(error), *getattr(error, "__notes__", ())])
