import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from django_delayq.codecs.decimals import as_decimal
from django_delayq.codecs.values import (
    HASH_SET,
    BigInteger,
    Byte,
    Char,
    Double,
    Float,
    Instant,
    Integer,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
    in_order,
    java_date,
    java_map,
    java_set,
    to_plain,
)


@pytest.mark.parametrize(
    ("value", "plain", "text"),
    [
        (Byte(-128), -128, "Byte(-128)"),
        (Short(5), 5, "Short(5)"),
        (Integer(5), 5, "Integer(5)"),
        (Long(5), 5, "Long(5)"),
        (BigInteger(5), 5, "BigInteger(5)"),
        (Float(0.1), 0.1, "Float(0.1)"),
        (Double(0.1), 0.1, "Double(0.1)"),
        (Char("c"), "c", "Char('c')"),
        (JavaList(["a"], "java.util.LinkedList"), ["a"], "JavaList(['a'], 'java.util.LinkedList')"),
        (JavaMap({"a": 1}, "java.util.HashMap"), {"a": 1}, "JavaMap({'a': 1}, 'java.util.HashMap')"),
        (JavaSet(["a"]), {"a"}, "JavaSet(['a'], 'java.util.LinkedHashSet')"),
    ],
)  # fmt: skip
def test_wrapper_equals_what_it_wraps(value, plain, text):
    assert value == plain
    assert plain == value
    assert repr(value) == text
    for other in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
    ):
        assert other == value
        assert type(other) is type(value)
        assert getattr(other, "class_name", "") == getattr(value, "class_name", "")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Byte, 128),
        (Short, -32769),
        (Integer, 2**31),
        (Long, 2**63),
        (Float, 1e39),
        (Char, ""),
        (Char, "ab"),
        (Char, "😀"),
    ],
)
def test_wrapper_refuses_what_java_cannot_hold(kind, value):
    with pytest.raises(ValueError, match=r"fit|UTF-16"):
        kind(value)


def test_numbers_print_as_numbers():
    assert f"{Long(5)} {BigInteger(6)} {Float(0.5)} {Double(1.5)}" == "5 6 0.5 1.5"
    assert json.dumps([Long(5), Float(0.5)]) == "[5, 0.5]"


def test_set_tells_what_python_cannot():
    items = JavaSet([1, True, [1], Long(1)])

    assert len(items) == 4
    assert [1] in items
    assert items != {1}
    assert items == JavaSet([True, 1, [1], Long(1)])


@pytest.mark.parametrize(
    ("items", "kind"),
    [([1, 2], set), ([], set), ([1, True], JavaSet), ([[1]], JavaSet)],
)
def test_hash_set_is_a_set_if_nothing_is_lost(items, kind):
    found = java_set(items, HASH_SET)

    assert type(found) is kind
    assert len(found) == len(items)


def test_elements_of_one_hash_are_not_put_into_a_set():
    items = [UUID(int=n * (2**61 - 1)) for n in range(1, 3000)]

    assert type(java_set(items, HASH_SET)) is JavaSet


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([([1], 1)], "cannot hash"),
        ([(1, "a"), (True, "b")], "the same in Python"),
        ([(UUID(int=n * (2**61 - 1)), n) for n in range(1, 3000)], "collide"),
    ],
)
def test_map_whose_keys_python_cannot_hold_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        java_map(pairs, "java.util.HashMap")


def test_set_is_always_in_the_same_order():
    assert in_order({"b", "a", 1, 2.5}) == [2.5, 1, "a", "b"]
    assert in_order(JavaSet(["b", "a"])) == ["b", "a"]


def test_instant_takes_a_datetime_and_gives_one():
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)

    assert Instant.of(moment) == Instant(1700000000, 123456000)
    assert (
        Instant.of(moment.astimezone(timezone(timedelta(hours=8)))).to_datetime()
        == moment
    )
    assert Instant(-1, 999_999_999) < Instant(0)
    with pytest.raises(ValueError, match="no time zone"):
        Instant.of(datetime(2024, 1, 1))
    with pytest.raises(ValueError, match="nano"):
        Instant(0, 10**9)


def test_object_is_read_by_field_and_can_be_an_element():
    order = JavaObject("demo.Order", {"id": 5}, layout=object())

    assert order["id"] == 5
    assert order == JavaObject("demo.Order", {"id": 5})
    assert order in {JavaObject("demo.Order", {"id": 5})}
    assert order not in {JavaObject("demo.Order", {"id": 6})}


def test_plain_copy_has_no_java_in_it():
    value = {
        "list": JavaList([Long(1), Float(0.5), True, None], "java.util.LinkedList"),
        "set": JavaSet(["b", "a"]),
        "order": JavaObject("demo.Order", {"status": JavaEnum("demo.Status", "PAID")}),
        "at": Instant(0),
        "zone": JavaValue("java.util.Locale", "de"),
        "price": Decimal("1.50"),
    }

    plain = to_plain(value)

    assert plain == {
        "list": [1, 0.5, True, None],
        "set": ["b", "a"],
        "order": {"status": "PAID"},
        "at": datetime(1970, 1, 1, tzinfo=UTC),
        "zone": "de",
        "price": Decimal("1.50"),
    }
    assert [type(item) for item in plain["list"]] == [int, float, bool, type(None)]
    assert type(plain["list"]) is list


def test_date_that_python_cannot_hold_keeps_its_milliseconds():
    assert java_date(-1) == datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    assert java_date(2**62) == JavaValue("java.util.Date", 2**62)


def test_decimal_keeps_its_scale():
    assert str(as_decimal(12340, 3)) == "12.340"
    assert str(as_decimal(-1, -5)) == "-1E+5"
    assert str(as_decimal(0, 2)) == "0.00"
