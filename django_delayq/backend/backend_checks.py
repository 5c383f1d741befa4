"""The checks of a backend of ours in ``TASKS``, for ``manage.py check``."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import connections

from django_delayq import conf
from django_delayq.backend.backend_options import BackendOptions
from django_delayq.checks import error_of
from django_delayq.exceptions import DelayqError, InvalidSettings
from django_delayq.redaction import show
from django_delayq.setting_fields import find_wrong
from django_delayq.suggestions import suggestion
from django_delayq.wire.signatures import TOKEN_LENGTH

#: The longest id of a result, as Django documents it.
MAX_ID = 64
#: The longest name of a queue: an id is the name, a colon, and a token. One character is left for a later version.
MAX_QUEUE_NAME = MAX_ID - TOKEN_LENGTH - len(":") - 1


def check_params(alias: str, params: Mapping[str, Any]) -> None:
    """Make sure that a backend can be made: Django would take a name for a list of letters, and say that no queue fits.

    Raises:
        InvalidSettings: `QUEUES` or `OPTIONS` is something else than it has to be.
    """
    queues, options = params.get("QUEUES", ()), params.get("OPTIONS", {})
    if (
        not isinstance(queues, Collection)
        or isinstance(queues, str | bytes)
        or not all(isinstance(name, str) for name in queues)
    ):
        raise InvalidSettings(
            f"TASKS[{alias!r}]['QUEUES'] is {show(queues)}: give a list of names of queues, such as ['default']"
        )
    if not isinstance(options, Mapping):
        raise InvalidSettings(
            f"TASKS[{alias!r}]['OPTIONS'] is {show(options)}: give a dict, such as {{'MAX_ATTEMPTS': 3}}"
        )


def find_problems(
    alias: str,
    queues: Collection[str],
    options: Mapping[str, Any],
    app_configs: Iterable[AppConfig],
) -> Iterator[checks.CheckMessage]:
    """Yield what is wrong with one backend."""
    where = f"TASKS[{alias!r}]"
    if not any(app.name == "django_delayq" for app in app_configs):
        yield checks.Error(
            f"{where} uses the backend of django_delayq, which is not in INSTALLED_APPS.",
            hint="Add 'django_delayq' to INSTALLED_APPS: its worker runs the tasks.",
            id="django_delayq.E020",
        )
    try:
        settings = conf.get_settings()
        known = {*settings.queues, *settings.names}
    except DelayqError:
        # The check of DELAYQ says what is wrong.
        known = set(queues)
    for name in sorted(queues):
        if name not in known:
            yield checks.Error(
                f"{where}['QUEUES'] has {show(name)}, which is not in DELAYQ['QUEUES']."
                + suggestion(name, known),
                hint=f"Add {name!r}: {{}} to DELAYQ['QUEUES'], or remove it from {where}['QUEUES'].",
                id="django_delayq.E021",
            )
    for name in sorted(queues or known):
        if len(name) > MAX_QUEUE_NAME:
            yield checks.Error(
                f"{where}: the name of queue {show(name)} has {len(name)} characters, so the ids of its results are longer than"
                f" the {MAX_ID} that Django's tasks allow.",
                hint=f"Give it a name of at most {MAX_QUEUE_NAME} characters, or name other queues in {where}['QUEUES'].",
                id="django_delayq.E023",
            )
    yield from map(
        error_of,
        find_wrong(
            f"{where}['OPTIONS']", options, BackendOptions, ids=("E022", "E022")
        ),
    )
    on_commit = options.get("ON_COMMIT")
    if isinstance(on_commit, str) and on_commit not in connections.settings:
        yield checks.Error(
            f"{where}['OPTIONS']['ON_COMMIT'] is {show(on_commit)}, which is not in DATABASES.",
            hint=f"Give True, for the default database, or one of {', '.join(map(repr, connections))}.",
            id="django_delayq.E022",
        )
