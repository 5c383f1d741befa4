"""Moments that commands show: for people in the project's time zone, for programs in UTC."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core import checks

from django_delayq import cron, pause, store_schedule
from django_delayq.server_checks import check_server
from tests.jobs import samples
from tests.jobs.adding import add
from tests.jobs.hand import Hand
from tests.management.conftest import Call, serve
from tests.management.test_jobs_command import one_dead

ANY = re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d")
#: Until 1986, the zone was another quarter of an hour from UTC.
FOR_PEOPLE = re.compile(
    r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})? \+05(?:45|30)(?![\d:])"
)
FOR_PROGRAMS = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00(?![\d:])")


@pytest.fixture(autouse=True, params=[True, False], ids=["tz", "naive"])
def _in_kathmandu(settings: Any, request: pytest.FixtureRequest) -> None:
    """Whether moments of the database have a zone is another question."""
    settings.USE_TZ = request.param
    settings.TIME_ZONE = "Asia/Kathmandu"


def moments(text: str, form: re.Pattern[str]) -> list[str]:
    """Return the moments in a text, each of which has this form."""
    # Lines may be wrapped within a moment.
    text = " ".join(text.split())
    found = form.findall(text)
    assert len(found) == len(ANY.findall(text)) > 0, text
    return found


def test_delayq_pause(queue: str, call: Call) -> None:
    said = call("delayq_pause", queue, "--until", "2100-01-01 12:00")

    since, until = moments(said.out, FOR_PEOPLE)
    assert until == "2100-01-01 12:00:00 +0545"
    assert moments(call("delayq_pause").out, FOR_PEOPLE) == [since, until]


def test_delayq_schedules(queue: str, call: Call) -> None:
    nightly = cron("0 3 * * *", tz="Europe/Berlin")
    store_schedule("nightly", samples.add.name, nightly, args=[1], queue=queue)

    listed = moments(call("delayq_schedules").out, FOR_PEOPLE)
    for_programs = moments(call("delayq_schedules", "--json").out, FOR_PROGRAMS)
    call("delayq_schedules", "--pause", "nightly")
    paused = moments(call("delayq_schedules").out, FOR_PEOPLE)
    (resumed,) = moments(
        call("delayq_schedules", "--resume", "nightly").out, FOR_PEOPLE
    )

    assert len(listed) == 5
    # 03:00 in Berlin.
    assert listed[0][11:16] in ("06:45", "07:45")
    assert {text[11:16] for text in for_programs} <= {"01:00", "02:00"}
    assert len(paused) == 6
    assert resumed == listed[0]


def test_delayq_jobs(queue: str, hand: Hand, call: Call) -> None:
    job = one_dead(queue, hand, 1)
    add(queue, 2)

    assert moments(call("delayq_jobs", "show", job.id).out, FOR_PEOPLE)
    assert moments(call("delayq_jobs", "show", job.id, "--json").out, FOR_PROGRAMS)
    assert moments(call("delayq_jobs", "list", "--json").out, FOR_PROGRAMS)


def test_moment_that_has_passed(queue: str, call: Call) -> None:
    job = add(queue, 1)

    said = call("delayq_jobs", "reschedule", job.id, "--at", "2020-01-01 12:00")

    assert moments(said.err, FOR_PEOPLE) == ["2020-01-01 12:00:00 +0545"]


def test_delayq_status(queue: str, hand: Hand, call: Call) -> None:
    serve(hand, queue, uptime_ms=60_000)
    pause(queue, until=timedelta(hours=1))

    assert len(moments(call("delayq_status").out, FOR_PEOPLE)) == 2
    assert moments(call("delayq_status", "--json").out, FOR_PROGRAMS)


def test_check_of_the_server(queue: str) -> None:
    pause(queue)

    (found,) = (each for each in check_server() if "has been paused since" in each.msg)

    assert isinstance(found, checks.CheckMessage)
    assert moments(found.msg, FOR_PEOPLE)
