"""Encrypted texts: their bytes as docs/wire-format.md has them, and what each of them is bound to."""

from binascii import a2b_base64, b2a_base64
from hashlib import blake2b

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from django_delayq.exceptions import NotSigned
from django_delayq.wire import encryption
from django_delayq.wire.signatures import Keyring

SECRET, TOKEN = "only for this page", "X0wZNC4ICLNUqUa2o8646Q"
KEYRING = Keyring([SECRET])


def of_page(use: str, place: str) -> bytes:
    """Derive a key as the page says."""
    key = blake2b(SECRET.encode(), digest_size=32, person=b"delayq key").digest()
    state = blake2b(key=key, digest_size=32, person=b"delayq encrypt")
    for part in (use.encode(), place.encode()):
        state.update(str(len(part)).encode() + b":" + part)
    return state.digest()


def test_encrypted_text_is_what_the_page_says() -> None:
    encrypted = KEYRING.encrypt("call", TOKEN, b"text")

    assert encrypted[:5] == "1" + KEYRING.ids[0]
    data = a2b_base64(encrypted[5:])
    cipher = AESGCM(of_page("call", TOKEN))
    assert cipher.decrypt(data[:12], data[12:], encrypted[:5].encode()) == b"text"
    assert len(data) == 12 + len(b"text") + 16


def test_text_that_is_written_as_the_page_says_is_read() -> None:
    head, nonce = "1" + KEYRING.ids[0], bytes(12)
    data = AESGCM(of_page("call", TOKEN)).encrypt(nonce, b"text", head.encode())
    encrypted = head + b2a_base64(nonce + data, newline=False).decode()

    assert KEYRING.decrypt("call", TOKEN, encrypted) == b"text"


def test_no_two_encrypted_texts_are_equal() -> None:
    assert KEYRING.encrypt("call", TOKEN, b"a") != KEYRING.encrypt("call", TOKEN, b"a")


@pytest.mark.parametrize(
    ("use", "place"), [("result", TOKEN), ("call", TOKEN[::-1]), ("callX", TOKEN[1:])]
)
def test_encrypted_text_is_of_one_use_and_place(use: str, place: str) -> None:
    encrypted = KEYRING.encrypt("call", TOKEN, b"text")

    with pytest.raises(NotSigned, match="was changed or belongs to another job"):
        KEYRING.decrypt(use, place, encrypted)


@pytest.mark.parametrize("at", [5, 20, 30, -3])
def test_text_with_another_character_is_not_decrypted(at: int) -> None:
    encrypted = KEYRING.encrypt("call", TOKEN, b"text")
    other = "A" if encrypted[at] != "A" else "B"
    changed = encrypted[:at] + other + encrypted[at:][1:]

    with pytest.raises(NotSigned) as caught:
        KEYRING.decrypt("call", TOKEN, changed)
    assert not caught.value.missing


@pytest.mark.parametrize("text", ["", "1", "1ABC", "2" + "A" * 60, "é" * 50])
def test_text_of_another_form_is_not_decrypted(text: str) -> None:
    with pytest.raises(NotSigned):
        KEYRING.decrypt("call", TOKEN, text)


def test_first_key_encrypts_and_all_decrypt() -> None:
    old, new = Keyring(["before"]), Keyring(["today", "before"])
    before = old.encrypt("call", TOKEN, b"text")

    assert new.decrypt("call", TOKEN, before) == b"text"
    assert not new.is_encrypted_now(before)
    assert new.is_encrypted_now(new.encrypt("call", TOKEN, b"text"))
    with pytest.raises(NotSigned) as caught:
        Keyring(["today"]).decrypt("call", TOKEN, before)
    assert caught.value.missing == f"key {old.ids[0]}"


def test_library_is_known_without_being_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert encryption.has_library()
    monkeypatch.setattr(encryption, "find_spec", lambda name: None)
    assert not encryption.has_library()
