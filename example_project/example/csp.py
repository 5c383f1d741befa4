"""A strict Content-Security-Policy: scripts and styles come from files of this site, or carry the nonce.

Django has a middleware like this one from 6.0 on.
"""

import secrets
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

POLICY = (
    "default-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:;"
    " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
#: Django's own pages of these, in DEBUG, have their styles inside.
DEBUG_PAGES = frozenset({404, 500})


def policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: send the policy with every page."""

    def answer(request: HttpRequest) -> HttpResponse:
        request.csp_nonce = secrets.token_urlsafe(16)
        response = get_response(request)
        if not (settings.DEBUG and response.status_code in DEBUG_PAGES):
            header = POLICY.format(nonce=request.csp_nonce)
            response.setdefault("Content-Security-Policy", header)
        return response

    return answer


def nonce(request: HttpRequest) -> dict[str, str]:
    """Context processor: the nonce, for templates that bring a style of their own."""
    return {"csp_nonce": request.csp_nonce}
