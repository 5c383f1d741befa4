from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from django_delayq.codecs.java_text import (
    decimal_plain_text,
    decimal_text,
    double_text,
    epoch_millis,
    from_surrogates,
    iso_millis,
    to_surrogates,
    utf16_units,
)
from django_delayq.codecs.values import Float
from django_delayq.exceptions import EncodeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1e23, "1.0E23"),
        (2e-323, "2.0E-323"),
        (float("nan"), "NaN"),
        (Float(0.1), "0.1"),
        (Float(3.4028235e38), "3.4028235E38"),
        (Float(1e-45), "1.4E-45"),
        (Float(33554432), "3.3554432E7"),
        (Float(2147483648), "2.1474836E9"),
    ],
)
def test_double_is_printed_as_java_does(value, text):
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text", "plain"),
    [
        ("12.340", "12.340", "12.340"),
        ("1E+5", "1E+5", "100000"),
        ("-1E-20", "-1E-20", "-0.00000000000000000001"),
        ("0.00", "0.00", "0.00"),
        ("-0.0", "0.0", "0.0"),
        ("0E+5", "0E+5", "0"),
    ],
)
def test_decimal_is_printed_as_java_does(value, text, plain):
    assert decimal_text(Decimal(value)) == text
    assert decimal_plain_text(Decimal(value)) == plain


@pytest.mark.parametrize("value", ["1E+999999", "1E-999999"])
def test_decimal_that_would_fill_the_memory_is_refused(value):
    with pytest.raises(EncodeError, match="too long"):
        decimal_plain_text(Decimal(value))


def test_date_is_cut_down_to_the_millisecond():
    moment = datetime(1969, 12, 31, 23, 59, 59, 999900, tzinfo=UTC)

    assert epoch_millis(moment) == -1
    assert iso_millis(moment) == "1969-12-31T23:59:59.999Z"


def test_date_is_written_in_utc():
    moment = datetime(2024, 1, 1, 8, tzinfo=timezone(timedelta(hours=8)))

    assert iso_millis(moment) == "2024-01-01T00:00:00.000Z"


def test_naive_date_is_refused():
    with pytest.raises(EncodeError, match="no time zone"):
        epoch_millis(datetime(2024, 1, 1))


@pytest.mark.parametrize(
    ("text", "units", "pairs"),
    [
        ("", 0, ""),
        ("订", 1, "订"),
        ("a😀", 3, "a\ud83d\ude00"),
        ("\ud800x", 2, "\ud800x"),
    ],
)
def test_text_is_counted_and_split_in_utf16_units(text, units, pairs):
    assert utf16_units(text) == units
    assert to_surrogates(text) == pairs
    assert from_surrogates(pairs) == text
