"""The admin on a queue of its own, and users of every right."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_delayq.admin import chosen, job_search
from django_delayq.admin.paths import job_path, to_path_part
from tests.admin.filling import Queue
from tests.admin.visiting import chromium, visitor

__all__ = ["chromium", "visitor"]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page search and change for as long as it takes: on a busy machine, it would stop and offer to go on."""
    monkeypatch.setattr(job_search, "ENOUGH_S", 1e9)
    monkeypatch.setattr(chosen, "STEP_S", 1e9)


@pytest.fixture
def queue(client: redis.Redis, delayq: None, settings: Any, queue_name: str) -> Queue:
    """A queue of the settings, empty."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, queue_name: {}}}
    return Queue(client, queue_name)


@pytest.fixture
def login(db: None) -> Callable[..., Client]:
    """Log somebody in: ``login("view", "delete")``, or ``login(is_superuser=True)``."""

    def log_in(
        *rights: str, is_superuser: bool = False, enforce_csrf_checks: bool = False
    ) -> Client:
        user = User.objects.create_user(
            f"user{User.objects.count()}", is_staff=True, is_superuser=is_superuser
        )
        user.user_permissions.set(
            Permission.objects.get(codename=f"{right}_job") for right in rights
        )
        client = Client(enforce_csrf_checks=enforce_csrf_checks)
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def browser(login: Callable[..., Client]) -> Client:
    """Somebody who may do everything."""
    return login(is_superuser=True)


def url(name: str, *parts: str, site: str = "admin") -> str:
    """Return the address of one of our pages; ``parts`` are the name of a queue, or queue and token of a job."""
    if len(parts) == 2:
        tail = "" if name == "job" else f"{name.replace('_', '-')}/"
        root = reverse(f"{site}:django_delayq_job_changelist")
        return f"{root}{job_path(':'.join(parts))}/{tail}"
    return reverse(
        f"{site}:django_delayq_job_{name}", args=[to_path_part(part) for part in parts]
    )
