"""The views of a site whose server is uvicorn: they schedule on its event loop."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_delayq import aget_job, aschedule, delayed_task

#: Requests that wait for the server of the jobs.
waiting: set[int] = set()


@delayed_task(name="tests.asgi.add")
def add(number: int) -> int:
    return number + 1


async def schedule(request: HttpRequest, queue: str, number: int) -> HttpResponse:
    waiting.add(number)
    try:
        job = await aschedule(add.using(queue=queue), 3600, number)
    finally:
        waiting.discard(number)
    return JsonResponse({"id": job.id, "number": number})


async def show(request: HttpRequest, id: str) -> HttpResponse:
    job = await aget_job(id)
    return JsonResponse({"state": job.state, "args": job.args})


async def count(request: HttpRequest) -> HttpResponse:
    """Answer without the server of the jobs, as soon as the event loop has time."""
    return JsonResponse({"waiting": len(waiting)})


urlpatterns = [
    path("schedule/<str:queue>/<int:number>", schedule),
    path("jobs/<str:id>", show),
    path("waiting", count),
]
