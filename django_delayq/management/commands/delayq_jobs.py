"""``manage.py delayq_jobs``: list and show jobs; cancel, move, start, retry or discard them."""

import sys
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.errors import is_of_node
from django_delayq.calls.steps import perform
from django_delayq.clients.clients import own_clients
from django_delayq.delivery.ended import MOST_ENDED
from django_delayq.delivery.searching import SEARCH_PAGE
from django_delayq.delivery.states import State
from django_delayq.exceptions import (
    InvalidSearch,
    JobNotFound,
    PartialAnswer,
    QueueNotFound,
)
from django_delayq.faults import fault_line
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
from django_delayq.jobs.answers import complete, leaving_out
from django_delayq.jobs.bulk import Changed
from django_delayq.jobs.ended import EndedJob, ended_jobs
from django_delayq.jobs.finding import FoundJobs, find_jobs
from django_delayq.jobs.job import Job
from django_delayq.jobs.lookup import get_job
from django_delayq.jobs.search import LISTED
from django_delayq.management import jobs_report
from django_delayq.management.errors import Missing, explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress import ProgressLine
from django_delayq.management.terminal import (
    table,
    width_of_screen,
)
from django_delayq.management.times import moment, span, window
from django_delayq.redaction import show
from django_delayq.showing import outcome
from django_delayq.showing.plain_json import json_text
from django_delayq.translating import (
    gettext,
    moment_text,
    ngettext,
    state_label,
    unsearched_text,
)
from django_delayq.wire.delay import parse_delay
from django_delayq.wording import one_line, printable

T = TypeVar("T")
#: Rows of a table, unless --limit says otherwise.
LISTED_ROWS = 100
#: Jobs that a question and a dry run show as examples.
EXAMPLES_SHOWN = 5
#: The exit status of a command that was called in a wrong way, as argparse has it.
WRONG_CALL = 2
#: What `list` takes as a state for how the last jobs ended: all of them, or those with one outcome.
ENDED = "ended"
OUTCOMES = (State.SUCCEEDED, State.CANCELLED, State.EXPIRED)

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_jobs list --state dead                          dead letters, with their errors in --json
  manage.py delayq_jobs list --queue mail --due ..now              what is overdue
  manage.py delayq_jobs list --text 4711 --json                    one JSON object a line, as they are found
  manage.py delayq_jobs show mail:X0wZNC4ICLNUqUa2o8646Q           everything about one job
  manage.py delayq_jobs cancel mail:X0wZNC4ICLNUqUa2o8646Q         by id, without a question
  manage.py delayq_jobs cancel --task shop.tasks.newsletter        all that wait, after a question
  manage.py delayq_jobs reschedule --queue mail --in 2h --dry-run  what it would do
  manage.py delayq_jobs run --queue mail --due now..1d             what is to come today is due now
  manage.py delayq_jobs retry --queue mail --yes                   dead letters and quarantined jobs
  manage.py delayq_jobs discard --task shop.tasks.old --yes        delete them for good

Each job is changed atomically, or left alone because a worker was first.
A search reads 100 jobs a call and may be interrupted; a state and a range with --due make it short.

exit status:
  0  the list was printed; or every job that was named, or all that were found, were dealt with: what workers had
     first is counted, and is no failure
  1  a job that was named by its id is not there or was left alone; nobody was there to answer the question, or the
     answer was no; the server did not answer, or not for all queues: the last lines name those; or the command was
     interrupted
  2  the command was called in a wrong way
"""
)


#: The actions by their verbs.
VERBS = {
    action.verb: action for action in (CANCEL, RESCHEDULE, RUN_NOW, RETRY, DISCARD)
}
_FILTERS = ("queue", "state", "task", "text", "due")


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "List and show jobs; cancel, reschedule, run, retry or discard them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(
            dest="verb",
            required=True,
            metavar=gettext("VERB"),
            help=gettext("what to do; each verb has its own --help."),
        )
        listing = verbs.add_parser("list", help=gettext("list jobs, one per row."))
        self._add_filters(listing, (ENDED, *OUTCOMES))
        self._add_limit(listing, gettext("100 in a table, all with --json"))
        self._add_json(listing, gettext("print one JSON object per line."))
        self._add_decrypt(listing)
        self._add_base(listing)
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
        self._add_json(showing, gettext("print one JSON object per line."))
        self._add_decrypt(showing)
        self._add_base(showing)
        for name, verb in VERBS.items():
            self._add_verb(verbs.add_parser(name, help=str(verb.help)), name)

    def _add_verb(self, parser: CommandParser, name: str) -> None:
        parser.add_argument(
            "ids",
            nargs="*",
            metavar="ID",
            help=gettext("job IDs; or select jobs with the options below."),
        )
        self._add_filters(parser)
        self._add_limit(parser, gettext("all"))
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
        self._add_json(parser, gettext("print the result as JSON."))
        self._add_base(parser)

    def _add_filters(self, parser: CommandParser, more: Sequence[str] = ()) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help=gettext("jobs of this queue; repeat it for more. Default: all."),
        )
        parser.add_argument(
            "--state",
            action="append",
            metavar="STATE",
            help=gettext(
                "jobs in this state; repeat it for more: {states}.",
                states=", ".join(
                    [*(state for state in State if state in LISTED), *more]
                ),
            ),
        )
        parser.add_argument(
            "--task", metavar="NAME", help=gettext("jobs of the task with this name.")
        )
        parser.add_argument(
            "--text",
            metavar="TEXT",
            help=gettext("jobs with this text in an argument or in the error."),
        )
        parser.add_argument(
            "--due",
            type=window,
            metavar="FROM..TO",
            help=gettext(
                "jobs due in this range: ..now, now..2h, '1d ago..5m ago', '2026-12-24 18:00..'."
            ),
        )

    def _add_limit(self, parser: CommandParser, default: str) -> None:
        parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help=gettext(
                "at most this many jobs. Default: {default}.", default=default
            ),
        )

    def _add_json(self, parser: CommandParser, help: str) -> None:
        parser.add_argument("--json", action="store_true", help=help)

    def _add_decrypt(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--decrypt",
            action="store_true",
            help=gettext("also show encrypted values."),
        )

    def _add_base(self, parser: CommandParser) -> None:
        """Take Django's own options behind the verb as well, where people type them."""
        for names, given in (
            (("-v", "--verbosity"), {"type": int, "choices": range(4)}),
            (("--settings",), {}),
            (("--pythonpath",), {}),
            (("--traceback",), {"action": "store_true"}),
            (("--no-color",), {"action": "store_true"}),
            (("--force-color",), {"action": "store_true"}),
            (("--skip-checks",), {"action": "store_true"}),
        ):
            arguments: dict[str, Any] = {"default": SUPPRESS, "help": SUPPRESS, **given}
            parser.add_argument(*names, **arguments)

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        self._missing = Missing()
        name = options["verb"]
        with explained(), self._interruptible():
            if name == "list":
                self._list(options)
                self._missing.end()
                return
            if name == "show":
                self._show(options)
                return
            action = VERBS[name]
            if _moment_is_over(options.get("at")):
                raise CommandError(
                    f"--at {moment_text(options['at'])} has passed. To start jobs at once, use run",
                    returncode=WRONG_CALL,
                )
            if options["ids"]:
                self._change_named(action, options)
            else:
                self._change_found(action, options)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self._progress.end()
            # A change of many says in a note how far it came.
            notes = "; ".join(getattr(interrupt, "__notes__", []))
            raise CommandError(
                f"Interrupted: {notes.removeprefix('django-delayq: ') or 'nothing was changed'}. Run it again to continue."
            ) from None
        finally:
            self._progress.end()

    # List and show

    def _list(self, options: dict[str, Any]) -> None:
        limit = options["limit"]
        if limit is None and not options["json"]:
            limit = LISTED_ROWS
        states = options["state"] or []
        have_ended = any(state in (ENDED, *OUTCOMES) for state in states)
        found: Any
        row_of: Any
        as_json: Any
        if have_ended:
            found = self._find_ended(options, states, limit)
            row_of, as_json = jobs_report.row_of_end, jobs_report.end_as_json
        else:
            found = self._find(options, options["state"], limit)
            row_of = partial(jobs_report.row_of, decrypts=options["decrypt"])
            as_json = partial(jobs_report.as_json, decrypts=options["decrypt"])
        if options["json"]:
            for job in self._missing.each(found):
                self._write_json(as_json(job))
            self._tell_unsearched(found)
            return
        count = 0

        def rows() -> Iterator[Sequence[str]]:
            nonlocal count
            for job in self._missing.each(found):
                count += 1
                yield row_of(job)

        self._write_table(rows(), have_ended=have_ended)
        self._tell_unsearched(found)
        if not count and not self._missing.queues:
            self.stderr.write(gettext("no matching jobs"), str)
        elif count == limit:
            self.stderr.write(
                gettext("{count} shown; there may be more, see --limit", count=count),
                str,
            )

    def _tell_unsearched(self, found: Any) -> None:
        count = getattr(found, "unsearched", 0)
        if count:
            self._progress.end()
            self.stderr.write(unsearched_text(count), str)

    def _write_table(
        self, rows: Iterator[Sequence[str]], *, have_ended: bool = False
    ) -> None:
        columns = jobs_report.columns(have_ended=have_ended)
        width = width_of_screen(self.stdout)
        for line in table(columns, rows, width, self.style.MIGRATE_HEADING):
            self._progress.end()
            self.stdout.write_styled(line)

    def _show(self, options: dict[str, Any]) -> None:
        missing, start = 0, ""
        look_at = partial(jobs_report.look_at, decrypts=options["decrypt"])
        for job_id in options["ids"]:
            try:
                shown = _by_id_or_token(look_at, job_id)
            except (JobNotFound, QueueNotFound, PartialAnswer, RedisError) as error:
                self.stderr.write(printable(_why_not(error, options["ids"])))
                missing += 1
                continue
            if options["json"]:
                self._write_json(jobs_report.in_full(shown))
                continue
            title, *lines = jobs_report.lines_of(
                shown, is_folded=options["verbosity"] < 2
            )
            self.stdout.write(start, ending="")
            self.stdout.write(title, self.style.MIGRATE_HEADING)
            start = "\n"
            for line in lines:
                self.stdout.write(line)
        if missing:
            raise SystemExit(1)

    def _find_ended(
        self, options: dict[str, Any], states: Sequence[str], limit: int | None
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
            raise CommandError(
                f"--limit {limit}: give 0 or more.", returncode=WRONG_CALL
            )
        found: list[EndedJob] = []
        names = options["queue"] or []
        try:
            for queue in names or [None]:
                with self._missing.queue(queue, of=names):
                    found += self._missing.part(
                        partial(ended_jobs, queue, limit=MOST_ENDED)
                    )
        except QueueNotFound as error:
            raise CommandError(str(error), returncode=WRONG_CALL) from error
        found = [
            job
            for job in found
            if options["task"] in (None, job.task)
            and (ENDED in states or job.outcome in states)
        ]
        return sorted(found, key=lambda job: job.ended_at, reverse=True)[:limit]

    def _find(
        self, options: dict[str, Any], states: Iterable[str] | None, limit: int | None
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
                total = self._missing.part(everything.count)
            # Jobs come while the search goes on.
            self._progress(gettext("searching"), looked, max(looked, total))

        return found.watched(watch)

    # Change

    def _change_named(self, action: Action, options: dict[str, Any]) -> None:
        given = [
            f"--{name}" for name in (*_FILTERS, "limit") if options[name] is not None
        ]
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
                job = _by_id_or_token(get_job, job_id)
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
                self._tell_of(job_id, _why_not(error, options["ids"]), None, options)
                failed += 1
                continue
            failed += not is_done
            if options["dry_run"]:
                told = outcome.rehearsed_text(action, job.id, job.state, use)
            else:
                told = outcome.text_of_one(
                    action, job.id, job.state, is_done=is_done, use=use
                )
            self._tell_of(job.id, told, job, options, is_done=is_done)
        if failed:
            raise SystemExit(1)

    def _tell_of(
        self,
        job_id: str,
        told: str,
        job: Job[Any] | None,
        options: dict[str, Any],
        *,
        is_done: bool = False,
    ) -> None:
        if options["json"]:
            state = None if job is None else str(job.state)
            self._write_json({"id": job_id, "changed": is_done, "state": state})
        elif job is None:
            self.stderr.write(printable(told))
        else:
            stream = self.stdout if is_done else self.stderr
            stream.write(one_line(told))

    def _change_found(self, action: Action, options: dict[str, Any]) -> None:
        if all(options[each] is None for each in _FILTERS):
            raise CommandError(
                f"Say which jobs to {action.verb}: their ids, or one of --queue, --state, --task, --text and --due.",
                returncode=WRONG_CALL,
            )
        states = options["state"] or sorted(action.states)
        found = self._find(options, states, options["limit"])
        useless = [state for state in states if state not in action.states]
        if useless:
            raise CommandError(
                f"{action.verb} changes no job that is {' or '.join(useless)}; it takes those that are"
                f" {', '.join(sorted(action.states))}.",
                returncode=WRONG_CALL,
            )
        if options["dry_run"]:
            self._rehearse(found, options)
            self._missing.end()
            return
        if not options["yes"]:
            counts = self._preview_to_ask(found)
            if self._missing.queues:
                self.stderr.write(self._missing.line)
            if not counts:
                self._missing.end()
                self.stdout.write(gettext("no matching jobs"))
                return
            if not self._agrees(action, counts):
                raise SystemExit(1)
        change = found._changing(action, _details(options))
        changed = perform(own_clients.of_thread, change)
        self._progress.end()
        if options["json"]:
            self._write_json({"won": changed.won, "lost": changed.lost})
            return
        self.stdout.write(_told(action, changed))

    def _preview_to_ask(self, found: FoundJobs[Any]) -> Counter[State]:
        """Show what would be changed, if there is somebody to look."""
        if not sys.stdin.isatty():
            raise CommandError(
                "Nobody is here to be asked, so nothing was changed. Say --yes to change what is found, or --dry-run to see"
                " what that is."
            )
        return self._preview(found)

    def _agrees(self, action: Action, counts: Counter[State]) -> bool:
        question = outcome.question_text(action, counts.total())
        answer = input(f"{question} {_by_state(counts)} [y/N] ")
        if answer.strip().lower() in ("y", "yes"):
            return True
        self.stdout.write(gettext("nothing was changed"))
        return False

    def _rehearse(self, found: FoundJobs[Any], options: dict[str, Any]) -> None:
        if options["json"]:
            for job in self._missing.each(found):
                self._write_json(jobs_report.as_json(job))
            return
        counts = self._preview(found)
        count = counts.total()
        told = ngettext(
            "{number} job would be changed", "{number} jobs would be changed", count
        )
        self.stdout.write(f"{told} {_by_state(counts)}".rstrip())

    def _preview(self, found: FoundJobs[Any]) -> Counter[State]:
        """Print the first jobs, and count all by state."""
        jobs = self._missing.each(found)
        first = list(islice(jobs, EXAMPLES_SHOWN))
        counts = Counter(job.state for job in first)
        counts.update(job.state for job in jobs)
        self._progress.end()
        if first:
            self._write_table(map(jobs_report.row_of, first))
        if counts.total() > len(first):
            self.stdout.write("…")
        return counts

    def _write_json(self, value: dict[str, Any]) -> None:
        self._progress.end()
        self.stdout.write(json_text(value))


def _details(options: dict[str, Any]) -> Details:
    """Return the details of an action from the options."""
    span, at = options.get("span"), options.get("at")
    when = at if span is None else span
    return NO_DETAILS if when is None else Details(parse_delay(when))


def _by_id_or_token(look: Callable[[str], T], given: str) -> T:
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


def _why_not(error: Exception, ids: Sequence[str]) -> str:
    """Say why nothing can be done with a job, unless nothing can be done with the others either.

    Raises:
        redis.exceptions.RedisError: so it is.
    """
    if not isinstance(error, RedisError):
        return str(error)
    if len(ids) == 1 or not is_of_node(error):
        raise error
    return " ".join([fault_line(error), *getattr(error, "__notes__", ())])


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
