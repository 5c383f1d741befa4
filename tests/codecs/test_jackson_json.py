import enum
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import (
    BigInteger,
    Byte,
    Char,
    Float,
    Instant,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    JavaSet,
    JavaValue,
    Long,
    Short,
)
from django_delayq.exceptions import DecodeError, EncodeError

JSON = get_codec("JsonJacksonCodec")
JSON_2 = get_codec("JsonJacksonCodec", version="3.16.6")
JSON_3 = get_codec("JsonJackson3Codec")
TYPED = get_codec("TypedJsonJacksonCodec")
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
AN_ID = UUID("01234567-89ab-cdef-fedc-ba9876543210")


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, b"null"),
        (1, b"1"),
        (Long(1), b'["java.lang.Long",1]'),
        (5000000000, b'["java.lang.Long",5000000000]'),
        (2**64, b'["java.math.BigInteger",18446744073709551616]'),
        (1e300, b"1.0E300"),
        (Decimal("12.340"), b'["java.math.BigDecimal",12.340]'),
        (MOMENT, b'["java.util.Date",1700000000123]'),
        (AN_ID, b'["java.util.UUID","01234567-89ab-cdef-fedc-ba9876543210"]'),
        ([], b'["java.util.ArrayList",[]]'),
        ([b"\x00\xff"], b'["java.util.ArrayList",[["[B","AP8="]]]'),
        ({"a": 1}, b'{"@class":"java.util.LinkedHashMap","a":1}'),
        (
            JavaMap({"a": 1}, "java.util.HashMap"),
            b'{"@class":"java.util.HashMap","a":1}',
        ),
        (JavaMap({"a": 1}, ""), b'{"a":1}'),
        (JavaList([1, "b"], ""), b'[1,"b"]'),
        ({"a", "b"}, b'["java.util.HashSet",["a","b"]]'),
        (JavaSet(["b", "a"]), b'["java.util.LinkedHashSet",["b","a"]]'),
        (
            JavaObject("demo.Order", {"id": 5000000000, "ref": Long(1), "tags": ["x"]}),
            b'{"@class":"demo.Order","id":5000000000,"ref":["java.lang.Long",1],'
            b'"tags":["java.util.ArrayList",["x"]]}',
        ),
        (
            [JavaEnum("demo.Status", "PAID"), JavaValue("java.net.URI", "urn:x")],
            b'["java.util.ArrayList",[["demo.Status","PAID"],["java.net.URI","urn:x"]]]',
        ),
        (
            [Byte(1), Short(2), Float(0.1), Char("c"), BigInteger(3), Float(math.inf)],
            b'["java.util.ArrayList",[["java.lang.Byte",1],["java.lang.Short",2],'
            b'["java.lang.Float",0.1],["java.lang.Character","c"],["java.math.BigInteger",3],'
            b'["java.lang.Float","Infinity"]]]',
        ),
        ("\x00\x1f\\u001f\x7f", b'"\\u0000\\u001F\\\\u001f\x7f"'),
        ("é😀\ud800", b'"\xc3\xa9\\uD83D\\uDE00\\uD800"'),
    ],
)
def test_value_is_written_and_read(value, payload):
    assert JSON.encode(value) == payload
    assert JSON.decode(payload) == value
    assert JSON.encode(JSON.decode(payload)) == payload


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (MOMENT, b'["java.util.Date","2023-11-14T22:13:20.123Z"]'),
        (
            [date(2024, 2, 29)],
            b'["java.util.ArrayList",[["java.time.LocalDate","2024-02-29"]]]',
        ),
        ([time(1, 2)], b'["java.util.ArrayList",[["java.time.LocalTime","01:02:00"]]]'),
        (
            [datetime(2024, 2, 29, 23, 59, 58, 7)],
            b'["java.util.ArrayList",[["java.time.LocalDateTime","2024-02-29T23:59:58.000007"]]]',
        ),
        (
            [timedelta(days=-1, microseconds=1)],
            b'["java.util.ArrayList",[["java.time.Duration","PT-23H-59M-59.999999S"]]]',
        ),
        (
            [Instant(-1, 5)],
            b'["java.util.ArrayList",[["java.time.Instant","1969-12-31T23:59:59.000000005Z"]]]',
        ),
        ([Long(1)], b'["java.util.ArrayList",[["java.lang.Long",1]]]'),
        (Decimal("1E+5"), b'["java.math.BigDecimal",1E+5]'),
        ("😀\ud800", b'"\xf0\x9f\x98\x80\\uD800"'),
    ],
)
def test_jackson_3_writes_dates_as_text(value, payload):
    assert JSON_3.encode(value) == payload
    assert JSON_3.decode(payload) == value


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (Long(1), b"1"),
        ([Long(1), 5000000000], b"[1,5000000000]"),
        ({"a": [1.5, None], "b": None}, b'{"a":[1.5,null]}'),
        (JavaObject("demo.Order", {"id": 1}), b'{"id":1}'),
        ({1: True, 2.5: False}, b'{"1":true,"2.5":false}'),
        ([AN_ID], b'["01234567-89ab-cdef-fedc-ba9876543210"]'),
        ([MOMENT, Decimal("1.50"), b"\xff"], b'[1700000000123,1.50,"/w=="]'),
    ],
)
def test_typed_json_has_no_types(value, payload):
    assert TYPED.encode(value) == payload


def test_typed_json_is_read_as_any_json():
    assert TYPED.decode(b'{"a": [1, "java.lang.Long"], "@class": "x"}') == {
        "a": [1, "java.lang.Long"],
        "@class": "x",
    }


@pytest.mark.parametrize(
    ("version", "typed", "plain"),
    [
        ("3.16.6", b'"%s"', b'"%s"'),
        ("4.1.0", b'"%s"', b'"%s"'),
        ("4.2.0", b'["java.util.UUID","%s"]', b'["java.util.UUID","%s"]'),
        ("4.4.0", b'["java.util.UUID","%s"]', b'["java.util.UUID","%s"]'),
        ("4.5.0", b'["java.util.UUID","%s"]', b'"%s"'),
        (None, b'["java.util.UUID","%s"]', b'"%s"'),
    ],
)
def test_version_decides_how_a_uuid_is_written(version, typed, plain):
    text = str(AN_ID).encode()

    assert get_codec("JsonJacksonCodec", version=version).encode(AN_ID) == typed % text
    codec = get_codec("TypedJsonJacksonCodec", version=version)
    assert codec.encode(AN_ID) == plain % text
    if b"," in plain:
        assert codec.decode(plain % text) == AN_ID


def test_subclasses_are_written_as_what_they_are():
    class Color(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 3

    assert TYPED.encode([Color.RED, Level.HIGH, True]) == b'["red",3,true]'


@pytest.mark.parametrize("codec", [JSON, JSON_2, JSON_3])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "of type object"),
        ([3 + 4j], "of type complex"),
        ({None: 1}, "cannot be a key"),
        ({(1,): 1}, "cannot be a key"),
        ({"@class": 1}, "writes the class"),
        (JavaObject("demo.Order", {"@class": 1}), "writes the class"),
        ({1: "a", "1": "b"}, "the same"),
        (Decimal("NaN"), "not a number"),
    ],
)
def test_what_java_has_not_is_refused(codec, value, message):
    with pytest.raises(EncodeError, match=message):
        codec.encode(value)


@pytest.mark.parametrize(
    "value", [date(2024, 1, 1), datetime(2024, 1, 1), time(1), timedelta(1), Instant(0)]
)
def test_java_time_is_refused_as_redisson_does(value):
    with pytest.raises(EncodeError, match="Jackson 2"):
        JSON.encode(value)


def test_value_that_contains_itself_is_refused():
    value = []
    value.append(value)

    with pytest.raises(EncodeError, match="deep"):
        JSON.encode(value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nul",
        b"\xff",
        b"NaN",
        b'["java.lang.Long","x"]',
        b'["java.lang.Long",1.5]',
        b'["java.lang.Long",9223372036854775808]',
        b'["java.lang.Byte",128]',
        b'["java.lang.Long",true]',
        b'["java.lang.Boolean",1]',
        b'["java.lang.Float","x"]',
        b'["java.lang.Float",1e39]',
        b'["java.lang.Character","ab"]',
        b'["java.util.UUID","x"]',
        b'["java.util.UUID","{01234567-89ab-cdef-fedc-ba9876543210}"]',
        b'["java.math.BigDecimal","x"]',
        b'["java.math.BigDecimal",1e9999999999999999999]',
        b'["java.math.BigInteger",1.0]',
        b'["java.util.Date","yesterday"]',
        b'["[B","?"]',
        b'{"@class":5}',
        b"[" * 100_000,
        b"[" * 300 + b"]" * 300,
        b'{"a":' * 300 + b"1" + b"}" * 300,
    ],
)
def test_what_does_not_fit_is_refused(payload):
    with pytest.raises(DecodeError) as caught:
        JSON.decode(payload)

    assert caught.value.data == payload


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b'["a.example","b.example"]', JavaList(["a.example", "b.example"], "")),
        (b'["java.util.ArrayList",["x","y"]]', ["x", "y"]),
        (b'["com.foo.BarSet",[1]]', JavaSet([1])),
        (b'["java.util.HashSet",[1,true,1.0]]', JavaSet([1, True, 1.0])),
        (b'["java.util.HashSet",[["java.util.ArrayList",[]]]]', JavaSet([[]])),
        (
            b'["java.util.Date",99999999999999999]',
            JavaValue("java.util.Date", 99999999999999999),
        ),
        (
            b'["java.time.DayOfWeek","MONDAY"]',
            JavaEnum("java.time.DayOfWeek", "MONDAY"),
        ),
        (
            b'["java.time.LocalDate",[2024,2,29]]',
            JavaList([2024, 2, 29], "java.time.LocalDate"),
        ),
        (b'["java.util.Locale","zh_CN"]', JavaValue("java.util.Locale", "zh_CN")),
        (b'["[I",[1,2]]', JavaList([1, 2], "[I")),
        (b'["demo.Thing",{"a":1}]', JavaValue("demo.Thing", JavaMap({"a": 1}, ""))),
        (b'{"@class":"demo.Order"}', JavaObject("demo.Order", {})),
    ],
)
def test_class_decides_what_is_read(payload, value):
    assert JSON.decode(payload) == value
    assert type(JSON.decode(payload)) is type(value)


def test_depth_up_to_the_limit_is_read_and_written():
    value = "x"
    for _ in range(200):
        value = [value]

    assert JSON.decode(JSON.encode(value)) == value
    assert TYPED.decode(TYPED.encode(value)) == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(width=32, allow_nan=False).map(Float)
    | st.text(alphabet=st.characters(exclude_categories=()))
    | st.uuids()
    | st.integers(-(2**63), 2**63 - 1).map(Long)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.builds(JavaEnum, st.just("demo.Status"), st.sampled_from(["NEW", "PAID"])),
    lambda items: (
        st.lists(items)
        | st.dictionaries(
            st.text().filter(lambda key: key != "@class"),
            items.filter(lambda item: item is not None),
        )
        | st.lists(items).map(lambda values: JavaList(values, "java.util.LinkedList"))
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("codec", [JSON, JSON_3])
@given(value=VALUES)
def test_every_value_in_a_list_comes_back(codec, value):
    payload = codec.encode([value])

    assert codec.decode(payload) == [value]
    assert codec.encode(codec.decode(payload)) == payload


@given(st.recursive(st.text() | st.integers(), st.lists))
def test_any_json_is_read_or_refused(value):
    payload = get_codec("json").encode(value)

    try:
        read = JSON.decode(payload)
    except DecodeError:
        return
    assert JSON.decode(JSON.encode(read)) == read
