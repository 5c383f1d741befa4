"""`cron` and `every`: what they accept, and which occurrences they have, on the days on which clocks change above all."""

import itertools
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import InvalidSchedule, cron, every
from django_delayq.jobs.occurrences import Every, datetime_of, ms_of, when_of

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
        ("@noon", "is not known. Known are @hourly, @daily, "),
        ("@dayly", "is not known. Did you mean '@daily'?"),
        ("5", "has 1 field;"),
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

    with pytest.raises(InvalidSchedule, match="does not have time zone 'Mars/Olympus'"):
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
def test_occurrences_in_words(when, words):
    assert when.words == words


@pytest.mark.parametrize(
    "when", [every(7), cron("@daily", tz="UTC"), cron("0 9 * * 1-5", tz="Asia/Tokyo")]
)
def test_occurrences_are_read_as_they_were_written(when):
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
def test_what_nobody_has_written_says_no_occurrences(body):
    with pytest.raises(InvalidSchedule):
        when_of(body)


def test_occurrences_end_where_time_does():
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
#: The occurrences at 02:30 of each of three days: (date, wall time), with the change on the second.
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
    """Compared with a look at each minute; and from anywhere in these days, not only from one occurrence to the next."""
    first, last = around(zone, which)
    minutes = (first + n * MINUTE for n in range((last - first) // MINUTE))
    wanted = [ms_of(each) for each in minutes if fits(each.astimezone(ZoneInfo(zone)))]
    when = cron(expression, tz=zone)

    found = list(
        itertools.takewhile(
            lambda occurrence: occurrence < ms_of(last),
            when.occurrences(ms_of(first) - 1),
        )
    )

    assert [str(datetime_of(each, ZoneInfo(zone))) for each in found] == [
        str(datetime_of(each, ZoneInfo(zone))) for each in wanted
    ]
    for start in range(ms_of(first), wanted[-1], 101 * 60_000 + 1_234):
        assert when.after(start) == next(each for each in wanted if each > start)


@pytest.mark.parametrize("zone", list(CHANGES))
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 3 * * *", "0,30 1,2,3 * * *"])
def test_no_occurrence_comes_twice_and_none_is_before_what_it_follows(zone, expression):
    when = cron(expression, tz=zone)
    for which in (0, 1):
        first, last = around(zone, which)
        for start in range(ms_of(first), ms_of(last), 53 * 60_000 + 777):
            assert start < when.after(start) <= start + 48 * 3_600_000


# One reading for occurrences and words.


@pytest.mark.parametrize(
    ("expression", "same", "words"),
    [
        ("0 3-3/4 * * *", "0 3 * * *", "At 03:00 every day"),
        ("5-5/10 * * * *", "5 * * * *", "At minute 5 of every hour"),
        ("0 0 7-07/2 * *", "0 0 7 * *", "At 00:00 on the seventh day of every month"),
        ("0 0 1 feb-feb/3 *", "0 0 1 FEB *", "At 00:00 on February 1"),
        ("0 0 * * sun-0/2", "0 0 * * SUN", "At 00:00 on Sunday"),
        ("0 1-2,3-3/4 * * *", "0 1-2,3 * * *", "At 01:00, 02:00, and 03:00 every day"),
    ],
)
def test_step_of_a_range_of_one_value_changes_nothing(expression, same, words):
    assert cron(expression, tz="UTC") == cron(same, tz="UTC")
    assert cron(expression, tz="UTC").words == f"{words} (UTC)"


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        (
            "5/10 * * * *",
            r"5/10 has a step and no range; write 5-59/10, or \*/10 to begin with 0",
        ),
        ("0 3/4 * * *", r"3/4 has a step .* 3-23/4"),
        ("0 0 L/2 * *", r"L/2 has a step .* 1-31/2"),
        ("0 0 LW/2 * *", r"LW/2 has a step"),
        ("0 0 1 JAN/2 *", r"JAN/2 has a step .* 1-12/2"),
        ("0 0 * * 1/2", r"1/2 has a step .* 1-6/2"),
        ("0 0 * * MON,TUE/2", r"TUE/2 has a step"),
        ("0 0 * * 5L/2", r"5L/2 has a step"),
        ("0 0 * * MON#1/2", r"MON#1/2 has a step"),
    ],
)
def test_step_of_a_single_value_is_refused_with_what_to_write(expression, instead):
    with pytest.raises(InvalidSchedule, match=instead):
        cron(expression)


@pytest.mark.parametrize(
    ("weekdays", "instead"),
    [
        ("MON-SUN", r"\*"),
        ("mon-sun", r"\*"),
        ("1-0", r"\*"),
        ("TUE-MON/1", r"\*"),
        ("MON-SUN/2", "MON,WED,FRI,SUN"),
        ("FRI-MON/2", "FRI,SUN"),
        ("fri-mon/9", "FRI"),
        ("FRI-MON", "FRI,SAT,SUN,MON"),
        ("SAT-SUN", "SAT,SUN"),
        ("7-1", "SUN,MON"),
    ],
)
def test_week_that_ends_before_it_begins_is_refused_with_what_to_write(
    weekdays, instead
):
    with pytest.raises(
        InvalidSchedule, match=f"as the week begins .*; write {instead}$"
    ):
        cron(f"0 0 * * {weekdays}")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        # Either of two days is enough, and one of them is any day.
        ("0 9 1-31 * 1", "At 09:00 every day"),
        ("0 9 15 * 0-6", "At 09:00 every day"),
        ("0 9 15 5 1-7", "At 09:00 every day in May"),
        # Both have to fit, and one of them is any day.
        ("0 9 1-31 * *", "At 09:00 every day"),
        ("0 9 */2 * 0-6", "At 09:00 on every second day of month"),
    ],
)
def test_words_of_days_that_are_all_days(expression, words):
    assert cron(expression, tz="UTC").words == f"{words} (UTC)"


DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
MONTHS += ["September", "October", "November", "December"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
ORDINALS += ["eighth", "ninth"]
#: The least and the greatest value of each field, and its names.
FIELDS = [
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name[:3].upper(): n for n, name in enumerate(MONTHS, 1)}),
    (0, 7, {name[:3].upper(): n for n, name in enumerate(DAYS)}),
]


@st.composite
def fields(draw, number):
    """Draw a field of an expression, and the values that it means as cron reads it."""
    least, greatest, names = FIELDS[number]
    values = st.integers(least, greatest)
    texts, meant = [], set()
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["*", "value", "range", "step"]))
        step = draw(st.integers(1, 9)) if kind in ("*", "step") else 1
        first, last = sorted([draw(values), draw(values)])
        if kind == "*":
            text, first, last = "*", least, greatest
        elif kind == "value":
            last = first
            text = draw(st.sampled_from([str(first), *_named(names, first)]))
        else:
            text = f"{first}-{last}"
        if kind in ("*", "step") and draw(st.booleans()):
            text += f"/{step}"
        else:
            step = 1
        texts.append(text)
        meant |= set(range(first, last + 1, step))
    return ",".join(texts), meant


def _named(names, value):
    return [name for name, each in names.items() if each == value]


@st.composite
def expressions(draw):
    """Draw an expression, its times of the day, and a function that says whether a date fits."""
    drawn = [draw(fields(number)) for number in range(5)]
    texts = [text for text, _ in drawn]
    minutes, hours, days, months, weekdays = (meant for _, meant in drawn)
    both = all if texts[2].startswith("*") or texts[4].startswith("*") else any

    def fits(at):
        weekday = {at.isoweekday(), at.isoweekday() % 7}
        return at.month in months and both((at.day in days, bool(weekday & weekdays)))

    return " ".join(texts), set(itertools.product(hours, minutes)), fits


def _parts(text):
    return re.split(r", and |, | and ", text)


def _ordinal(text):
    return ORDINALS.index(text) + 1 if text in ORDINALS else int(text[:-2])


def _value(text, names):
    return names.index(text) if text in names else int(text)


def read_values(text, least, greatest, names=()):
    """Read what words say of one field."""
    found = set()
    for part in _parts(text):
        if match := re.fullmatch(
            r"(?:every (?:(\w+) )?(?:minute|hour|day of month|month|day of week))?"
            r"(?: ?(?:from )?(\w+) through (\w+))?",
            part,
        ):
            nth, first, last = match.groups()
            step = _ordinal(nth) if nth else 1
            low = least if first is None else _value(first, names)
            high = greatest if last is None else _value(last, names)
            if low > high:
                high += 7
            found |= set(range(low, high + 1, step))
        elif match := re.fullmatch(r"the (\w+)(?: day of month)?", part):
            found.add(_ordinal(match[1]))
        else:
            found.add(_value(re.sub(r"^(minute|hour)s? ", "", part), names))
    return found


def read_times(text):
    """Read what words say of minutes and hours."""
    hours = range(24)
    if text == "at the start of every hour":
        return {(hour, 0) for hour in hours}
    if re.fullmatch(r"at \d\d:.*", text):
        return {tuple(map(int, each.split(":"))) for each in _parts(text[3:])}
    if match := re.fullmatch(
        r"(every.*) from (\d\d):(\d\d) through (\d\d):(\d\d)", text
    ):
        first, low, last, high = map(int, match.groups()[1:])
        minutes = read_values(match[1], low, high)
        return {(hour, each) for hour in range(first, last + 1) for each in minutes}
    minute, past, hour = text.removeprefix("at ").partition(" past ")
    minute = minute.removesuffix(" of every hour")
    hours = read_values(hour, 0, 23) if past else hours
    return {(each, m) for each in hours for m in read_values(minute, 0, 59)}


def read_days(text):
    """Read what words say of days; return whether a date fits."""
    months = set(range(1, 13))
    if match := re.fullmatch(r"on (\w+) (\d+)", text):
        return lambda at: (
            (at.month, at.day) == (MONTHS.index(match[1]) + 1, int(match[2]))
        )
    if match := re.fullmatch(r"on the (\w+) day of (?!month)(.*)", text):
        months = read_values(match[2], 1, 12, ["", *MONTHS])
        return lambda at: at.day == _ordinal(match[1]) and at.month in months
    text, _, month = re.sub(r"^in ", " in ", text).partition(" in ")
    if month:
        months = read_values(month, 1, 12, ["", *MONTHS])
    day, way, weekday = re.fullmatch(
        r"(?:on (.*?(?:of month|of month from \d+ through \d+)))?(?: ?(if it's|or))?(?: ?on (.*))?|every day",
        text,
    ).groups()
    days = set(range(1, 32)) if day is None else read_values(day, 1, 31)
    weekdays = (
        {d % 7 for d in read_values(weekday, 0, 7, DAYS)} if weekday else range(7)
    )
    both = any if way == "or" else all
    return lambda at: (
        at.month in months and both((at.day in days, at.isoweekday() % 7 in weekdays))
    )


def read_words(words):
    """Read the times of the day that words say, and a function that says whether a date fits."""
    text = words.removesuffix(" (UTC)")
    text = text[0].lower() + text[1:]
    time, _, day = re.sub(r" (?=on |in |every day)", "|", text, count=1).partition("|")
    return read_times(time), read_days(day)


YEARS = [datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(3 * 365)]


@given(drawn=expressions(), start=st.integers(0, 365))
def test_occurrences_and_words_say_what_an_expression_means(drawn, start):
    expression, times, fits = drawn
    when = cron(expression, tz="UTC")
    days = [day for day in YEARS if fits(day)]

    if when.words != "never":
        said_times, says = read_words(when.words)
        assert said_times == times
        assert [day for day in YEARS if says(day)] == days
    found = list(itertools.islice(when.occurrences(ms_of(YEARS[start]) - 1), 30))
    meant = (
        ms_of(day + timedelta(hours=hour, minutes=minute))
        for day in days
        if day >= YEARS[start]
        for hour, minute in sorted(times)
    )
    assert all(ours == theirs for ours, theirs in zip(found, meant, strict=False))
    assert len(found) == 30 or not days


# Zones that left out a day, and all others, against a look at each minute.


def reference(expression, zone, first, last):
    """Return the occurrences between two, in epoch ms, by a look at each minute."""
    wanted, seen = set(), set()
    parts = [
        set(range(60)) if each == "*" else {int(n) for n in each.split(",")}
        for each in expression.split()[:2]
    ]
    days = expression.split()[2]
    goes_on = expression.startswith("*") or expression.split()[1].startswith("*")

    def fits(wall):
        return (
            wall.minute in parts[0]
            and (wall.hour in parts[1])
            and (days == "*" or wall.day in {int(n) for n in days.split(",")})
        )

    if goes_on:
        at = first
        while at <= last:
            if fits(at.astimezone(zone)):
                wanted.add(ms_of(at))
            at += MINUTE
        return sorted(wanted)
    wall = first.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
    end = last.astimezone(zone).replace(tzinfo=None) + timedelta(days=2)
    while wall < end:
        if fits(wall):
            at, probe = None, wall
            while at is None:
                real = probe.replace(tzinfo=zone)
                back = real.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
                at = real.astimezone(UTC) if back == probe else None
                probe += MINUTE
            seen.add(ms_of(at))
        wall += MINUTE
    return sorted(each for each in seen if ms_of(first) <= each <= ms_of(last))


def compare(expression, name, first, days):
    last = first + timedelta(days=days)
    when = cron(f"{expression} * *", tz=name)
    occurrences = when.occurrences(ms_of(first) - 1)
    found = list(itertools.takewhile(lambda each: each <= ms_of(last), occurrences))
    wanted = reference(expression, ZoneInfo(name), first, last)
    shown = [str(datetime_of(each, ZoneInfo(name))) for each in found]
    assert shown == [str(datetime_of(each, ZoneInfo(name))) for each in wanted]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Pacific/Apia", datetime(2011, 12, 28, tzinfo=UTC)),
        ("Pacific/Kwajalein", datetime(1993, 8, 19, tzinfo=UTC)),
        ("Pacific/Kiritimati", datetime(1994, 12, 29, tzinfo=UTC)),
        # By seven hours, and by three, both ways.
        ("Antarctica/Vostok", datetime(1994, 1, 30, tzinfo=UTC)),
        ("Antarctica/Vostok", datetime(1994, 10, 30, tzinfo=UTC)),
        ("Antarctica/Casey", datetime(2010, 3, 3, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize(
    "expression",
    ["0 * *", "* 3 *", "30 * 21,30,31", "0 9 *", "0,30 0,12 *", "15 * 1,22"],
)
def test_no_occurrence_is_lost_where_a_clock_is_set_by_many_hours(
    name, first, expression
):
    compare(expression, name, first, 6)


@given(
    name=st.sampled_from(sorted(available_timezones())),
    first=st.datetimes(datetime(1973, 1, 1), datetime(2035, 1, 1)),
    expression=st.sampled_from(["0 * *", "* 2 *", "30 2 *", "0 0 *", "45 * 1,30"]),
)
def test_occurrences_of_any_zone_are_those_of_a_look_at_each_minute(
    name, first, expression
):
    compare(expression, name, first.replace(second=0, microsecond=0, tzinfo=UTC), 2)
