"""``manage.py delayq_pause``: see `features.pauses.command`."""

from django_delayq.features.pauses.command import Pause as Command

__all__ = ["Command"]
