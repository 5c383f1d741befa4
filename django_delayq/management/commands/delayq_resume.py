"""``manage.py delayq_resume``: end the pause of queues, or of a task."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy

from django_delayq import conf
from django_delayq.jobs.pausing import resume
from django_delayq.management.errors import Missing, explained, said_by_command
from django_delayq.management.help import CommandWithExamples
from django_delayq.translating import gettext
from django_delayq.wording import one_line

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_resume mail                          a queue
  manage.py delayq_resume --task shop.tasks.charge      a task, on every queue of DELAYQ["QUEUES"]
  manage.py delayq_resume mail --task shop.tasks.charge a task, on one queue

Idle workers start at once. What a pause of a task has held is due in the order of its start times.

exit status:
  0 when everything you named runs again; 1 when some queues did not answer: the last lines name them
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy("End the pause of queues, or of a task.")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "queues",
            nargs="*",
            metavar="QUEUE",
            help=gettext(
                "names of queues; with --task, the queues on which the task is resumed. Default: all."
            ),
        )
        parser.add_argument(
            "--task",
            metavar="NAME",
            help=gettext("resume this task instead of whole queues."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        queues, task = options["queues"], options["task"]
        if not queues and task is None:
            raise CommandError(
                "Name what to resume: queues, or --task NAME. manage.py delayq_pause lists what is paused."
            )
        with explained(), said_by_command():
            for queue in queues:
                # All or none.
                conf.get_settings().queues_of(queue)
            names, missing = list(dict.fromkeys(queues)), Missing()
            for queue in names or [None]:
                with missing.queue(queue, of=names):
                    was_paused = resume(queue, task=task)
                    self.stdout.write(_said(queue, task, was_paused))
            if missing.queues:
                raise CommandError(
                    f"Not everything that you named is resumed. {missing.line}"
                )


def _said(queue: str | None, task: str | None, was_paused: bool) -> str:
    if task is None:
        said = (
            gettext("queue {queue} is resumed", queue=queue)
            if was_paused
            else gettext("queue {queue} was not paused", queue=queue)
        )
    elif queue is None:
        said = (
            gettext("task {task} is resumed", task=task)
            if was_paused
            else gettext("task {task} was not paused", task=task)
        )
    else:
        said = (
            gettext("task {task} is resumed on queue {queue}", task=task, queue=queue)
            if was_paused
            else gettext(
                "task {task} was not paused on queue {queue}", task=task, queue=queue
            )
        )
    return one_line(said)
