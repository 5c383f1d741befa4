"""Announce a contest now, have it published later; move it or withdraw it until then."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_delayq import JobNotFound, get_job

from example.jobs import describe_job
from example.pages import page_or_json

from . import announcing
from .forms import ContestForm, MoveForm
from .models import Contest


def index(request: HttpRequest) -> HttpResponse:
    """List the contests; announce another one."""
    soon = timezone.now() + timedelta(seconds=20)
    form = ContestForm(request.POST or None, initial={"publish_at": soon})
    if request.method == "POST" and form.is_valid():
        contest = form.save(commit=False)
        announcing.announce(contest)
        return redirect("contest", contest.pk)
    return render(
        request,
        "contests/index.html",
        {"form": form, "contests": Contest.objects.all()[:50]},
    )


def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a contest and its job."""
    contest = get_object_or_404(Contest, pk=pk)
    job = describe_job(contest.job_id)
    return page_or_json(
        request,
        "contests/detail.html",
        {
            "contest": contest,
            "job": job,
            "form": MoveForm(initial={"publish_at": contest.publish_at}),
        },
        {
            "id": contest.pk,
            "status": contest.status,
            "publish_at": contest.publish_at,
            "published_at": contest.published_at,
            "late_ms": contest.late_ms,
            "job": job,
        },
    )


@require_POST
def move(request: HttpRequest, pk: int) -> HttpResponse:
    """Give a contest another time.

    The job first: either it has the new time, or it runs already. The column is only shown.
    """
    contest = get_object_or_404(Contest, pk=pk)
    form = MoveForm(request.POST)
    if not form.is_valid():
        messages.error(request, "That is not a valid time.")
        return redirect("contest", pk)
    publish_at = form.cleaned_data["publish_at"]
    try:
        moved = get_job(contest.job_id).reschedule(publish_at)
    except JobNotFound:
        moved = False
    if moved:
        Contest.objects.filter(pk=pk).update(publish_at=publish_at)
        messages.success(request, "Moved.")
    else:
        messages.error(request, "Too late: it is published, or withdrawn.")
    return redirect("contest", pk)


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a contest back."""
    if announcing.withdraw(get_object_or_404(Contest, pk=pk)):
        messages.success(request, "Withdrawn.")
    else:
        messages.error(request, "Too late: it is published.")
    return redirect("contest", pk)
