import math
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import (
    BigInteger,
    Float,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaObject,
    Long,
)
from django_delayq.exceptions import DecodeError, EncodeError

CBOR = get_codec("CborJacksonCodec")
CBOR_3 = get_codec("CborJackson3Codec")
PACK = get_codec("MsgPackJacksonCodec")
SMILE = get_codec("SmileJacksonCodec")
SMILE_3 = get_codec("SmileJackson3Codec")
CODECS = [CBOR, CBOR_3, PACK, SMILE, SMILE_3]
LIST, LONG = b"java.util.ArrayList".hex(), b"java.lang.Long".hex()
A_UUID = UUID("01234567-89ab-cdef-fedc-ba9876543210")


@pytest.mark.parametrize(
    ("codec", "value", "payload"),
    [
        (CBOR, None, "f6"),
        (CBOR, -1, "20"),
        (CBOR, [1], f"9f73{LIST}9f01ffff"),
        (CBOR, Long(1), f"9f6e{LONG}01ff"),
        (CBOR, 5000000000, f"9f6e{LONG}1b000000012a05f200ff"),
        (CBOR, Float(0.1), "fa3dcccccd"),
        (CBOR, "订", "63e8aea2"),
        (CBOR, b"\xff", "41ff"),
        (CBOR, JavaList([1, 2**40], ""), "82011b0000010000000000"),
        (CBOR, JavaMap({1: "a"}, ""), "bf016161ff"),
        (CBOR, BigInteger(-1), f"9f74{b'java.math.BigInteger'.hex()}c34101ff"),
        (CBOR, Decimal("12.340"), f"9f74{b'java.math.BigDecimal'.hex()}c48222193034ff"),
        (CBOR_3, BigInteger(-1), "c34100"),
        (CBOR_3, [1, None], "8201f6"),
        (CBOR_3, {"a": None}, "bf6161f6ff"),
        (PACK, None, "c0"),
        (PACK, -33, "d0df"),
        (PACK, 300, "cd012c"),
        (PACK, [1], f"92b3{LIST}9101"),
        (PACK, Long(1), f"92ae{LONG}01"),
        (PACK, Float(0.1), "ca3dcccccd"),
        (PACK, b"\xff", "c401ff"),
        (PACK, "x" * 40, "d928" + "78" * 40),
        (PACK, JavaMap({}, ""), "80"),
        (SMILE, None, "3a290a0121"),
        (SMILE, -16, "3a290a01df"),
        (SMILE, 16, "3a290a0124a0"),
        (SMILE, [1], f"3a290a01f852{LIST}f8c2f9f9"),
        (SMILE, 0.1, "3a290a0129003f5c6633194c66331a"),
        (SMILE, "订", "3a290a0181e8aea2"),
        (SMILE, b"hello", "3a290a01e88534192d46630f"),
        (SMILE, b"1234567", "3a290a01e887184c463321546c37"),
        (SMILE, JavaMap({"a": JavaMap({"a": 1}, "")}, ""), "3a290a01fa8061fa40c2fbfb"),
        (SMILE_3, {"": True}, "3a290a01fa2023fb"),
    ],
)  # fmt: skip
def test_value_is_written_and_read(codec, value, payload):
    payload = bytes.fromhex(payload)

    assert codec.encode(value) == payload
    assert codec.decode(payload) == value


@pytest.mark.parametrize("codec", CODECS)
def test_field_that_is_a_float_needs_no_class(codec):
    value = JavaObject("demo.Item", {"price": Float(0.1)})

    payload = codec.encode(value)

    assert b"java.lang.Float" not in payload
    assert codec.encode(codec.decode(payload)) == payload


@pytest.mark.parametrize(
    ("name", "version", "payload"),
    [
        ("CborJacksonCodec", "3.12.5", f"9f6e{LONG}1b0000000080000000ff"),
        ("CborJacksonCodec", "3.16.6", f"9f6e{LONG}1a80000000ff"),
        ("CborJacksonCodec", None, f"9f6e{LONG}1a80000000ff"),
    ],
)
def test_version_decides_how_a_long_is_written(name, version, payload):
    codec = get_codec(name, version=version)

    assert codec.encode(2**31).hex() == payload
    assert codec.decode(bytes.fromhex(payload)) == 2**31


@pytest.mark.parametrize(
    ("name", "version", "is_text"),
    [
        ("CborJacksonCodec", "4.1.0", False),
        ("CborJacksonCodec", "4.2.0", True),
        ("SmileJacksonCodec", "4.1.0", False),
        ("SmileJacksonCodec", None, True),
        ("MsgPackJacksonCodec", "4.1.0", True),
    ],
)
def test_version_decides_how_a_uuid_is_written(name, version, is_text):
    codec = get_codec(name, version=version)

    payload = codec.encode([A_UUID])

    assert (str(A_UUID).encode() in payload) is is_text
    assert codec.decode(payload) == [A_UUID]


def test_long_text_of_cbor_is_cut_between_characters():
    text = "x" * 3995 + "😀" + "y" * 4000

    payload = CBOR.encode(text)

    assert payload[:4] == bytes.fromhex("7f790f9b")
    assert CBOR.decode(payload) == text


@pytest.mark.parametrize(("size", "token"), [(2666, 0xE0), (2667, 0xE4)])
def test_long_text_of_smile_is_looked_at_up_to_a_size(size, token):
    payload = SMILE.encode("x" * size)

    assert payload[4] == token
    assert SMILE.decode(payload) == "x" * size


def test_names_of_smile_are_shared_by_the_thousand():
    value = [{f"n{i}": 1} for i in range(2100)] * 2

    payload = SMILE_3.encode(value)

    assert SMILE_3.decode(payload) == value
    assert SMILE_3.encode(SMILE_3.decode(payload)) == payload


def test_texts_of_smile_that_are_shared_are_read():
    assert SMILE_3.decode(bytes.fromhex("3a290a03 f8 4161 62 01 f9")) == ["ab", "ab"]


def test_cbor_of_another_writer_is_read():
    assert CBOR_3.decode(bytes.fromhex("9f f93c00 f7 5f4101 4102ff d81e 01 bf01f5ff ff")) == [
        1.0, None, b"\x01\x02", 1, {1: True},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (CBOR, "\ud800", "half of a surrogate pair"),
        (PACK, "\ud800", "half of a surrogate pair"),
        (SMILE, "\ud800", "half of a surrogate pair"),
        (PACK, 2**64, "64 bits"),
        (PACK, Decimal("0.1234567890123456789"), "no decimals"),
        (PACK, Decimal("1E+999"), "no decimals"),
        (PACK, Decimal("NaN"), "not a number"),
        (CBOR, Decimal("NaN"), "not a number"),
        (SMILE, object(), "of type object"),
    ],
)
def test_what_the_format_has_not_is_refused(codec, value, message):
    with pytest.raises(EncodeError, match=message):
        codec.encode(value)


@pytest.mark.parametrize("codec", CODECS)
def test_value_that_contains_itself_is_refused(codec):
    value = []
    value.append(value)

    with pytest.raises(EncodeError, match="inside of itself"):
        codec.encode(value)


@pytest.mark.parametrize(
    ("codec", "payload", "offset", "message"),
    [
        (CBOR, "", 0, "the payload ends"),
        (CBOR, "0000", 1, "1 bytes after"),
        (CBOR, "1c", 0, "unknown form 28"),
        (CBOR, "7bffffffffffffffff", 9, "announced"),
        (CBOR, "9bffffffffffffffff", 9, "elements announced"),
        (CBOR, "9f01", 2, "the payload ends"),
        (CBOR, "61ff", 1, "not text"),
        (CBOR, "7f4100ff", 1, "another kind"),
        (CBOR, "a1f601", 1, "a key"),
        (CBOR, "1f", 0, "indefinite length"),
        (CBOR, "f8ff", 0, "unknown simple"),
        (CBOR, "c201", 0, "bignum"),
        (CBOR, "c401", 0, "decimal"),
        (CBOR, "c4821b7fffffffffffffff01", 0, "decimal"),
        (CBOR, "81" * 500 + "00", 403, "deeper than 200"),
        (PACK, "", 0, "the payload ends"),
        (PACK, "c1", 0, "an extension or unused"),
        (PACK, "d400ff", 0, "extension"),
        (PACK, "ddffffffff", 5, "elements announced"),
        (PACK, "dfffffffff", 5, "elements announced"),
        (PACK, "81c001", 1, "a key"),
        (PACK, "a1ff", 1, "not text"),
        (PACK, "91" * 500 + "00", 403, "deeper than 200"),
        (SMILE, "", 0, "4 bytes announced"),
        (SMILE, "3a290b0021", 0, "no header"),
        (SMILE, "3a290a1021", 0, "no header"),
        (SMILE, "3a290a0101", 5, "shared text 0"),
        (SMILE, "3a290a0100", 4, "unknown token"),
        (SMILE, "3a290a01f8", 5, "the payload ends"),
        (SMILE, "3a290a01fa40", 6, "shared name 0, of 0"),
        (SMILE, "3a290a01fa3f", 5, "for a name"),
        (SMILE, "3a290a01e0", 5, "without an end"),
        (SMILE, "3a290a01e80fbf", 7, "announced"),
        (SMILE, "3a290a0124" + "7f" * 20, 5, "more than 64 bits"),
        (SMILE, "3a290a0124" + "7f" * 7 + "80", 5, "more than 32 bits"),
        (SMILE, "3a290a012680", 5, "number of 0 bytes"),
        (SMILE, "3a290a01288000000000", 5, "top bit"),
        (SMILE, "3a290a01" + "f8" * 500, 407, "deeper than 200"),
    ],
)
def test_what_is_none_is_refused_with_its_offset(codec, payload, offset, message):
    data = bytes.fromhex(payload)

    with pytest.raises(DecodeError, match=message) as caught:
        codec.decode(data)

    assert caught.value.offset == offset
    assert caught.value.data == data


@pytest.mark.parametrize("codec", CODECS)
def test_deep_values_are_read_and_written(codec):
    value = "x"
    for _ in range(150):
        value = [value]

    assert codec.decode(codec.encode(value)) == value


TYPED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.floats(width=32, allow_nan=False).map(Float)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.integers(-(2**63), 2**63 - 1).map(Long)
    | st.just(datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC))
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
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda items: st.lists(items) | st.dictionaries(st.text(), items),
    max_leaves=12,
)


@pytest.mark.parametrize("codec", [CBOR, PACK, SMILE])
@given(value=TYPED)
def test_every_value_in_a_list_comes_back(codec, value):
    payload = codec.encode([value])

    assert codec.decode(payload) == [value]
    assert codec.encode(codec.decode(payload)) == payload


@pytest.mark.parametrize("codec", [CBOR_3, SMILE_3])
@given(value=PLAIN)
def test_every_plain_value_comes_back(codec, value):
    payload = codec.encode(value)

    assert codec.decode(payload) == value
    assert codec.encode(codec.decode(payload)) == payload


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_is_a_number_here(codec, value):
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "number", ["3b80ffffffffffffff", "1bffffffffffffffff", "c48221196161"]
)
def test_number_of_an_unknown_class_is_written_as_it_was_read(number):
    codec = get_codec("CborJacksonCodec")
    payload = bytes.fromhex(f"9f 6e {b'java.lanw.Long'.hex()} {number} ff")

    once = codec.encode(codec.decode(payload))

    assert codec.encode(codec.decode(once)) == once


def test_key_that_is_a_bignum_or_a_boolean_is_refused():
    codec = get_codec("CborJacksonCodec")

    for key in ("c24c800000000000000000000000", "f5"):
        with pytest.raises(DecodeError, match="a key that is neither") as caught:
            codec.decode(bytes.fromhex(f"bf {key} 01 ff"))
        assert caught.value.offset == 1
    assert codec.encode({2**70: 1}) == codec.encode({str(2**70): 1})
