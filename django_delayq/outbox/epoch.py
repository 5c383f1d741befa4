"""The clock of a database, as an expression: what the outbox and the inbox keep of time are epoch milliseconds by it.

A number has no time zone, so neither the session's zone nor a change of clocks matters.
"""

from typing import Any

from django.db.models import BigIntegerField, Func
from django.db.utils import NotSupportedError


class EpochMs(Func):
    """The present time of the database, epoch ms: when its statement began, or a moment later."""

    arity = 0
    output_field = BigIntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Not now(), at which the transaction began.
        moment = "EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP())"
        return self._sql(compiler, connection, f"(FLOOR({moment} * 1000)::bigint)")

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # UNIX_TIMESTAMP() of a time would read it in the session's zone, in which an hour of autumn comes twice.
        micros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3))"
        return self._sql(compiler, connection, f"({micros} DIV 1000)")

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # SQLite counts whole milliseconds, of which a day of the Julian calendar is a fraction.
        moment = "(JULIANDAY('NOW') - 2440587.5) * 86400000"
        return self._sql(compiler, connection, f"(CAST(ROUND({moment}) AS INTEGER))")

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:
        raise NotSupportedError(
            f"django_delayq.outbox does not support {connection.display_name}, but PostgreSQL, MySQL, MariaDB and"
            " SQLite; let allow_migrate() of a database router return False for delayq_outbox on this database"
        )

    def _sql(self, compiler: Any, connection: Any, template: str) -> Any:
        return super().as_sql(compiler, connection, template=template)
