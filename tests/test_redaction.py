"""What people are shown of values that may be secret, long, or costly to look at."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.redaction import (
    Password,
    SecretUrl,
    conceal,
    redact,
    redact_url,
    show,
)

SECRET = "hunter2"

WELL_FORMED = [
    ("redis://h:6379/0", "redis://h:6379/0"),
    ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
    ("rediss://app:hunter2@h/1", "rediss://app:***@h/1"),
    ("redis://app:hun%40ter2hunter2@h/1", "redis://app:***@h/1"),
    ("redis://app:p@ss@hunter2@h/1", "redis://app:***@h/1"),
    ("redis://hunter2@h", "redis://***@h"),
    ("redis://:hunter2@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
    ("redis://[::1]:6379", "redis://[::1]:6379"),
    ("redis://h?password=hunter2", "redis://h?password=***"),
    ("redis://h/0?db=1&PassWord=hunter2&x=1", "redis://h/0?db=1&PassWord=***&***"),
    ("redis://h/0?password=a&hunter2=&db=1", "redis://h/0?password=***&***&db=1"),
    ("redis://h?p%61ssword=hunter2", "redis://h?p%61ssword=***"),
    ("redis://h?password=a#hunter2", "redis://h?password=***"),
    ("redis://h?password=p@hunter2&db=1", "redis://h?password=***&db=1"),
    (
        "rediss://h?ssl_keyfile=/k&ssl_password=hunter2",
        "rediss://h?ssl_keyfile=/k&ssl_password=***",
    ),
    (
        "redis+sentinel://a:1,b,[::1]:2/m/0?sentinel_username=u&sentinel_password=hunter2",
        "redis+sentinel://a:1,b,[::1]:2/m/0?sentinel_username=u&sentinel_password=***",
    ),
    (
        "rediss+sentinel://app:hunter2@a:1,b:2/m",
        "rediss+sentinel://app:***@a:1,b:2/m",
    ),
    ("unix:///s?db=0&password=hunter2", "unix:///s?db=0&password=***"),
    ("unix://app:hunter2@/s?db=0", "unix://app:***@/s?db=0"),
]
GARBAGE = [
    ("redis://:hunter2", "redis://:***"),
    ("redis://h:hunter2/0", "redis://h:***/0"),
    ("redis://h:hun/hunter2", "redis://***"),
    ("redis://h:hun?hunter2", "redis://***"),
    ("redis://:hun#hunter2@h/0", "redis://***"),
    ("redis://:1/hunter2@h:1/0", "redis://***"),
    ("redis://:hun?hunter2@h/0", "redis://***"),
    ("redis://h?db=0&hunter2@x", "redis://***"),
    ("redis:/:hunter2@h", "***@h"),
    ("redis+sentinel:hunter2", "redis+sentinel:***"),
    ("redis+sentinel://a:1,:hunter2/m", "redis+sentinel://***"),
    ("redis+sentinel://:hun/hunter2@a,b/m", "redis+sentinel://***"),
    ("redis:hunter2", "redis:***"),
    (":hunter2@h:6379", "***@h:6379"),
    ("://:hunter2@h", "://:***@h"),
    ("default", "default"),
    ("", ""),
]


@pytest.mark.parametrize("scheme", ["a" * 100, "a." * 50, "1redis", "_redis"])
def test_a_text_hides_the_password_behind_any_scheme(scheme: str) -> None:
    shown = redact(f"cannot reach {scheme}://:hunter2@h, try again")

    assert shown == f"cannot reach {scheme}://:***@h, try again"


@pytest.mark.parametrize(("url", "shown"), WELL_FORMED + GARBAGE)
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_url(shown) == shown
    assert repr(SecretUrl(url)) == repr(shown)
    assert SecretUrl(url) == url


@pytest.mark.parametrize(("url", "shown"), WELL_FORMED)
def test_text_is_shown_without_the_passwords_of_its_urls(url: str, shown: str) -> None:
    text = "a {0}: {0!r}, ({0}).\n<{0}>"

    assert redact(text.format(url)) == text.format(shown)


def test_parameter_that_is_masked_already_keeps_its_name() -> None:
    assert redact("see https://x/?t=***&u=1") == "see https://x/?t=***&***"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.booleans())
def test_no_password_is_shown_however_it_is_written(
    text: str, is_parameter: bool
) -> None:
    secret = f"{text}{SECRET}"
    url = f"redis://h/0?password={secret}" if is_parameter else f"redis://:{secret}@h/0"

    assert SECRET not in redact_url(url)
    assert redact_url(redact_url(url)) == redact_url(url)


@pytest.mark.parametrize(
    "text",
    [
        "unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `app`, `hunter2`,",
        "Port could not be cast to integer value as 'hunter2'",
    ],
)
def test_what_is_repeated_of_a_password_is_cut(text: str) -> None:
    assert SECRET not in redact(text)
    assert redact(f"{text}\nnext line").endswith("\nnext line")


class Colour(Enum):
    RED = "hunter2"


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("somebody's __repr__ was called")


class LoudText(str):
    def __repr__(self) -> str:
        raise AssertionError("somebody's __repr__ was called")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (True, "True"),
        (-5, "-5"),
        (1.5, "1.5"),
        ("a'b", '"a\'b"'),
        (LoudText("x"), "'x'"),
        ("\ud800", "'\\ud800'"),
        ("redis://:hunter2@h", "'redis://:***@h'"),
        ("redis://:a hunter2@h", "'redis://:***@h'"),
        (timedelta(1), "datetime.timedelta(days=1)"),
        (
            datetime(2030, 1, 1, tzinfo=UTC),
            "datetime.datetime(2030, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)",
        ),
        (10**5000, "<int of 16,610 bits>"),
        (b"hunter2", "<bytes>"),
        (Decimal(5), "Decimal('5')"),
        (UUID(int=5), "UUID('00000000-0000-0000-0000-000000000005')"),
        (Decimal(5).scaleb(3000).quantize(1, context=Context(4000)), "<Decimal>"),
        (Colour.RED, "<Colour>"),
        (Loud(), "<Loud>"),
        (Loud, "<type tests.test_redaction.Loud>"),
        (show, "<function django_delayq.redaction.show>"),
        ([], "[]"),
        ((), "()"),
        (set(), "set()"),
        ((1,), "(1,)"),
        ([1, Loud()], "[1, <Loud>]"),
        ({"a": {"b": [1]}}, "{'a': {'b': [1]}}"),
        ({"a": {"b": [[1]]}}, "{'a': {'b': [<list>]}}"),
        (
            {"PASSWORD": "hunter2", 5: "redis://hunter2@h"},
            "{'PASSWORD': ***, 5: 'redis://***@h'}",
        ),
        (list(range(12)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …]"),
    ],
    ids=lambda item: item if type(item) is str else "",
)
def test_value_is_shown_in_short(value: Any, shown: str) -> None:
    assert show(value) == shown


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        ["x" * 1000] * 1000,
        {"x" * 1000: "x" * 1000},
        LoudText("x" * 999),
    ],
    ids=["text", "list", "dict", "subclass"],
)
def test_long_value_is_cut(value: Any) -> None:
    assert len(show(value)) < 200
    assert "…" in show(value)


def test_secret_in_a_long_text_is_cut_with_it() -> None:
    assert SECRET not in show(f"redis://:{SECRET * 1000}@h")


def test_password_is_sent_and_not_shown() -> None:
    password = Password("hunter2")

    shown = [
        str(password),
        repr(password),
        f"{password}",
        f"{password:>9}",
        "%s" % password,  # noqa: UP031
    ]

    assert SECRET not in "".join(shown)
    assert password == "hunter2"
    assert password.encode() == b"hunter2"
    assert pickle.loads(pickle.dumps(password)).encode() == b"hunter2"
    assert copy.deepcopy(SecretUrl("redis://:a@h")) == "redis://:a@h"


def test_arguments_of_a_connection_show_no_password() -> None:
    assert conceal({"host": "h"}) == {"host": "h"}
    assert SECRET not in repr(conceal({"host": "h", "password": "hunter2"}))
    assert conceal({"password": "hunter2"})["password"] == "hunter2"
    assert conceal(conceal({"password": "hunter2"}))["password"] == "hunter2"
