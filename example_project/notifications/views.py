"""Trade; some minutes later a message goes out. If its job dies, send it again."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST
from django_delayq import JobNotFound, State, get_job

from example.jobs import describe_job
from example.pages import page_or_json

from . import trading
from .models import Gateway, Trade

TradeForm = forms.modelform_factory(Trade, fields=["symbol", "quantity", "email"])


def index(request: HttpRequest) -> HttpResponse:
    """List the trades; make another one."""
    form = TradeForm(request.POST or None, initial={"symbol": "ACME", "quantity": 10})
    if request.method == "POST" and form.is_valid():
        trade = form.save(commit=False)
        trading.make(trade)
        return redirect("trade", trade.pk)
    gateway = Gateway.get()
    return page_or_json(
        request,
        "notifications/index.html",
        {"form": form, "trades": Trade.objects.all()[:50], "gateway": gateway},
        {"gateway": str(gateway), "errors": form.errors},
    )


def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a trade and the job of its message."""
    trade = get_object_or_404(Trade, pk=pk)
    job = describe_job(trade.job_id)
    return page_or_json(
        request,
        "notifications/detail.html",
        {"trade": trade, "job": job, "gateway": Gateway.get()},
        {
            "id": trade.pk,
            "created_at": trade.created_at,
            "message_sent_at": trade.message_sent_at,
            "job": job,
        },
    )


@require_POST
def send_now(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the message now: retry a dead letter, or run the job that waits."""
    trade = get_object_or_404(Trade, pk=pk)
    try:
        job = get_job(trade.job_id)
        is_due = job.retry() if job.state == State.DEAD else job.run_now()
    except JobNotFound:
        is_due = False
    if is_due:
        messages.success(request, "It runs now.")
    else:
        messages.error(request, "It runs already, or has ended.")
    return redirect("trade", pk)


@require_POST
def switch_gateway(request: HttpRequest) -> HttpResponse:
    """Break the gateway, or repair it."""
    gateway = Gateway.get()
    gateway.is_up = request.POST.get("is_up") == "1"
    gateway.save()
    messages.success(request, f"The gateway is {gateway}.")
    return redirect("trades")
