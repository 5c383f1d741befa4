"""Place an order and pay it; an unpaid order is cancelled."""

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST
from django_delayq import schedule

from example.jobs import cancel_job, describe_job
from example.pages import page_or_json

from .models import Order
from .tasks import cancel_unpaid_order

OrderForm = forms.modelform_factory(Order, fields=["item"])


def index(request: HttpRequest) -> HttpResponse:
    """List the orders; place another one."""
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            order = form.save()
            # The time that the customer sees, not a delay from now: the two would differ
            # by the duration of the transaction.
            order.job_id = schedule(cancel_unpaid_order, order.pay_by, order.pk).id
            order.save(update_fields=["job_id"])
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
    """Take the money, unless the order was cancelled a moment ago.

    The row decides who was first, payment or deadline. The job is cancelled after the
    commit: if the payment is rolled back, the order still has its deadline.
    """
    order = get_object_or_404(Order, pk=pk)
    with transaction.atomic():
        is_paid = Order.objects.filter(pk=pk).end(Order.Status.PAID)
        if is_paid:
            transaction.on_commit(lambda: cancel_job(order.job_id), robust=True)
    if is_paid:
        messages.success(request, "Paid.")
    else:
        messages.error(request, "Too late: it is not open any more.")
    return redirect("order", pk)
