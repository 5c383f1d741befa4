"""``OPTIONS`` of a backend in ``TASKS``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_delayq.jobs.options import Seconds, seconds
from django_delayq.setting_fields import Values, read_fields, setting, settings_of
from django_delayq.setting_values import ATTEMPTS


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """``TASKS[alias]["OPTIONS"]``."""

    #: Attempts before a task has failed, the first included.
    max_attempts: int | None = setting(None, ATTEMPTS, "the value of the queue")
    #: How long a result is kept after the task has ended; by default a day.
    result_ttl: Seconds = setting(
        86_400,
        Values[Seconds](
            lambda value: seconds(value) is not None, "seconds above 0 or a timedelta"
        ),
    )
    #: `True` or a database alias: in a transaction, the commit sends the job. Until then, `get_result` finds nothing, and
    #: `task_enqueued` is not sent. `DELAYQ["ON_COMMIT"]` does not apply to Django's tasks, but
    #: [`DELAYQ["OUTBOX"]`](outbox.md#store-the-job-with-the-commit) does, unless this is `False`.
    on_commit: bool | str | None = setting(
        None,
        Values[bool | str](
            lambda value: isinstance(value, bool | str),
            "True, False or a database alias",
        ),
        "the value of OUTBOX in DELAYQ",
    )

    @staticmethod
    def of(options: Mapping[str, Any]) -> "BackendOptions":
        """Return the options that can be used; `find_problems` reports the others."""
        known = settings_of(BackendOptions)
        usable = {
            key: value
            for key, value in options.items()
            if key in known and known[key].is_fit(value)
        }
        return BackendOptions(**read_fields(BackendOptions, usable))
