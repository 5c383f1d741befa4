"""``manage.py delayq_schedules``: see `features.schedules.command`."""

from django_delayq.features.schedules.command import Command

__all__ = ["Command"]
