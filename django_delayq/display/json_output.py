"""JSON for programs, as commands print it and pages answer with it."""

import json
import math
from typing import Any

from django.http import HttpResponse


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Write JSON that every parser reads, in ASCII: nothing in it steers a terminal, and no line ends before its end.

    A payload may have numbers that JSON has not: they become the texts "NaN", "Infinity" and "-Infinity".
    """
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_with_texts(value), allow_nan=False, indent=indent)


def json_response(value: Any, *, status: int = 200) -> HttpResponse:
    """Answer with JSON."""
    return HttpResponse(
        json_text(value), content_type="application/json", status=status
    )


def _with_texts(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, dict):
        return {_with_texts(key): _with_texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(each) for each in value]
    return value
