"""``manage.py demo_admin``: an administrator whose password everybody knows."""

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

USERNAME = PASSWORD = "demo"


class Command(BaseCommand):
    help = f"Make the administrator {USERNAME!r} with the password {PASSWORD!r}; in DEBUG only."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("Everybody knows this password: DEBUG only.")
        user, _ = get_user_model().objects.get_or_create(username=USERNAME)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(PASSWORD)
        user.save()
        self.stdout.write(f"{USERNAME} / {PASSWORD}")
