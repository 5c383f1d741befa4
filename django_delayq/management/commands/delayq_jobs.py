"""``manage.py delayq_jobs``: list and show jobs; cancel, move, start, retry or discard them."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext_lazy

from django_delayq.management.command_errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.jobs_change import VERBS, add_changes, change_jobs
from django_delayq.management.jobs_list import add_list, list_jobs
from django_delayq.management.jobs_output import JobsOutput
from django_delayq.management.jobs_show import add_show, show_jobs
from django_delayq.translations import gettext

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
        add_list(verbs)
        add_show(verbs)
        add_changes(verbs)

    def handle(self, *args: Any, **options: Any) -> None:
        out = JobsOutput(self, shows_progress=options["verbosity"] > 0)
        verb = options["verb"]
        with explained(), out.interruptible():
            if verb == "list":
                list_jobs(out, options)
                out.missing.end()
            elif verb == "show":
                show_jobs(out, options)
            else:
                change_jobs(out, VERBS[verb], options)
