"""Each row of docs/howto/migrate-from-celery-beat.md: what it says here has the occurrences that Celery's line means."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from django_delayq import cron, every
from django_delayq.features.schedules.periodic import periodic
from django_delayq.jobs import occurrences
from django_delayq.jobs.decorator import delayed_task
from django_delayq.jobs.registry import all_tasks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "migrate-from-celery-beat.md"
#: A Wednesday.
START = datetime(2026, 4, 1, 12, 34, tzinfo=UTC)
#: By Celery's line: the next occurrences in UTC, as Celery's documentation defines them.
MEANT = {
    "crontab()": ["04-01 12:35", "04-01 12:36", "04-01 12:37"],
    "crontab(minute=0, hour=0)": ["04-02 00:00", "04-03 00:00", "04-04 00:00"],
    'crontab(minute="*/15")': ["04-01 12:45", "04-01 13:00", "04-01 13:15"],
    'crontab(minute=0, hour="*/3,8-17")': [
        *(f"04-01 {hour}:00" for hour in (13, 14, 15, 16, 17, 18, 21)),
        "04-02 00:00",
    ],
    "crontab(hour=7, minute=30, day_of_week=1)": ["04-06 07:30", "04-13 07:30"],
    'crontab(minute=0, hour=17, day_of_week="thu,fri")': [
        "04-02 17:00",
        "04-03 17:00",
        "04-09 17:00",
    ],
    'crontab(minute=0, hour=0, day_of_month="2")': ["04-02 00:00", "05-02 00:00"],
    'crontab(minute=0, hour=0, day_of_month="1-7,15-21")': [
        *(f"04-{day:02} 00:00" for day in (2, 3, 4, 5, 6, 7, 15, 16)),
    ],
    "crontab(minute=0, hour=0, day_of_month=11, month_of_year=5)": [
        "05-11 00:00",
        "05-11 00:00",
    ],
    'crontab(minute=0, hour=0, month_of_year="*/3")': [
        *(f"04-{day:02} 00:00" for day in range(2, 31)),
        "07-01 00:00",
    ],
    'crontab(minute=0, hour=9, day_of_week="mon", day_of_month="1-7")': [
        "04-06 09:00",
        "05-04 09:00",
        "06-01 09:00",
    ],
    "timedelta(minutes=5)": ["04-01 12:35", "04-01 12:40", "04-01 12:45"],
    "timedelta(days=1)": ["04-02 04:00", "04-03 04:00"],
    "timedelta(weeks=1)": ["04-06 04:00", "04-13 04:00"],
}


def rows(heading):
    """Return the cells of the first table below a heading."""
    text = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| `") or line.startswith("| the key")
    ]


def first_code(cell):
    return re.findall(r"`([^`]+)`", cell)[0]


WHEN = {first_code(celery): here for celery, here in rows("When")}


def test_every_row_is_tried():
    assert WHEN.keys() - MEANT.keys() == {'solar("sunset", lat, lon)'}
    assert MEANT.keys() <= WHEN.keys()


@pytest.mark.parametrize("line", list(MEANT))
def test_occurrences_are_those_that_celery_means(line, settings):
    settings.TIME_ZONE = "UTC"
    when = eval(
        first_code(WHEN[line]), {"cron": cron, "every": every, "timedelta": timedelta}
    )

    found = when.next(len(MEANT[line]), after=START)

    assert [f"{each:%m-%d %H:%M}" for each in found] == MEANT[line]


def test_options_of_an_entry_are_options_here():
    for celery, here in rows("Options"):
        option = re.match(r'`"options": \{"(\w+)"', celery)
        given = re.match(r"`(\w+)=([^`]+)`", here)
        if option is None or given is None:
            continue
        assert given[1] == option[1]
        options = {given[1]: eval(given[2])}

        @periodic(every(5), **options)
        @delayed_task(name=f"tests.beat.{option[1]}")
        def task():
            """Do nothing."""

        assert getattr(task.schedules[0].options, option[1]) == options[option[1]]
    assert len(all_tasks()) >= 4


def test_last_friday_is_written_as_the_page_says():
    found = cron("0 0 * * 5L", tz="UTC").next(2, after=START)

    assert "`5L` for the last Friday" in PAGE.read_text("utf-8")
    assert [f"{each:%m-%d %a}" for each in found] == ["04-24 Fri", "05-29 Fri"]
    assert occurrences.cron is cron
