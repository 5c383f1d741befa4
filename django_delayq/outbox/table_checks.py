"""``manage.py check --deploy --database NAME`` asks whether the migration was applied. Other checks ask no database."""

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS
from django.db.utils import DatabaseError, InterfaceError

from django_delayq.jobs.commit import is_alias
from django_delayq.jobs.registry import all_tasks
from django_delayq.outbox.relay import databases as with_tables
from django_delayq.outbox.relay import has_table
from django_delayq.outbox.row_writer import migrating


def check_tables(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Report named databases that jobs or their effects go to, and that lack the tables."""
    wanted = {DEFAULT_DB_ALIAS}
    for task in all_tasks():
        on_commit, once = task.options.on_commit, task.options.once
        wanted |= {
            alias
            for alias in (on_commit if task.options.outbox else None, once)
            if isinstance(alias, str) and is_alias(alias)
        }
    found: list[checks.CheckMessage] = []
    for alias in sorted(wanted.intersection(databases or (), with_tables())):
        try:
            if has_table(alias):
                continue
            what, hint = (
                "has no tables of django_delayq.outbox",
                f"Run {migrating(alias)}.",
            )
        except (DatabaseError, InterfaceError) as error:
            what, hint = (
                f"does not say whether it has the tables of django_delayq.outbox: {error}",
                "Start it, or correct its entry in DATABASES.",
            )
        found.append(
            checks.Error(
                f"Database {alias!r} {what.strip()}.",
                hint=hint,
                id="django_delayq.E026",
            )
        )
    return found
