"""``manage.py delayq_pause`` and ``delayq_resume``: pause queues or a task, list the pauses, and end them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy

from django_delayq import conf
from django_delayq.features.pauses.api import pause, paused, resume
from django_delayq.management.command_errors import Missing, explained, said_by_command
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.times import moment, span
from django_delayq.translations import gettext, say
from django_delayq.wording import one_line

PAUSE_EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_pause                                   list what is paused
  manage.py delayq_pause mail --reason "migration"         a queue, until delayq_resume
  manage.py delayq_pause mail orders --for 30m             two queues, for half an hour
  manage.py delayq_pause --task shop.tasks.charge          a task, on every queue of DELAYQ["QUEUES"]
  manage.py delayq_pause mail --task shop.tasks.charge     a task, on one queue
  manage.py delayq_pause mail --until "2026-12-24 18:00"   by the project's TIME_ZONE

Running jobs finish. You can still find, move and cancel the jobs of a paused queue. Due jobs of a paused task are held.
Workers of a version without this command ignore pauses.

exit status:
  0 when everything that you named is paused, or when the list was printed; otherwise 1, also when queues do not answer:
  the last lines name them
"""
)


class Pause(CommandWithExamples):
    examples = PAUSE_EXAMPLES
    summary = gettext_lazy(
        "Pause queues or a task. Their jobs do not start until you resume them, or the time is over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "queues",
            nargs="*",
            metavar="QUEUE",
            help=gettext(
                "names of queues; with --task, the queues on which the task is paused. Default: all."
            ),
        )
        parser.add_argument(
            "--task",
            metavar="NAME",
            help=gettext("pause this task instead of whole queues."),
        )
        end = parser.add_mutually_exclusive_group()
        end.add_argument(
            "--for",
            dest="span",
            type=span,
            metavar="TIME",
            help=gettext(
                "end the pause after this time: seconds, or a number with s, m, h or d."
            ),
        )
        end.add_argument(
            "--until",
            type=moment,
            metavar="TIME",
            help=gettext(
                "end the pause at this date and time; without an offset, in the project's TIME_ZONE."
            ),
        )
        parser.add_argument(
            "--reason",
            default="",
            metavar="TEXT",
            help=gettext("reason, shown next to the pause."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        queues, task = options["queues"], options["task"]
        with explained(), said_by_command():
            missing = Missing()
            if not queues and task is None:
                self._refuse_options(options)
                self._list(missing)
                missing.end()
                return
            for queue in queues:
                # All or none.
                conf.get_settings().queues_of(queue)
            until = options["until"] if options["span"] is None else options["span"]
            names = list(dict.fromkeys(queues))
            for queue in names or [None]:
                with missing.queue(queue, of=names):
                    pause(queue, task=task, until=until, reason=options["reason"])
            self._list(missing, names, task)
            if missing.queues:
                raise CommandError(
                    f"Not everything that you named is paused. {missing.line}"
                )

    def _refuse_options(self, options: dict[str, Any]) -> None:
        if options["span"] is not None or options["until"] or options["reason"]:
            raise CommandError("Name what to pause: queues, or --task NAME.")

    def _list(
        self, missing: Missing, queues: Sequence[str] = (), task: str | None = None
    ) -> None:
        found = [
            each
            for queue in queues or (None,)
            if queue not in missing.queues
            for each in missing.part(partial(paused, queue))
            if task is None or each.task == task
        ]
        for each in found:
            self.stdout.write(say(each.words))
        if not found and not missing.queues:
            self.stdout.write(gettext("nothing is paused"))


RESUME_EXAMPLES = gettext_lazy(
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


class Resume(CommandWithExamples):
    examples = RESUME_EXAMPLES
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
