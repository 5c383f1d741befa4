"""``manage.py delayq_status``: the queues, the workers and what is wrong, at a glance; once or again and again."""

from argparse import ArgumentTypeError
from collections.abc import Iterator
from time import sleep
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext, gettext_lazy
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.clock import monotonic_ms
from django_delayq.conf import QueueSettings
from django_delayq.display.json_output import json_text
from django_delayq.display.overview import look
from django_delayq.display.overview_json import overview_data
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.management import status_report
from django_delayq.management.command_errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.terminal import Screen, width_of_screen
from django_delayq.server_checks import server_problems
from django_delayq.transport.clients import own_clients

#: Seconds between two looks with --watch, and between two of the server's checks, which write and read on trial.
WATCH_S, CHECKS_S = 2.0, 30.0
#: The shortest time between two looks.
LEAST_WATCH_S = 0.2

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_status                  queues, statistics, workers and problems
  manage.py delayq_status --queue mail     one queue
  manage.py delayq_status --watch          refresh every 2 s, until Ctrl-C
  manage.py delayq_status --json           one JSON object

The command takes some ten round trips, whatever the number of jobs. Each problem comes with the command that fixes it.

exit status:
  0 when the status was shown in full, even if it shows problems; 1 when the server, or a part of it, did not answer:
  the output names what is missing. For a probe, use delayq_health.
"""
)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not LEAST_WATCH_S <= seconds <= 86_400:
        raise ArgumentTypeError(
            f"{text!r} is not a number of seconds from {LEAST_WATCH_S} to 86400"
        )
    return seconds


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy("Show queues, workers and problems at a glance.")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help=gettext("only this queue; repeat it for more. Default: all."),
        )
        parser.add_argument(
            "--watch",
            nargs="?",
            type=_seconds,
            const=WATCH_S,
            metavar="SECONDS",
            help=gettext("refresh in place, until Ctrl-C."),
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help=gettext("print one JSON object per refresh."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            queues = conf.get_settings().queues_of(*options["queue"] or ())
            self._problems: list[ServerProblem] = []
            self._checked_ms = float("-inf")
            if options["watch"] is None:
                for line in self._look(queues, options["json"]):
                    self.stdout.write_styled(line)
                if not self._is_whole:
                    raise SystemExit(1)
                return
        try:
            self._watch(queues, options["watch"], options["json"])
        except KeyboardInterrupt:
            # That is how it ends.
            return

    def _watch(
        self, queues: list[QueueSettings], every_s: float, is_json: bool
    ) -> None:
        screen = Screen(self.stdout)
        while True:
            try:
                lines = list(self._look(queues, is_json))
            except (RedisError, OSError) as error:
                # Somebody may be watching a restart.
                lines = list(status_report.lines_of_fault(error))
                if is_json:
                    lines = [json_text({"fault": " ".join(lines)})]
            screen.draw(lines)
            sleep(every_s)

    def _look(self, queues: list[QueueSettings], is_json: bool) -> Iterator[str]:
        with own_clients.waiting_once():
            status = look(queues)
            if monotonic_ms() - self._checked_ms >= CHECKS_S * 1000:
                self._problems = server_problems(status.answering)
                self._checked_ms = monotonic_ms()
        status = status.with_problems(self._problems)
        self._is_whole = status.is_whole
        if is_json:
            yield json_text(overview_data(status))
            return
        width = width_of_screen(self.stdout)
        styles = {
            Level.ERROR: self.style.ERROR,
            Level.WARNING: self.style.WARNING,
            Level.INFO: self.style.NOTICE,
        }
        yield from status_report.lines_of(status, width, self.style.MIGRATE_HEADING)
        yield from status_report.lines_of_problems(status.problems, width, styles)
