"""The app: tells the jobs that their tables are there."""

from django.apps import AppConfig

from django_delayq.jobs import outbox


class OutboxConfig(AppConfig):
    name = "django_delayq.outbox"
    label = "delayq_outbox"
    verbose_name = "Delayed jobs: outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # It imports the models, which have to be loaded first.
        from django_delayq.outbox.part import OutboxPart

        outbox.install(OutboxPart())
