"""``delayq_jobs list``: jobs, one per row or per line of JSON."""

from argparse import _SubParsersAction
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_delayq.core.bounds import MOST_ENDED
from django_delayq.core.states import State
from django_delayq.exceptions import QueueNotFound
from django_delayq.features.ended.api import EndedJob, ended_jobs
from django_delayq.management import jobs_report
from django_delayq.management.jobs_lookup import search
from django_delayq.management.jobs_options import (
    WRONG_CALL,
    add_decrypt,
    add_django_options,
    add_filters,
    add_json,
    add_limit,
)
from django_delayq.management.jobs_output import JobsOutput
from django_delayq.translations import gettext

#: Rows of a table, unless --limit says otherwise.
LISTED_ROWS = 100
#: What `list` takes as a state for how the last jobs ended: all of them, or those with one outcome.
ENDED = "ended"
OUTCOMES = (State.SUCCEEDED, State.CANCELLED, State.EXPIRED)


def add_list(verbs: "_SubParsersAction[CommandParser]") -> None:
    """Add the verb and its options."""
    listing = verbs.add_parser("list", help=gettext("list jobs, one per row."))
    add_filters(listing, (ENDED, *OUTCOMES))
    add_limit(listing, gettext("100 in a table, all with --json"))
    add_json(listing, gettext("print one JSON object per line."))
    add_decrypt(listing)
    add_django_options(listing)


def list_jobs(out: JobsOutput, options: dict[str, Any]) -> None:
    """Print the jobs that the options select."""
    limit = options["limit"]
    if limit is None and not options["json"]:
        limit = LISTED_ROWS
    states = options["state"] or []
    have_ended = any(state in (ENDED, *OUTCOMES) for state in states)
    found: Any
    row_of: Any
    as_json: Any
    if have_ended:
        found = _find_ended(out, options, states, limit)
        row_of, as_json = jobs_report.row_of_end, jobs_report.end_as_json
    else:
        found = search(out, options, options["state"], limit)
        row_of = partial(jobs_report.row_of, decrypts=options["decrypt"])
        as_json = partial(jobs_report.as_json, decrypts=options["decrypt"])
    if options["json"]:
        for job in out.missing.each(found):
            out.write_json(as_json(job))
        out.tell_unsearched(found)
        return
    count = 0

    def rows() -> Iterator[Sequence[str]]:
        nonlocal count
        for job in out.missing.each(found):
            count += 1
            yield row_of(job)

    out.write_table(rows(), have_ended=have_ended)
    out.tell_unsearched(found)
    if not count and not out.missing.queues:
        out.stderr.write(gettext("no matching jobs"), str)
    elif count == limit:
        out.stderr.write(
            gettext("{count} shown; there may be more, see --limit", count=count),
            str,
        )


def _find_ended(
    out: JobsOutput, options: dict[str, Any], states: Sequence[str], limit: int | None
) -> list[EndedJob]:
    """Return how the last jobs ended, as far as the options say which."""
    others = [state for state in states if state not in (ENDED, *OUTCOMES)]
    if others:
        raise CommandError(
            f"Jobs that are {' or '.join(others)} are listed by themselves: leave out --state {others[0]}.",
            returncode=WRONG_CALL,
        )
    unknown = [f"--{name}" for name in ("text", "due") if options[name] is not None]
    if unknown:
        raise CommandError(
            f"A queue remembers no arguments and start times of jobs that have ended: leave out {' and '.join(unknown)}.",
            returncode=WRONG_CALL,
        )
    if limit is not None and limit < 0:
        raise CommandError(f"--limit {limit}: give 0 or more.", returncode=WRONG_CALL)
    found: list[EndedJob] = []
    names = options["queue"] or []
    try:
        for queue in names or [None]:
            with out.missing.queue(queue, of=names):
                found += out.missing.part(partial(ended_jobs, queue, limit=MOST_ENDED))
    except QueueNotFound as error:
        raise CommandError(str(error), returncode=WRONG_CALL) from error
    found = [
        job
        for job in found
        if options["task"] in (None, job.task)
        and (ENDED in states or job.outcome in states)
    ]
    return sorted(found, key=lambda job: job.ended_at, reverse=True)[:limit]
