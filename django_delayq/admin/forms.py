"""Forms of the admin, before it pauses a queue, moves jobs, or changes priorities and limits."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext_lazy

from django_delayq.core.rates import MOST_AT_A_TIME, is_rate
from django_delayq.exceptions import InvalidDelay
from django_delayq.jobs.actor import MAX_REASON
from django_delayq.jobs.options import HIGHEST, LOWEST
from django_delayq.translations import gettext
from django_delayq.wire.delay import parse_delay

#: Ten years. A longer pause is one without an end.
MOST_MINUTES = 10 * 366 * 24 * 60


class PauseForm(forms.Form):
    """For how long a queue is paused, and why."""

    minutes = forms.IntegerField(
        label=gettext_lazy("Duration in minutes"),
        required=False,
        min_value=1,
        max_value=MOST_MINUTES,
        help_text=gettext_lazy("Leave empty to pause until you resume."),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=MAX_REASON,
        help_text=gettext_lazy("Shown next to the pause."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class RescheduleForm(forms.Form):
    """When jobs are to start: in a number of minutes, or at a time."""

    minutes = forms.FloatField(
        label=gettext_lazy("Minutes from now"),
        required=False,
        min_value=0,
        max_value=MOST_MINUTES,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )
    at = forms.DateTimeField(
        label=gettext_lazy("Or at"),
        required=False,
        widget=forms.DateTimeInput(
            attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        minutes, at = cleaned.get("minutes"), cleaned.get("at")
        if self.errors:
            return cleaned
        if (minutes is None) == (at is None):
            raise ValidationError(gettext("Give either a number of minutes or a time."))
        cleaned["when"] = (
            self._delay(timedelta(minutes=minutes))
            if minutes is not None
            else self._moment(at)
        )
        return cleaned

    def _moment(self, at: Any) -> str:
        moment = at if timezone.is_aware(at) else timezone.make_aware(at)
        if moment <= datetime.now(UTC):
            self.add_error(
                "at",
                gettext(
                    "This time has passed. To have the jobs start at once, use “Run now”."
                ),
            )
            return ""
        return self._delay(moment)

    def _delay(self, delay: timedelta | datetime) -> str:
        try:
            return parse_delay(delay)
        except InvalidDelay as error:
            raise ValidationError(str(error)) from error


class PriorityForm(forms.Form):
    """Which priority jobs are to have."""

    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        min_value=LOWEST,
        max_value=HIGHEST,
        initial=0,
        help_text=gettext_lazy(
            "From −100 to 100. Jobs with a higher priority run first in their queue."
        ),
    )


class LimitForm(forms.Form):
    """How many jobs run at a time, and how often one starts."""

    concurrency = forms.IntegerField(
        label=gettext_lazy("At a time"),
        required=False,
        min_value=1,
        max_value=MOST_AT_A_TIME,
        help_text=gettext_lazy("Leave empty for no limit."),
    )
    rate = forms.CharField(
        label=gettext_lazy("Rate"),
        required=False,
        max_length=40,
        help_text=gettext_lazy(
            "For example 20/s, 100/m or 5/10s. Leave empty for no limit."
        ),
    )

    def clean_rate(self) -> str:
        rate: str = self.cleaned_data["rate"].strip()
        if rate and not is_rate(rate):
            raise ValidationError(
                gettext(
                    "“{rate}” is not a rate. Enter a number, a slash and a time, such as 20/s or 100/m.",
                    rate=rate,
                )
            )
        return rate
