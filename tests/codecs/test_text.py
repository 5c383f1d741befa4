import math
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import Float, JavaEnum, Long
from django_delayq.exceptions import DecodeError, EncodeError


@pytest.mark.parametrize(
    ("codec", "value", "payload"),
    [
        ("StringCodec", "", b""),
        ("StringCodec", "hello", b"hello"),
        ("StringCodec", "订单 😀", b"\xe8\xae\xa2\xe5\x8d\x95 \xf0\x9f\x98\x80"),
        ("LongCodec", 0, b"0"),
        ("LongCodec", -(2**63), b"-9223372036854775808"),
        ("IntegerCodec", 2**31 - 1, b"2147483647"),
        ("DoubleCodec", 0.1, b"0.1"),
        ("DoubleCodec", 1e300, b"1.0E300"),
        ("DoubleCodec", 5e-324, b"4.9E-324"),
        ("DoubleCodec", -math.inf, b"-Infinity"),
        ("DoubleCodec", 12345678.9, b"1.23456789E7"),
        ("ByteArrayCodec", b"\x00\xff", b"\x00\xff"),
    ],
)
def test_value_is_written_and_read(codec, value, payload):
    codec = get_codec(codec)

    assert codec.encode(value) == payload
    assert codec.decode(payload) == value


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (True, b"true"),
        (5, b"5"),
        (Long(5), b"5"),
        (1e300, b"1.0E300"),
        (Float(0.1), b"0.1"),
        (Decimal("-1E-20"), b"-1E-20"),
        (UUID(int=0), b"00000000-0000-0000-0000-000000000000"),
        (JavaEnum("demo.Status", "PAID"), b"PAID"),
    ],
)
def test_string_codec_writes_a_scalar_as_java_prints_it(value, payload):
    assert get_codec("StringCodec").encode(value) == payload


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        ("StringCodec", None, "None of type NoneType"),
        ("StringCodec", [1], "type list"),
        ("StringCodec", b"x", "type bytes"),
        ("StringCodec", "a\ud800", "half of a surrogate pair at 1"),
        ("StringCodec", Decimal("NaN"), "not a number"),
        ("LongCodec", 2**63, "outside"),
        ("LongCodec", True, "whole numbers"),
        ("LongCodec", "5", "whole numbers"),
        ("LongCodec", 5.0, "whole numbers"),
        ("IntegerCodec", 2**31, "outside"),
        ("DoubleCodec", "5", "numbers"),
        ("DoubleCodec", True, "numbers"),
        ("ByteArrayCodec", "text", "bytes"),
    ],
)
def test_value_of_another_kind_is_refused(codec, value, message):
    with pytest.raises(EncodeError, match=message):
        get_codec(codec).encode(value)


@pytest.mark.parametrize(
    ("codec", "payload", "offset"),
    [
        ("StringCodec", b"ab\xff", 2),
        ("LongCodec", b"", 0),
        ("LongCodec", b"1.5", 0),
        ("LongCodec", b"9223372036854775808", 0),
        ("LongCodec", b"1_000", 0),
        ("LongCodec", b" 1", 0),
        ("LongCodec", b"9" * 100_000, 0),
        ("LongCodec", "٣".encode(), 0),
        ("IntegerCodec", b"2147483648", 0),
        ("DoubleCodec", b"", 0),
        ("DoubleCodec", b"true", 0),
        ("DoubleCodec", b"inf", 0),
        ("DoubleCodec", b"1_0.5", 0),
    ],
)
def test_payload_of_another_kind_is_refused_with_its_offset(codec, payload, offset):
    with pytest.raises(DecodeError) as caught:
        get_codec(codec).decode(payload)

    assert caught.value.offset == offset
    assert caught.value.data == payload


@pytest.mark.parametrize(
    ("payload", "value"),
    [(b"+5", 5.0), (b" 5.5\n", 5.5), (b"1e3", 1000.0), (b"2.5d", 2.5)],
)
def test_double_codec_reads_what_java_reads(payload, value):
    assert get_codec("DoubleCodec").decode(payload) == value


def test_double_codec_reads_nan():
    assert math.isnan(get_codec("DoubleCodec").decode(b"NaN"))


@given(st.floats(allow_nan=False))
def test_every_double_comes_back(value):
    codec = get_codec("DoubleCodec")

    assert codec.decode(codec.encode(value)) == value


@given(st.text())
def test_every_text_comes_back(value):
    codec = get_codec("StringCodec")

    assert codec.decode(codec.encode(value)) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_comes_back(value):
    codec = get_codec("LongCodec")

    assert codec.decode(codec.encode(value)) == value
