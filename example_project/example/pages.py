"""One address, two representations: a page for people, JSON for programs."""

from datetime import datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers


class Encoder(DjangoJSONEncoder):
    """Keep microseconds: Django's encoder cuts times to milliseconds, and jobs are late by only a few of those."""

    def default(self, value: Any) -> Any:
        return (
            value.isoformat() if isinstance(value, datetime) else super().default(value)
        )


def wants_json(request: HttpRequest) -> bool:
    json = "application/json"
    return request.get_preferred_type(["text/html", json]) == json


def page_or_json(
    request: HttpRequest, template: str, context: dict[str, Any], data: dict[str, Any]
) -> HttpResponse:
    """Answer with what the client prefers."""
    response: HttpResponse
    if wants_json(request):
        response = JsonResponse(data, encoder=Encoder)
    else:
        response = render(request, template, context)
    patch_vary_headers(response, ["Accept"])
    return response
