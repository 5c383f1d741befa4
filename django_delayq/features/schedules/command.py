"""``manage.py delayq_schedules``: list periodic schedules; pause, resume, fire or delete them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy

from django_delayq.clock import iso_text
from django_delayq.display.json_output import json_text
from django_delayq.display.value_json import plain_value
from django_delayq.exceptions import InvalidSchedule
from django_delayq.features.schedules.api import Schedule, get_schedule, get_schedules
from django_delayq.features.schedules.schedule_texts import (
    SHOWN,
    enrolment_text,
    occurrences_of,
    pause_text,
)
from django_delayq.jobs.arguments import masked_call
from django_delayq.management.command_errors import Missing, explained, said_by_command
from django_delayq.management.help import CommandWithExamples
from django_delayq.translations import gettext, when_text
from django_delayq.wording import one_line

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_schedules                              list all, in words, with the next five occurrences
  manage.py delayq_schedules --queue mail --json          those of one queue, for programs
  manage.py delayq_schedules --pause report --reason "…"  no job of it until --resume
  manage.py delayq_schedules --resume report              continue with its next occurrence
  manage.py delayq_schedules --fire report                one more job now
  manage.py delayq_schedules --delete report              a stored one, or one that has gone from code

exit status:
  0 when it is done, or when the list was printed; 1 when not, or when queues do not answer: the last lines name them
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "List periodic schedules with their next occurrences; pause, resume, fire or delete them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            metavar="NAME",
            help=gettext("the queue of the schedules. Default: all."),
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help=gettext("print a JSON list."),
        )
        what = parser.add_mutually_exclusive_group()
        for name, text in (
            (
                "pause",
                gettext("cancel the waiting job, and store none until --resume."),
            ),
            ("resume", gettext("continue with the next occurrence.")),
            ("fire", gettext("store one more job, due now.")),
            (
                "delete",
                gettext("delete a stored schedule, or one that no code defines."),
            ),
        ):
            what.add_argument(f"--{name}", metavar="NAME", help=text)
        parser.add_argument(
            "--reason",
            default="",
            metavar="TEXT",
            help=gettext("with --pause: reason, shown next to the pause."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reason"] and options["pause"] is None:
            raise CommandError("--reason needs --pause NAME.")
        queue = options["queue"]
        changes: dict[str, Callable[[Schedule], str]] = {
            "pause": lambda found: _said(found.pause(reason=options["reason"])),
            "resume": lambda found: _said(found.resume()),
            "fire": lambda found: gettext("job {id} is due now", id=found.fire().id),
            "delete": lambda found: (
                gettext("{name} is deleted")
                if found.delete()
                else gettext("{name} no longer exists")
            ).format(name=found.name),
        }
        with explained():
            for name, change in changes.items():
                if options[name] is not None:
                    found = get_schedule(options[name], queue)
                    with said_by_command():
                        said = change(found)
                    self.stdout.write(said)
                    return
            missing = Missing()
            found_all = missing.part(lambda: get_schedules(queue))
            self._list(found_all, is_json=options["json"])
            missing.end()
        if not found_all and not options["json"]:
            self.stdout.write(gettext("there are no schedules"))

    def _list(self, schedules: list[Schedule], *, is_json: bool) -> None:
        if is_json:
            self.stdout.write(json_text(list(map(_as_json, schedules)), indent=2))
            return
        for schedule in schedules:
            for line in _lines(schedule):
                self.stdout.write(line)


def _said(schedule: Schedule) -> str:
    if schedule.next_occurrence is None:
        template = (
            gettext("{name} is paused")
            if schedule.is_paused
            else gettext("{name} is at its end")
        )
        return template.format(name=schedule.name)
    return gettext(
        "{name} runs next at {time}", name=schedule.name, time=schedule.next_occurrence
    )


def _lines(schedule: Schedule) -> list[str]:
    notes = [
        gettext("queue {queue}", queue=schedule.queue),
        gettext("task {task}", task=schedule.task),
    ]
    if schedule.is_stored:
        notes.append(gettext("stored"))
    if schedule.is_overridden:
        notes.append(gettext("at other times than its definition says"))
    lines = [
        f"{schedule.name} ({', '.join(notes)})",
        f"  {when_text(schedule.when)}",
    ]
    if schedule.is_orphan:
        why = (
            gettext("orphan: no task is named {task} here")
            if schedule.is_stored
            else gettext("orphan: no code here has it; --delete if no other has")
        )
        lines.append(f"  {why.format(task=schedule.task)}")
    for text in filter(None, (enrolment_text(schedule), pause_text(schedule))):
        lines.append(f"  {one_line(text)}")
    if schedule.last_occurrence is not None:
        told = gettext("last ran at {time}", time=schedule.last_occurrence)
        lines.append(f"  {told}")
    occurrences = ", ".join(occurrences_of(schedule)) or gettext("never")
    template = (
        gettext("would be: {occurrences}")
        if schedule.is_paused
        else gettext("next: {occurrences}")
    )
    return [*lines, f"  {template.format(occurrences=occurrences)}"]


def _as_json(schedule: Schedule) -> dict[str, Any]:
    try:
        occurrences = [iso_text(moment) for moment in schedule.occurrences(SHOWN)]
    except InvalidSchedule:
        occurrences = []
    args, kwargs = masked_call(schedule.task, schedule.args, schedule.kwargs)
    return {
        "name": schedule.name,
        "queue": schedule.queue,
        "task": schedule.task,
        "when": str(schedule.when),
        "words": schedule.words,
        "args": None if schedule.is_encrypted else plain_value(args),
        "kwargs": None if schedule.is_encrypted else plain_value(kwargs),
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "stored": schedule.is_stored,
        "orphan": schedule.is_orphan,
        "overridden": schedule.is_overridden,
        "enrolled": schedule.is_enrolled,
        "paused_since": _iso(schedule.paused_since),
        "paused_by": schedule.paused_by,
        "paused_reason": schedule.paused_reason,
        "last": _iso(schedule.last_occurrence),
        "next": _iso(schedule.next_occurrence),
        "occurrences": occurrences,
        "job": schedule.job_id,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso_text(moment)
