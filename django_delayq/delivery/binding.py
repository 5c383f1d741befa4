"""What all descriptions of calls in this layer share: where the scripts are, and common arguments."""

import secrets

from django_delayq.calls.binding import binder

PACKAGES = ("django_delayq.delivery", "django_delayq.wire")
bind = binder(*PACKAGES)


def new_request() -> str:
    """Make the random characters by which a script recognises the repeat of a call."""
    return secrets.token_urlsafe(12)
