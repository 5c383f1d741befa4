"""Tasks of these tests. What they do in a database is a `ContentType`, so that each effect can be counted."""

import time

from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction

from django_delayq import Cancel, Retry, Snooze, current_job, delayed_task

#: What ran.
ran: list[object] = []


@delayed_task(name="tests.outbox.note")
def note(value: object = None) -> None:
    ran.append(value)


def effect(alias: str, name: str) -> None:
    """Do something that is done twice if the task runs twice."""
    ContentType.objects.using(alias).create(
        app_label=name, model=str(ContentType.objects.using(alias).count())
    )


def make_once(alias: str) -> None:
    """Register the tasks that run once in a database."""

    @delayed_task(name="tests.outbox.effect", once=alias, keep_result=60)
    def do_effect(name: str) -> str:
        ran.append(name)
        effect(alias, name)
        return name

    @delayed_task(name="tests.outbox.fails_first", once=alias)
    def fails_first(name: str) -> None:
        ran.append(name)
        effect(alias, name)
        job = current_job()
        assert job is not None
        if job.attempts == 0:
            raise ValueError("the first attempt")

    @delayed_task(name="tests.outbox.decides", once=alias)
    def decides(what: str) -> None:
        ran.append(what)
        effect(alias, what)
        if len(ran) == 1:
            raise {"retry": Retry(0), "snooze": Snooze(0), "cancel": Cancel("no")}[what]

    @delayed_task(
        name="tests.outbox.too_long", once=alias, time_limit=0.2, max_attempts=1
    )
    def too_long() -> None:
        ran.append("began")
        effect(alias, "too long")
        while True:
            time.sleep(0.005)

    @delayed_task(name="tests.outbox.atomic_too_long", time_limit=0.2, max_attempts=1)
    def atomic_too_long() -> None:
        with transaction.atomic(using=alias):
            effect(alias, "too long")
            while True:
                time.sleep(0.005)

    @delayed_task(name="tests.outbox.asks")
    def asks() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("select 1")
        ran.append(1)
