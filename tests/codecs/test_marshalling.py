from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.river.classes import Block, ClassLayout
from django_delayq.codecs.river.codec import MarshallingCodec
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

RIVER = get_codec("MarshallingCodec")
ITEM = ClassLayout("demo.Item", 7, (("price", "double"), ("sku", "object")))
ITEM_CLASS = "093e0964656d6f2e4974656d000000000000000700000002 3e057072696365 2700 3e03736b75 1600 16"


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, "04 01"),
        (True, "04 50"),
        (5, "04 4b00000005"),
        (Long(5), "04 4c0000000000000005"),
        (5000000000, "04 4c000000012a05f200"),
        (Byte(-1), "04 49ff"),
        (Short(1), "04 4a0001"),
        (Char("订"), "04 4d8ba2"),
        (Float(0.1), "04 4e3dcccccd"),
        (-1.5, "04 4fbff8000000000000"),
        ("", "04 3d"),
        ("a\x00", "04 3e0261c080"),
        ("😀", "04 3e02eda0bdedb880"),
        ("x" * 256, "04 3e00" + "78" * 256),
        ("x" * 257, "04 3f0101" + "78" * 257),
        (b"hi", "04 4202216869"),
        ([1, "a", "a"], "04 53035a 4b00000001 3e0161 39ff"),
        (JavaList([1], "java.util.ArrayDeque"), "04 530178 4b00000001"),
        (JavaList([1, -1], "[S"), "04 420222 0001ffff"),
        (JavaList([True] * 9, "[Z"), "04 420920 ff01"),
        (JavaList([JavaList(["a"], "[Ljava.lang.String;")], "[[Ljava.lang.String;"),
         "04 42010d14 420114 3e0161"),
        (JavaSet(["a"], "java.util.Collections$SingletonSet"), "04 61 3e0161"),
        (JavaMap({"a": 1}, "java.util.Collections$UnmodifiableMap"),
         "04 7e 04093e176a6176612e7574696c2e4c696e6b6564486173684d617034c04e5c106cc0fb00000001"
         "3e0b6163636573734f72646572 2000 383e116a6176612e7574696c2e486173684d61700507dac1c31660d1"
         "000000023e0a6c6f6164466163746f7226003e097468726573686f6c64230016 3f4000000000000c"
         "320800000010000000013e01614b0000000135 00"),
        (JavaEnum("demo.Status", "PAID"), "04 040c0000000b64656d6f2e537461747573 0000000450414944"),
        (datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
         "04 04383e0e6a6176612e7574696c2e44617465686a81014b5974190000000016 32080000018bcfe5687b35"),
        (JavaValue("java.lang.Class", "java.lang.String"), "04 14"),
        (JavaObject("demo.Item", {"price": 1.0, "sku": "x"}),
         f"04 04 {ITEM_CLASS} 3ff0000000000000 3e0178"),
        (JavaList([JavaObject("demo.Item", {"price": 1.0, "sku": "x"})], "[Ldemo.Item;"),
         f"04 4201 {ITEM_CLASS} 043bff 3ff0000000000000 3e0178"),
    ],
)  # fmt: skip
def test_value_is_written_and_read(value, payload):
    payload = bytes.fromhex(payload)
    codec = MarshallingCodec(classes={"demo.Item": ITEM})

    assert codec.encode(value) == payload
    assert codec.decode(payload) == value
    assert RIVER.encode(RIVER.decode(payload)) == payload


def test_object_keeps_what_its_class_wrote_by_itself():
    layout = ClassLayout("demo.Odd", 1, (("id", "int"),), writes_object=True)
    value = JavaObject(
        "demo.Odd", {"id": 5, "#written": (Block(b"\x01"), "x", b"\x02")}, layout
    )

    payload = RIVER.encode(value)

    assert payload == bytes.fromhex(
        "04 04383e0864656d6f2e4f64640000000000000001000000013e0269642300 16"
        "00000005 320101 3e0178 42012102 35"
    )
    assert RIVER.decode(payload) == value


def test_externalizable_object_keeps_its_block():
    payload = bytes.fromhex(
        "04 040a 00000007 64656d6f2e4f64 000000000000000a 32020102 35"
    )

    value = RIVER.decode(payload)

    assert value == JavaObject("demo.Od", {"#written": (Block(b"\x01\x02"),)})
    assert RIVER.encode(value) == payload


def test_field_of_a_superclass_is_named_with_its_class_if_it_is_hidden():
    base = ClassLayout("demo.Base", 1, (("id", "int"), ("name", "object")))
    layout = ClassLayout("demo.Sub", 2, (("id", "long"),), base)
    value = JavaObject("demo.Sub", {"demo.Base#id": 1, "name": "x", "id": 2})

    codec = MarshallingCodec(classes={"demo.Sub": layout})

    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        Instant(-1, 5),
        date(1, 1, 1),
        date(9999, 12, 31),
        time(0),
        time(23),
        time(1, 2),
        time(1, 2, 3),
        time(1, 2, 3, 4),
        datetime(2024, 2, 29, 23, 59, 58, 7),
        timedelta(days=-1, microseconds=1),
        JavaValue("java.time.LocalTime", "01:02:03.000000001"),
        JavaValue("java.time.LocalDate", "+10000-01-01"),
        JavaValue("java.time.LocalDate", "-0044-03-15"),
        JavaValue("java.time.Duration", "PT0.000000001S"),
        JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00+05:45"),
        JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00:00.5-00:00:01"),
        JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00Z"),
        JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00+08:00[Asia/Shanghai]"),
    ],
)
def test_java_time_comes_back(value):
    again = RIVER.decode(RIVER.encode(value))

    if isinstance(value, JavaValue) and ".5-" in value.value:
        assert (
            again.value == "2024-02-29T12:00:00.500-00:00:01"
        )  # as toString writes it
    else:
        assert again == value
    assert RIVER.encode(again) == RIVER.encode(value)


def test_list_that_stands_twice_in_a_value_is_one_list_again():
    shared = ["x"]

    first, second = RIVER.decode(RIVER.encode([shared, shared]))

    assert first is second


def test_distant_object_is_named_by_its_number():
    texts = [str(n) for n in range(70_000)]

    payload = RIVER.encode([*texts, "69999", "69000", "0"])

    assert payload.endswith(bytes.fromhex("39ff 3afc18 0200000001"))
    assert RIVER.decode(payload) == [*texts, "69999", "69000", "0"]


@pytest.mark.parametrize(
    ("between", "reference"),
    [
        (255, "3900"),
        (256, "3afeff"),
        (65_535, "3a0000"),
        (65_536, "0200000001"),
    ],
)
@pytest.mark.parametrize("first", ["first", ["first"]])
def test_way_back_to_an_object_takes_as_few_bytes_as_in_java(between, reference, first):
    # The outer list is object 0, so its first element is object 1; the elements of that count as well.
    texts = [str(n) for n in range(between - isinstance(first, list))]

    payload = RIVER.encode([first, *texts, first])

    assert payload.endswith(bytes.fromhex(reference))
    assert RIVER.decode(payload) == [first, *texts, first]


def test_way_back_to_a_class_takes_as_few_bytes_as_in_java():
    constants = [JavaEnum(f"demo.E{n}", "A") for n in range(257)]

    payload = RIVER.encode([*constants, JavaEnum("demo.E0", "B")])
    nearer = RIVER.encode([*constants, JavaEnum("demo.E1", "B")])

    assert payload.endswith(bytes.fromhex("04 3cfeff 00000001 42"))
    assert nearer.endswith(bytes.fromhex("04 3b00 00000001 42"))
    assert RIVER.decode(payload)[-1] == JavaEnum("demo.E0", "B")


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ("0200000001", "x"),
        ("020000ffff", None),
        ("02ffffffff", None),
        ("0280000000", None),
        ("0200000000", None),
    ],
)
def test_number_of_an_object_is_counted_from_the_first(payload, value):
    data = bytes.fromhex("04 53025a 3e0178" + payload)

    if value is None:
        with pytest.raises(DecodeError, match=r"no object|inside of itself") as caught:
            RIVER.decode(data)
        assert caught.value.offset == 7
    else:
        assert RIVER.decode(data) == ["x", value]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "of type object"),
        (JavaObject("demo.Order", {}), "no layout of demo.Order is known"),
        (
            JavaObject("demo.Item", {"price": 1.0}, ITEM),
            r"other fields than its layout: \['sku'\]",
        ),
        (
            JavaObject("demo.Item", {"price": "x", "sku": "y"}, ITEM),
            "demo.Item.price is not of type double",
        ),
        (JavaList([1], "com.foo.MyList"), "cannot write a com.foo.MyList"),
        (JavaMap({}, "com.foo.MyMap"), "cannot write a com.foo.MyMap"),
        (JavaSet([], "com.foo.MySet"), "com.foo.MySet"),
        (JavaList([1], "[Ldemo.Order;"), "no layout of demo.Order"),
        (JavaList([2**31], "[I"), "not of type int"),
        (Decimal("NaN"), "BigDecimal"),
        (JavaValue("java.util.Date", 2**70), "does not fit"),
        (JavaValue("java.net.URI", "urn:x"), "cannot write"),
    ],
)
def test_what_river_has_not_is_refused(value, message):
    with pytest.raises(EncodeError, match=message):
        RIVER.encode(value)


def test_value_that_contains_itself_is_refused():
    value = [1]
    value.append(value)

    payload = RIVER.encode(value)

    assert payload == bytes.fromhex("04 53025a 4b00000001 39ff")
    with pytest.raises(DecodeError, match="inside of itself at byte 9"):
        RIVER.decode(payload)


@pytest.mark.parametrize(
    ("payload", "offset", "message"),
    [
        ("", 0, "the payload ends"),
        ("03 01", 0, "protocol version 3"),
        ("00 04 01", 0, "leading zero bytes, as 3.12.5"),
        ("04", 1, "the payload ends"),
        ("04 01 00", 2, "1 bytes after the value"),
        ("04 ff", 1, "unknown tag 0xff"),
        ("04 4b0000", 2, "4 bytes announced, 2 left"),
        ("04 3e0561", 3, "5 bytes announced, 1 left"),
        ("04 3e01f09f9880", 3, "not Java's text"),
        ("04 3e01c3", 4, "1 bytes announced, 0 left"),
        ("04 3e03808080808080808080808080", 3, "not text"),
        ("04 40ffffffff", 6, "announced"),
        ("04 44ffffffff 23", 7, "announced"),
        ("04 55ffffffff 5a", 7, "elements announced"),
        ("04 55ffffffff 7b 01", 7, "copies of a value"),
        ("04 3900", 1, "no object"),
        ("04 04 3b00", 2, "no class"),
        ("04 04 16", 2, "no objects are made of java.lang.Object"),
        ("04 04 07 0000000141", 2, "no objects are made of A"),
        ("04 04 08", 2, "unknown class tag 0x08"),
        ("04 04 09 4b00000001", 3, "where a name must be"),
        ("04 530160 3e0161", 4, "an order of its own"),
        (
            "04 04 09 3e0141 0000000000000001 00000000 5a 52 5a",
            18,
            "A has the superclass java.util.ArrayList, which",
        ),
        ("04 5201", 2, "unknown kind of collection"),
        ("04 7d 3e0161", 2, "an unmodifiable view"),
        ("04 530199 01", 3, "unknown kind of collection"),
        ("04 530164 525a 01", 7, "cannot hash"),
        ("04 530264 4b00000001 01 4c0000000000000001 01", 20, "the same in Python"),
    ],
)
def test_what_is_no_river_is_refused_with_its_offset(payload, offset, message):
    data = bytes.fromhex(payload)

    with pytest.raises(DecodeError, match=message) as caught:
        RIVER.decode(data)

    assert caught.value.offset == offset
    assert caught.value.data == data


def test_value_nested_too_deep_is_refused():
    with pytest.raises(DecodeError, match="deeper than 200"):
        RIVER.decode(b"\x04" + bytes.fromhex("53015a") * 300 + b"\x01")


def test_depth_up_to_the_limit_is_read_and_written():
    value = "x"
    for _ in range(200):
        value = [value]

    assert RIVER.decode(RIVER.encode(value)) == value


def test_few_bytes_that_stand_for_very_many_values_are_refused():
    # Each list holds the one before it twice: 2 ** 40 values in 240 bytes.
    value = ["x"]
    for _ in range(40):
        value = [value, value]

    with pytest.raises(DecodeError, match="repeated values"):
        RIVER.decode(RIVER.encode(value))


def test_keys_of_one_hash_are_refused():
    keys = {UUID(int=n * (2**61 - 1) * 2): n for n in range(1, 3000)}

    payload = RIVER.encode(keys)

    with pytest.raises(DecodeError, match="collide"):
        RIVER.decode(payload)


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
        JavaEnum, st.sampled_from(["demo.A", "demo.B"]), st.sampled_from(["X", "Y"])
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


@given(VALUES)
def test_every_value_comes_back(value):
    payload = RIVER.encode(value)

    assert RIVER.decode(payload) == value
    assert RIVER.encode(RIVER.decode(payload)) == payload
