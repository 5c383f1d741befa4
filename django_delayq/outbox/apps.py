"""The app: lets the jobs know that their tables exist."""

from django.apps import AppConfig
from django.core import checks

from django_delayq.jobs import outbox


class OutboxConfig(AppConfig):
    name = "django_delayq.outbox"
    label = "delayq_outbox"
    verbose_name = "Delayed jobs: outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # They import the models, which have to be loaded first.
        from django_delayq.outbox.part import OutboxPart
        from django_delayq.outbox.table_checks import check_tables

        # Not by our own tag: where Django 6.1 is given a tag, it names all databases.
        checks.register(check_tables, checks.Tags.database, deploy=True)
        outbox.install(OutboxPart())
