"""Forms to announce a contest and to move it."""

from django import forms
from django.conf import settings

from .models import Contest

LABEL = f"Publish at ({settings.TIME_ZONE})"


class MomentInput(forms.DateTimeInput):
    """The browser's own widget for a date and a time, with seconds."""

    input_type = "datetime-local"

    def __init__(self) -> None:
        super().__init__(attrs={"step": 1}, format="%Y-%m-%dT%H:%M:%S")


ContestForm = forms.modelform_factory(
    Contest,
    fields=["title", "publish_at"],
    widgets={"publish_at": MomentInput()},
    labels={"publish_at": LABEL},
)


class MoveForm(forms.Form):
    publish_at = forms.DateTimeField(label=LABEL, widget=MomentInput())
