from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.kryo.codec import Kryo5Codec
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

KRYO = get_codec("Kryo5Codec")
ARRAY_LIST = "6a6176612e7574696c2e41727261794c6973f4"
A_UUID = UUID("01234567-89ab-cdef-fedc-ba9876543210")


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, "00"),
        (True, "0501"),
        (-65, "028101"),
        (Long(5), "090a"),
        (-(2**63), "09 ffffffffffffffffff"),
        (Byte(-1), "06ff"),
        (Short(1), "080100"),
        (Char("订"), "07a28b"),
        (Float(0.1), "04cdcccc3d"),
        (-1.5, "0a000000000000f8bf"),
        ("", "0381"),
        ("a", "038261"),
        ("ab", "0361e2"),
        ("a\x00", "036180"),
        ("x" * 32, "03" + "78" * 31 + "f8"),
        ("x" * 33, "03a2" + "78" * 33),
        ("x" * 63, "03c001" + "78" * 63),
        ("😀", "0383eda0bdedb880"),
        (b"hi", "01005bc2036869"),
        ([], f"0100{ARRAY_LIST}01"),
        ([1, None], f"0100{ARRAY_LIST}83020101 0200"),
        ([1, "a"], f"0100{ARRAY_LIST}03 0202 038261"),
        ([[], []], f"0100{ARRAY_LIST}83 0100 00 01 01"),
        (JavaList([JavaList([1], "[I"), None], "[[I"), "01005b5bc9 03 0202 00"),
        (JavaList([A_UUID, None], "[Ljava.util.UUID;"),
         "01005b4c6a6176612e7574696c2e555549 44bb 03 01efcdab89674523011032547698badcfe 00"),
        (JavaList([1], "java.util.ImmutableCollections$List12"),
         "01006a6176612e7574696c2e496d6d757461626c65436f6c6c656374696f6e73244c69737431b2 82 02 02"),
        (JavaSet([1]), "01006a6176612e7574696c2e4c696e6b6564486173685365f4 82020002"),
        (JavaMap({"a": 1}, "java.util.TreeMap"),
         "01006a6176612e7574696c2e547265654d61f0 02 00 038261 0202"),
        (JavaValue("java.lang.Class", "int"), "01006a6176612e6c616e672e436c6173f3 0201"),
        (JavaEnum("java.util.concurrent.TimeUnit", "SECONDS"),
         "01006a6176612e7574696c2e636f6e63757272656e742e54696d65556e69f4 04"),
    ],
)  # fmt: skip
def test_value_is_written_and_read(value, payload):
    payload = bytes.fromhex(payload)

    assert KRYO.encode(value) == payload
    assert KRYO.decode(payload) == value


@pytest.mark.parametrize(
    ("version", "uuid"),
    [
        ("3.12.5", "dfb7de9af1d9a2a302deb7de9af1d9a2a302"),
        ("3.19.0", "dfb7de9af1d9a2a302deb7de9af1d9a2a302"),
        ("3.19.1", "efcdab89674523011032547698badcfe"),
        (None, "efcdab89674523011032547698badcfe"),
    ],
)
def test_version_decides_how_a_uuid_is_written(version, uuid):
    codec = get_codec("Kryo5Codec", version=version)

    payload = codec.encode(A_UUID)

    assert payload.hex().endswith(uuid)
    assert codec.decode(payload) == A_UUID


@pytest.mark.parametrize(
    ("version", "has_null"),
    [("3.13.6", "00"), ("3.14.0", ""), ("3.16.6", ""), (None, "")],
)
def test_version_decides_how_immutable_collections_are_written(version, has_null):
    value = JavaList(["a"], "java.util.ImmutableCollections$List12")
    codec = get_codec("Kryo5Codec", version=version)

    payload = codec.encode(value)

    assert payload.hex().endswith(f"b2 82 03 {has_null} 8261".replace(" ", ""))
    assert codec.decode(payload) == value


def test_views_are_java_serialization_since_335():
    value = JavaList(["a"], "java.util.Collections$UnmodifiableList")
    old, new = (
        get_codec("Kryo5Codec", version=version) for version in ("3.34.0", "3.35.0")
    )

    assert old.decode(old.encode(value)) == value
    with pytest.raises(EncodeError, match="cannot write a java"):
        new.encode(value)
    with pytest.raises(DecodeError, match="embedded Java serialization"):
        new.decode(old.encode(value))


def test_object_of_an_undeclared_class_is_opaque():
    payload = bytes.fromhex("0100 64656d6f2e4f726465f2 02")

    with pytest.raises(
        DecodeError, match=r"demo\.Order is opaque.*declare them"
    ) as caught:
        KRYO.decode(payload)

    assert caught.value.offset == 0
    assert caught.value.data == payload


@pytest.mark.parametrize(
    ("declared", "value", "body"),
    [
        ("int", -1, "01"),
        ("long", 5000000000, "80c8afa025"),
        ("boolean", True, "01"),
        ("char", "A", "4100"),
        ("float", 0.5, "0000003f"),
        ("Integer", 1, "0102"),
        ("Integer", None, "00"),
        ("Long", Long(1), "0102"),
        ("String", None, "80"),
        ("String", "a", "8261"),
        ("object", 1, "0202"),
        ("Object", None, "00"),
        ("BigDecimal", None, "00"),
        ("UUID", None, "00"),
        ("java.util.UUID", A_UUID, "01efcdab89674523011032547698badcfe"),
        ("int[]", JavaList([1], "[I"), "0202"),
        ("int[]", None, "00"),
        ("String[]", JavaList(["a", None], "[Ljava.lang.String;"), "03826180"),
        ("demo.Status", JavaEnum("demo.Status", "PAID"), "02"),
        ("demo.Status", None, "00"),
        ("final demo.Item", JavaObject("demo.Item", {"n": 1}), "0102"),
        ("demo.Item", JavaObject("demo.Item", {"n": 1}), "0101 64656d6f2e497465ed 02"),
        ("List<String>", ["a", "b"], f"0101 {ARRAY_LIST} 03 8261 8262"),
        ("List<String>", ["a", None], f"0101 {ARRAY_LIST} 83 8261 80"),
        ("List<Integer>", [1, None], f"0101 {ARRAY_LIST} 83 0102 00"),
        ("List<demo.Status>", [JavaEnum("demo.Status", "NEW")], f"0101 {ARRAY_LIST} 02 01"),
        ("List<List<String>>", [["a"], ["b"]],
         f"0101 {ARRAY_LIST} 83 0101 00 02 8261 02 8262"),
        ("Map<String, Integer>", {"a": 1, "b": None},
         "0101 6a6176612e7574696c2e4c696e6b6564486173684d61f0 03 8261 0102 8262 00"),
    ],
)  # fmt: skip
def test_declared_field_is_written_and_read(declared, value, body):
    codec = Kryo5Codec(
        classes={
            "demo.Box": [("it", declared)],
            "demo.Item": [("n", "int")],
            "demo.Status": ["NEW", "PAID"],
        }
    )
    payload = bytes.fromhex(f"0100 64656d6f2e426ff8 {body}")
    box = JavaObject("demo.Box", {"it": value})

    assert codec.encode(box) == payload
    assert codec.decode(payload) == box


def test_fields_are_written_by_name_in_whatever_order_they_are_declared():
    fields = [("b", "int"), ("a", "String")]
    value = JavaObject("demo.Box", {"a": "x", "b": 1})

    codecs = [
        Kryo5Codec(classes={"demo.Box": order}) for order in (fields, fields[::-1])
    ]

    assert {codec.encode(value).hex() for codec in codecs} == {
        "010064656d6f2e426ff8827802"
    }


@pytest.mark.parametrize(
    "declared", ["", "List<", "List<String", "Map<String,>", "int int", 5]
)
def test_odd_declaration_is_refused(declared):
    with pytest.raises(EncodeError, match="not a declared type"):
        Kryo5Codec(classes={"demo.Box": [("it", declared)]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "of type object"),
        (JavaObject("demo.Order", {}), "cannot write a demo.Order; declare it"),
        (JavaEnum("demo.Status", "PAID"), "cannot write a demo.Status; declare it"),
        (JavaEnum("java.util.concurrent.TimeUnit", "YEARS"), "not a constant of"),
        (JavaList([2**31], "[I"), "not of type int"),
        (
            JavaList([1], "[Ljava.lang.String;"),
            "not a java.lang.String, as declared",
        ),
        (
            JavaList([1, 2], "java.util.Collections$SingletonList"),
            "not a SingletonList",
        ),
        (JavaValue("com.foo.Bar", 1), "cannot write"),
        (JavaValue("java.util.Date", 2**70), "do not fit"),
        (Decimal("Infinity"), "BigDecimal"),
    ],
)
def test_what_kryo_has_not_is_refused(value, message):
    with pytest.raises(EncodeError, match=message):
        KRYO.encode(value)


def test_value_that_contains_itself_is_refused():
    value = []
    value.append(value)

    with pytest.raises(EncodeError, match="inside of itself"):
        KRYO.encode(value)


@pytest.mark.parametrize(
    ("payload", "offset", "message"),
    [
        ("", 0, "the payload ends"),
        ("00 00", 1, "1 bytes after the value"),
        ("0b", 0, "class 11"),
        ("02", 1, "the payload ends"),
        ("02 8080", 3, "the payload ends"),
        ("05 02", 1, "for a boolean"),
        ("03 61", 1, "text without an end"),
        ("03 ffffffff0f", 6, "announced"),
        ("0101", 0, "class name 1, of 0"),
        ("0100 81", 0, "class name of 0 characters"),
        ("0100 80", 2, "null where a text must be"),
        (f"0100 {ARRAY_LIST} ffffffff1f 02 00", 28, "the payload ends"),
        (f"0100 {ARRAY_LIST} ffffffff1f 00", 27, "more elements"),
        (f"0100 {ARRAY_LIST} 83 02 02", 23, "for a boolean"),
        ("0100 5bc2 ffffffff07", 9, "announced"),
        ("0100 5bc9 ffffffff07", 9, "announced"),
        ("0100 5b58d8 02", 5, "not an array"),
        ("0100 6a6176612e7574696c2e547265654d61f0 01 0202", 20, "an order of its own"),
        (
            "0100 6a6176612e7574696c2e486173684d61f0 03 0202 00 0902 00",
            0,
            "the same in Python",
        ),
        ("0100 6a6176612e74696d652e4c6f63616c446174e5 e80f 0d01", 0, "month must be"),
        ("0100 6a6176612e6d6174682e426967496e74656765f2 01", 0, "number of 0 bytes"),
    ],
)
def test_what_is_no_kryo_is_refused_with_its_offset(payload, offset, message):
    data = bytes.fromhex(payload)

    with pytest.raises(DecodeError, match=message) as caught:
        KRYO.decode(data)

    assert caught.value.offset == offset
    assert caught.value.data == data


def test_list_of_very_many_elements_without_bytes_is_refused():
    # A million of Java's empty lists take the name of a class and a size.
    empty = b"java.util.Collections$EmptyList"
    payload = bytes.fromhex(f"0100{ARRAY_LIST}c18904 0101") + empty[:-1] + b"\xf4\x00"

    with pytest.raises(DecodeError, match="more elements than a payload of this size"):
        KRYO.decode(payload)


def test_value_nested_too_deep_is_refused():
    payload = (
        bytes.fromhex(f"0100{ARRAY_LIST}02") + bytes.fromhex("010002") * 300 + b"\x00"
    )

    with pytest.raises(DecodeError, match="deeper than 200"):
        KRYO.decode(payload)


def test_depth_up_to_the_limit_is_read_and_written():
    value = ["x", 1]
    for _ in range(199):
        value = [value, 1]

    assert KRYO.decode(KRYO.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        Instant(-1, 5),
        date(1, 1, 1),
        time(1, 2, 3, 4),
        datetime(2024, 2, 29, 23, 59, 58, 7),
        datetime(1969, 12, 31, tzinfo=UTC),
        timedelta(days=-1, microseconds=1),
        JavaValue("java.time.LocalTime", "01:02:03.000000001"),
        JavaValue("java.time.LocalDate", "-0044-03-15"),
        JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00+05:45"),
        JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00-00:00:01"),
        JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00Z"),
        JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00[Asia/Shanghai]"),
        JavaValue("java.time.ZoneOffset", "-09:30"),
        JavaValue("java.time.ZoneRegion", "Asia/Shanghai"),
        JavaValue("java.util.Locale", "de_CH_1996"),
        JavaValue("java.util.regex.Pattern", "a+"),
        JavaValue("java.util.regex.Pattern", ["a+", 2]),
        JavaValue("java.net.URI", "urn:x"),
        JavaValue("java.util.Optional", None),
        JavaSet(
            [JavaEnum("java.time.DayOfWeek", "MONDAY")], "java.util.RegularEnumSet"
        ),
        JavaMap({"a": 1}, "java.util.Collections$SingletonMap"),
    ],
)
def test_value_comes_back(value):
    assert KRYO.decode(KRYO.encode(value)) == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.floats(width=32, allow_nan=False).map(Float)
    | st.text(alphabet=st.characters(exclude_categories=()))
    | st.binary()
    | st.uuids()
    | st.integers().map(BigInteger)
    | st.integers(-(2**63), 2**63 - 1).map(Long)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.builds(
        JavaEnum,
        st.just("java.util.concurrent.TimeUnit"),
        st.sampled_from(["SECONDS", "DAYS"]),
    ),
    lambda items: (
        st.lists(items)
        | st.dictionaries(st.text(), items)
        | st.dictionaries(st.text(), items).map(
            lambda d: JavaMap(d, "java.util.HashMap")
        )
        | st.lists(items).map(lambda values: JavaList(values, "[Ljava.lang.Object;"))
        | st.lists(items).map(JavaSet)
    ),
    max_leaves=15,
)


@pytest.mark.parametrize("version", ["3.12.5", "3.16.6", "3.20.1", None])
@given(value=VALUES)
def test_every_value_comes_back(version, value):
    codec = get_codec("Kryo5Codec", version=version)
    payload = codec.encode(value)

    assert codec.decode(payload) == value
    assert codec.encode(codec.decode(payload)) == payload
