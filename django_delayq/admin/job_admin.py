"""The admin's pages: the queues, a queue in pages, a job in full, and what can be done to it.

Every page takes a fixed number of bounded calls to the server, however much waits; that of a queue's schedules reads
all of these. The model is never queried.
``display`` formats payloads and times, and ``pages`` cuts a page out of a set.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from django.conf import settings as django_settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, gettext_lazy
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.admin import pages, schedules
from django_delayq.admin.forms import PauseForm
from django_delayq.admin.paths import from_path_part, to_path_part
from django_delayq.calls.call import Call
from django_delayq.calls.running import run
from django_delayq.calls.several import run_all
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings
from django_delayq.delivery import (
    batching,
    changing,
    ended,
    holding,
    limiting,
    looking,
    pausing,
    upgrading,
)
from django_delayq.delivery.looking import Counts, Inspected
from django_delayq.delivery.states import Change, State
from django_delayq.exceptions import (
    DelayqError,
    QueueNotFound,
    TaskNotFound,
)
from django_delayq.faults import Fault, describe_fault
from django_delayq.health.problems import (
    LONG_LIST,
    ServerProblem,
    find_missing,
    find_nearly_full,
    find_newer,
    find_paused,
)
from django_delayq.jobs import registry
from django_delayq.jobs.job import handle_of, kept_if_cancelled
from django_delayq.jobs.limiting import in_force
from django_delayq.jobs.pausing import MAX_REASON, pause, resume
from django_delayq.jobs.schedules import get_schedule, get_schedules
from django_delayq.jobs.telling import BY_CALL, task_of
from django_delayq.models import Job
from django_delayq.showing import display, fields
from django_delayq.signals import job_cancelled, tell
from django_delayq.translating import counter_label, say, state_label

T = TypeVar("T")
#: Counters of a queue that are not about jobs.
_INTERNAL_COUNTERS = frozenset({"sweeping"})
_CANCELLABLE = frozenset(
    {State.SCHEDULED, State.DUE, State.RETRYING, State.HELD, State.UNKNOWN}
)
_GRAVES = (State.DEAD, State.QUARANTINED)
#: What stands in the place of a state for the jobs that ended last.
_ENDED = "ended"

#: Why a job could not be moved or cancelled.
_TOO_LATE = {
    State.RUNNING: gettext_lazy("Job {id} is running already: a worker was first."),
    State.SUCCEEDED: gettext_lazy("Job {id} has succeeded already."),
    State.FAILED: gettext_lazy("Job {id} was discarded already."),
    State.CANCELLED: gettext_lazy("Job {id} is cancelled already."),
    State.EXPIRED: gettext_lazy("Job {id} has expired already."),
    State.TAKEN: gettext_lazy("Job {id} was taken already."),
    State.DEAD: gettext_lazy(
        "Job {id} is a dead letter by now: discard it or run it again instead."
    ),
    State.QUARANTINED: gettext_lazy(
        "Job {id} is in quarantine by now: discard it or run it again instead."
    ),
    State.MISSING: gettext_lazy(
        "Job {id} is gone: it has ended, or was cancelled or taken."
    ),
}


def _answering(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Let a view answer with a page that says what is wrong, if the server does not answer."""

    @wraps(view)
    def answer(
        self: "JobAdmin", request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        try:
            return view(self, request, *args, **kwargs)
        except (RedisError, DelayqError) as error:
            context = {
                "fault": _told(error),
                "title": gettext("Queues cannot be shown"),
            }
            return self._render(request, "fault", context, status=503)

    return answer


if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Job]
else:
    _ModelAdmin = admin.ModelAdmin


class JobAdmin(_ModelAdmin):
    """Pages of queues and jobs; a subclass may change ``list_per_page`` and the permissions."""

    list_per_page = 50
    actions = None
    view_on_site = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

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
            route("<str:queue>/", self.queue_view, "queue"),
            # No job has so short a token.
            route("<str:queue>/pause/", self.pause_view, "pause"),
            route("<str:queue>/resume/", self.resume_view, "resume"),
            route("<str:queue>/schedules/", self.schedules_view, "schedules"),
            route("<str:queue>/<str:token>/", self.job_view, "job"),
            route("<str:queue>/<str:token>/run-now/", self.run_now_view, "run_now"),
            route("<str:queue>/<str:token>/cancel/", self.cancel_view, "cancel"),
            route("<str:queue>/<str:token>/discard/", self.discard_view, "discard"),
        ]

    # Pages

    @_answering
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show every queue with its counts: one round trip."""
        self._check_may_view(request)
        settings = conf.get_settings()
        queues = list(settings.queues.values())
        calls: list[Call[Any]] = [looking.counts(queue.keys) for queue in queues]
        calls += [pausing.pauses(queue.keys) for queue in queues]
        found = run_all(own_clients.of_thread(), calls)
        replies, pauses = found[: len(queues)], found[len(queues) :]
        if replies and all(isinstance(reply, Exception) for reply in replies):
            raise replies[0]
        rows = []
        for queue, reply, paused in zip(queues, replies, pauses, strict=True):
            row: dict[str, Any] = {"queue": queue, "url": self._queue_url(queue.name)}
            if isinstance(reply, Exception):
                row["fault"] = _told(reply)
            else:
                row["counts"] = reply
                row["pauses"] = (
                    []
                    if isinstance(paused, Exception)
                    else [say(each.words) for each in paused]
                )
                row["next"] = display.Moment.of(reply.next_ms, reply.now_ms)
                row["cells"] = self._tabs(queue, reply)
                row["is_list_long"] = reply.delay_queue > LONG_LIST
                row["full"] = _said(
                    find_nearly_full(queue.name, reply.jobs, queue.max_jobs)
                )
            rows.append(row)
        context = {
            "title": gettext("Queues"),
            "rows": rows,
            "tabs": pages.TABS.values(),
            **(extra_context or {}),
        }
        return self._render(request, "queues", context)

    @_answering
    def queue_view(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Show a page of one set of a queue: six calls in one round trip."""
        self._check_may_view(request)
        settings = self._queue(queue)
        if request.GET.get("state") == _ENDED:
            return self._ended_view(request, settings)
        tab = pages.TABS.get(request.GET.get("state", State.SCHEDULED))  # type: ignore[call-overload]
        if tab is None:
            raise Http404(f"a queue has no page {request.GET['state']!r}")
        number = pages.read_number(request.GET.get("page", "1"), least=1)
        # If payloads are huge, a page comes in several parts.
        skip = pages.read_number(request.GET.get("skip", "0")) % self.list_per_page
        first = (number - 1) * self.list_per_page + skip
        calls: list[Call[Any]] = [
            looking.counts(settings.keys),
            looking.page(
                settings.keys,
                tab.state,
                first=first,
                count=self.list_per_page - skip,
                newest=tab.is_newest_first,
                frame_format=settings.frame_format,
            ),
            holding.held_names(settings.keys),
            upgrading.read_format(settings.keys),
            pausing.pauses(settings.keys),
            limiting.limits(settings.keys),
        ]
        counts, page, held, its_format, pauses, limits = _replies(calls)
        pager = pages.Pager.of(number, page.total, self.list_per_page)
        if pager.is_beyond:
            return HttpResponseRedirect(
                self._queue_url(settings.name, tab.state, pager.last)
            )
        rows = pages.rows_of(tab, page, first, counts.now_ms, settings)
        after = skip + len(rows)
        rest = pager.on_this_page(self.list_per_page) - after
        here = self._queue_url(settings.name, tab.state, number, skip)
        context = {
            **self._queue_context(settings, tab, counts),
            "missing": [
                *_said(find_newer(settings.name, its_format)),
                *_said(find_missing(held, conf.get_keyring().ids)),
            ],
            "paused": [
                (problem, each.task or "")
                for each, problem in zip(
                    pauses, _said(find_paused(pauses)), strict=True
                )
            ],
            "is_paused": any(each.task is None for each in pauses),
            "limits": [say(each.words) for each in in_force(settings, limits)],
            "may_change": self.has_change_permission(request),
            "pause_url": self._reverse("pause", settings.name),
            "resume_url": self._reverse("resume", settings.name),
            "schedules_url": self._reverse("schedules", settings.name),
            "rows": [
                (row, row.token and self._job_url(settings.name, row.token, next=here))
                for row in rows
            ],
            "first_place": first + 1,
            "last_place": first + len(rows),
            "rest": rest,
            "rest_url": self._queue_url(settings.name, tab.state, number, after),
            "pager": pager,
            "links": [
                (label, target and self._queue_url(settings.name, tab.state, target))
                for label, target in (
                    (gettext("« first"), 1 if pager.previous else None),
                    (gettext("‹ previous"), pager.previous),
                    (gettext("next ›"), pager.next),
                    (gettext("last »"), pager.last if pager.next else None),
                )
            ],
        }
        return self._render(request, "queue", context)

    def _ended_view(
        self, request: HttpRequest, settings: QueueSettings
    ) -> HttpResponse:
        """Show a page of how the last jobs of a queue ended: two calls in one round trip."""
        number = pages.read_number(request.GET.get("page", "1"), least=1)
        first = (number - 1) * self.list_per_page
        counts, page = _replies(
            [
                looking.counts(settings.keys),
                ended.read_ended(settings.keys, first=first, count=self.list_per_page),
            ]
        )
        pager = pages.Pager.of(number, page.total, self.list_per_page)
        if pager.is_beyond:
            return HttpResponseRedirect(self._ended_url(settings.name, pager.last))
        records = ended.read_records(page.stored)
        context = {
            "title": gettext("Queue {queue}: what has ended").format(
                queue=settings.name
            ),
            "queue": settings,
            "tabs": self._tabs(settings, counts),
            "ended_url": self._ended_url(settings.name),
            "schedules_url": self._reverse("schedules", settings.name),
            "is_ended": True,
            "rows": [
                (
                    record,
                    display.Moment.of(record.ended_ms, counts.now_ms),
                    state_label(record.outcome),
                    # Of the others nothing is left to show.
                    record.token
                    and record.outcome in _GRAVES
                    and self._job_url(settings.name, record.token),
                )
                for record in records
            ],
            "pager": pager,
            "links": [
                (label, target and self._ended_url(settings.name, target))
                for label, target in (
                    (gettext("« newest"), 1 if pager.previous else None),
                    (gettext("‹ newer"), pager.previous),
                    (gettext("older ›"), pager.next),
                    (gettext("oldest »"), pager.last if pager.next else None),
                )
            ],
        }
        return self._render(request, "ended", context)

    @_answering
    def job_view(self, request: HttpRequest, queue: str, token: str) -> HttpResponse:
        """Show one job in full, and what it waits for: three calls in one round trip."""
        self._check_may_view(request)
        settings, token = self._queue(queue), from_path_part(token)
        seen, pauses, left = _replies(
            [
                looking.inspect(settings.keys, token),
                pausing.pauses(settings.keys),
                batching.count_left(settings.keys, token),
            ]
        )
        context = self._job_context(request, settings, token, seen, left)
        concerned = (None, context["content"].task)
        context["paused"] = _said(
            find_paused(pause for pause in pauses if pause.task in concerned)
        )
        if seen.state is State.MISSING:
            return self._render(request, "gone", context, status=404)
        return self._render(request, "job", context)

    @_answering
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Lead from the admin's log to a job's page."""
        name, colon, token = from_path_part(object_id).rpartition(":")
        if not colon:
            # A token that happens to read "change".
            return self.job_view(request, object_id, "change")
        self._check_may_view(request)
        if not token:
            # What was done to a queue.
            return HttpResponseRedirect(
                self._queue_url(self._queue(name, is_quoted=False).name)
            )
        return HttpResponseRedirect(
            self._job_url(self._queue(name, is_quoted=False).name, token)
        )

    # Actions

    @_answering
    def run_now_view(
        self, request: HttpRequest, queue: str, token: str
    ) -> HttpResponse:
        """Make a job due now; a dead letter or a quarantined payload starts over."""
        self._check_may_change(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        act = self._act(request, queue, token)
        change: Change | State = act.run(
            changing.reschedule(act.keys, act.token, "+0")
        )[0]
        if change in _GRAVES:
            if act.run(changing.replay(act.keys, [act.token], state=State(change))):
                act.succeed(
                    CHANGE,
                    gettext("Run again."),
                    gettext("Job {id} starts over: it is due now."),
                )
            else:
                act.fail(State.MISSING)
        elif change is Change.RESCHEDULED:
            act.succeed(CHANGE, gettext("Run now."), gettext("Job {id} is due now."))
        elif change is Change.NOTED:
            act.note(
                CHANGE,
                gettext("Run now."),
                gettext(
                    "Job {id} lies in a destination queue that is too long to search, or was taken by Java; it is due"
                    " at once if a worker here takes it, but not if Java does."
                ),
            )
        else:
            act.fail(change)
        return HttpResponseRedirect(
            self._next(request, self._job_url(act.settings.name, act.token))
        )

    @_answering
    def cancel_view(self, request: HttpRequest, queue: str, token: str) -> HttpResponse:
        """Ask, then cancel a job unless it runs."""
        self._check_may_delete(request)
        if request.method != "POST":
            return self._confirm(request, queue, token, "cancel")
        act = self._act(request, queue, token)
        keep, kept = conf.keep_ended(queue), kept_if_cancelled([act.cancelled()])
        change = act.run(
            changing.cancel(act.keys, act.token, keep_ended=keep, kept=kept)
        )
        if change is Change.CANCELLED:
            if job_cancelled.receivers:
                tell(
                    job_cancelled, task_of(job := act.cancelled()), job, reason=BY_CALL
                )
            act.succeed(
                DELETION,
                gettext("Cancelled."),
                gettext("Job {id} is cancelled and will not run."),
            )
        elif change is Change.NOTED:
            act.note(
                DELETION,
                gettext("Cancelled."),
                gettext(
                    "Job {id} lies in a destination queue that is too long to search, or was taken by Java; it will not"
                    " run if a worker here takes it, but Java may run it."
                ),
            )
        else:
            act.fail(change)
        return HttpResponseRedirect(
            self._next(request, self._queue_url(act.settings.name))
        )

    @_answering
    def discard_view(
        self, request: HttpRequest, queue: str, token: str
    ) -> HttpResponse:
        """Ask, then delete a dead letter or a quarantined payload for good."""
        self._check_may_delete(request)
        if request.method != "POST":
            return self._confirm(request, queue, token, "discard")
        act = self._act(request, queue, token)
        if act.seen.state in _GRAVES and act.run(
            changing.discard(act.keys, [act.token], state=act.seen.state)
        ):
            act.succeed(
                DELETION,
                gettext("Discarded."),
                gettext("Job {id} is discarded for good."),
            )
        else:
            act.fail(act.run(looking.inspect(act.keys, act.token)).state)
        return HttpResponseRedirect(
            self._next(request, self._queue_url(act.settings.name))
        )

    @_answering
    def pause_view(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Ask for how long and why, then pause a queue."""
        self._check_may_change(request)
        settings = self._queue(queue)
        form = PauseForm(request.POST if request.method == "POST" else None)
        if request.method != "POST" or not form.is_valid():
            context = {
                "title": gettext("Pause queue {queue}").format(queue=settings.name),
                "queue": settings,
                "back": self._queue_url(settings.name),
                "form": form,
            }
            return self._render(request, "pause", context)
        minutes, reason = form.cleaned_data["minutes"], form.cleaned_data["reason"]
        pause(
            settings.name,
            until=None if minutes is None else timedelta(minutes=minutes),
            reason=reason,
            by=display.clean(request.user.get_username())[:MAX_REASON],
        )
        self._note_queue(
            request,
            settings,
            gettext("Paused."),
            gettext("Queue {queue} is paused.").format(queue=settings.name),
        )
        return HttpResponseRedirect(self._queue_url(settings.name))

    @_answering
    def resume_view(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Resume a queue; or a task on it, if the form names one."""
        self._check_may_change(request)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        settings, task = self._queue(queue), request.POST.get("task") or None
        try:
            was_paused = resume(settings.name, task=task)
        except TaskNotFound:
            # It has gone from the code, and its pause has ended.
            was_paused = False
        names = {"queue": settings.name, "task": task}
        if was_paused and task is None:
            done, text = gettext("Resumed."), gettext("Queue {queue} is resumed.")
        elif was_paused:
            done = gettext("Resumed task {task}.")
            text = gettext("Task {task} on queue {queue} is resumed.")
        elif task is None:
            done, text = "", gettext("Queue {queue} is not paused any more.")
        else:
            text = gettext("Task {task} on queue {queue} is not paused any more.")
            done = ""
        if done:
            self._note_queue(
                request, settings, done.format(**names), text.format(**names)
            )
        else:
            self.message_user(request, text.format(**names), messages.WARNING)
        return HttpResponseRedirect(self._queue_url(settings.name))

    @_answering
    def schedules_view(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Show the periodic schedules of a queue; pause, resume, fire, change or delete one."""
        self._check_may_view(request)
        settings = self._queue(queue)
        if request.method == "POST":
            self._change_schedule(request, settings)
            return HttpResponseRedirect(self._reverse("schedules", settings.name))
        rows = [schedules.row_of(each) for each in get_schedules(settings.name)]
        context = {
            "title": gettext("Schedules of queue {queue}").format(queue=settings.name),
            "queue": settings,
            "back": self._queue_url(settings.name),
            "rows": [
                (row, row.token and self._job_url(settings.name, row.token))
                for row in rows
            ],
            "time_zone": django_settings.TIME_ZONE,
            "may_change": self.has_change_permission(request),
            "may_delete": self.has_delete_permission(request),
        }
        return self._render(request, "schedules", context)

    def _change_schedule(self, request: HttpRequest, settings: QueueSettings) -> None:
        posted = request.POST.dict()
        action = schedules.ACTIONS.get(str(posted.get("action")))
        if action is None:
            raise Http404(f"a schedule has no action {posted.get('action')!r}")
        if action.deletes:
            self._check_may_delete(request)
        else:
            self._check_may_change(request)
        name, by = str(posted.get("name")), request.user.get_username()
        try:
            done = action.act(get_schedule(name, settings.name), posted, by)
        except DelayqError as error:
            self.message_user(request, str(error), messages.WARNING)
            return
        self._note_queue(request, settings, done, done)

    # What the views have in common

    def _note_queue(
        self, request: HttpRequest, settings: QueueSettings, done: str, text: str
    ) -> None:
        """Tell the user what was done to a queue, and write it into the admin's log."""
        job = Job(id=display.clean(f"{settings.name}:"))
        job.label = display.clean(gettext("queue {queue}").format(queue=settings.name))
        user_id = request.user.pk
        assert user_id is not None  # admin_view let nobody else in
        LogEntry.objects.log_actions(user_id, [job], CHANGE, display.clean(done))
        self.message_user(request, text, messages.SUCCESS)

    def _check_may_change(self, request: HttpRequest) -> None:
        self._check_may_view(request)
        if not self.has_change_permission(request):
            raise PermissionDenied

    def _render(
        self,
        request: HttpRequest,
        template: str,
        context: dict[str, Any],
        *,
        status: int = 200,
    ) -> TemplateResponse:
        request.current_app = self.admin_site.name
        whole = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "zone": timezone.get_current_timezone_name(),
            **context,
        }
        return TemplateResponse(
            request, f"django_delayq/admin/{template}.html", whole, status=status
        )

    def _check_may_view(self, request: HttpRequest) -> None:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied

    def _check_may_delete(self, request: HttpRequest) -> None:
        self._check_may_view(request)
        if not self.has_delete_permission(request):
            raise PermissionDenied

    def _queue(self, name: str, *, is_quoted: bool = True) -> QueueSettings:
        try:
            return conf.get_settings().queue(
                from_path_part(name) if is_quoted else name
            )
        except QueueNotFound as error:
            raise Http404(str(error)) from error

    def _reverse(self, name: str, *parts: str) -> str:
        view = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(
            view,
            args=[to_path_part(part) for part in parts],
            current_app=self.admin_site.name,
        )

    def _queue_url(
        self, name: str, state: State = State.SCHEDULED, page: int = 1, skip: int = 0
    ) -> str:
        query: dict[str, Any] = {}
        if state is not State.SCHEDULED:
            query["state"] = state.value
        if page > 1:
            query["page"] = page
        if skip:
            query["skip"] = skip
        return self._reverse("queue", name) + (f"?{urlencode(query)}" if query else "")

    def _ended_url(self, name: str, page: int = 1) -> str:
        query = {"state": _ENDED} | ({"page": page} if page > 1 else {})
        return f"{self._reverse('queue', name)}?{urlencode(query)}"

    def _job_url(
        self, name: str, token: str, *, view: str = "job", next: str = ""
    ) -> str:
        url = self._reverse(view, name, token)
        return (
            f"{url}?{urlencode({'next': next})}"
            if next and next != self._queue_url(name)
            else url
        )

    def _next(self, request: HttpRequest, otherwise: str) -> str:
        """Return where the user came from, if that is a page of this site."""
        url = request.POST.get("next") or request.GET.get("next") or ""
        allowed = url_has_allowed_host_and_scheme(
            url, {request.get_host()}, require_https=request.is_secure()
        )
        return url if url and allowed else otherwise

    def _tabs(
        self, queue: QueueSettings, counts: Counts
    ) -> list[tuple[pages.Tab, int, str]]:
        return [
            (tab, pages.count_of(tab, counts), self._queue_url(queue.name, tab.state))
            for tab in pages.TABS.values()
        ]

    def _queue_context(
        self, settings: QueueSettings, tab: pages.Tab, counts: Counts
    ) -> dict[str, Any]:
        handler = registry.get_handler(settings.name)
        return {
            "title": gettext("Queue {queue}").format(queue=settings.name),
            "queue": settings,
            "tab": tab,
            "tabs": self._tabs(settings, counts),
            "ended_url": self._ended_url(settings.name),
            "counts": counts,
            "next": display.Moment.of(counts.next_ms, counts.now_ms),
            "counters": sorted(
                (counter_label(name), n)
                for name, n in counts.counters.items()
                if n and name not in _INTERNAL_COUNTERS
            ),
            # Its name only: a template would call the task.
            "handler": handler.name if handler else "",
            "is_list_long": counts.delay_queue > LONG_LIST,
            "full": _said(
                find_nearly_full(settings.name, counts.jobs, settings.max_jobs)
            ),
            "has_many_dead": settings.many_dead is not None
            and counts.dead >= settings.many_dead,
            "long_list": LONG_LIST,
        }

    def _job_context(
        self,
        request: HttpRequest,
        settings: QueueSettings,
        token: str,
        seen: Inspected,
        batch_left: int = 0,
    ) -> dict[str, Any]:
        content = display.read_content(
            seen.payload, len(seen.payload), settings, in_full=True
        )
        failure = display.read_failure(seen.error, seen.now_ms)
        state = pages.state_text(seen.state, seen.score_ms, seen.now_ms)
        has_expired = state == "lease expired"
        waits = (
            seen.state in (State.SCHEDULED, State.RETRYING, State.HELD, State.UNKNOWN)
            or has_expired
        )
        job_id, back = (
            f"{settings.name}:{token}",
            self._next(request, self._queue_url(settings.name)),
        )
        urls = {
            name: self._job_url(settings.name, token, view=name, next=back)
            for name in ("run_now", "cancel", "discard")
        }
        may_change, may_delete = (
            self.has_change_permission(request),
            self.has_delete_permission(request),
        )
        return {
            "title": gettext("Job {token}").format(token=token),
            "queue": settings,
            "token": token,
            "id": job_id,
            "sections": fields.sections_of(
                job_id,
                seen,
                state,
                content,
                failure,
                display.read_earlier(seen),
                settings,
                batch_left,
            ),
            "content": content,
            "raw": display.read_raw(seen.payload),
            "size": display.size_text(len(seen.payload)),
            "urls": urls,
            "back": back,
            "here": request.get_full_path(),
            "can_run_now": may_change and waits,
            "can_run_again": may_change and seen.state in _GRAVES,
            "can_cancel": may_delete and (seen.state in _CANCELLABLE or has_expired),
            "can_discard": may_delete and seen.state in _GRAVES,
        }

    def _confirm(
        self, request: HttpRequest, queue: str, token: str, action: str
    ) -> HttpResponse:
        act = self._act(request, queue, token)
        context = self._job_context(request, act.settings, act.token, act.seen)
        if act.seen.state is State.MISSING:
            return self._render(request, "gone", context, status=404)
        job_url = self._job_url(act.settings.name, act.token)
        if not context[f"can_{action}"]:
            act.fail(act.seen.state)
            return HttpResponseRedirect(job_url)
        context |= {
            "title": gettext("Are you sure?"),
            "action": action,
            "job_url": job_url,
        }
        return self._render(request, "confirm", context)

    def _act(self, request: HttpRequest, queue: str, token: str) -> "_Act":
        return _Act(self, request, self._queue(queue), from_path_part(token))


class _Act:
    """An action on one job: its call, its message to the user, its entry in the admin's log."""

    def __init__(
        self,
        job_admin: JobAdmin,
        request: HttpRequest,
        settings: QueueSettings,
        token: str,
    ) -> None:
        self.job_admin, self.request, self.settings, self.token = (
            job_admin,
            request,
            settings,
            token,
        )
        self.keys = settings.keys
        self.client = own_clients.of_thread()
        #: The job before the action; afterwards its task may be unknown.
        self.seen = self.run(looking.inspect(self.keys, token))

    def run(self, call: Call[T]) -> T:
        return run(self.client, call)

    @property
    def id(self) -> str:
        return f"{self.settings.name}:{self.token}"

    def cancelled(self) -> Any:
        """Return the handle of the job as it was before the action, cancelled since."""
        job = handle_of(self.id)
        job._take(self.seen)
        job.state = State.CANCELLED
        return job

    def succeed(self, flag: int, log: str, text: str) -> None:
        self._log(flag, log)
        self.job_admin.message_user(
            self.request, text.format(id=self.id), messages.SUCCESS
        )

    def note(self, flag: int, log: str, text: str) -> None:
        self._log(flag, log)
        self.job_admin.message_user(
            self.request, text.format(id=self.id), messages.WARNING
        )

    def fail(self, state: Change | State) -> None:
        """Say why the job could not be moved or cancelled."""
        template = _TOO_LATE.get(State(state)) or gettext("Job {id} is {state}.")
        text = template.format(id=self.id, state=state_label(state))
        self.job_admin.message_user(self.request, text, messages.WARNING)

    def _log(self, flag: int, message: str) -> None:
        task = display.read_content(
            self.seen.payload, len(self.seen.payload), self.settings
        ).task
        job = Job(id=display.clean(self.id))
        job.label = display.clean(f"{task} ({self.id})" if task else self.id)
        # ModelAdmin.log_deletions keeps no message, and cancelled differs from discarded.
        user_id = self.request.user.pk
        assert user_id is not None  # admin_view let nobody else in
        LogEntry.objects.log_actions(user_id, [job], flag, message)


def _replies(calls: Sequence[Any]) -> list[Any]:
    """Make calls, and plain commands, in one round trip; the first error is raised."""
    replies = run_all(own_clients.of_thread(), calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _said(problems: Iterable[ServerProblem]) -> list[ServerProblem]:
    """Say problems in the current language."""
    return [
        problem._replace(message=say(problem.message), hint=say(problem.hint))
        for problem in problems
    ]


def _told(error: Exception) -> Fault:
    """Say in the current language what an error means; its own text stays as it is."""
    fault = describe_fault(error)
    return fault._replace(what=say(fault.what), hint=say(fault.hint))
