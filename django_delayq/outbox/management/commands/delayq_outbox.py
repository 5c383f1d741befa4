"""``manage.py delayq_outbox``: what waits in the outbox, and how long; sends it by hand."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.db.utils import DatabaseError, InterfaceError

from django_delayq.conf import get_settings
from django_delayq.jobs.outbox import ADVICE
from django_delayq.management.errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.outbox.relay import Relay, Swept, databases, has_table, look
from django_delayq.redaction import redact

EXAMPLES = """
examples:
  manage.py delayq_outbox                     count the rows of each database, and say how old the oldest is
  manage.py delayq_outbox --database orders   those of one database
  manage.py delayq_outbox --relay             send them now, as workers do every few seconds

exit status:
  0 when it is done; 1 when a database cannot be asked, or rows stay that cannot be sent
"""


class Command(CommandWithExamples):
    examples = EXAMPLES
    help = "Show what waits in the outbox of each database, and send it by hand."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="one of DATABASES. Default: all that have the tables.",
        )
        parser.add_argument(
            "--relay",
            action="store_true",
            help="send the rows now, and delete those that the server has had for long enough.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = options["database"]
        if chosen is not None and chosen not in connections:
            raise CommandError(
                f"{chosen!r} is not in DATABASES; give one of {', '.join(map(repr, connections))}"
            )
        asked = [chosen] if chosen is not None else databases()
        try:
            found = [alias for alias in asked if has_table(alias)]
            if not found:
                raise CommandError(
                    f"no table of the outbox in {', '.join(map(repr, asked)) or 'any database'}: {ADVICE}"
                )
            problems = 0
            for alias in found:
                if options["relay"]:
                    problems += self._relay(alias)
                self._show(alias)
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"the database cannot be asked: {error}") from error
        if problems:
            raise CommandError(f"{problems:,} rows cannot be sent from here")

    def _show(self, alias: str) -> None:
        waiting = look(alias)
        age = f", the oldest {_age(waiting.age)} old" if waiting.rows else ""
        self.stdout.write(
            f"{alias}: {waiting.rows:,} rows in the outbox{age}; {waiting.ran:,} in the inbox"
        )

    def _relay(self, alias: str) -> int:
        total = Swept()
        with explained():
            for swept in Relay(alias).sweep(fresh=timedelta(0), by_hand=True):
                total = total.and_then(swept)
        self.stdout.write(
            f"{alias}: {total.sent:,} jobs sent that nobody had sent before; {total.deleted:,} rows deleted, the others once"
            f" the server has had them for {get_settings().outbox_keep_s:g} s"
        )
        for problem, count in total.problems.items():
            self.stderr.write(f"{alias}: {count:,} rows stay: {redact(problem)}")
        return total.problems.total()


def _age(age: timedelta) -> str:
    seconds = age.total_seconds()
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=int(seconds)))
