"""A timeline: how late each of the last jobs began."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from redis.exceptions import RedisError

from example.pages import page_or_json

from .chart import Chart
from .figures import figures_of, last_jobs

#: Rows of the list below the timeline.
LISTED = 10


def timeline(request: HttpRequest) -> HttpResponse:
    """Draw the last jobs, and sum up each queue."""
    fault, jobs = None, []
    try:
        jobs = last_jobs()
    except RedisError as error:
        fault = error
    chart, figures = Chart(jobs, timezone.now()), figures_of(jobs)
    queues = {
        queue: figures_of([job for job in jobs if job.queue == queue])
        for queue in sorted({job.queue for job in jobs})
    }
    return page_or_json(
        request,
        "lateness/index.html",
        {
            "chart": chart,
            "median_y": None if figures is None else chart.y(figures.median_ms),
            "figures": figures,
            "queues": queues,
            "jobs": jobs[:LISTED],
            "fault": fault,
        },
        {
            "queues": {
                queue: figures and figures._asdict()
                for queue, figures in queues.items()
            },
            "fault": None if fault is None else str(fault),
        },
    )
