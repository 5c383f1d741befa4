"""Verbs of ``delayq_jobs`` that change jobs: those that are named, or all that are found, after a question."""

import sys
from argparse import _SubParsersAction
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, CommandParser
from redis.exceptions import RedisError

from django_delayq.core.states import State
from django_delayq.display import outcome
from django_delayq.exceptions import JobNotFound, PartialAnswer, QueueNotFound
from django_delayq.jobs.actions import (
    ACTIONS,
    CANCEL,
    DISCARD,
    NO_DETAILS,
    RESCHEDULE,
    RETRY,
    RUN_NOW,
    Action,
    Details,
)
from django_delayq.jobs.bulk import Changed
from django_delayq.jobs.find import FoundJobs
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import get_job
from django_delayq.management import jobs_report
from django_delayq.management.jobs_lookup import by_id_or_token, search, why_not
from django_delayq.management.jobs_options import (
    FILTERS,
    WRONG_CALL,
    add_django_options,
    add_filters,
    add_json,
    add_limit,
)
from django_delayq.management.jobs_output import JobsOutput
from django_delayq.management.times import moment, span
from django_delayq.translations import gettext, moment_text, ngettext, state_label
from django_delayq.transport.clients import own_clients
from django_delayq.transport.steps import perform
from django_delayq.wire.delay import parse_delay
from django_delayq.wording import one_line, printable

#: Jobs that a question and a dry run show as examples.
EXAMPLES_SHOWN = 5
#: The actions by their verbs.
VERBS = {
    action.verb: action for action in (CANCEL, RESCHEDULE, RUN_NOW, RETRY, DISCARD)
}


def add_changes(verbs: "_SubParsersAction[CommandParser]") -> None:
    """Add the verbs and their options."""
    for name, verb in VERBS.items():
        _add_verb(verbs.add_parser(name, help=str(verb.help)), name)


def _add_verb(parser: CommandParser, name: str) -> None:
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help=gettext("job IDs; or select jobs with the options below."),
    )
    add_filters(parser)
    add_limit(parser, gettext("all"))
    if name == "reschedule":
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument(
            "--in",
            dest="span",
            type=span,
            metavar="TIME",
            help=gettext("start after this time: seconds, or 15m, 2h, 1d."),
        )
        when.add_argument(
            "--at",
            type=moment,
            metavar="TIME",
            help=gettext(
                "start at this date and time; without an offset, in the project's TIME_ZONE."
            ),
        )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=gettext("show what would be done, without changing anything."),
    )
    parser.add_argument(
        "--yes",
        "--no-input",
        "--noinput",
        action="store_true",
        help=gettext("do not ask. Without it, bulk changes ask for confirmation."),
    )
    add_json(parser, gettext("print the result as JSON."))
    add_django_options(parser)


def change_jobs(out: JobsOutput, action: Action, options: dict[str, Any]) -> None:
    """Do what a verb says.

    Raises:
        CommandError: it was called in a wrong way, or nobody agreed.
        SystemExit: a job that was named was not changed.
    """
    if _moment_is_over(options.get("at")):
        raise CommandError(
            f"--at {moment_text(options['at'])} has passed. To start jobs at once, use run",
            returncode=WRONG_CALL,
        )
    if options["ids"]:
        _change_named(out, action, options)
    else:
        _change_found(out, action, options)


def _change_named(out: JobsOutput, action: Action, options: dict[str, Any]) -> None:
    given = [f"--{name}" for name in (*FILTERS, "limit") if options[name] is not None]
    if given:
        raise CommandError(
            f"Give either the IDs of jobs or options that select jobs: leave out {' and '.join(given)}.",
            returncode=WRONG_CALL,
        )
    details, use = _details(options), ACTIONS[action.instead].verb
    failed = 0
    done: set[str] = set()
    for job_id in options["ids"]:
        try:
            job = by_id_or_token(get_job, job_id)
            if job.id in done:
                continue
            done.add(job.id)
            if options["dry_run"]:
                is_done = job.state in action.states
            else:
                # The job may have moved since this look, and the call decides.
                change = action.change(job, details, None)
                is_done = perform(own_clients.of_thread, change)
        except (JobNotFound, QueueNotFound, PartialAnswer, RedisError) as error:
            _tell_of(out, job_id, why_not(error, options["ids"]), None, options)
            failed += 1
            continue
        failed += not is_done
        if options["dry_run"]:
            told = outcome.rehearsed_text(action, job.id, job.state, use)
        else:
            told = outcome.text_of_one(
                action, job.id, job.state, is_done=is_done, use=use
            )
        _tell_of(out, job.id, told, job, options, is_done=is_done)
    if failed:
        raise SystemExit(1)


def _tell_of(
    out: JobsOutput,
    job_id: str,
    told: str,
    job: Job[Any] | None,
    options: dict[str, Any],
    *,
    is_done: bool = False,
) -> None:
    if options["json"]:
        state = None if job is None else str(job.state)
        out.write_json({"id": job_id, "changed": is_done, "state": state})
    elif job is None:
        out.stderr.write(printable(told))
    else:
        stream = out.stdout if is_done else out.stderr
        stream.write(one_line(told))


def _change_found(out: JobsOutput, action: Action, options: dict[str, Any]) -> None:
    if all(options[each] is None for each in FILTERS):
        raise CommandError(
            f"Say which jobs to {action.verb}: their ids, or one of --queue, --state, --task, --text and --due.",
            returncode=WRONG_CALL,
        )
    states = options["state"] or sorted(action.states)
    found = search(out, options, states, options["limit"])
    useless = [state for state in states if state not in action.states]
    if useless:
        raise CommandError(
            f"{action.verb} changes no job that is {' or '.join(useless)}; it takes those that are"
            f" {', '.join(sorted(action.states))}.",
            returncode=WRONG_CALL,
        )
    if options["dry_run"]:
        _rehearse(out, found, options)
        out.missing.end()
        return
    if not options["yes"]:
        counts = _preview_to_ask(out, found)
        if out.missing.queues:
            out.stderr.write(out.missing.line)
        if not counts:
            out.missing.end()
            out.stdout.write(gettext("no matching jobs"))
            return
        if not _agrees(out, action, counts):
            raise SystemExit(1)
    change = found._changing(action, _details(options))
    changed = perform(own_clients.of_thread, change)
    out.progress.end()
    if options["json"]:
        out.write_json({"won": changed.won, "lost": changed.lost})
        return
    out.stdout.write(_told(action, changed))


def _preview_to_ask(out: JobsOutput, found: FoundJobs[Any]) -> Counter[State]:
    """Show what would be changed, if there is somebody to look."""
    if not sys.stdin.isatty():
        raise CommandError(
            "Nobody is here to be asked, so nothing was changed. Say --yes to change what is found, or --dry-run to see"
            " what that is."
        )
    return _preview(out, found)


def _agrees(out: JobsOutput, action: Action, counts: Counter[State]) -> bool:
    question = outcome.question_text(action, counts.total())
    answer = input(f"{question} {_by_state(counts)} [y/N] ")
    if answer.strip().lower() in ("y", "yes"):
        return True
    out.stdout.write(gettext("nothing was changed"))
    return False


def _rehearse(out: JobsOutput, found: FoundJobs[Any], options: dict[str, Any]) -> None:
    if options["json"]:
        for job in out.missing.each(found):
            out.write_json(jobs_report.as_json(job))
        return
    counts = _preview(out, found)
    count = counts.total()
    told = ngettext(
        "{number} job would be changed", "{number} jobs would be changed", count
    )
    out.stdout.write(f"{told} {_by_state(counts)}".rstrip())


def _preview(out: JobsOutput, found: FoundJobs[Any]) -> Counter[State]:
    """Print the first jobs, and count all by state."""
    jobs = out.missing.each(found)
    first = list(islice(jobs, EXAMPLES_SHOWN))
    counts = Counter(job.state for job in first)
    counts.update(job.state for job in jobs)
    out.progress.end()
    if first:
        out.write_table(map(jobs_report.row_of, first))
    if counts.total() > len(first):
        out.stdout.write("…")
    return counts


def _details(options: dict[str, Any]) -> Details:
    """Return the details of an action from the options."""
    span, at = options.get("span"), options.get("at")
    when = at if span is None else span
    return NO_DETAILS if when is None else Details(parse_delay(when))


def _moment_is_over(at: datetime | None) -> bool:
    return at is not None and at <= datetime.now(UTC)


def _by_state(counts: Counter[State] | dict[State, int]) -> str:
    parts = [
        gettext("{number} {state}", number=count, state=state_label(state))
        for state, count in sorted(counts.items())
    ]
    return f"({', '.join(parts)})" if parts else ""


def _told(action: Action, changed: Changed) -> str:
    told = outcome.done_text(action, changed.won)
    if not changed.lost:
        return told
    left = sum(changed.lost.values())
    return ngettext(
        "{done}; {number} was left alone {states}",
        "{done}; {number} were left alone {states}",
        left,
        done=told,
        states=_by_state(changed.lost),
    )
