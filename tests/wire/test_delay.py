import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.exceptions import DelayqError, InvalidDelay
from django_delayq.redaction import show
from django_delayq.wire.delay import (
    MAX_DELAY_MS,
    MAX_START_TIME_MS,
    parse_delay,
    parse_timeout_ms,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LoudFloat(float):
    def __repr__(self) -> str:
        return f"LoudFloat({float(self)})"


@pytest.mark.parametrize(
    ("delay", "parsed"),
    [
        (0, "+0"),
        (5, "+5000"),
        (0.0, "+0"),
        (-0.0, "+0"),
        (1.5, "+1500"),
        (16.1, "+16100"),  # 16.1 * 1000 is 16100.000000000002
        (1.005, "+1005"),  # and 1.005 * 1000 is 1004.9999999999999
        (0.0001, "+1"),
        (5e-324, "+1"),
        (1e6, "+1000000000"),
        (Decimal("0.0015"), "+2"),
        (Decimal("1E+3"), "+1000000"),
        (Decimal("0.1234567890123456789012345678901234567890"), "+124"),
        (LoudFloat(2.5), "+2500"),
        (timedelta(0), "+0"),
        (timedelta(milliseconds=1), "+1"),
        (timedelta(microseconds=1), "+1"),
        (timedelta(microseconds=1001), "+2"),
        (timedelta(days=1, microseconds=1), "+86400001"),
        (timedelta(milliseconds=MAX_DELAY_MS), f"+{MAX_DELAY_MS}"),
        (MAX_DELAY_MS // 1000, f"+{MAX_DELAY_MS}"),
    ],
)
def test_relative_delay_is_milliseconds_rounded_up(delay: Any, parsed: str) -> None:
    assert parse_delay(delay) == parsed


@pytest.mark.parametrize(
    ("moment", "parsed"),
    [
        (EPOCH, "=0"),
        (datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), "=1893553445678"),
        (datetime(2030, 1, 2, 3, 4, 5, 678001, tzinfo=UTC), "=1893553445679"),
        (
            datetime(2030, 1, 2, 5, 4, 5, 678000, tzinfo=timezone(timedelta(hours=2))),
            "=1893553445678",
        ),
        (datetime(1900, 1, 1, tzinfo=UTC), "=0"),
        (datetime.max.replace(tzinfo=UTC), f"={MAX_START_TIME_MS}"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "=0"),
    ],
)
def test_datetime_is_epoch_milliseconds_rounded_up(
    moment: datetime, parsed: str
) -> None:
    assert parse_delay(moment) == parsed


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -1e-9,
        Decimal("-0.0001"),
        timedelta(microseconds=-1),
        timedelta.min,
        math.nan,
        math.inf,
        -math.inf,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        datetime(2030, 1, 1),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        timedelta.max,
        timedelta(milliseconds=MAX_DELAY_MS + 1),
        MAX_DELAY_MS // 1000 + 1,
        10**400,
        1e308,
        Decimal("1E+1000000"),
        True,
        None,
        "5",
        b"5",
        1j,
        date(2030, 1, 1),
    ],
)
def test_what_is_no_wait_is_refused_and_named(delay: Any) -> None:
    with pytest.raises(InvalidDelay) as refused:
        parse_delay(delay)

    assert show(delay) in str(refused.value)


def test_invalid_delay_is_a_value_error_of_ours() -> None:
    assert issubclass(InvalidDelay, DelayqError)
    assert issubclass(InvalidDelay, ValueError)


@given(
    st.timedeltas(
        min_value=timedelta(0), max_value=timedelta(milliseconds=MAX_DELAY_MS)
    )
)
def test_no_timedelta_is_cut_and_none_grows_by_a_millisecond(delay: timedelta) -> None:
    parsed = timedelta(milliseconds=int(parse_delay(delay)[1:]))

    assert delay <= parsed < delay + timedelta(milliseconds=1)


@given(st.floats(min_value=0, max_value=MAX_DELAY_MS / 1000))
def test_a_float_and_its_digits_mean_the_same(delay: float) -> None:
    assert parse_delay(delay) == parse_delay(Decimal(repr(delay)))


@given(st.datetimes(min_value=datetime(1970, 1, 1)))
def test_no_datetime_is_early(moment: datetime) -> None:
    parsed = parse_delay(moment.replace(tzinfo=UTC))

    exact_us = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert parsed[0] == "="
    assert (
        min(exact_us, MAX_START_TIME_MS * 1000)
        <= int(parsed[1:]) * 1000
        < exact_us + 1000
    )


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [
        (1.5, 1_500.0),
        (timedelta(seconds=1.5), 1_500.0),
        (-1, 0.0),
        (timedelta(seconds=-1), 0.0),
    ],
)
def test_timeout_is_read_in_ms_and_a_negative_one_is_0(timeout, ms):
    assert parse_timeout_ms(timeout) == ms
