import pytest

from django_delayq.codecs import CODEC_NAMES
from tests.codecs.vectors import codec_of
from tests.fuzz import check, payloads


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_spoilt_payload_is_read_or_refused_and_nothing_else(name):
    codec = codec_of(name, None)

    for payload in payloads(name, runs=1500, seed=7):
        check(codec, payload)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\xff", b"\x00" * 64, b"\xff" * 64, b"\x80" * 64]
)
def test_odd_payload_is_read_or_refused(name, payload):
    check(codec_of(name, None), payload)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_every_beginning_of_a_payload_is_read_or_refused(name):
    codec = codec_of(name, None)

    for payload in payloads(name, runs=20, seed=3):
        for size in range(min(len(payload), 200)):
            check(codec, payload[:size])
