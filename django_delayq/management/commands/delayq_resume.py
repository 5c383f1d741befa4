"""``manage.py delayq_resume``: see `features.pauses.command`."""

from django_delayq.features.pauses.command import Resume as Command

__all__ = ["Command"]
