"""docs/codecs.md says what the code does; its blocks run with those of the other pages."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from django_delayq.codecs import codec, decimals, get_codec, java_text, values
from django_delayq.codecs.guess import probable_codecs
from django_delayq.codecs.kryo import read as kryo
from django_delayq.codecs.river import input as river
from django_delayq.codecs.values import (
    BigInteger,
    Byte,
    Char,
    Float,
    JavaEnum,
    JavaObject,
    Long,
    Short,
)
from django_delayq.exceptions import DecodeError
from tests.codecs.page import COLUMNS, PAGE, ROWS, with_codecs
from tests.codecs.vectors import load

TEXT = PAGE.read_text("utf-8")
TYPED = [
    "JsonJacksonCodec",
    "CborJacksonCodec",
    "MsgPackJacksonCodec",
    "SmileJacksonCodec",
    "JsonJackson3Codec",
]


def section(title: str) -> str:
    return re.split(r"^#{2,3} ", TEXT.split(f"# {title}\n", 1)[1], flags=re.MULTILINE)[0]  # fmt: skip


def test_tables_are_those_of_the_golden_files():
    assert with_codecs(TEXT) == TEXT, "run python -m tests.codecs.page"


def test_every_kind_of_golden_value_has_a_row():
    kinds = {row["type"] for row in load("4.7.0").values()} - {None}
    shown = {row["type"] for (_, label), row in load("4.7.0").items() if label in ROWS}
    left_out = {
        "java.util.Collections$EmptyList", "java.util.Collections$EmptyMap",
        "java.util.Collections$EmptySet", "java.util.Collections$SingletonMap",
        "java.util.ImmutableCollections$List12", "java.util.concurrent.TimeUnit", "long[]", "boolean[]", "int[][]",
    }  # fmt: skip

    assert kinds - shown == left_out


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize(
    "value",
    [
        Long(1),
        Float(0.1),
        Byte(1),
        Short(1),
        Char("A"),
        b"hello",
        BigInteger(-1),
        Decimal("12.340"),
        datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        UUID("01234567-89ab-cdef-fedc-ba9876543210"),
        JavaEnum("demo.Status", "PAID"),
        "x",
        1,
        0.5,
        True,
    ],
    ids=repr,
)
def test_value_in_a_list_or_a_map_keeps_its_type(name, value):
    codec = get_codec(name)

    (in_list,) = codec.decode(codec.encode([value]))
    in_map = codec.decode(codec.encode({"key": value}))["key"]

    assert in_list == in_map == value
    assert type(in_list) is type(in_map) is type(value)


@pytest.mark.parametrize("name", TYPED)
def test_field_carries_its_class_if_it_is_a_boxed_long_only(name):
    codec = get_codec(name)
    order = JavaObject("demo.Order", {"at": 2**40, "id": Long(5), "status": "PAID"})

    found = codec.decode(codec.encode(order))

    assert found == order
    assert [type(value) for value in found.fields.values()] == [int, Long, str]


def test_limits_are_those_of_the_code():
    limits = [
        int(cell.replace(",", ""))
        for cell in re.findall(r"^\| ([\d,]+) \|", section("Limits"), re.MULTILINE)
    ]

    assert limits == [
        codec.MAX_DEPTH,
        codec.MAX_CLASS_NAME,
        decimals.MAX_NUMBER_BYTES,
        java_text.MAX_PLAIN_DIGITS,
        river.MAX_SUPERCLASSES,
        river.MAX_DIMENSIONS,
        river.MAX_REPEATED,
        river.MAX_COPIES,
        kryo.FREE_ELEMENTS,
        values.MAX_OF_ONE_HASH,
    ]
    assert f"{len(str(2 ** (8 * decimals.MAX_NUMBER_BYTES - 1))):,} digits" in TEXT


@pytest.mark.parametrize("name", ["json", "TypedJsonJacksonCodec"])
def test_depth_of_plain_json_has_pythons_own_limit(name):
    value: object = 1
    for _ in range(300):
        value = [value]

    assert get_codec(name).decode(get_codec("json").encode(value)) == value
    with pytest.raises(DecodeError, match="nested too deep"):
        get_codec(name).decode(b"[" * 100_000 + b"]" * 100_000)


def test_every_class_of_values_is_named():
    classes = {
        name
        for name, value in vars(values).items()
        if isinstance(value, type)
        and value.__module__ == values.__name__
        and not name.startswith("_")
    }

    assert {name for name in classes if f"`{name}`" not in TEXT} == set()


def test_every_column_is_explained():
    for column, name in COLUMNS.items():
        codec_name = name.partition("(")[0]
        stem = codec_name.partition("Jackson")[0].removesuffix("Codec")
        assert column.split()[0] in (stem, stem.removesuffix("Json"), "Kryo5"), column


@pytest.mark.parametrize("name", ["FstCodec", "SerializationCodec"])
def test_codecs_that_are_not_read_are_refused(name):
    assert f"`{name}`" in section("What is not read")
    with pytest.raises(DecodeError, match="not supported"):
        get_codec(name).decode(b"\xfc\x00")


def test_compressing_codecs_are_known_by_guess():
    for payload in (
        b"\0\0\0\x08\x06\x14\x03hell\xef",
        b"\0\0\0\x06\x60\x03hell\xef",
        b"\0\0\0\x06\x28\xb5\x2f\xfd",
    ):
        first = probable_codecs(payload)[0]
        assert f"`{first}`" in section("What is not read")
        with pytest.raises(DecodeError, match="it compresses what another codec"):
            get_codec(first).decode(payload)


@pytest.mark.parametrize(
    "declared",
    ["int", "String", "Integer", "long[]", "List<String>", "Map<String,Object>", "object", "final demo.Item"],
)  # fmt: skip
def test_declared_type_of_the_page_is_one(declared):
    assert declared in section("Kryo5Codec")

    codec = get_codec("Kryo5Codec").__class__(classes={"demo.A": [("f", declared)]})

    assert "demo.A" in repr(codec)
