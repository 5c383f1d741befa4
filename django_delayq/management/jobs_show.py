"""``delayq_jobs show``: everything about one job."""

from argparse import _SubParsersAction
from functools import partial
from typing import Any

from django.core.management.base import CommandParser
from redis.exceptions import RedisError

from django_delayq.exceptions import JobNotFound, PartialAnswer, QueueNotFound
from django_delayq.management import jobs_report
from django_delayq.management.jobs_lookup import by_id_or_token, why_not
from django_delayq.management.jobs_options import (
    add_decrypt,
    add_django_options,
    add_json,
)
from django_delayq.management.jobs_output import JobsOutput
from django_delayq.translations import gettext
from django_delayq.wording import printable


def add_show(verbs: "_SubParsersAction[CommandParser]") -> None:
    """Add the verb and its options."""
    showing = verbs.add_parser(
        "show",
        help=gettext(
            "show all details of jobs, by their IDs; with -v 2, full tracebacks."
        ),
    )
    showing.add_argument(
        "ids",
        nargs="+",
        metavar="ID",
        help=gettext(
            "job IDs as list shows them, or only the part after the last colon."
        ),
    )
    add_json(showing, gettext("print one JSON object per line."))
    add_decrypt(showing)
    add_django_options(showing)


def show_jobs(out: JobsOutput, options: dict[str, Any]) -> None:
    """Print everything about the jobs with the given ids.

    Raises:
        SystemExit: one of them does not exist, or cannot be read.
    """
    missing, start = 0, ""
    look_at = partial(jobs_report.look_at, decrypts=options["decrypt"])
    for job_id in options["ids"]:
        try:
            shown = by_id_or_token(look_at, job_id)
        except (JobNotFound, QueueNotFound, PartialAnswer, RedisError) as error:
            out.stderr.write(printable(why_not(error, options["ids"])))
            missing += 1
            continue
        if options["json"]:
            out.write_json(jobs_report.in_full(shown))
            continue
        title, *lines = jobs_report.lines_of(shown, is_folded=options["verbosity"] < 2)
        out.stdout.write(start, ending="")
        out.stdout.write(title, out.style.MIGRATE_HEADING)
        start = "\n"
        for line in lines:
            out.stdout.write(line)
    if missing:
        raise SystemExit(1)
