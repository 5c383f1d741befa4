"""What `captured` and `immediate` answer to those who read: the replies of an empty server."""

import re
from hashlib import sha1
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import (
    State,
    every,
    find_jobs,
    get_schedules,
    limits,
    pause,
    paused,
    periodic,
)
from django_delayq.testing import captured, immediate, mode
from django_delayq.testing.local_connection import InProcessServer
from django_delayq.testing.memory.memory_server import MemoryServer
from django_delayq.testing.recorder import Recorder, epoch_now_ms
from django_delayq.transport.clients import own_clients
from django_delayq.transport.script import LOADED
from tests.testing.samples import double


@pytest.mark.parametrize("reads", [captured, immediate])
def test_queues_limits_and_schedules_read_as_empty(reads: Any) -> None:
    with reads():
        double.schedule(900, 1)

        assert list(find_jobs()) == []
        assert limits("default") == []
        assert paused("default") == []
        assert get_schedules() == []
        with pytest.raises(NotImplementedError, match="use frozen_queue"):
            pause("default")


@pytest.mark.parametrize("reads", [captured, immediate])
def test_schedules_in_code_are_read(reads: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(double, "schedules", ())
    periodic(every(60), name="sums", args=[1])(double)

    with reads():
        (schedule,) = get_schedules()

    assert (schedule.name, schedule.is_enrolled) == ("sums", False)


@pytest.mark.django_db
@pytest.mark.parametrize("reads", [captured, immediate])
def test_pages_of_the_admin_are_shown(reads: Any) -> None:
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    to_see, seen = {"/admin/django_delayq/job/"}, set()

    with reads():
        while to_see:
            url = to_see.pop()
            seen.add(url)
            page = browser.get(url)
            assert page.status_code == 200, url
            links = re.findall(r'href="(/admin/django_delayq/[^"?#]*)"', page.text)
            to_see |= set(links) - seen

    assert len(seen) > 3


def test_empty_replies_are_those_of_the_scripts() -> None:
    """Each script that reads, with the arguments that its readers give."""
    recorder, asked = Recorder(), []
    memory = MemoryServer(lambda: epoch_now_ms() * 1_000)

    class Both:
        def execute(self, command: tuple[Any, ...]) -> Any:
            name = _script_of(command)
            real = memory.execute(command)
            if name in _READS:
                asked.append(name)
                answer = recorder.execute(command)
                assert _shape(answer) == _shape(real), name
            return real

        def conclude(self, reply: Any) -> None: ...

        async def aconclude(self, reply: Any) -> None: ...

    with mode.serving(InProcessServer.to(Both())):
        list(find_jobs())
        list(find_jobs(state=State.DEAD))
        assert find_jobs().count() == 0
        limits("default")
        paused("default")
        get_schedules()

    assert {
        "counts",
        "search",
        "pauses",
    } <= set(asked)


_READS = (
    "counts",
    "ahead",
    "search",
    "page",
    "held_names",
    "pauses",
    "schedules",
    "read_workers",
    "read_figures",
)


def _script_of(command: tuple[Any, ...]) -> str | None:
    if _text(command[0]) == "EVALSHA":
        sha = _text(command[1])
    elif _text(command[0]) == "EVAL":
        sha = sha1(_text(command[1]).encode()).hexdigest()
    else:
        return None
    return LOADED[sha].name if sha in LOADED else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _shape(reply: Any) -> Any:
    """A reply without the present time."""
    if isinstance(reply, list):
        return [_shape(each) for each in reply]
    return "now" if isinstance(reply, int) and reply > 1_000 else reply


@pytest.mark.parametrize("test", [1, 2])
def test_project_whose_tests_are_frozen(settings: Any, test: int) -> None:
    settings.DELAYQ = settings.DELAYQ | {"TEST": "frozen"}
    own_clients.forget()
    try:
        assert list(find_jobs()) == []
        job = double.using(priority=test).schedule(0, test)
        assert job.refresh() in (State.SCHEDULED, State.DUE)
        assert [found.id for found in find_jobs()] == [job.id]
        pause("default", until=60)
    finally:
        own_clients.forget()
