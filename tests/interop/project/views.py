"""Views of a Django site that put something into a queue which a Java service reads."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_delayq import DelayedQueue, schedule
from tests.interop.values import UNTYPED, VALUES

OFFERED = VALUES | {f"untyped {label}": value for label, value in UNTYPED.items()}


def schedule_a_job(request: HttpRequest, queue: str) -> HttpResponse:
    from tests.interop.project.tasks import remind

    job = schedule(remind.using(queue=queue), 0.01, 42, text="订单 😀")
    return HttpResponse(job.id)


def offer_a_value(request: HttpRequest, queue: str, label: str) -> HttpResponse:
    delayed = DelayedQueue(queue)
    delayed.offer(OFFERED[label], 0.01)
    delayed.destroy()
    return HttpResponse("offered")


urlpatterns = [
    path("schedule/<queue>/", schedule_a_job),
    path("offer/<queue>/<label>/", offer_a_value),
]
