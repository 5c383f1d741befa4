"""``manage.py delayq_pause`` and ``delayq_resume``."""

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_delayq import pause, paused
from tests.jobs import samples

ADD = samples.add.name


def call(name: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out)
    return out.getvalue()


def test_pause_says_what_is_paused_and_lists_it(queue: str) -> None:
    assert call("delayq_pause") == "nothing is paused\n"

    said = call("delayq_pause", queue, "--reason", "migration")

    assert said.startswith(f"queue {queue} has been paused since ")
    assert said.endswith(": migration\n")
    assert call("delayq_pause") == said
    assert call("delayq_resume", queue) == f"queue {queue} is resumed\n"
    assert call("delayq_resume", queue) == f"queue {queue} was not paused\n"


def test_task_is_paused_everywhere_or_on_one_queue(queue: str) -> None:
    said = call("delayq_pause", "--task", ADD)
    assert [line.split()[:4] for line in said.splitlines()] == [
        ["task", ADD, "on", "queue"]
    ] * 2

    assert (
        call("delayq_resume", queue, "--task", ADD)
        == f"task {ADD} is resumed on queue {queue}\n"
    )
    assert [each.queue for each in paused()] == [f"{queue}-2"]
    assert call("delayq_resume", "--task", ADD) == f"task {ADD} is resumed\n"


@pytest.mark.parametrize(
    ("text", "span"),
    [("90", 90), ("90s", 90), ("1.5 m", 90), ("2h", 7_200), ("1D", 86_400)],
)
def test_pause_for_a_time(queue: str, text: str, span: int) -> None:
    call("delayq_pause", queue, "--for", text)

    (found,) = paused()
    assert found.until is not None
    assert round((found.until - found.since).total_seconds()) == span


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Chatham"])
def test_moment_without_an_offset_is_in_the_projects_time_zone(
    queue: str, settings: Any, zone: str
) -> None:
    settings.TIME_ZONE = zone
    moment = timezone.make_naive(timezone.now() + timedelta(days=1)).replace(
        microsecond=0
    )

    call("delayq_pause", queue, "--until", moment.isoformat(" "))

    (found,) = paused()
    # Of the hour that comes twice where clocks are set back, the text means the first.
    assert found.until == timezone.make_aware(moment.replace(fold=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["delayq_pause", "NAME", "mails"], "'mails' is not configured"),
        (["delayq_pause", "--task", ADD + "s"], f"Did you mean '{ADD}'"),
        (["delayq_pause", "--reason", "x"], "Name what to pause"),
        (["delayq_pause", "--for", "1h"], "Name what to pause"),
        (["delayq_pause", "NAME", "--for", "0"], "longer than 0 s"),
        (["delayq_pause", "NAME", "--for", "soon"], "not a time such as"),
        (["delayq_pause", "NAME", "--for", "-5"], "not a time such as"),
        (["delayq_pause", "NAME", "--until", "2020-01-01"], "in the past"),
        (["delayq_pause", "NAME", "--until", "9:00"], "not a time such as"),
        (
            ["delayq_pause", "NAME", "--until", "2100-01-01", "--for", "1h"],
            "not allowed with",
        ),
        (["delayq_resume"], "Name what to resume"),
        (["delayq_resume", "NAME", "mails"], "'mails' is not configured"),
        (["delayq_resume", "--task", ADD + "s"], f"Did you mean '{ADD}'"),
    ],
)
def test_bad_call_changes_nothing_and_says_what_to_do(
    queue: str, arguments: list[str], message: str
) -> None:
    if arguments[0] == "delayq_resume":
        pause(queue)
    before = paused()

    with pytest.raises(CommandError, match=message):
        call(*(queue if each == "NAME" else each for each in arguments))

    assert paused() == before


def test_server_that_is_away_is_explained(queue: str, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "redis://localhost:1/0"}

    with pytest.raises(CommandError, match="refused"):
        call("delayq_pause", queue)
