"""`cron` and `every`: what they accept, and which moments they have, on the days on which clocks change above all."""

import itertools
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from django_delayq import InvalidSchedule, cron, every
from django_delayq.jobs.moments import Every, datetime_of, ms_of, when_of

MINUTE = timedelta(minutes=1)

# What they accept.


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("* * * * * *", "has six fields, and five are read"),
        ("*/5 * * * * 1-5", r"every\(timedelta\(seconds=…\)\) has"),
        ("* * * *", "has 4 fields; give five"),
        ("", "has 0 fields"),
        ("60 * * * *", "cannot be read: Bad minute"),
        ("* 24 * * *", "Bad hour"),
        ("* * 32 * *", "Bad day-of-month"),
        ("* * * 13 *", "Bad month"),
        ("* * * * 8", "Bad day-of-week"),
        ("0 0 31 2 8", "Bad day-of-week"),
        ("*/0 * * * *", "Bad minute"),
        ("a b c d e", "cannot be read"),
        ("@noon", "has 1 fields"),
        ("٣ * * * *", "beyond ASCII"),
        ("0," * 300 + "0 * * * *", "characters is too long"),
    ],
)
def test_text_that_is_no_cron_is_refused(expression, told):
    with pytest.raises(InvalidSchedule, match=told):
        cron(expression)


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", timedelta(1)])
def test_cron_of_something_else_is_refused(expression):
    with pytest.raises(InvalidSchedule, match="takes text such as"):
        cron(expression)


@pytest.mark.parametrize("tz", [5, "", timezone(timedelta(hours=1)), object()])
def test_zone_without_a_name_is_refused(tz):
    with pytest.raises(InvalidSchedule, match="give the name of a time zone"):
        cron("* * * * *", tz=tz)


def test_zone_may_be_a_name_or_a_zone(settings):
    settings.TIME_ZONE = "Asia/Tokyo"

    assert cron("0 9 * * *", tz=ZoneInfo("Europe/Berlin")).tz == "Europe/Berlin"
    assert cron("0 9 * * *", tz=UTC).tz == "UTC"
    assert cron("0 9 * * *").zone_name == "Asia/Tokyo"
    assert cron("0 9 * * *").next(1)[0].utcoffset() == timedelta(hours=9)


def test_zone_that_the_machine_lacks_is_told_by_check_and_not_before():
    lost = cron("0 9 * * *", tz="Mars/Olympus")

    with pytest.raises(InvalidSchedule, match="knows no time zone 'Mars/Olympus'"):
        lost.check()


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6,9 *"])
def test_cron_that_never_comes_is_told_by_check(expression):
    never = cron(expression, tz="UTC")

    assert never.next(3) == []
    assert never.after(0) is None
    with pytest.raises(InvalidSchedule, match="never comes"):
        never.check()


@pytest.mark.parametrize(
    "interval",
    [
        0,
        -5,
        0.5,
        timedelta(0),
        timedelta(seconds=-1),
        timedelta(milliseconds=999),
        timedelta(days=40_000),
        timedelta(seconds=1, microseconds=1),
        1.00001,
        float("nan"),
        float("inf"),
        1e300,
        True,
        None,
        "5m",
        Decimal(5),
        datetime(2026, 1, 1),
    ],
)
def test_interval_that_is_none_is_refused(interval):
    with pytest.raises(InvalidSchedule, match=r"every\(\)? ?"):
        every(interval)


def test_interval_counts_from_the_epoch():
    five = every(timedelta(minutes=5))

    assert five == every(300)
    assert five.after(0) == 300_000
    assert five.after(299_999) == 300_000
    assert five.after(300_000) == 600_000


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (every(1), "Every second"),
        (every(300), "Every 5 minutes"),
        (every(90), "Every 1 minute, 30 seconds"),
        (every(timedelta(days=1)), "Every day"),
        (cron("0 9 * * 1-5", tz="UTC"), "At 09:00 on Monday through Friday (UTC)"),
        (cron("0 0 31 2 *", tz="UTC"), "never"),
        (
            cron("0 9 1,15 * mon", tz="UTC"),
            "At 09:00 on the first and the 15th day of month or on Monday (UTC)",
        ),
        (
            cron("0 9 */2 * mon", tz="UTC"),
            "At 09:00 on every second day of month if it's on Monday (UTC)",
        ),
    ],
)
def test_moments_in_words(when, words):
    assert when.words == words


@pytest.mark.parametrize(
    "when", [every(7), cron("@daily", tz="UTC"), cron("0 9 * * 1-5", tz="Asia/Tokyo")]
)
def test_moments_are_read_as_they_were_written(when):
    assert when_of(when.as_json()) == when


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        [],
        {"every": 0},
        {"every": -1},
        {"every": "5"},
        {"cron": "* *", "tz": "UTC"},
    ],
)
def test_what_nobody_has_written_says_no_moments(body):
    with pytest.raises(InvalidSchedule):
        when_of(body)


def test_moments_end_where_time_does():
    assert Every(10**15).after(0) is None
    assert (
        cron("0 0 1 1 *", tz="UTC").after(ms_of(datetime(9999, 12, 31, tzinfo=UTC)))
        is None
    )


# Clock changes.

#: A day on which the clock is set forward, and one on which it is set back.
CHANGES = {
    "Europe/Berlin": ((2026, 3, 29), (2026, 10, 25)),
    "Pacific/Chatham": ((2026, 9, 26), (2026, 4, 4)),
    "Australia/Lord_Howe": ((2026, 10, 3), (2026, 4, 4)),
    "Antarctica/Troll": ((2026, 3, 29), (2026, 10, 25)),
}
#: The moments at 02:30 of each of three days: (date, wall time), with the change on the second.
FIXED = {
    ("Europe/Berlin", 0): ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"],
    ("Europe/Berlin", 1): ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"],
    # Clocks go from 2:45 to 3:45, and from 3:45 to 2:45: 2:30 is always there, once.
    ("Pacific/Chatham", 0): ["26 02:30+1245", "27 02:30+1245", "28 02:30+1345"],
    ("Pacific/Chatham", 1): ["04 02:30+1345", "05 02:30+1345", "06 02:30+1245"],
    # By half an hour: from 2:00 to 2:30, and from 2:00 to 1:30.
    ("Australia/Lord_Howe", 0): ["03 02:30+1030", "04 02:30+1100", "05 02:30+1100"],
    ("Australia/Lord_Howe", 1): ["04 02:30+1100", "05 02:30+1030", "06 02:30+1030"],
    # By two hours: from 1:00 to 3:00, and from 3:00 to 1:00.
    ("Antarctica/Troll", 0): ["28 02:30+0000", "29 03:00+0200", "30 02:30+0200"],
    ("Antarctica/Troll", 1): ["24 02:30+0200", "25 02:30+0200", "26 02:30+0000"],
}


def around(zone, which):
    """Return the beginning and the end of three days with a change in the middle, in UTC."""
    noon = datetime(*CHANGES[zone][which], 12, tzinfo=UTC)
    return noon - timedelta(days=1), noon + timedelta(days=2)


@pytest.mark.parametrize(("zone", "which"), list(FIXED))
def test_fixed_time_comes_once_a_day(zone, which):
    day = datetime(*CHANGES[zone][which], tzinfo=ZoneInfo(zone))
    local = timedelta(days=zone not in ("Pacific/Chatham", "Australia/Lord_Howe"))
    start = day - local

    found = cron("30 2 * * *", tz=zone).next(3, after=start)

    assert [f"{each:%d %H:%M%z}" for each in found] == FIXED[zone, which]


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("0 * * * *", lambda wall: wall.minute == 0),
        ("15 * * * *", lambda wall: wall.minute == 15),
        ("45 * * * *", lambda wall: wall.minute == 45),
        ("*/30 * * * *", lambda wall: wall.minute % 30 == 0),
        ("* * * * *", lambda wall: True),
        ("30 */2 * * *", lambda wall: wall.minute == 30 and wall.hour % 2 == 0),
        ("*/20 2 * * *", lambda wall: wall.minute % 20 == 0 and wall.hour == 2),
    ],
)
@pytest.mark.parametrize(("zone", "which"), list(FIXED))
def test_what_goes_on_all_day_comes_whenever_its_wall_time_does(
    zone, which, expression, fits
):
    """Compared with a look at each minute; and from anywhere in these days, not only from one moment to the next."""
    first, last = around(zone, which)
    minutes = (first + n * MINUTE for n in range((last - first) // MINUTE))
    wanted = [ms_of(each) for each in minutes if fits(each.astimezone(ZoneInfo(zone)))]
    when = cron(expression, tz=zone)

    found = list(
        itertools.takewhile(
            lambda moment: moment < ms_of(last), when.moments(ms_of(first) - 1)
        )
    )

    assert [str(datetime_of(each, ZoneInfo(zone))) for each in found] == [
        str(datetime_of(each, ZoneInfo(zone))) for each in wanted
    ]
    for start in range(ms_of(first), wanted[-1], 101 * 60_000 + 1_234):
        assert when.after(start) == next(each for each in wanted if each > start)


@pytest.mark.parametrize("zone", list(CHANGES))
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 3 * * *", "0,30 1,2,3 * * *"])
def test_no_moment_comes_twice_and_none_is_before_what_it_follows(zone, expression):
    when = cron(expression, tz=zone)
    for which in (0, 1):
        first, last = around(zone, which)
        for start in range(ms_of(first), ms_of(last), 53 * 60_000 + 777):
            assert start < when.after(start) <= start + 48 * 3_600_000
