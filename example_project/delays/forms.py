"""The parameters of the raw endpoint."""

from django import forms

#: A year; more is likely a mistake.
LONGEST_MS = 365 * 86_400_000


class DelayForm(forms.Form):
    data = forms.CharField(max_length=200, initial="a")
    expire = forms.IntegerField(
        min_value=0, max_value=LONGEST_MS, initial=3000, label="Expire (ms)"
    )
