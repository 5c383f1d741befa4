"""The systems that are compared, and what each runs in."""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.peers.environments import Environment, Java, Node, Venv

#: Systems of this project: shown first among their equals, and in another colour.
OURS = ("delayq", "delayq-redisson")

_SETTINGS = "benchmarks.peers.adapters.django_settings"


class System(NamedTuple):
    """A peer with one set of settings."""

    title: str
    #: Its module of adapters.
    adapter: str
    environment: Environment
    #: Added to its environment variables.
    variables: Mapping[str, str] = {}


def _python(title: str, name: str) -> System:
    return System(title, name, Venv(name))


def _django(title: str, name: str, app: str, **variables: str) -> System:
    return System(
        title,
        name,
        Venv(name),
        {"DJANGO_SETTINGS_MODULE": _SETTINGS, "BENCH_DJANGO": app, **variables},
    )


SYSTEMS = {
    "delayq": _django("django-delayq", "delayq", "django_delayq"),
    "delayq-redisson": _django(
        "django-delayq with Redisson",
        "delayq",
        "django_delayq",
        BENCH_DELAYQ="redisson",
    ),
    "bullmq": System("BullMQ", "bullmq", Node("bullmq")),
    "redisson": System("Redisson", "redisson", Java("redisson")),
    "celery": _python("Celery", "celery"),
    "rq": _python("RQ", "rq"),
    "huey": _python("Huey", "huey"),
    "dramatiq": _python("Dramatiq", "dramatiq"),
    "arq": _python("arq", "arq"),
    "saq": _python("SAQ", "saq"),
    "taskiq": _python("taskiq", "taskiq"),
    "docket": _python("docket", "docket"),
    "django-tasks-redis": _django(
        "django-tasks-redis", "django_tasks_redis", "django_tasks_redis"
    ),
    "django-tasks-db": _django("django-tasks-db", "django_tasks_db", "django_tasks_db"),
    "django-q2": _django("django-q2", "django_q2", "django_q"),
}
