"""Where the Lua scripts are, and what all descriptions of calls share."""

import secrets

from django_delayq.transport.bind import binder

#: The packages with Lua: a script, its parts and its preludes may be in any of them. The same in every process, so that a
#: script has the same SHA-1 in all of them.
PACKAGES = (
    "django_delayq.core",
    "django_delayq.features.limits",
    "django_delayq.features.pauses",
    "django_delayq.features.schedules",
    "django_delayq.features.batches",
    "django_delayq.features.statistics",
    "django_delayq.features.ended",
    "django_delayq.queues",
    "django_delayq.tools",
    "django_delayq.wire",
)
bind = binder(*PACKAGES)


def new_request() -> str:
    """Make the random characters by which a script recognises the repeat of a call."""
    return secrets.token_urlsafe(12)
