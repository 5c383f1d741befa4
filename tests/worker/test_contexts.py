"""Context that travels with jobs: captured where they are scheduled, restored around each attempt."""

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar

import pytest
from django.utils import timezone, translation

from django_delayq import (
    aschedule_many,
    conf,
    current_job,
    delayed_task,
    get_job,
    schedule,
    schedule_many,
)
from django_delayq.context import Scheduling, being_scheduled
from django_delayq.core.states import State
from django_delayq.exceptions import EncodeError, InvalidSettings, JobFailed
from django_delayq.jobs import contexts
from django_delayq.signals import job_succeeded
from tests.polling import wait_until

HERE = __name__
tenant = ContextVar("tenant", default="nobody")
seen = []


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()
    contexts._logged.clear()
    contexts.load.cache_clear()


@pytest.fixture
def travelling(configure):
    """Have contexts of this module, or shipped ones, travel with the jobs of the test."""

    def travelling(*names, **options):
        settings = configure()
        settings["CONTEXT"] = [
            name if "." in name else f"{HERE}.{name}" for name in names
        ]
        settings.update(options)
        conf.get_settings.cache_clear()

    yield travelling
    conf.get_settings.cache_clear()


class Tenant:
    name = "tenant"

    def capture(self):
        return {"name": tenant.get()}

    @contextmanager
    def restore(self, headers):
        token = tenant.set(headers.get("name", "none was captured"))
        seen.append("in")
        try:
            yield
        finally:
            seen.append("out")
            tenant.reset(token)


class Broken:
    def capture(self):
        raise ValueError("capture is broken")

    def restore(self, headers):
        raise ValueError("restore is broken")


class BrokenAtTheEnd:
    def capture(self):
        return {}

    @contextmanager
    def restore(self, headers):
        yield
        raise ValueError("the end is broken")


class Required(Broken):
    required = True


class Swallowing:
    def capture(self):
        return {}

    @contextmanager
    def restore(self, headers):
        try:
            yield
        except Exception:
            seen.append("swallowed")


class Said:
    """What `being_scheduled` and `current_job` say."""

    def capture(self):
        seen.append(being_scheduled())
        return {}

    @contextmanager
    def restore(self, headers):
        seen.append((being_scheduled(), current_job().id))
        yield


class Warm:
    def warm(self):
        seen.append("warm")
        tenant.set("of warm()")

    def capture(self):
        return {}

    def restore(self, headers):
        """Do nothing."""


class NeverWarm(Warm):
    def warm(self):
        raise ValueError("warm is broken")


class Large:
    def capture(self):
        return {"text": "x" * size_of_large}

    @contextmanager
    def restore(self, headers):
        yield


size_of_large = 0
an_object = Tenant()
an_object.name = "object"


class NoRestore:
    def capture(self):
        return {}


class NeedsArguments(Tenant):
    def __init__(self, which):
        self.which = which


class BadName(Tenant):
    name = "Ten.ant"


class SameName(Tenant):
    pass


@pytest.fixture
def read(queue_name):
    @delayed_task(queue=queue_name, keep_result=60, name="read")
    def read(*args):
        return tenant.get()

    return read


@pytest.fixture
def read_async(queue_name):
    @delayed_task(queue=queue_name, keep_result=60, name="read-async")
    async def read_async(*args):
        return tenant.get()

    return read_async


def as_tenant(name, call):
    token = tenant.set(name)
    try:
        return call()
    finally:
        tenant.reset(token)


def test_what_is_captured_at_scheduling_is_restored_at_the_attempt(
    travelling, work, read, read_async
):
    travelling("Tenant", "an_object")
    jobs = [
        as_tenant("a", lambda: schedule(read, 0)),
        as_tenant("b", lambda: schedule(read_async, 0)),
        as_tenant("c", lambda: schedule_many([read.prepare(0)])[0]),
        as_tenant("d", lambda: asyncio.run(aschedule_many([read.prepare(0)]))[0]),
    ]
    work()

    assert [job.wait(30) for job in jobs] == ["a", "b", "c", "d"]
    assert seen.count("in") == seen.count("out") == 8


def test_what_follows_a_job_has_the_context_of_whoever_prepared_it(
    travelling, work, read
):
    travelling("Tenant")
    follower = as_tenant("b", lambda: read.prepare(0))
    as_tenant("a", lambda: schedule_many([read.prepare(0).then(follower)]))
    work()

    wait_until(
        lambda: follower.refresh() not in (State.MISSING, State.UNCOMMITTED),
        description="it is stored",
    )
    assert get_job(follower.id).wait(30) == "b"


def test_a_job_without_a_context_of_its_own_gets_an_empty_one(
    configure, travelling, work, read
):
    job = schedule(read, 0)
    travelling("Tenant")
    work()

    assert job.wait(30) == "none was captured"


def test_it_does_not_reach_the_next_attempt(travelling, work, read, configure):
    travelling("Tenant")
    first = as_tenant("a", lambda: schedule(read, 0))
    configure()
    second = schedule(read, 0)
    travelling("Tenant")
    work(threads=1)

    assert first.wait(30) == "a"
    assert second.wait(30) == "none was captured"


def errors(caplog):
    return [r for r in caplog.records if r.name == "django_delayq.context"]


def test_a_capture_that_raises_costs_the_context_and_not_the_job(
    travelling, work, read, caplog
):
    travelling("Broken", "Tenant")
    job = as_tenant("a", lambda: schedule(read, 0))
    schedule_many(read.prepare(600) for _ in range(10))

    (line,) = errors(caplog)
    assert line.levelname == "ERROR"
    assert f"goes without the context {HERE}.Broken" in line.getMessage()
    assert "ValueError: capture is broken" in line.getMessage()
    assert line.exc_info is not None
    work()
    assert job.wait(30) == "a"
    assert any("restore()" in line.getMessage() for line in errors(caplog))


def test_an_end_that_raises_changes_nothing(travelling, work, read, caplog):
    travelling("Tenant", "BrokenAtTheEnd")
    job = as_tenant("a", lambda: schedule(read, 0))
    work()

    assert job.wait(30) == "a"
    assert [line.levelname for line in errors(caplog)] == ["ERROR"]
    assert seen == ["in", "out"]


def test_without_a_required_context_no_job_is_scheduled(
    travelling, configure, read, caplog
):
    travelling("Required")

    with pytest.raises(ValueError, match="capture is broken") as raised:
        schedule(read, 0)

    assert f"capture() of {HERE}.Required raised this" in raised.value.__notes__[0]
    assert errors(caplog) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_without_a_required_context_no_task_is_called(
    configure, travelling, work, read, read_async, is_async
):
    task = read_async if is_async else read
    job = schedule(task.using(max_attempts=1), 0)
    travelling("Tenant", "Required")
    work()

    with pytest.raises(JobFailed, match="ValueError: restore is broken"):
        job.wait(30)
    assert seen == ["in", "out"]


def test_no_context_can_make_a_failure_a_success(travelling, work, queue_name):
    @delayed_task(queue=queue_name, keep_result=60, max_attempts=1)
    def fail():
        raise ValueError("as told")

    travelling("Swallowing")
    job = schedule(fail, 0)
    work()

    with pytest.raises(JobFailed, match="ValueError: as told"):
        job.wait(30)
    assert seen == ["swallowed"]


def test_a_context_can_ask_for_the_job(travelling, work, read, queue_name):
    travelling("Said")
    job = schedule(read, 0)

    assert seen == [Scheduling("read", queue_name, job.id)]
    assert being_scheduled() is None
    work()
    job.wait(30)
    assert seen[1:] == [(None, job.id)]


def test_what_warm_has_set_is_there_for_each_attempt_of_the_thread_and_of_the_loop(
    travelling, work, read, read_async
):
    travelling("Warm")
    jobs = [schedule(task, 0) for task in (read, read, read_async, read_async)]
    work(threads=1)

    assert [job.wait(30) for job in jobs] == ["of warm()"] * 4
    assert seen == ["warm", "warm"]
    assert tenant.get() == "nobody"


def test_a_warm_that_raises_costs_nothing_else(
    travelling, work, read, read_async, caplog
):
    travelling("NeverWarm", "Tenant")
    jobs = [
        as_tenant(name, lambda task=task: schedule(task, 0))
        for name, task in (("a", read), ("b", read_async))
    ]
    work(threads=1)

    assert [job.wait(30) for job in jobs] == ["a", "b"]
    (line,) = errors(caplog)
    assert f"goes without the context {HERE}.NeverWarm" in line.getMessage()
    assert "its warm() raised ValueError: warm is broken" in line.getMessage()


@pytest.mark.parametrize(("size", "is_kept"), [(8_000, True), (8_193, False)])
def test_what_travels_is_bounded_by_bytes(
    travelling, read, caplog, monkeypatch, size, is_kept
):
    monkeypatch.setattr(f"{HERE}.size_of_large", size)
    travelling("Large")

    job = schedule(read, 600)

    assert ("x" * 8_000 in job.draft.new.payload.decode()) is is_kept
    assert (errors(caplog) == []) is is_kept


def test_a_job_that_is_too_large_with_its_context_goes_without(
    travelling, read, caplog, monkeypatch
):
    monkeypatch.setattr(f"{HERE}.size_of_large", 8_000)
    travelling("Large", "Tenant", MAX_PAYLOAD_BYTES=4_000)

    job = schedule(read, 600, "y" * 3_000)

    assert b"headers" not in job.draft.new.payload
    assert "goes without its captured context" in errors(caplog)[0].getMessage()
    caplog.clear()
    with pytest.raises(EncodeError, match="MAX_PAYLOAD_BYTES"):
        schedule(read, 600, "y" * 4_000)
    assert errors(caplog) == []


@pytest.mark.parametrize("returned", [None, ["a"], {"a": 1}, {1: "a"}, {"a": "\ud800"}])
def test_what_is_no_dict_of_texts_costs_the_context_and_not_the_job(
    travelling, read, caplog, monkeypatch, returned
):
    monkeypatch.setattr(Tenant, "capture", lambda self: returned)
    travelling("Tenant")

    job = schedule(read, 600)

    assert b"headers" not in job.draft.new.payload
    assert f"the context {HERE}.Tenant" in errors(caplog)[0].getMessage()


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["missing"], "cannot be imported: ImportError"),
        (["NoRestore"], r"has no restore\(\)"),
        (["NeedsArguments"], "cannot be made without arguments: TypeError"),
        (["BadName"], "whose name is 'Ten.ant'; give it a name"),
        (["Tenant", "SameName"], "which are both named 'tenant'"),
    ],
)
def test_a_wrong_path_stops_the_worker_before_it_starts(
    travelling, work, read, names, text
):
    travelling(*names)

    with pytest.raises(InvalidSettings, match=text):
        work()
    with pytest.raises(InvalidSettings, match=text):
        schedule(read, 0)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("zone", ["Asia/Shanghai", timezone.get_fixed_timezone(90)])
def test_language_and_time_zone_travel(travelling, work, queue_name, zone, is_async):
    def tell():
        now = timezone.localtime(timezone.now())
        return [translation.get_language(), now.utcoffset().total_seconds() / 3600]

    async def tell_async():
        return tell()

    task = delayed_task(queue=queue_name, keep_result=60, name="tell")(
        tell_async if is_async else tell
    )
    travelling("django_delayq.context.Locale")
    with translation.override("de"), timezone.override(zone):
        job = schedule(task, 0)
    other = schedule(task, 0)
    work(threads=1)

    hours = 8 if zone == "Asia/Shanghai" else 1.5
    assert job.wait(30) == ["de", hours]
    assert other.wait(30) == tell()


def test_a_zone_that_the_worker_does_not_know_costs_only_that(
    travelling, work, read, caplog, monkeypatch
):
    monkeypatch.setattr(
        "django_delayq.context.locale.Locale.capture",
        lambda self: {"language": "de", "zone": "Mars/Olympus"},
    )
    travelling("django_delayq.context.Locale")
    job = schedule(read, 0)
    work()

    assert job.wait(30) == "nobody"
    assert "Mars/Olympus" in errors(caplog)[0].getMessage()


@pytest.mark.parametrize("is_async", [False, True])
def test_receivers_hear_of_the_end_in_the_language_of_the_job(
    travelling, work, read, read_async, is_async
):
    told = []

    def hear(**named):
        told.append(translation.get_language())

    travelling("django_delayq.context.Locale")
    with translation.override("de"):
        schedule(read_async if is_async else read, 0)
    job_succeeded.connect(hear)
    try:
        work()
        wait_until(lambda: told, description="it is told")
    finally:
        job_succeeded.disconnect(hear)

    assert told == ["de"]
