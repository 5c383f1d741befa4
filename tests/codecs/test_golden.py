"""Every payload that Redisson wrote: read, compared with its value, written again.

Three claims a row: it decodes to its value; what was decoded is encoded to the same bytes; the
value, built in Python, is encoded to the same bytes. ``LISTED`` names the rows where a claim does
not hold, and why; a listed row that passes is a failure as well.
"""

import base64
import json
from collections.abc import Set
from datetime import date, datetime, time, timedelta
from functools import cache
from uuid import UUID

import pytest

from django_delayq.codecs import Codec
from django_delayq.codecs.java_text import iso_millis
from django_delayq.codecs.java_time import (
    duration_text,
    instant_text,
    jackson_text,
    local_text,
)
from django_delayq.codecs.values import (
    Instant,
    JavaEnum,
    JavaObject,
    JavaValue,
    to_plain,
)
from django_delayq.exceptions import DecodeError, EncodeError
from tests.codecs.listed import LISTED
from tests.codecs.vectors import (
    GOLDEN,
    VERSIONS,
    codec_of,
    load,
    payload_of,
    rows_of,
    value_of,
    versions_with,
)

CODECS = [
    "StringCodec",
    "LongCodec",
    "IntegerCodec",
    "DoubleCodec",
    "ByteArrayCodec",
    "JsonJacksonCodec",
    "TypedJsonJacksonCodec(Object)",
    "TypedJsonJacksonCodec(T)",
    "JsonJackson3Codec",
    "TypedJsonJackson3Codec(Object)",
    "CborJacksonCodec",
    "CborJackson3Codec",
    "MsgPackJacksonCodec",
    "SmileJacksonCodec",
    "SmileJackson3Codec",
    "MarshallingCodec",
    "Kryo5Codec",
]
#: Known by name only: guess.py recognises their rows, and their codecs refuse them.
UNSUPPORTED = {"FstCodec", "SerializationCodec"}
VERSIONED = [(codec, version) for codec in CODECS for version in versions_with(codec)]
CLAIMS = ("read", "again", "write")
#: Redisson's write the text of any value; ours write only what the same codec reads back.
TEXT_CODECS = (
    "StringCodec",
    "LongCodec",
    "IntegerCodec",
    "DoubleCodec",
    "ByteArrayCodec",
)


def expected(codec: str, row: dict) -> object:
    """Return what a row must decode to: its value, without what the format cannot hold."""
    value = value_of(row)
    if codec in TEXT_CODECS:
        return _as_redisson_read(row)
    if "Jackson" not in codec:
        return value
    if codec in ("CborJackson3Codec", "SmileJackson3Codec"):
        return _in_binary_json(value if "Cbor" in codec else _keys_as_text(row, value))
    if row["label"] == "uuid" and row.get("decoded_type") == "byte[]":
        return value.bytes
    if not row.get("equal") and row.get("decoded_type") == "java.lang.String":
        return row["decoded"] if "decoded" in row else _bare(codec, value)
    if "Jackson3" not in codec or codec == "JsonJackson3Codec":
        value = _without_nulls(value)
    if "Cbor" not in codec:
        value = _keys_as_text(row, value)
    return _bare(codec, value) if "Typed" in codec else _statuses_as_text(value)


def _keys_as_text(row: dict, value: object) -> object:
    """Turn keys into text: JSON has no others, nor have most of the binary formats."""
    if row["label"] != "map.intkey":
        return value
    return {str(key): item for key, item in value.items()}


def _as_redisson_read(row: dict) -> object:
    if row.get("decode_error"):
        return DecodeError
    if row.get("equal"):
        return value_of(row)
    text = row.get("decoded", payload_of(row).decode())  # left out where it is long
    kinds = {"java.lang.Integer": int, "java.lang.Long": int, "java.lang.Double": float}
    return kinds.get(row["decoded_type"], str)(text)


def _bare(codec: str, value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if value - value != 0:
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[
                str(float(value))
            ]
        case datetime() if value.tzinfo is not None and "Jackson3" not in codec:
            return round(value.timestamp() * 1000)
        case dict() | JavaObject():
            fields = value if isinstance(value, dict) else value.fields
            return {str(key): _bare(codec, item) for key, item in fields.items()}
        case list() if getattr(value, "class_name", "") == "[C":
            return "".join(value)
        case list():
            return [_bare(codec, item) for item in value]
        case _:
            plain = to_plain(value)
            return (
                plain
                if isinstance(plain, str | int | float | list | None)
                else str(plain)
            )


def _in_binary_json(value: object) -> object:
    """Return what is left of a value in a format that has bytes and decimals, but names no classes."""
    match value:
        case UUID():
            return value.bytes
        case JavaValue() if value.class_name.startswith("java.time."):
            return jackson_text(value)
        case JavaValue() if value.class_name == "java.util.Locale":
            return str(value.value).replace("_", "-")
        case datetime() if value.tzinfo is not None:
            return iso_millis(value)
        case timedelta():
            return duration_text(value)
        case Instant():
            return instant_text(value)
        case date() | time():
            return local_text(value)
        case JavaObject():
            return {key: _in_binary_json(item) for key, item in value.fields.items()}
        case dict():
            return {key: _in_binary_json(item) for key, item in value.items()}
        case list() if getattr(value, "class_name", "") == "[C":
            return "".join(value)
        case list() | Set():
            return [_in_binary_json(item) for item in value]
        case JavaEnum() | JavaValue():
            return to_plain(value)
        case _:
            return value


def _without_nulls(value: object) -> object:
    match value:
        case dict():
            kept = {
                key: _without_nulls(item)
                for key, item in value.items()
                if item is not None
            }
            return _of_class(value, kept)
        case JavaObject():
            return JavaObject(value.class_name, _without_nulls(dict(value.fields)))
        case list():
            return _of_class(value, [_without_nulls(item) for item in value])
        case _:
            return value


def _statuses_as_text(value: object) -> object:
    """Turn statuses into text: a field declared as an enum is written without the enum's class."""
    match value:
        case JavaObject():
            fields = {
                key: _statuses_as_text(item) for key, item in value.fields.items()
            }
            if isinstance(fields.get("status"), JavaEnum):
                fields["status"] = fields["status"].name
            return JavaObject(value.class_name, fields)
        case dict():
            return _of_class(
                value, {key: _statuses_as_text(value[key]) for key in value}
            )
        case list():
            return _of_class(value, [_statuses_as_text(item) for item in value])
        case _:
            return value


def _of_class(value: object, copy: object) -> object:
    return type(value)(copy, value.class_name) if hasattr(value, "class_name") else copy


def same(value: object, other: object) -> bool:
    """Compare values; NaN equals itself, and True does not equal 1."""
    if isinstance(value, float) and isinstance(other, float) and value != value:
        return other != other
    if isinstance(value, bool) is not isinstance(other, bool):
        return False
    return value == other and (type(value) is not int or not isinstance(other, float))


_SAME_DIALECT: dict[str, Codec] = {}


@cache
def _failed_claims(codec_name: str, codec: Codec, key: str) -> frozenset[str]:
    row = json.loads(key)
    payload, want = payload_of(row), expected(codec_name, row)
    failed = set()
    try:
        value = codec.decode(payload)
    except DecodeError:
        failed |= {"read"} - ({"read"} if want is DecodeError else set())
    else:
        if not same(want, value):
            failed.add("read")
        if writes(codec_name, row) and _encoded(codec, value) != payload:
            failed.add("again")
    if writes(codec_name, row) and _encoded(codec, written(codec_name, row)) != payload:
        failed.add("write")
    return frozenset(failed)


def failures(codec_name: str, version: str) -> dict[str, set[str]]:
    """Return for each claim the labels of the rows where it does not hold."""
    # Most rows are the same in all versions, and are checked again only where the codec differs.
    codec = codec_of(codec_name, version)
    codec = _SAME_DIALECT.setdefault(repr(codec), codec)
    failed: dict[str, set[str]] = {claim: set() for claim in CLAIMS}
    for label, row in rows_of(version, codec_name).items():
        if payload_of(row) is not None:
            for claim in _failed_claims(codec_name, codec, json.dumps(row)):
                failed[claim].add(label)
    return failed


def writes(codec: str, row: dict) -> bool:
    return codec not in TEXT_CODECS or row.get("equal")


def written(codec: str, row: dict) -> object:
    value = value_of(row)
    return _statuses_as_text(value) if "Jackson" in codec else value


def _encoded(codec, value: object) -> bytes | None:
    try:
        return codec.encode(value)
    except EncodeError:
        return None


def test_every_codec_of_the_golden_files_is_tried_or_known_as_unsupported():
    found = {codec for version in VERSIONS for codec, _ in load(version)}

    assert found == {*CODECS, *UNSUPPORTED}
    for version in VERSIONS:
        for codec in UNSUPPORTED:
            for row in rows_of(version, codec).values():
                if (payload := payload_of(row)) is not None:
                    with pytest.raises(DecodeError, match="not supported") as caught:
                        codec_of(codec, version).decode(payload)
                    assert caught.value.data == payload


@pytest.mark.parametrize(("codec", "version"), VERSIONED)
def test_every_row_is_read_and_written_but_those_that_are_listed(codec, version):
    failed = failures(codec, version)

    for claim in CLAIMS:
        listed = {
            label
            for entry in LISTED.get(codec, ())
            if claim in entry.claims.split()
            and entry.since <= _number(version) < entry.until
            for label in entry.labels.split()
        }
        rows = {
            label for label, row in rows_of(version, codec).items() if payload_of(row)
        }
        assert failed[claim] == listed & rows, claim


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


ELEMENTS = [
    element
    for line in (GOLDEN / "frames.jsonl")
    .read_text(encoding="utf-8")
    .strip()
    .split("\n")
    if (element := json.loads(line))["codec"] != "FstCodec"
]


@pytest.mark.parametrize(
    "element", ELEMENTS, ids=lambda e: f"{e['version']}-{e['queue']}-{e['codec']}"
)
def test_element_of_a_queue_is_read_and_written(element):
    codec = codec_of(element["codec"], element["version"])
    payload = bytes.fromhex(element["destination"][0])
    match element["value"]:
        case {"$bytes": raw}:
            value = bytes.fromhex(raw)
        case {"$long": number}:
            value = number
        case value:
            pass

    assert codec.decode(payload) == value
    assert codec.encode(value) == payload
