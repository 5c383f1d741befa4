"""Middleware around the call of a task, in workers inside this process."""

import asyncio
import threading

import pytest
from django.core.exceptions import MiddlewareNotUsed
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

from django_delayq import (
    Cancel,
    LeaseLost,
    Retry,
    TimeLimitExceeded,
    conf,
    current_job,
    delayed_task,
    schedule,
)
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSettings, JobFailed
from django_delayq.jobs.middleware import compose
from tests.polling import wait_until

HERE = __name__
seen = []


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


@pytest.fixture
def within(configure, work):
    """Start a worker whose tasks run within some functions of this module."""

    def within(*names, **options):
        settings = configure()
        settings["MIDDLEWARE"] = [f"{HERE}.{name}" for name in names]
        conf.get_settings.cache_clear()
        return work(**options)

    yield within
    conf.get_settings.cache_clear()


def outer(call):
    def middleware(job):
        seen.append(("outer", "before", job, threading.get_ident()))
        value = call(job)
        seen.append(("outer", "after", value, threading.get_ident()))
        return f"<{value}>"

    return middleware


def inner(call):
    def middleware(job):
        seen.append(("inner", "before", job, threading.get_ident()))
        value = call(job)
        seen.append(("inner", "after", value, threading.get_ident()))
        return f"({value})"

    return middleware


@sync_and_async_middleware
def both(call):
    if asyncio.iscoroutinefunction(call):

        async def middleware(job):
            seen.append(("both", "async", job, threading.get_ident()))
            return f"[{await call(job)}]"

    else:

        def middleware(job):
            seen.append(("both", "sync", job, threading.get_ident()))
            return f"[{call(job)}]"

    return middleware


@async_only_middleware
def only_async(call):
    async def middleware(job):
        seen.append(("only_async", "async", job, threading.get_ident()))
        await asyncio.sleep(0)
        return f"{{{await call(job)}}}"

    return middleware


class OfAClass:
    def __init__(self, call):
        self.call = call

    def __call__(self, job):
        seen.append(("class", "before", job, threading.get_ident()))
        return self.call(job)


def not_used(call):
    raise MiddlewareNotUsed


def raises_before(call):
    def middleware(job):
        raise ValueError("before")

    return middleware


def raises_after(call):
    def middleware(job):
        call(job)
        raise ValueError("after")

    return middleware


@sync_and_async_middleware
def replaces(call):
    if asyncio.iscoroutinefunction(call):

        async def middleware(job):
            try:
                return await call(job)
            except ValueError as error:
                raise KeyError("replaced") from error

    else:

        def middleware(job):
            try:
                return call(job)
            except ValueError as error:
                raise KeyError("replaced") from error

    return middleware


def swallows(call):
    def middleware(job):
        return "instead"

    return middleware


def decides(call):
    def middleware(job):
        raise Cancel("not on Sundays")

    return middleware


def tasks(queue_name, body):
    """Make a sync and an async task of one body."""

    def run():
        seen.append(("task", "runs", current_job(), threading.get_ident()))
        return body()

    async def run_async():
        seen.append(("task", "runs", current_job(), threading.get_ident()))
        return body()

    options = {"queue": queue_name, "keep_result": 60, "max_attempts": 1}
    return {
        False: delayed_task(name="sync", **options)(run),
        True: delayed_task(name="async", **options)(run_async),
    }


def names():
    return [each[:2] for each in seen]


MODES = pytest.mark.parametrize("is_async", [False, True])


@MODES
@pytest.mark.parametrize("time_limit", [None, 30])
def test_middleware_is_around_the_task_the_first_outermost(
    within, queue_name, is_async, time_limit
):
    task = tasks(queue_name, lambda: "value")[is_async].using(time_limit=time_limit)
    within("outer", "not_used", "inner", "both", "only_async", "OfAClass")

    job = schedule(task, 0)

    assert job.wait(30) == "<([{value}])>"
    assert names() == [
        ("outer", "before"),
        ("inner", "before"),
        ("both", "async" if is_async else "sync"),
        ("only_async", "async"),
        ("class", "before"),
        ("task", "runs"),
        ("inner", "after"),
        ("outer", "after"),
    ]
    assert {each[2] for each in seen[:6]} == {job}


@MODES
def test_what_can_do_both_stays_where_the_task_runs(within, queue_name, is_async):
    within("both")

    assert schedule(tasks(queue_name, lambda: 1)[is_async], 0).wait(30) == "[1]"

    assert len({thread for *_, thread in seen}) == 1


@MODES
@pytest.mark.parametrize("name", ["raises_before", "raises_after", "replaces"])
def test_one_that_raises_fails_the_task_and_the_error_names_it(
    within, queue_name, is_async, name
):
    def fail():
        if name == "replaces":
            raise ValueError("of the task")

    within("outer", name, "inner")
    job = schedule(tasks(queue_name, fail)[is_async], 0)

    with pytest.raises(JobFailed, match=f"raised in middleware {HERE}.{name}"):
        job.wait(30)

    job.refresh()
    assert job.state is State.DEAD
    assert job.error["error"].endswith(f" (raised in middleware {HERE}.{name})")
    assert job.error["error"].count("raised in middleware") == 1
    assert ("task", "runs") in names() or name == "raises_before"


@MODES
def test_an_error_of_the_task_is_not_that_of_its_middleware(
    within, queue_name, is_async
):
    def fail():
        raise ValueError("of the task")

    within("outer", "both", "only_async")
    job = schedule(tasks(queue_name, fail)[is_async], 0)

    with pytest.raises(JobFailed, match=r"ValueError: of the task$"):
        job.wait(30)


@MODES
def test_one_that_does_not_call_is_the_success_of_the_task(
    within, queue_name, is_async
):
    within("swallows")
    job = schedule(tasks(queue_name, lambda: "value")[is_async], 0)

    assert job.wait(30) == "instead"
    assert seen == []


@MODES
@pytest.mark.parametrize("is_of_task", [False, True])
def test_decisions_pass_through(within, queue_name, is_async, is_of_task):
    def decide():
        if current_job().attempts == 0:
            raise Retry(0)
        raise Cancel("by the task")

    task = tasks(queue_name, decide)[is_async].using(max_attempts=3)
    within("outer", "both", *([] if is_of_task else ["decides"]))
    job = schedule(task, 0)

    text = "by the task" if is_of_task else "not on Sundays"
    with pytest.raises(JobFailed, match=text) as failed:
        job.wait(30)

    assert "middleware" not in str(failed.value)
    assert job.refresh() is State.CANCELLED


@MODES
def test_its_time_counts_towards_the_time_limit(within, queue_name, is_async):
    task = tasks(queue_name, lambda: None)[is_async].using(time_limit=0.1)
    within("takes_long")
    job = schedule(task, 0)

    with pytest.raises(JobFailed, match=TimeLimitExceeded.__name__):
        job.wait(30)

    assert seen == []


@sync_and_async_middleware
def takes_long(call):
    if asyncio.iscoroutinefunction(call):

        async def middleware(job):
            await asyncio.sleep(60)

    else:

        def middleware(job):
            end = threading.Event()
            while True:
                end.wait(0.01)

    return middleware


def test_lost_leases_pass_through(within, queue_name):
    def lose():
        raise LeaseLost("as told")

    within("outer")
    job = schedule(tasks(queue_name, lose)[False], 0)

    with pytest.raises(JobFailed, match=r"LeaseLost: as told$"):
        job.wait(30)


def test_without_settings_there_is_nothing_around_a_call(configure):
    configure()

    assert compose(conf.get_settings()) is None


not_callable = "text"


def makes_nothing(call):
    return None


def fails_to_make(call):
    raise ValueError("no such table")


@async_only_middleware
def makes_sync(call):
    return lambda job: call(job)


def makes_async(call):
    async def middleware(job):
        return call(job)

    return middleware


def for_nobody(call):
    return call


for_nobody.sync_capable = False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing", "cannot be imported: ImportError"),
        ("not_callable", "is 'text'; name a function"),
        ("makes_nothing", "returned None; it has to return a function"),
        ("fails_to_make", "raised ValueError: no such table"),
        (
            "makes_sync",
            "given a call that is async, and returned a function that is sync",
        ),
        (
            "makes_async",
            "given a call that is sync, and returned a function that is async",
        ),
        ("for_nobody", "sync_capable and async_capable are both False"),
    ],
)
def test_a_wrong_path_stops_the_worker_before_it_starts(within, name, text):
    with pytest.raises(InvalidSettings, match=text) as raised:
        within(name)

    assert f"DELAYQ['MIDDLEWARE'] names '{HERE}.{name}'" in str(raised.value)


def test_the_thread_goes_on_after_middleware_that_raises(within, queue_name):
    within("raises_before", threads=1)
    jobs = [schedule(tasks(queue_name, lambda: None)[False], 0) for _ in range(3)]

    for job in jobs:
        wait_until(
            lambda job=job: job.refresh() is State.DEAD, description="it is buried"
        )
