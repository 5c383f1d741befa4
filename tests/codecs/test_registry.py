import pytest

from django_delayq.codecs import CODEC_NAMES, Codec, default_codec, get_codec
from django_delayq.codecs.guess import probable_codecs
from django_delayq.codecs.unsupported import WRAPPING
from django_delayq.exceptions import DecodeError, EncodeError


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("3.2.0", "JsonJacksonCodec"),
        ("3.9.1", "JsonJacksonCodec"),
        ("3.10.0", "FstCodec"),
        ("3.12.5", "FstCodec"),
        ("3.13.0", "MarshallingCodec"),
        ("3.15.0", "MarshallingCodec"),
        ("3.16.6", "MarshallingCodec"),
        ("3.18.1", "MarshallingCodec"),
        ("3.19.0", "Kryo5Codec"),
        ("3.20.1", "Kryo5Codec"),
        ("4.7.0", "Kryo5Codec"),
    ],
)
def test_version_of_redisson_decides_the_default(version, name):
    assert default_codec(version) == name


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_codec_knows_its_name(name):
    codec = get_codec(name)

    assert codec.name == name
    assert isinstance(codec, Codec)
    assert get_codec(codec) is codec
    assert get_codec(name) is codec


def test_codec_is_found_by_its_java_class():
    assert get_codec("org.redisson.codec.ByteArrayCodec").name == "ByteArrayCodec"
    assert get_codec("org.redisson.client.codec.StringCodec").name == "StringCodec"


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        EncodeError, match=r"'GsonCodec'; the known names are ByteArrayCodec, .*json"
    ):
        get_codec("GsonCodec")


@pytest.mark.parametrize("thing", [None, 5, object()])
def test_what_is_no_codec_is_refused(thing):
    with pytest.raises(EncodeError, match="not a codec"):
        get_codec(thing)


@pytest.mark.parametrize("name", ["FstCodec", "SerializationCodec"])
def test_unsupported_codec_says_so_and_keeps_the_bytes(name):
    codec = get_codec(name)

    with pytest.raises(EncodeError, match=f"{name} is not supported; set a codec"):
        codec.encode("x")
    with pytest.raises(
        DecodeError, match="the 2 raw bytes are kept; set a codec"
    ) as caught:
        codec.decode(b"\xfc\x00")

    assert caught.value.data == b"\xfc\x00"


@pytest.mark.parametrize("name", WRAPPING)
def test_codec_that_wraps_another_says_so_and_keeps_the_bytes(name):
    codec = get_codec(f"org.redisson.codec.{name}", version="4.7.0")
    advice = f"{name} is not supported.*; (it compresses|the elements of a queue)"

    assert codec.name == name
    assert name not in CODEC_NAMES
    with pytest.raises(EncodeError, match=advice):
        codec.encode("x")
    with pytest.raises(DecodeError, match=advice) as caught:
        codec.decode(b"\x06\x14\x03hell\xef")
    assert caught.value.data == b"\x06\x14\x03hell\xef"


def test_every_codec_that_a_payload_is_told_to_be_of_is_one_to_set():
    compressed = [b"\0\0\0\x08\x06\x14\x03hell\xef", b"\0\0\0\x06\x60\x03hell\xef"]

    for name in {name for payload in compressed for name in probable_codecs(payload)}:
        assert get_codec(name).name == name
