"""One request for a page: what its user may do, where links lead, how a page is rendered and an action is logged.

The pages are functions that take a `Visit`; ``job_admin`` says which address leads to which of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.admin import job_lists
from django_delayq.admin.paths import from_path_part, job_path, to_path_part
from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Counts
from django_delayq.core.states import State
from django_delayq.display.texts import clean
from django_delayq.exceptions import DelayqError, PartialAnswer, QueueNotFound
from django_delayq.faults import describe_fault
from django_delayq.health.queue_problems import find_missing_queues
from django_delayq.jobs.actor import MAX_REASON, acting_as
from django_delayq.jobs.workers import Worker
from django_delayq.models import Job
from django_delayq.translations import gettext, say_fault, say_problems

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

T = TypeVar("T")
#: What somebody may do to a queue and its jobs; the names are those of Django's permissions.
Right = Literal["view", "view_encrypted", "change", "delete"]
#: What parts an entry of the admin's log: what was begun, and how it went.
_THEN = " → "
#: Characters that steer a terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
#: What stands in the place of a state for the jobs that ended last.
ENDED = "ended"
#: The pages that are not of one queue: name of the address, and title.
PLACES = (
    ("changelist", gettext_lazy("Overview")),
    ("workers", gettext_lazy("Workers")),
    ("tasks", gettext_lazy("Tasks")),
    ("search", gettext_lazy("Find jobs")),
)


class LogEntries:
    """Entries of the admin's log that were written before an action, and get its outcome."""

    def __init__(
        self, user_pk: Any, jobs: Job | Sequence[Job], flag: int, text: str
    ) -> None:
        self._begun = _plain(text).replace(_THEN, " ")
        self.is_over = False
        several = [jobs] if isinstance(jobs, Job) else jobs
        self._ids = [_plain(job.pk) for job in several]
        # Entries that were written together have no primary key on every database.
        self._since = timezone.now()
        stored = [_storable(job) for job in several]
        #: The primary key of the entry, if it is one.
        self.pk: Any = None
        if isinstance(jobs, Job):
            self.pk = LogEntry.objects.log_actions(
                user_pk, stored, flag, self._begun, single_object=True
            ).pk
        else:
            LogEntry.objects.log_actions(user_pk, stored, flag, self._begun)
        self._own = {"user_id": user_pk, "action_flag": flag}

    def end(self, text: str = "", texts: Mapping[str, str] | None = None) -> None:
        """Say how it went; ``texts``, by id, of what did not go as the others."""
        self.is_over = True
        if self.pk is not None:
            add_outcome([self.pk], text)
            return
        by_text: dict[str, list[str]] = {}
        said = {_plain(job_id): its for job_id, its in (texts or {}).items()}
        for job_id in self._ids:
            by_text.setdefault(said.get(job_id, text), []).append(job_id)
        mine = LogEntry.objects.filter(
            **self._own,
            content_type__app_label=Job._meta.app_label,
            action_time__gte=self._since,
            change_message=self._begun,
        )
        for outcome, ids in by_text.items():
            mine.filter(object_id__in=ids).update(
                change_message=f"{self._begun}{_THEN}{_plain(outcome)}"
            )


def with_reason(text: str, reason: str) -> str:
    """Return what is done, and why, for the admin's log."""
    if not reason:
        return text
    said = gettext("Reason: {reason}", reason=reason)
    return f"{text} {said}"


def add_outcome(pks: Sequence[Any], text: str) -> None:
    """Add to entries of the admin's log how it went, in the place of what they said of that before."""
    for entry in LogEntry.objects.filter(pk__in=pks):
        begun = entry.change_message.partition(_THEN)[0]
        entry.change_message = f"{begun}{_THEN}{_plain(text)}"
        entry.save(update_fields=["change_message"])


def _plain(text: object) -> str:
    """Return text as every database takes it, and that steers no terminal."""
    return _CONTROL.sub(
        lambda found: found[0].encode("unicode_escape").decode(), clean(text)
    )


def _storable(job: Job) -> Job:
    stored = Job(id=_plain(job.pk))
    stored.label = _plain(job.label)
    return stored


class Visit:
    """A request, and the admin that answers it."""

    def __init__(
        self, job_admin: "ModelAdmin[Job]", request: HttpRequest, refresh_s: int = 0
    ) -> None:
        self._admin = job_admin
        self.request = request
        self.per_page = job_admin.list_per_page
        self._refresh_s = refresh_s
        # What was begun, and has no outcome yet.
        self._open: list[LogEntries] = []

    # What its user may do

    def may(self, right: Right, queue: str) -> bool:
        """Return whether the user may do this to what a queue holds; to see it is part of each right."""
        model = Job.of_queue(conf.get_settings().whole(queue))
        return self._admin.has_view_or_change_permission(self.request, model) and (
            right == "view"
            or (
                right == "view_encrypted"
                and self._admin.has_view_encrypted_permission(self.request, model)  # type: ignore[attr-defined]
            )
            or (
                right == "change"
                and self._admin.has_change_permission(self.request, model)
            )
            or (
                right == "delete"
                and self._admin.has_delete_permission(self.request, model)
            )
        )

    def queues_to(self, right: Right) -> list[str]:
        """Return the names of the queues that the user has this right on."""
        return [name for name in conf.get_settings().names if self.may(right, name)]

    def check(self, right: Right, *queues: str) -> None:
        """Refuse a user who has not this right on all of these queues; without queues, on any.

        Raises:
            PermissionDenied: so it is.
        """
        if not (
            all(self.may(right, each) for each in queues)
            if queues
            else self.queues_to(right)
        ):
            raise PermissionDenied

    def queue(
        self, part: str, right: Right = "view", *, is_quoted: bool = True
    ) -> QueueSettings:
        """Return the queue that a part of an address names, if the user has this right on it.

        Raises:
            PermissionDenied: the user has not.
            Http404: there is no such queue.
        """
        self.check(right)
        try:
            queue = conf.get_settings().queue(
                from_path_part(part) if is_quoted else part
            )
        except QueueNotFound as error:
            raise Http404(str(error)) from error
        self.check(right, queue.name)
        return queue

    def job(self, job_id: str, right: Right = "view") -> tuple[QueueSettings, str]:
        """Return the queue and the token that an id is made of, as `queue` does."""
        name, _, token = job_id.rpartition(":")
        return self.queue(name, right, is_quoted=False), token

    @property
    def user_name(self) -> str:
        return clean(self.request.user.get_username())[:MAX_REASON]

    def shown(self, worker: Worker) -> Worker | None:
        """Return a worker with the queues and jobs that the user may see; None: it serves only others."""
        queues = [each for each in worker.queues if self.may("view", each)]
        if worker.queues and not queues:
            return None
        jobs = [
            job for job in worker.jobs if self.may("view", job.id.rpartition(":")[0])
        ]
        return worker._replace(queues=queues, jobs=jobs)

    # Where links lead

    def reverse(self, name: str, *parts: str) -> str:
        opts = self._admin.opts
        return reverse(
            f"admin:{opts.app_label}_{opts.model_name}_{name}",
            args=[to_path_part(part) for part in parts],
            current_app=self._admin.admin_site.name,
        )

    def queue_url(
        self,
        name: str,
        state: State = State.SCHEDULED,
        page: int = 1,
        skip: int = 0,
        *,
        is_reversed: bool = False,
    ) -> str:
        """Return the address of a queue's page; of a queue with shards, that of the list of its shards."""
        query: dict[str, Any] = {}
        if name in conf.get_settings().sharded:
            return f"{self.reverse('changelist')}?{urlencode({'queue': name})}"
        if state is not State.SCHEDULED:
            query["state"] = state.value
        if page > 1:
            query["page"] = page
        if skip:
            query["skip"] = skip
        if is_reversed:
            query["order"] = "reversed"
        return self.reverse("queue", name) + (f"?{urlencode(query)}" if query else "")

    def ended_url(self, name: str, page: int = 1, **sought: str) -> str:
        query: dict[str, Any] = {"state": ENDED}
        query |= {name: value for name, value in sought.items() if value}
        if page > 1:
            query["page"] = page
        return f"{self.reverse('queue', name)}?{urlencode(query)}"

    def search_url(self, query: str = "") -> str:
        return self.reverse("search") + (f"?{query}" if query else "")

    def job_url(self, job_id: str, *, view: str = "job", next: str = "") -> str:
        """Return the address of a job, or of what can be done to it; it need not be an id that anybody has."""
        url = f"{self.reverse('changelist')}{job_path(job_id)}/"
        if view != "job":
            url += f"{view.replace('_', '-')}/"
        if next and next != self.queue_url(job_id.rpartition(":")[0]):
            url += f"?{urlencode({'next': next})}"
        return url

    def next(self, otherwise: str) -> str:
        """Return where the user came from, if that is a page of this site."""
        request = self.request
        url = request.POST.get("next") or request.GET.get("next") or ""
        allowed = url_has_allowed_host_and_scheme(
            url, {request.get_host()}, require_https=request.is_secure()
        )
        return url if url and allowed else otherwise

    def tabs(
        self, queue: QueueSettings, counts: Counts
    ) -> list[tuple[job_lists.Tab, int, str]]:
        return [
            (
                tab,
                job_lists.count_of(tab, counts),
                self.queue_url(queue.name, tab.state),
            )
            for tab in job_lists.TABS.values()
        ]

    def places(self, here: str) -> list[tuple[str | Promise, str, bool]]:
        """Return the pages that are not of one queue: title, address, and whether it is this one."""
        return [(title, self.reverse(name), name == here) for name, title in PLACES]

    # What it shows and notes

    def render_live(
        self, template: str, context: dict[str, Any], *, status: int = 200
    ) -> TemplateResponse:
        """Render a page that refreshes itself."""
        return self.render(
            template, {"refresh_s": self._refresh_s, **context}, status=status
        )

    def render(
        self, template: str, context: dict[str, Any], *, status: int = 200
    ) -> TemplateResponse:
        site = self._admin.admin_site
        self.request.current_app = site.name
        whole = {
            **site.each_context(self.request),
            "opts": self._admin.opts,
            "zone": timezone.get_current_timezone_name(),
            **context,
        }
        return TemplateResponse(
            self.request, f"django_delayq/admin/{template}.html", whole, status=status
        )

    def message(self, text: str, level: int) -> None:
        self._admin.message_user(self.request, text, level)

    def tell_missing(self, missing: Mapping[str, Exception]) -> None:
        """Say which of the queues that the user may see are missing from a page."""
        seen = {name: why for name, why in missing.items() if self.may("view", name)}
        for problem in say_problems(find_missing_queues(seen)):
            self.message(f"{problem.message} {problem.hint}", messages.WARNING)

    def part(self, ask: Callable[[], T]) -> T:
        """Return what several queues say, and which do not answer."""
        try:
            return ask()
        except PartialAnswer as error:
            self.tell_missing(error.missing)
            found: T = error.found
            return found

    def log(self, jobs: Job | Sequence[Job], flag: int, text: str) -> LogEntries:
        """Write into the admin's log what is about to be done to jobs, or to a queue; `LogEntries.end` says how it went.

        If the request breaks off before that, the entry says so.
        """
        entries = LogEntries(self._user_pk, jobs, flag, text)
        self._open.append(entries)
        return entries

    def break_off(self, error: BaseException) -> None:
        """Say that what was begun has ended with an error."""
        for entries in self._open:
            if not entries.is_over:
                entries.end(
                    gettext(
                        "Interrupted by {error}. The change may or may not have been made.",
                        error=type(error).__name__,
                    )
                )

    @property
    def user_id(self) -> str:
        """The mark of this user in a form that is signed for one user."""
        return str(self._user_pk)

    @property
    def _user_pk(self) -> Any:
        user_pk = self.request.user.pk
        assert user_pk is not None  # admin_view let nobody else in
        return user_pk

    def queue_model(self, name: str) -> Job:
        """Return what stands for a queue in the admin's log."""
        job = Job.of_queue(clean(name))
        job.label = clean(gettext("queue {queue}", queue=name))
        return job

    def begin(self, queue: QueueSettings, text: str) -> LogEntries:
        """Write into the admin's log what is about to be done to a queue."""
        return self.log(self.queue_model(queue.name), CHANGE, text)


#: A page: it takes the visit, and the parts of the address by name.
Page = Callable[..., HttpResponse]


def answer(visit: Visit, page: Page, **parts: Any) -> HttpResponse:
    """Show a page; or, if the server does not answer, one that says what is wrong.

    Changes by the page are recorded as the user's.
    """
    try:
        with acting_as(visit.user_name):
            return page(visit, **parts)
    except (RedisError, DelayqError) as error:
        visit.break_off(error)
        context = {
            "fault": say_fault(describe_fault(error)),
            "title": gettext("Queues cannot be shown"),
        }
        return visit.render("fault", context, status=503)
    except BaseException as error:
        visit.break_off(error)
        raise
