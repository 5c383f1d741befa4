"""A timeline: how late each of the last jobs began."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from redis.exceptions import RedisError

from example.pages import page_or_json

from . import chart
from .figures import figures_of, last_jobs


def timeline(request: HttpRequest) -> HttpResponse:
    """Draw the last jobs, and sum up each queue."""
    fault, jobs = None, []
    try:
        jobs = last_jobs()
    except RedisError as error:
        fault = error
    all_of_them = figures_of(jobs)
    queues = {
        queue: figures_of([job for job in jobs if job.queue == queue])
        for queue in sorted({job.queue for job in jobs})
    }
    return page_or_json(
        request,
        "lateness/index.html",
        {
            "chart": chart.draw(jobs, timezone.now()),
            "median_y": all_of_them and chart.level_of(all_of_them.median_ms),
            "figures": all_of_them,
            "queues": queues,
            "jobs": jobs[:10],
            "fault": fault,
        },
        {queue: figures and figures._asdict() for queue, figures in queues.items()},
    )
