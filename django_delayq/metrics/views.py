"""The pages of `urls`: metrics for Prometheus, and the overview as JSON; for staff, or with a token."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.display.json_output import json_response
from django_delayq.display.overview_json import overview_data
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.metrics import exposition

#: The format of Prometheus that `exposition` writes.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PERMISSIONS = ("django_delayq.view_job", "django_delayq.change_job")

View = Callable[[HttpRequest], HttpResponse]


def _guarded(view: View) -> View:
    """Let staff in, and machines that send the token. A login page would be no answer to a machine."""

    @login_not_required
    @require_safe
    @never_cache
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        refusal = _refusal(request)
        if refusal is None:
            return view(request)
        return HttpResponse(f"{refusal}\n", status=403, content_type="text/plain")

    return guarded


def _refusal(request: HttpRequest) -> str | None:
    """Return why a request is refused; None: it is not."""
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        tokens = conf.get_settings().metrics_tokens
        if not tokens:
            return "DELAYQ['METRICS_TOKENS'] is empty, so no token is accepted."
        if any([constant_time_compare(sent.strip(), token) for token in tokens]):
            return None
        return "The token is not in DELAYQ['METRICS_TOKENS']."
    user: Any = getattr(request, "user", None)
    if user is not None and user.is_active and user.is_staff:
        # As in the admin.
        if any(user.has_perm(permission) for permission in _PERMISSIONS):
            return None
        return f"This needs the permission {_PERMISSIONS[0]}."
    return (
        "Send a token of DELAYQ['METRICS_TOKENS'] as 'Authorization: Bearer TOKEN',"
        " or log in to the admin as staff."
    )


@_guarded
def metrics(request: HttpRequest) -> HttpResponse:
    """Return metrics for Prometheus. If the server does not answer, return ``delayq_up 0`` with status 200."""
    try:
        text = exposition.read()
    except (DelayqError, RedisError, OSError) as error:
        fault = describe_fault(error)
        text = exposition.without_server(f"{fault.what} {fault.hint}")
    return HttpResponse(text, content_type=CONTENT_TYPE)


@_guarded
def overview(request: HttpRequest) -> HttpResponse:
    """Return the overview as JSON, or status 503 with the reason."""
    try:
        return json_response(overview_data())
    except (DelayqError, RedisError, OSError) as error:
        fault = describe_fault(error)
        return json_response(
            {"fault": fault.message, "what": fault.what, "hint": fault.hint}, status=503
        )
