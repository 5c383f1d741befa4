"""What the descriptions of script calls have in common: where scripts are, arguments."""

import secrets

from django_delayq.calls.call import Argument

PACKAGES = ("django_delayq.delivery", "django_delayq.wire")


def new_request() -> str:
    """Make the random characters by which a script knows the repeat of a call."""
    return secrets.token_urlsafe(12)


def now_argument(now_us: int | None) -> Argument:
    return "" if now_us is None else now_us
