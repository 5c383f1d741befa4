"""What the admin asks before it pauses a queue."""

from django import forms
from django.utils.translation import gettext_lazy

from django_delayq.jobs.pausing import MAX_REASON

#: Ten years. A longer pause is one without an end.
MOST_MINUTES = 10 * 366 * 24 * 60


class PauseForm(forms.Form):
    """For how long a queue is paused, and why."""

    minutes = forms.IntegerField(
        label=gettext_lazy("For how many minutes"),
        required=False,
        min_value=1,
        max_value=MOST_MINUTES,
        help_text=gettext_lazy("Without a number, until somebody resumes it."),
    )
    reason = forms.CharField(
        label=gettext_lazy("Why"),
        required=False,
        max_length=MAX_REASON,
        help_text=gettext_lazy("It is shown wherever the pause is."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
