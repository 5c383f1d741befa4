"""Django finds the tasks of every installed app here, once all apps are loaded."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DelayqConfig(AppConfig):
    name = "django_delayq"
    verbose_name = "Delayed jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_delayq import checks  # noqa: F401  registers them

        autodiscover_modules("tasks")
