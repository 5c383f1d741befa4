import random
import time
from functools import cache

import pytest

from django_delayq.codecs import CODEC_NAMES, get_codec
from django_delayq.codecs.guess import LOOKED_AT, looks_like, probable_codecs
from tests.codecs.vectors import VERSIONS, load, payload_of
from tests.fuzz import spoilt

#: With these, Redisson writes the text of any value; only what they can read back counts as theirs.
NUMBERS = ("LongCodec", "IntegerCodec", "DoubleCodec")

#: For how many golden payloads in a hundred the true codec is the first answer, and for how many the
#: first or second, as measured. Many are ambiguous: ten codecs may write "42", two a bare CBOR text.
FIRST = {
    "StringCodec": (84, 94),
    "LongCodec": (0, 100),
    "IntegerCodec": (0, 0),
    "DoubleCodec": (100, 100),
    "ByteArrayCodec": (33, 100),
    "JsonJacksonCodec": (71, 71),
    "TypedJsonJacksonCodec": (34, 72),
    "JsonJackson3Codec": (0, 32),
    "TypedJsonJackson3Codec": (0, 0),
    "CborJacksonCodec": (73, 96),
    "CborJackson3Codec": (23, 77),
    "MsgPackJacksonCodec": (94, 100),
    "SmileJacksonCodec": (86, 100),
    "SmileJackson3Codec": (26, 100),
    "MarshallingCodec": (100, 100),
    "Kryo5Codec": (100, 100),
    "FstCodec": (100, 100),
    "SerializationCodec": (100, 100),
}


@cache
def written() -> dict[str, tuple[bytes, ...]]:
    """Return the golden payloads of each codec, in all versions."""
    found: dict[str, set[bytes]] = {}
    for version in VERSIONS:
        for (name, _), row in load(version).items():
            codec, payload = name.partition("(")[0], payload_of(row)
            if payload is None or (codec in NUMBERS and not row.get("equal")):
                continue
            found.setdefault(codec, set()).add(payload)
    return {codec: tuple(sorted(payloads)) for codec, payloads in found.items()}


def test_every_codec_is_measured():
    assert (
        set(FIRST)
        == set(written())
        == set(CODEC_NAMES) - {"json"} | {"FstCodec", "SerializationCodec"}
    )


JOB = (
    b'{"delayq":"X0wZNC4ICLNUqUa2o8646Q","mac":"1tj8k6a87bc33b7ec9c0e9b70af2b2e3d9370",'
    b'"body":"{\\"task\\":\\"shop.cancel\\"}"}'
)


@pytest.mark.parametrize("codec", FIRST)
@pytest.mark.parametrize("seen", [None, LOOKED_AT, 32])
def test_true_codec_is_among_the_answers(codec, seen):
    for payload in written()[codec]:
        assert codec in probable_codecs(payload[:seen], size=len(payload)), payload[:64]


@pytest.mark.parametrize("codec", FIRST)
def test_true_codec_comes_first_as_often_as_was_measured(codec):
    answers = [probable_codecs(payload) for payload in written()[codec]]

    for count, floor in zip((1, 2), FIRST[codec], strict=True):
        hits = sum(codec in answer[:count] for answer in answers)
        assert 100 * hits // len(answers) >= floor, (count, hits, len(answers))


@pytest.mark.parametrize(
    ("payload", "names"),
    [
        (JOB, ("json",)),
        (b"order-42", ("StringCodec",)),
        (b'{"order": 42}', ("StringCodec", "TypedJsonJacksonCodec", "json")),
        (b'{"order":42}', ("TypedJsonJacksonCodec", "json")),
        (b'["java.util.ArrayList",[1]]', ("JsonJacksonCodec", "JsonJackson3Codec")),
        (b'{"@class":"demo.Order","number":1}', ("JsonJacksonCodec", "JsonJackson3Codec")),
        (b"42", ("StringCodec", "LongCodec", "IntegerCodec")),
        (b"5000000000", ("StringCodec", "LongCodec")),
        (b"1.5", ("DoubleCodec",)),
        (b"NaN", ("DoubleCodec",)),
        (b"", ("StringCodec",)),
        (b"\xac\xed\0\x05t\0\x01a", ("SerializationCodec",)),
        (b"\xfc\x05hello", ("FstCodec",)),
        (b"\0\0\x04\x4b\0\0\0\x2a", ("MarshallingCodec",)),
    ],
)  # fmt: skip
def test_payload_is_told_by_its_shape(payload, names):
    assert probable_codecs(payload)[: len(names)] == names


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_job_of_ours_is_told_in_every_codec_that_holds_it(name):
    value = {"Byte": JOB}.get(name[:4], JOB.decode())
    if name in NUMBERS:
        return

    assert name in probable_codecs(get_codec(name).encode(value))


def _snappy(payload: bytes) -> bytes:
    """Compress as Snappy does if nothing repeats itself: the length, and one literal."""
    assert len(payload) <= 60
    return bytes([len(payload), (len(payload) - 1) << 2]) + payload


def _lz4(payload: bytes) -> bytes:
    assert 15 <= len(payload) < 270
    return bytes([0xF0, len(payload) - 15]) + payload


@pytest.mark.parametrize("inner", ["Kryo5Codec", "MarshallingCodec", "JsonJacksonCodec"])  # fmt: skip
def test_what_compresses_is_told_by_the_length_in_front_and_not_read(inner):
    payload = get_codec(inner).encode({"order": "订单", "number": 42})[:60]
    size = len(payload).to_bytes(4, "big")
    snappy = _snappy(payload)

    assert probable_codecs(len(snappy).to_bytes(4, "big") + snappy)[0] == "SnappyCodec"
    assert probable_codecs(size + _lz4(payload))[0] == "LZ4Codec"
    assert probable_codecs(size + b"\x28\xb5\x2f\xfd" + payload)[0] == "ZStdCodec"


def test_what_was_longer_before_it_was_compressed_is_told():
    # 20 times "ab": two letters, then copies of what was made so far.
    lz4 = bytes.fromhex("00000028 2f 6162 0200 0e 50 6162616261")

    assert probable_codecs(lz4)[0] == "LZ4Codec"


def test_payload_that_nothing_marks_as_compressed_fits_none_and_may_be_compressed():
    # SnappyCodecV2 of 4.7.0, "订单-1 " 20 times: b4 would be a text of 20 bytes, and 20 follow.
    snappy = bytes.fromhex("b40120e8aea2e58d952d3120fe0900fe0900aa0900")

    assert probable_codecs(snappy) == ("ByteArrayCodec",)
    assert looks_like(snappy).endswith("or one that encrypts or compresses")


@pytest.mark.parametrize("payload", [b"\xa2\xff\xfe", b"\x62\xff\xfe", b"\xd9\x02\xff\xfe"])  # fmt: skip
def test_bytes_that_are_no_text_are_no_text_of_message_pack_or_cbor(payload):
    assert probable_codecs(payload) == ("ByteArrayCodec",)


def test_encrypted_payload_fits_none():
    chance = random.Random(1)
    answers = [probable_codecs(chance.randbytes(200)) for _ in range(2000)]

    assert answers.count(("ByteArrayCodec",)) > 1950


def test_words_name_what_is_nearly_as_likely():
    assert looks_like(b"\x03hell\xef") == "looks like Kryo5Codec"
    assert looks_like(b"42") == "looks like StringCodec or LongCodec or IntegerCodec"
    assert looks_like(b"\x9e" * 9) == (
        "fits no known codec; perhaps the other program has its own codec, or one that encrypts or compresses"
    )


@pytest.mark.parametrize(
    "filler", [b"$", b"a.", b"a$", b"[", b".", b"L", b"\xff", b"@class"]
)
@pytest.mark.parametrize(
    "start",
    [b'["a', b'{"@class":"a', b"\x01\x00a", b"\x00\x01\x10a", b"\x04\x04\x09\x3e\x10a", b"\x92\xffa", b""],
)  # fmt: skip
def test_no_search_goes_back_and_forth(start, filler):
    payload = (start + filler * LOOKED_AT)[: LOOKED_AT - 1] + b"\n"

    took = []
    for _ in range(3):
        began = time.process_time()
        probable_codecs(payload, size=10**6)
        took.append(time.process_time() - began)

    assert min(took) < 0.05


def test_anything_is_told_in_a_moment():
    chance = random.Random(2)
    payloads = [payload for some in written().values() for payload in some]
    odd = [
        spoilt(chance.choice(payloads)[:LOOKED_AT], payloads, chance)
        for _ in range(2_000)
    ]
    beginnings = {payload[:size] for payload in payloads for size in range(24)}

    started = time.process_time()
    for payload in (everything := [*payloads, *odd, *beginnings]):
        assert probable_codecs(payload[:LOOKED_AT], size=len(payload))
        for size in (len(payload) + 1, 2**40):
            assert probable_codecs(payload[:LOOKED_AT], size=size)
    taken = time.process_time() - started

    # Measured: 24 µs of processor time each. A shared processor may take several times as long.
    assert taken / (3 * len(everything)) < 200e-6
