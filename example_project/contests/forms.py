"""Forms to announce a contest and to move it."""

from django import forms

from .models import Contest

LABEL = "Publish at (UTC)"


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
