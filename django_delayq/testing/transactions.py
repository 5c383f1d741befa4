"""Commits in a ``TestCase``: the end of the outermost `atomic` of the project's own, as nothing commits the test's."""

from functools import cache, wraps
from typing import Any

from django.db.transaction import Atomic, get_connection

from django_delayq.jobs import commit


@cache
def watch_transactions() -> None:
    """Have our commit hooks run where a transaction of the project would commit, if it were not within a test's.

    Django runs such hooks at the end of `captureOnCommitCallbacks` at the earliest.
    """
    leave = Atomic.__exit__

    @wraps(leave)
    def leave_and_commit(self: Atomic, exc_type: Any, *error: Any) -> None:
        leave(self, exc_type, *error)
        connection = get_connection(self.using)
        if connection.in_atomic_block and commit.is_of_testcase(
            connection.atomic_blocks
        ):
            commit.run_ours(connection.alias)

    Atomic.__exit__ = leave_and_commit  # type: ignore[method-assign]
