"""``manage.py delayq_outbox``: what waits in the outbox, and how long; sends it by hand."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.db.utils import DatabaseError, InterfaceError
from django.utils.formats import localize
from django.utils.translation import gettext, gettext_lazy, ngettext

from django_delayq.conf import get_settings
from django_delayq.display.time_texts import short_time_text
from django_delayq.management.command_errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.outbox.relay import Relay, Swept, databases, has_table, look
from django_delayq.outbox.row_writer import migrating
from django_delayq.redaction import redact

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_outbox                     count the rows of each database, and say how old the oldest is
  manage.py delayq_outbox --database orders   those of one database
  manage.py delayq_outbox --relay             send them now, as workers do every few seconds

exit status:
  0 when it is done; 1 when a database cannot be asked, or rows stay that cannot be sent
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Show what waits in the outbox of each database, and send it by hand."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help=gettext("one of DATABASES. Default: all that have the tables."),
        )
        parser.add_argument(
            "--relay",
            action="store_true",
            help=gettext(
                "send the rows now, and delete rows whose jobs are safely on the server."
            ),
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
                where = ", ".join(map(repr, asked)) or "any database"
                what = f": run {migrating(asked[0])}" if asked else ""
                raise CommandError(f"no table of the outbox in {where}{what}")
            problems = 0
            for alias in found:
                if options["relay"]:
                    problems += self._relay(alias)
                self._show(alias)
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(f"the database does not answer: {error}") from error
        if problems:
            raise CommandError(f"rows that cannot be sent from here: {problems:,}")

    def _show(self, alias: str) -> None:
        waiting = look(alias)
        rows = ngettext(
            "{count} row in the outbox", "{count} rows in the outbox", waiting.rows
        ).format(count=localize(waiting.rows))
        if waiting.rows:
            rows = gettext("{rows}, the oldest {age} old").format(
                rows=rows, age=short_time_text(waiting.age_ms)
            )
        self.stdout.write(
            gettext("{database}: {rows}; {ran} in the inbox").format(
                database=alias, rows=rows, ran=localize(waiting.ran)
            )
        )

    def _relay(self, alias: str) -> int:
        total = Swept()
        with explained():
            for swept in Relay(alias).sweep(fresh_ms=0, by_hand=True):
                total = total.and_then(swept)
        self.stdout.write(
            gettext(
                "{database}: sent for the first time: {sent}; rows deleted: {deleted}, the others after the server"
                " has had them for {keep} s"
            ).format(
                database=alias,
                sent=localize(total.sent),
                deleted=localize(total.deleted),
                keep=localize(get_settings().outbox_keep_s),
            )
        )
        for problem, count in total.problems.items():
            self.stderr.write(
                ngettext(
                    "{database}: {count} row stays: {problem}",
                    "{database}: {count} rows stay: {problem}",
                    count,
                ).format(database=alias, count=localize(count), problem=redact(problem))
            )
        return total.problems.total()
