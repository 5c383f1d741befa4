import pytest

from django_delayq.codecs import get_codec
from django_delayq.exceptions import DecodeError
from django_delayq.queues.reading import read


@pytest.mark.parametrize(
    ("codec", "payload", "advice"),
    [
        ("StringCodec", b"\x03hell\xef", "it looks like Kryo5Codec, and is read with StringCodec"),
        ("Kryo5Codec", b"\x04\x3e\x05hello", "it looks like MarshallingCodec, and is read with"),
        ("MarshallingCodec", b"\xfc\x05hello", "it looks like FstCodec, and is read with"),
        ("json", b"\xac\xed\0\x05t\0\x05hello", "it looks like SerializationCodec, and"),
        ("JsonJacksonCodec", b"order-42", "it looks like StringCodec, and is read with JsonJackson"),
        ("Kryo5Codec", b'["java.lang.Long",1]', "it looks like JsonJacksonCodec or JsonJackson3"),
        ("LongCodec", b"order-42", "it looks like StringCodec, and is read with LongCodec"),
        ("CborJacksonCodec", b":)\n\x01\x44hello", "it looks like SmileJacksonCodec or"),
    ],
)  # fmt: skip
def test_payload_of_another_codec_is_refused_with_the_setting_that_decides(
    codec, payload, advice
):
    with pytest.raises(DecodeError) as raised:
        read(get_codec(codec), payload, "payments")

    assert advice in str(raised.value)
    assert str(raised.value).endswith("see DELAYQ['QUEUES']['payments']['CODEC']")
    assert raised.value.data == payload
    assert isinstance(raised.value.__cause__, DecodeError)
    assert raised.value.offset == raised.value.__cause__.offset


@pytest.mark.parametrize("codec", ["StringCodec", "Kryo5Codec", "json", "LongCodec"])
def test_payload_of_no_codec_is_refused_with_what_can_be_done(codec):
    payload = b"\x9e\xc1\xc1\xd8\x1c" * 20

    with pytest.raises(DecodeError, match="fits no known codec") as raised:
        read(get_codec(codec), payload, "payments")

    assert "set DELAYQ['QUEUES']['payments']['CODEC'] to an object" in str(raised.value)
    assert "'ByteArrayCodec' for the bytes" in str(raised.value)


@pytest.mark.parametrize(
    ("codec", "payload", "message"),
    [
        ("Kryo5Codec", b"\x01\x00demo.Orde\xf2\x02", "class"),
        ("JsonJacksonCodec", b'["java.lang.Long","x"]', "java.lang.Long"),
        ("MarshallingCodec", b"\x04\x53\x01\x5a\x00", "unknown tag 0x00"),
        ("FstCodec", b"\xfc\x05hello", "FstCodec is not supported, the 7 raw bytes are kept"),
    ],
)  # fmt: skip
def test_payload_of_the_right_codec_is_refused_with_its_own_words(
    codec, payload, message
):
    with pytest.raises(DecodeError, match=message) as raised:
        read(get_codec(codec), payload, "payments")

    assert "looks like" not in str(raised.value)


def test_text_that_another_codec_seems_to_have_written_is_told_once(caplog):
    codec = get_codec("StringCodec")

    values = [read(codec, b"\x04\x3e\x05hello", "told once") for _ in range(3)]

    assert values == ["\x04>\x05hello"] * 3
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'told once' is read with StringCodec" in record.message
    assert "looks like MarshallingCodec" in record.message
    assert record.message.endswith("see DELAYQ['QUEUES']['told once']['CODEC']")


@pytest.mark.parametrize("payload", [b"", b"hello", b"\ttabbed text", b":)"])
def test_text_that_may_be_text_is_not_told(caplog, payload):
    read(get_codec("StringCodec"), payload, "never told")

    assert caplog.records == []


def test_error_of_a_codec_of_ones_own_passes():
    class Codec:
        name = "moody"

        def encode(self, value):
            raise NotImplementedError

        def decode(self, payload):
            raise ZeroDivisionError("not today")

    with pytest.raises(ZeroDivisionError):
        read(Codec(), b"x", "payments")
