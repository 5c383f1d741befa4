"""Output of ``delayq_jobs``: tables, JSON, progress, and the queues that do not answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_delayq.display.json_output import json_text
from django_delayq.management import jobs_report
from django_delayq.management.command_errors import Missing
from django_delayq.management.progress_line import ProgressLine
from django_delayq.management.terminal import table, width_of_screen
from django_delayq.translations import unsearched_text


class JobsOutput:
    """The streams of one run of the command."""

    def __init__(self, command: BaseCommand, *, shows_progress: bool) -> None:
        self.stdout: Any = command.stdout
        self.stderr: Any = command.stderr
        self.style = command.style
        self.progress = ProgressLine(self.stderr, is_on=shows_progress)
        self.missing = Missing()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say after Ctrl-C how far a change came."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.progress.end()
            # A change of many says in a note how far it came.
            notes = "; ".join(getattr(interrupt, "__notes__", []))
            raise CommandError(
                f"Interrupted: {notes.removeprefix('django-delayq: ') or 'nothing was changed'}. Run it again to continue."
            ) from None
        finally:
            self.progress.end()

    def tell_unsearched(self, found: Any) -> None:
        """Say how many jobs a search could not read."""
        count = getattr(found, "unsearched", 0)
        if count:
            self.progress.end()
            self.stderr.write(unsearched_text(count), str)

    def write_table(
        self, rows: Iterator[Sequence[str]], *, have_ended: bool = False
    ) -> None:
        columns = jobs_report.columns(have_ended=have_ended)
        width = width_of_screen(self.stdout)
        for line in table(columns, rows, width, self.style.MIGRATE_HEADING):
            self.progress.end()
            self.stdout.write_styled(line)

    def write_json(self, value: dict[str, Any]) -> None:
        self.progress.end()
        self.stdout.write(json_text(value))
