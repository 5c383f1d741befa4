"""Encryption of what stays on the server: AES-256-GCM, by the library ``cryptography``.

Each text is bound to one use and one place, such as the result of one job, by a key of its own. An encrypted text is
ASCII: ``<version><id of the key, 4><base64 of nonce, ciphertext and tag>``. docs/wire-format.md, "Encrypted texts".
The library is an extra, and imported at the first use.
"""

import os
from binascii import a2b_base64, b2a_base64
from importlib.util import find_spec
from typing import TYPE_CHECKING

from django_delayq.exceptions import InvalidSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: The version of the form that this module writes and reads; the first character of an encrypted text.
VERSION = "1"
#: Characters before the base64: the version, and the id of the key.
HEAD_LENGTH = 5
#: Bytes of a random nonce. Keys are derived for each use and place, so no key ever sees many of them.
NONCE_BYTES = 12
#: How to install the library.
INSTALL = "pip install 'django-delayq[encryption]'"
MISSING = f"the library for encryption is not installed: {INSTALL}"


def has_library() -> bool:
    """Return whether the library is installed, without importing it."""
    return find_spec("cryptography") is not None


def encrypt(key: bytes, key_id: str, text: bytes) -> str:
    """Encrypt a text with a key of 32 bytes.

    Raises:
        InvalidSettings: the library is not installed.
    """
    nonce, head = os.urandom(NONCE_BYTES), VERSION + key_id
    data = nonce + _cipher(key).encrypt(nonce, text, head.encode())
    return head + b2a_base64(data, newline=False).decode()


def key_id_of(encrypted: str) -> str | None:
    """Return the id of the key of an encrypted text; None: it has another form."""
    return encrypted[1:HEAD_LENGTH] if encrypted.startswith(VERSION) else None


def decrypt(key: bytes, encrypted: str) -> bytes | None:
    """Return what `encrypt` has encrypted with this key; None: it was changed, or is of another place.

    Raises:
        InvalidSettings: the library is not installed.
    """
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    head, rest = encrypted[:HEAD_LENGTH], encrypted[HEAD_LENGTH:]
    try:
        data = a2b_base64(rest.encode(), strict_mode=True)
        nonce, sealed = data[:NONCE_BYTES], data[NONCE_BYTES:]
        return cipher.decrypt(nonce, sealed, head.encode())
    except (InvalidTag, ValueError):
        # ValueError: it is no base64, no Unicode, or too short for a nonce.
        return None


def _cipher(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidSettings(MISSING) from error
    return AESGCM(key)
