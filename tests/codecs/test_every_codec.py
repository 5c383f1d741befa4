"""Common values, through every codec that can hold them."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from django_delayq.codecs import CODEC_NAMES, get_codec
from django_delayq.codecs.values import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    Float,
    Instant,
    JavaEnum,
    JavaObject,
    to_plain,
)
from django_delayq.exceptions import EncodeError

NUMBERS = ("LongCodec", "IntegerCodec", "DoubleCodec")
OF_VALUES = sorted({*CODEC_NAMES} - {*NUMBERS, "StringCodec", "ByteArrayCodec"})
#: Plain JSON, and CBOR and Smile with Jackson 3, know fewer types.
PLAIN = [name for name in OF_VALUES if "Typed" in name or name == "json"]
TYPED = [name for name in OF_VALUES if name not in PLAIN and "3" not in name]

TEXTS = {
    "empty": "",
    "ascii": "hello",
    "chinese": "订单-取消",
    "emoji": "😀👍🏽 end",
    "10 kB": ("0123456789abcdef" * 640)[:10_240],
    "1 MB": "x" * 1_000_000,
    "1 MB of Chinese": "订单" * 170_000,
    "1 MB of emoji": "😀" * 250_000,
    "1 MB of both": "a订😀" * 125_000,
}
#: The last of the texts has what these have.
REPEATED = ("1 MB of Chinese", "1 MB of emoji")
each_text = pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            text,
            id=label,
            marks=pytest.mark.exhaustive if label in REPEATED else (),
        )
        for label, text in TEXTS.items()
    ],
)


@each_text
@pytest.mark.parametrize("name", ["StringCodec", *OF_VALUES])
def test_text_comes_back(name, text):
    codec = get_codec(name)

    assert codec.decode(codec.encode(text)) == text


@each_text
@pytest.mark.parametrize("name", OF_VALUES)
def test_text_comes_back_from_inside_of_others(name, text):
    codec = get_codec(name)
    value = {"texts": [text, [text]], "more": {"text": text}}

    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("number", [0, -1, INT_MIN, INT_MAX, INT_MIN - 1, INT_MAX + 1, LONG_MIN, LONG_MAX])  # fmt: skip
@pytest.mark.parametrize("name", ["LongCodec", *OF_VALUES])
def test_whole_number_comes_back(name, number):
    codec = get_codec(name)

    assert codec.decode(codec.encode(number)) == number
    if name in OF_VALUES:
        assert codec.decode(codec.encode([number])) == [number]


@pytest.mark.parametrize("number", [LONG_MIN - 1, LONG_MAX + 1, 10**400])
def test_number_beyond_is_refused_by_codecs_of_numbers(number):
    for name in ("LongCodec", "IntegerCodec"):
        with pytest.raises(EncodeError, match="outside"):
            get_codec(name).encode(number)


@pytest.mark.parametrize("number", [0.0, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["DoubleCodec", *OF_VALUES])
def test_double_comes_back(name, number):
    codec = get_codec(name)
    if name == "json" and math.isinf(number):
        with pytest.raises(EncodeError, match="not a JSON number"):
            codec.encode(number)
        return

    found = codec.decode(codec.encode(number))

    if math.isinf(number) and "Json" in name:  # Jackson puts it in quotes
        found = float(found)
    assert found == number
    assert math.copysign(1, found) == math.copysign(1, number)


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.parametrize("value", [True, False, None, [], {}, [[]], {"a": [{"b": []}]}])
def test_what_json_has_comes_back(name, value):
    codec = get_codec(name)

    found = codec.decode(codec.encode(value))

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("name", TYPED)
def test_what_java_has_besides_comes_back(name):
    value = {
        "bytes": bytes(range(256)),
        "decimal": Decimal("12.5"),
        "big": 2**63,
        "moment": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        "uuid": UUID("01234567-89ab-cdef-fedc-ba9876543210"),
        "set": {"a"},
    }
    codec = get_codec(name)
    if name in ("MsgPackJacksonCodec",):
        del value["big"]  # 64 bits without a sign, which Java refuses

    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("name", [name for name in TYPED if "Jackson" in name])
def test_object_and_enum_of_java_need_no_declaration_in_the_json_family(name):
    codec = get_codec(name)
    status = JavaEnum("demo.Status", "PAID")
    value = [JavaObject("demo.Order", {"id": 5, "items": [status]}), status]

    found = codec.decode(codec.encode(value))

    assert found == value
    assert to_plain(found) == [{"id": 5, "items": ["PAID"]}, "PAID"]


@pytest.mark.parametrize("name", ["Kryo5Codec", "MarshallingCodec"])
def test_instant_comes_back_to_the_nanosecond(name):
    codec = get_codec(name)

    for value in (Instant(0), Instant(1_700_000_000, 999_999_999), Instant(-1, 1)):
        assert codec.decode(codec.encode(value)) == value


class Shy:
    """An object whose repr may query a database, reveal a password, or be long."""

    def __repr__(self):
        raise AssertionError("its repr was asked for")


@pytest.mark.parametrize(
    "value",
    [
        Shy(),
        [Shy()],
        {"a": {"b": Shy()}},
        {Shy(): 1},
        {"password": "hunter2", "of": object()},
        bytearray(10_000_000),
    ],
    ids=["object", "list", "dict", "key", "password", "large"],
)
@pytest.mark.parametrize("name", sorted(CODEC_NAMES))
def test_what_cannot_be_written_is_not_repeated(name, value):
    refusal = None
    try:
        get_codec(name).encode(value)
    except EncodeError as error:
        refusal = str(error)

    assert refusal or isinstance(value, bytearray)
    assert len(refusal or "") < 500
    assert "hunter2" not in (refusal or "")


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("number", [2**24 + 2, 2**31, -(2**31), 2**100])
def test_float_of_a_whole_number_is_that_number(name, number):
    codec = get_codec(name)

    # Alone, JSON has only the digits that Java prints, without a type.
    (value,) = codec.decode(codec.encode([Float(number)]))

    assert value == number
    assert int(value) == number
