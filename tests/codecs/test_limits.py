"""What an attacker could put into a payload, in every codec that has it."""

import contextlib
import struct
import time
import tracemalloc

import pytest

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import JavaList, JavaSet
from django_delayq.exceptions import DecodeError, EncodeError

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
    with pytest.raises(DecodeError, match="@class does not name a class"):
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
    codec = get_codec("MarshallingCodec")

    assert len(codec.decode(bytes.fromhex("04 54 2710 7b 01"))) == 10_000
    for payload in ("04 55 000f0000 7b 01", "04 5302 5a 54 2000 7b 01 54 2000 7b 01"):
        with pytest.raises(DecodeError, match="more than 10000 copies"):
            codec.decode(bytes.fromhex(payload))


_M = 2**61 - 1  # two numbers that differ by it share a hash


def _class_of(name: bytes, fields: list[tuple[bytes, int]], parent: bytes) -> bytes:
    described = b"".join(
        b"\x3e" + bytes([len(field)]) + field + bytes([kind, 0])
        for field, kind in fields
    )
    head = b"\x09\x3e" + bytes([len(name)]) + name + bytes(8)
    return head + len(fields).to_bytes(4, "big") + described + parent


def _river_list(items: list[bytes]) -> bytes:
    return b"\x04\x55" + len(items).to_bytes(4, "big") + b"\x5a" + b"".join(items)


def many_fields(large: int) -> bytes:
    fields = [(b"%05d" % n, 0x21) for n in range(large // 10)]
    return b"\x04\x04" + _class_of(b"A", fields, b"\x16") + bytes(len(fields))


def many_superclasses(large: int) -> bytes:
    first = b"\x04" + _class_of(b"C00000", [], b"\x16")
    others = [
        b"\x04" + _class_of(b"C%05d" % n, [], b"\x3b\xfe")
        for n in range(1, large // 24)
    ]
    return _river_list([first, *others])


def many_subclasses(large: int) -> bytes:
    fields = [(b"%05d" % n, 0x21) for n in range(large // 20)]
    # The array names the classes, without an object of any of them.
    first = b"\x41" + _class_of(b"B", fields, b"\x16")
    others = [
        b"\x41" + _class_of(b"C%05d" % n, [], b"\x06\0\0\0\0")
        for n in range(large // 60)
    ]
    return _river_list([first, *others])


def many_keys_of_many_fields(large: int) -> bytes:
    fields = [(b"%05d" % n, 0x21) for n in range(large // 20)]
    first = b"\x04" + _class_of(b"A", fields, b"\x16") + bytes(len(fields))
    # Each set has one element, always the same object, which is hashed for each set.
    number = (2 + len(fields)).to_bytes(4, "big")
    return _river_list([first, *[b"\x53\x01\x5e\x02" + number] * (large // 16)])


def many_keys_of_one_hash(large: int) -> bytes:
    count = large // 18
    keys = [n * _M if n % 10 < 7 else n for n in range(1, count)]
    body = b"".join(struct.pack("<QQ", key >> 64, key & (2**64 - 1)) for key in keys)
    uuids = [body[at : at + 16] for at in range(0, len(body), 16)]
    known = b"\x01\x00java.util.HashMa\xf0"
    size = len(uuids) + 1
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    first = b"\x01\x01java.util.UUI\xc4"
    return known + varint + first + b"\x00\x01\x01".join(u for u in uuids) + b"\x00"


def many_bignums_as_keys(large: int) -> bytes:
    keys = [(n * _M << 3).to_bytes(12, "big") for n in range(1, large // 15)]
    return b"\xbf" + b"".join(b"\xc2\x4c" + key + b"\xf6" for key in keys) + b"\xff"


def many_empties_in_cbor(large: int) -> bytes:
    return b"\x9f" + b"\xa0" * large + b"\xff"


def many_empties_in_messagepack(large: int) -> bytes:
    return b"\xdd" + large.to_bytes(4, "big") + b"\x80" * large


def many_empties_in_smile(large: int) -> bytes:
    return b":)\n\x01\xf8" + b"\xfa\xfb" * (large // 2) + b"\xf9"


def many_empties_in_kryo(large: int) -> bytes:
    size = large + 1
    flagged = bytes([0xC0 | size & 0x3F, size >> 6 & 0x7F | 0x80, size >> 13 & 0x7F])
    name = b"\x01\x00java.util.ArrayLis\xf4"
    return name + flagged + b"\x01\x01java.util.HashMa\xf0\x00" + b"\x01" * large


def many_truth_values(large: int) -> bytes:
    return b"\x04\x44" + (8 * large).to_bytes(4, "big") + b"\x20" + bytes(large)


def many_lists_in_json(large: int) -> bytes:
    return b"[" + b"[]," * (large // 3) + b"[]]"


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        ("MarshallingCodec", many_fields),
        ("MarshallingCodec", many_superclasses),
        ("MarshallingCodec", many_subclasses),
        ("MarshallingCodec", many_keys_of_many_fields),
        ("MarshallingCodec", many_truth_values),
        ("Kryo5Codec", many_keys_of_one_hash),
        ("Kryo5Codec", many_empties_in_kryo),
        ("CborJacksonCodec", many_bignums_as_keys),
        ("CborJacksonCodec", many_empties_in_cbor),
        ("MsgPackJacksonCodec", many_empties_in_messagepack),
        ("SmileJacksonCodec", many_empties_in_smile),
        ("JsonJacksonCodec", many_lists_in_json),
    ],
)
def test_payload_takes_time_and_memory_in_proportion_to_its_size(codec, make):
    large, small, reader = make(200_000), make(20_000), get_codec(codec)

    def seconds(payload: bytes) -> float:
        began = time.process_time()
        with contextlib.suppress(DecodeError):
            reader.decode(payload)
        return time.process_time() - began

    tracemalloc.start()
    try:
        seconds(small)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # Ten times the size takes 4 to 23 times as long, as measured; growth with the square would take 100 times. A busy
    # machine spoils one measurement, a fault spoils each.
    assert any(seconds(large) < 50 * seconds(small) for _ in range(5))
    # Measured: at most 161 times the payload, for nothing but empty maps.
    assert peak < 200 * len(small)
