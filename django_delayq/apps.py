"""The app of the package. Once all apps are loaded, it imports the ``tasks`` module of each, and ``MODULES``."""

from contextlib import suppress
from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy

from django_delayq import checks, conf
from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs import contexts
from django_delayq.jobs.envelope import signed_for
from django_delayq.queues.queue_options import set_default_options, set_signer
from django_delayq.testing import mode


class DelayqConfig(AppConfig):
    name = "django_delayq"
    verbose_name = gettext_lazy("Delayed jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        conf.hide_password()
        mode.install()
        checks.register_all()
        set_default_options(conf.queue_options)
        set_signer(signed_for)
        autodiscover_modules("tasks")
        import_modules()
        load_contexts()


def import_modules() -> None:
    """Import what ``DELAYQ["MODULES"]`` names.

    Raises:
        InvalidSettings: a module cannot be imported.
    """
    try:
        names = conf.get_settings().modules
    except InvalidSettings:
        # `manage.py check` says what is wrong.
        return
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            raise InvalidSettings(
                f"DELAYQ['MODULES'] names {name!r}, which cannot be imported: {type(error).__name__}: {error}."
                " Correct the name or the module: without it, workers hold the jobs of its tasks"
            ) from error


def load_contexts() -> None:
    """Import what ``DELAYQ["CONTEXT"]`` names, so that Sentry masks the error of the first call as well."""
    with suppress(InvalidSettings):
        # `manage.py check` says what is wrong.
        contexts.load(conf.get_settings().context)
