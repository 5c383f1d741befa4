"""What all descriptions of calls in this layer share: where the scripts are, and common arguments."""

import secrets

from django_delayq.calls.call import Argument

PACKAGES = ("django_delayq.delivery", "django_delayq.wire")


def new_request() -> str:
    """Make the random characters by which a script recognises the repeat of a call."""
    return secrets.token_urlsafe(12)


def now_argument(now_us: int | None) -> Argument:
    return "" if now_us is None else now_us
