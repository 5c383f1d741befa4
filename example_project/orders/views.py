"""Place an order and pay it; an unpaid order is cancelled."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from example.jobs import describe_job
from example.pages import page_or_json

from . import ordering
from .models import Order

OrderForm = forms.modelform_factory(Order, fields=["item"])


def index(request: HttpRequest) -> HttpResponse:
    """List the orders; place another one."""
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        order = form.save(commit=False)
        ordering.place(order)
        return redirect("order", order.pk)
    return render(
        request, "orders/index.html", {"form": form, "orders": Order.objects.all()[:50]}
    )


def detail(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an order and its job."""
    order = get_object_or_404(Order, pk=pk)
    job = describe_job(order.job_id)
    return page_or_json(
        request,
        "orders/detail.html",
        {"order": order, "job": job},
        {
            "id": order.pk,
            "status": order.status,
            "pay_by": order.pay_by,
            "ended_at": order.ended_at,
            "late_ms": order.late_ms,
            "job": job,
        },
    )


@require_POST
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Take the money, unless the order was cancelled a moment ago."""
    if ordering.pay(get_object_or_404(Order, pk=pk)):
        messages.success(request, "Paid.")
    else:
        messages.error(request, "Too late: it is not open any more.")
    return redirect("order", pk)
