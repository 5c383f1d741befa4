"""``manage.py check`` reports mistakes in ``DELAYQ`` before the first job meets them.

Only ``--deploy`` asks the server: an ordinary check must not need a running one.
"""

import functools
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache

from django_delayq import conf
from django_delayq.database_checks import check_databases, check_room
from django_delayq.exceptions import DelayqError
from django_delayq.jobs import contexts
from django_delayq.jobs.middleware import find_middleware
from django_delayq.redaction import redact_url
from django_delayq.schedule_checks import check_schedules
from django_delayq.server_checks import check_server
from django_delayq.setting_fields import Problem
from django_delayq.task_checks import check_tasks
from django_delayq.testing import mode


def register_all() -> None:
    """Make ``manage.py check`` run these checks."""
    checks.register(check_settings, "delayq")
    checks.register(check_server, "delayq", deploy=True)
    checks.register(check_room, "delayq", checks.Tags.database, deploy=True)


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report misspelt keys and wrong values of ``DELAYQ``, and tasks on queues that do not exist."""
    value = getattr(django_settings, "DELAYQ", {})
    problems = list(conf.find_problems(value))
    if problems:
        return [error_of(problem) for problem in problems]
    found: list[checks.CheckMessage] = []
    settings = conf.read_settings(value)
    is_needed = mode.mode_in_force() == "connection" and not django_settings.DEBUG
    if settings.connection is None and is_needed:
        found.append(
            checks.Error(
                "DELAYQ['CONNECTION'] is not set, and the embedded server serves DEBUG only.",
                hint="Name a django-redis cache, or a URL such as 'redis://localhost:6379/0'.",
                id="django_delayq.E005",
            )
        )
    found += _check_alias(settings.connection)
    try:
        conf.get_keyring()
    except DelayqError as error:
        return [
            *found,
            checks.Error(
                f"Jobs cannot be signed: {error}.",
                hint="Workers run only jobs that your project has signed. Set what the message names;"
                " secrets.token_urlsafe(32) makes a secret.",
                id="django_delayq.E011",
            ),
        ]
    found += _check_paths(settings)
    found += [
        _missing_list(queue)
        for queue in settings.queues.values()
        if queue.is_shared and not queue.keeps_list
    ]
    return [
        *found,
        *check_tasks(settings),
        *check_schedules(),
        *check_databases(settings),
    ]


def _check_paths(settings: conf.Settings) -> Sequence[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    looks: list[tuple[Callable[[], object], str, str]] = [
        (
            functools.partial(find_middleware, path),
            "E015",
            "A middleware is a function that takes call and returns a function that takes job, see"
            " docs/howto/middleware.md.",
        )
        for path in settings.middleware
    ]
    looks.append(
        (
            functools.partial(contexts.load, settings.context),
            "E016",
            "A context is a class or an object with capture() and restore(headers), see docs/howto/context.md.",
        )
    )
    for look, number, hint in looks:
        try:
            look()
        except DelayqError as error:
            found.append(
                checks.Error(f"{error}.", hint=hint, id=f"django_delayq.{number}")
            )
    return found


def _missing_list(queue: conf.QueueSettings) -> checks.CheckMessage:
    return checks.Warning(
        f"Queue {queue.name!r} is shared with Redisson, but has no insertion list: Java's size, contains, remove and"
        " readAll do not see jobs from Django.",
        hint=f"Remove DELAYQ['QUEUES'][{queue.name!r}]['INSERTION_LIST'], and run manage.py delayq_frames"
        f" {quote(queue.name)} --list on; or silence this check if Java only offers and takes.",
        id="django_delayq.W003",
    )


def _check_alias(connection: str | None) -> Sequence[checks.CheckMessage]:
    if connection is None or "://" in connection:
        return []
    backend = getattr(django_settings, "CACHES", {}).get(connection, {}).get("BACKEND")
    if backend is None:
        return [
            checks.Error(
                f"DELAYQ['CONNECTION'] is {redact_url(connection)!r}, which is neither a URL nor an alias of CACHES.",
                hint="Give a URL with its scheme, such as 'redis://localhost:6379/0', or add the cache.",
                id="django_delayq.E006",
            )
        ]
    if not _is_django_redis(backend):
        return [
            checks.Error(
                f"DELAYQ['CONNECTION'] is {redact_url(connection)!r}, a cache with the backend {backend!r}.",
                hint="Use a cache with 'django_redis.cache.RedisCache', or give a URL.",
                id="django_delayq.E006",
            )
        ]
    return []


def _is_django_redis(backend: Any) -> bool:
    try:
        found = import_string(backend) if isinstance(backend, str) else backend
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, RedisCache)


def error_of(problem: Problem) -> checks.Error:
    """Return a problem of the settings as Django's checks report it."""
    return checks.Error(
        problem.message, hint=problem.hint, id=f"django_delayq.{problem.id}"
    )
