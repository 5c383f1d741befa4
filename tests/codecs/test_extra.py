"""The golden payloads that the files of the ten versions leave out: read, written again, written from the value."""

import pytest

from django_delayq.codecs.guess import probable_codecs
from django_delayq.codecs.values import JavaMap, JavaObject
from django_delayq.exceptions import DecodeError
from tests.codecs.extra import COMPRESSING, KRYO, RIVER, VALUES, extra_codec, rows
from tests.codecs.vectors import VERSIONS, payload_of, versions_with

#: User classes that extend a JDK class: in Kryo, whose bytes have no field names, nothing tells them apart.
SUBCLASSES = ("names", "properties")
PLAIN = [
    row
    for row in rows()
    if row["codec"] not in COMPRESSING and row["label"] not in SUBCLASSES
]


def name_of(row):
    return f"{row['codec']}-{row['label']}-{row['versions'][0]}"


def row_of(label, codec, version):
    [row] = [
        row
        for row in rows()
        if (row["label"], row["codec"]) == (label, codec) and version in row["versions"]
    ]
    return row


def test_each_value_has_a_row_of_every_version_that_has_the_codec():
    found = {
        (row["label"], row["codec"], version)
        for row in rows()
        for version in row["versions"]
    }

    assert len(found) == sum(len(row["versions"]) for row in rows())
    for label, extra in VALUES.items():
        for codec in extra.codecs:
            versions = {
                version for version in VERSIONS if (label, codec, version) in found
            }
            with_codec = {
                v for row in rows() if row["codec"] == codec for v in row["versions"]
            }
            assert versions == with_codec != set()
    # Redisson reads back what it wrote, except where LZ4CodecV2 wrote repetitions, up to 3.52 at least.
    assert {row["codec"] for row in rows() if not row["equal"]} == {
        "LZ4CodecV2(StringCodec)"
    }


@pytest.mark.parametrize("row", PLAIN, ids=name_of)
def test_row_is_read_and_written_to_the_byte(row):
    payload, value = payload_of(row), VALUES[row["label"]].value
    # All versions write these alike; the other files have the corners that differ.
    for version in (row["versions"][0], row["versions"][-1]):
        codec = extra_codec(row["codec"], version)

        found = codec.decode(payload)

        assert found == value
        assert codec.encode(found) == payload
        assert codec.encode(value) == payload
        assert probable_codecs(payload)[0] == row["codec"]


@pytest.mark.parametrize(
    "row", [row for row in rows() if row["codec"] in COMPRESSING], ids=name_of
)
def test_compressed_payload_is_told_and_refused_and_its_bytes_are_kept(row):
    payload, name = payload_of(row), row["codec"].partition("(")[0]
    codec = extra_codec(row["codec"], row["versions"][0])

    told = probable_codecs(payload)
    if name == "SnappyCodecV2":  # its payloads have no mark
        assert set(told) <= {"StringCodec", "ByteArrayCodec"}
    else:  # both LZ4 codecs share a format
        assert told[0] == name.replace("LZ4CodecV2", "LZ4Codec")
    with pytest.raises(DecodeError, match=f"{name} is not supported") as caught:
        codec.decode(payload)
    assert caught.value.data == payload


@pytest.mark.parametrize("version", [*versions_with(RIVER)])
def test_properties_and_a_class_that_extends_a_list_come_with_river_with_all_they_have(
    version,
):
    codec = extra_codec(RIVER, version)
    properties = payload_of(row_of("properties", RIVER, version))
    names = payload_of(row_of("names", RIVER, version))

    found = codec.decode(properties)
    assert isinstance(found, JavaObject)
    assert found["#written"][1:] == ("a", "b")
    assert codec.encode(found) == properties
    # JBoss Marshalling 2.0.9 does not describe ArrayList, but still writes its data.
    if version == "3.12.5":
        with pytest.raises(DecodeError, match=r"superclass java\.util\.ArrayList"):
            codec.decode(names)
    else:
        found = codec.decode(names)
        assert (found.class_name, found["size"]) == ("demo.Names", 2)
        assert found["#written"][1:] == ("a", "b")
        assert codec.encode(found) == names


@pytest.mark.parametrize("version", VERSIONS)
def test_properties_and_a_class_that_extends_a_list_come_with_kryo_as_told(version):
    codec = extra_codec(KRYO, version)
    properties = payload_of(row_of("properties", KRYO, version))

    assert codec.decode(properties) == JavaMap({"a": "b"}, "java.util.Properties")
    assert codec.encode(codec.decode(properties)) == properties
    with pytest.raises(DecodeError, match=r"demo\.Names is opaque"):
        codec.decode(payload_of(row_of("names", KRYO, version)))
