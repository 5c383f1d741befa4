"""What someone who wants to harm us could put into a payload, in any codec that has it."""

import contextlib
import tracemalloc

import pytest

from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.wire.codecs import get_codec
from django_delayq.wire.codecs.values import JavaList, JavaSet

TYPED = [
    "JsonJacksonCodec",
    "CborJacksonCodec",
    "SmileJacksonCodec",
    "MarshallingCodec",
    "Kryo5Codec",
]
ALL = [
    *TYPED,
    "MsgPackJacksonCodec",
    "JsonJackson3Codec",
    "TypedJsonJacksonCodec",
    "json",
]


@pytest.mark.parametrize("name", [*TYPED, "CborJackson3Codec", "SmileJackson3Codec"])
def test_number_that_python_would_not_print_is_refused(name):
    codec = get_codec(name)
    longest = 10**4280

    assert codec.decode(codec.encode(longest)) == longest
    try:
        payload = codec.encode(10**4400)
    except EncodeError:
        return
    with pytest.raises(DecodeError, match=r"number|bignum|digits"):
        codec.decode(payload)


@pytest.mark.parametrize("name", ALL)
def test_value_with_a_number_that_python_would_not_print_fails_as_any_other(name):
    codec = get_codec(name)

    for value in ([10**5000, object()], JavaSet([10**5000]), {10**5000}, {10**5000: 1}):
        with contextlib.suppress(EncodeError):
            codec.encode(value)


@pytest.mark.parametrize("name", ["MarshallingCodec", "Kryo5Codec"])
def test_class_name_that_goes_on_for_ever_is_refused(name):
    codec = get_codec(name)
    payload = codec.encode(JavaList([], "[Ljava.lang.String;"))
    if name == "Kryo5Codec":
        payload = payload.replace(b"[Ljava", b"[L" + b"j" * 500 + b"java")
    else:
        long = b"j" * 501
        payload = b"\x04\x41\x0c" + len(long).to_bytes(4, "big") + long

    with pytest.raises(DecodeError, match="class name of"):
        codec.decode(payload)


def test_json_class_name_that_goes_on_for_ever_is_text():
    name = "a.B" + "Set<" * 100_000

    assert get_codec("JsonJacksonCodec").decode(f'["{name}",[]]'.encode()) == [name, []]
    with pytest.raises(DecodeError, match="@class names no class"):
        get_codec("JsonJacksonCodec").decode(f'{{"@class":"{name}"}}'.encode())


def test_array_of_very_many_dimensions_is_refused():
    payload = bytes.fromhex("04 41" + "0d" * 9 + "14")

    with pytest.raises(DecodeError, match="8 dimensions"):
        get_codec("MarshallingCodec").decode(payload)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("MarshallingCodec", "04 55 7fffffff 5a 01"),
        ("MarshallingCodec", "04 55 7fffffff 7b 01"),
        ("MarshallingCodec", "04 44 7fffffff 20 01"),
        ("MarshallingCodec", "04 40 7fffffff 61"),
        ("Kryo5Codec", "0100 6a6176612e7574696c2e41727261794c6973f4 ffffffff1f 00"),
        ("Kryo5Codec", "0100 5bda ffffffff07 01"),
        ("Kryo5Codec", "03 ffffffff1f 61"),
        ("CborJacksonCodec", "9b7fffffffffffffff 00"),
        ("CborJacksonCodec", "5b7fffffffffffffff 00"),
        ("MsgPackJacksonCodec", "dd7fffffff 00"),
        ("MsgPackJacksonCodec", "c67fffffff 00"),
        ("SmileJacksonCodec", "3a290a01 e8 0f7f7f7fbf 00"),
    ],
)
def test_size_that_the_payload_cannot_have_takes_no_memory(name, payload):
    codec, data = get_codec(name), bytes.fromhex(payload)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000


def test_few_bytes_of_river_do_not_unfold_to_many_copies():
    payload = bytes.fromhex("04 55 000f0000 7b 01")

    found = get_codec("MarshallingCodec").decode(payload)

    assert len(found) == 0x000F0000
