"""The seam to Django's admin: which address leads to which page, and who may add what.

The model is never queried. Each page is a function of a `Visit`, in a module of its own.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, register_converter

from django_delayq.admin import (
    bulk_page,
    job_page,
    overview_page,
    queue_page,
    search_page,
    tasks_page,
    workers_page,
)
from django_delayq.admin.job_actions import change_job, schedule_again
from django_delayq.admin.paths import JobIdConverter
from django_delayq.admin.visit import Page, Right, Visit, answer
from django_delayq.conf import get_settings
from django_delayq.jobs.actions import CANCEL, DISCARD, RETRY, RUN_NOW
from django_delayq.models import Job
from django_delayq.slices import loaded

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Job]
else:
    _ModelAdmin = admin.ModelAdmin

register_converter(JobIdConverter, "delayq_job")

#: Address, page, and name of the address.
_PAGES: list[tuple[str, Page, str]] = [
    # The "_" that a queue's name begins with is quoted.
    ("_find/", search_page.find, "search"),
    ("_workers/", workers_page.show_workers, "workers"),
    ("_tasks/", tasks_page.show_tasks, "tasks"),
    ("_overview.json", overview_page.give_data, "overview_data"),
    ("_change/", bulk_page.change_jobs, "bulk"),
    # Before the queues: the name of a queue is any text without a slash.
    ("<delayq_job:job_id>/", job_page.show_job, "job"),
    ("<delayq_job:job_id>/run-now/", partial(change_job, RUN_NOW), "run_now"),
    ("<delayq_job:job_id>/retry/", partial(change_job, RETRY), "retry"),
    ("<delayq_job:job_id>/schedule-again/", schedule_again, "schedule_again"),
    ("<delayq_job:job_id>/cancel/", partial(change_job, CANCEL), "cancel"),
    ("<delayq_job:job_id>/discard/", partial(change_job, DISCARD), "discard"),
    ("<str:queue>/", queue_page.show_queue, "queue"),
]


class JobAdmin(_ModelAdmin):
    """Pages of queues and jobs. A subclass may change ``list_per_page``, ``refresh_s`` and the permissions."""

    #: Jobs on one page of a list.
    list_per_page = 50
    #: Seconds between two refreshes of an open page; 0: it does not refresh itself.
    refresh_s = 5
    actions = None
    view_on_site = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return self._has("view", request, obj) or self._has("change", request, obj)

    def has_view_encrypted_permission(
        self, request: HttpRequest, obj: Job | None = None
    ) -> bool:
        """Return whether a user who may see a job may also see its encrypted values."""
        return self._has("view_encrypted", request, obj)

    def has_change_permission(
        self, request: HttpRequest, obj: Job | None = None
    ) -> bool:
        return self._has("change", request, obj)

    def has_delete_permission(
        self, request: HttpRequest, obj: Job | None = None
    ) -> bool:
        return self._has("delete", request, obj)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_view_permission(
            request
        )

    def _has(self, right: Right, request: HttpRequest, queue: Job | None) -> bool:
        """Return whether a user has a right on all queues, or on this one; without a queue, on any."""
        permission = (
            f"{self.opts.app_label}.{get_permission_codename(right, self.opts)}"
        )
        user: Any = request.user
        if user.has_perm(permission):
            return True
        queues = map(Job.of_queue, get_settings().names) if queue is None else [queue]
        return any(user.has_perm(permission, each) for each in queues)

    def get_urls(self) -> list[URLPattern]:
        prefix = f"{self.opts.app_label}_{self.opts.model_name}"

        def route(
            pattern: str, view: Callable[..., HttpResponse], name: str
        ) -> URLPattern:
            return path(
                pattern, self.admin_site.admin_view(view), name=f"{prefix}_{name}"
            )

        return [
            route("", self.changelist_view, "changelist"),
            # Links in the admin's log lead here.
            route("<str:object_id>/change/", self.change_view, "change"),
            *(
                route(where, self._view_of(page), name)
                for where, page, name in chain(_PAGES, *loaded("pages"))
            ),
        ]

    def _view_of(self, page: Page) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, **parts: str) -> HttpResponse:
            return answer(Visit(self, request, self.refresh_s), page, **parts)

        return view

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show every queue with its counts."""
        visit = Visit(self, request, self.refresh_s)
        return answer(visit, overview_page.show_queues, extra_context=extra_context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Lead from the admin's log to a job's page."""
        visit = Visit(self, request, self.refresh_s)
        return answer(visit, job_page.lead_from_log, object_id=object_id)
