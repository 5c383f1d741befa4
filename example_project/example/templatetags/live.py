"""What several pages show alike: a moment, a countdown to it, the code behind the page."""

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django import template
from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import mark_safe

register = template.Library()


def in_words(left: timedelta) -> str:
    """Say how long something takes: 0:07, 1:02:03, 2 d 03:04:05. site.js writes the same."""
    if left <= timedelta():
        return "now"
    minutes, seconds = divmod(math.ceil(left.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@register.filter
def duration(ms: float) -> str:
    """Say how long something took: 1.4 ms, 2.0 s."""
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


@register.simple_tag
def countdown(moment: datetime) -> str:
    """Show how long it is until a moment; site.js makes it tick."""
    return format_html(
        '<time data-countdown datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S %Z}",
        in_words(moment - timezone.now()),
    )


@register.simple_tag
def clock() -> str:
    """Show the server's time, from which site.js counts down."""
    now = timezone.localtime()
    return format_html(
        '<time data-clock datetime="{}">{}</time>',
        now.isoformat(),
        f"{now:%H:%M:%S %Z}",
    )


@register.simple_tag(takes_context=True)
def link(context: dict[str, Any], name: str, text: str) -> str:
    """Link to a page, and mark it if the page shown is one of its pages."""
    href, path = reverse(name), context["request"].path
    current = mark_safe(' aria-current="page"') if path.startswith(href) else ""
    return format_html('<a href="{}"{}>{}</a>', href, current, text)


@register.inclusion_tag("example/code.html")
def code(path: str, is_open: bool = False) -> dict[str, Any]:
    """Show a file of this project."""
    text = Path(settings.BASE_DIR, path).read_text()
    return {"path": path, "text": text, "is_open": is_open}
