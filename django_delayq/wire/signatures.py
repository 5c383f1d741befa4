"""Signatures of payloads: a keyed MAC over queue, token and body, so that only what this project wrote is a job.

BLAKE2b with a key takes a third of the time of HMAC-SHA256. A signature is text of `LENGTH` characters:
``<format><id of the key, 4><MAC of 128 bits in hex, 32>``. docs/wire-format.md, "Envelope".
"""

import re
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest

from django_delayq.exceptions import InvalidSettings, NotSigned
from django_delayq.wire import encryption

#: The format of envelopes, locators and headers that this version reads and writes; the first character of a signature.
FORMAT = 2
#: The same format, where a part of the envelope is encrypted: earlier versions hold such jobs.
ENCRYPTED = "E"
#: How signatures begin that this version writes.
MARKS = (str(FORMAT), ENCRYPTED)
#: Characters of a signature.
LENGTH = 37
#: Characters of a token: 16 random bytes in URL-safe base64.
TOKEN_LENGTH = 22
#: How many queues a key keeps a state for, some 400 bytes each. Names of queues may be made up, as targets of a move.
QUEUES_KEPT = 1_000
#: What stands before the token in every payload that may be a job.
TOKEN_MARK = b'"delayq":"'
#: Scripts look for that mark within so many bytes.
TOKEN_BEFORE = 80
#: How our payloads begin where no codec wraps them: token and signature stand at fixed places.
JOB_START = b"{" + TOKEN_MARK
#: Characters of a signature before the MAC: the format, and the id of the key.
MAC_AT = 5
#: The id of the key that a payload of ours is signed with, where no codec hides it, and the bytes within which it ends.
_KEY_ID = re.compile(rb'"mac":".(....)')
_KEY_ID_WITHIN = 160
#: What an id of a key looks like. Other characters would reach logs and terminals.
_IS_KEY_ID = re.compile(r"[A-Za-z0-9+/]{4}")
#: Bytes before the body of what `Keyring.seal` returns: the id of the key, and the MAC in hex.
SEAL_LENGTH = 36


def readable_marks() -> Sequence[str]:
    """Return how signatures begin of jobs that this process can read."""
    return MARKS if encryption.has_library() else MARKS[:1]


def looks_like_job(payload: bytes) -> bool:
    """Return whether a payload may be a job, whichever codec has wrapped it; scripts look for the token likewise."""
    return TOKEN_MARK in payload[:TOKEN_BEFORE]


def key_id_of(payload: bytes) -> str | None:
    """Return the id of the key that a payload says it is signed with; None: no signature is seen."""
    if not looks_like_job(payload):
        # A foreign payload may have a MAC address.
        return None
    found = _KEY_ID.search(payload, 0, _KEY_ID_WITHIN)
    return None if found is None else found[1].decode(errors="replace")


class Key:
    """A key, derived from a secret once and never shown."""

    def __init__(self, secret: bytes) -> None:
        self._key = blake2b(secret, digest_size=32, person=b"delayq key").digest()
        identity = blake2b(key=self._key, digest_size=3, person=b"delayq key id")
        #: Four characters that reveal nothing of the secret.
        self.id = b2a_base64(identity.digest(), newline=False).decode()

    def __repr__(self) -> str:
        return f"<Key {self.id}>"

    def digest(self, person: bytes, parts: Sequence[bytes]) -> bytes:
        """Return 16 bytes that only this key makes of these parts, for one use of it."""
        state = blake2b(key=self._key, digest_size=16, person=person)
        for part in parts:
            state.update(b"%d:%b" % (len(part), part))
        return state.digest()

    def cipher_key(self, use: str, place: str) -> bytes:
        """Return the key of 32 bytes that encrypts what is for one use and one place."""
        state = blake2b(key=self._key, digest_size=32, person=b"delayq encrypt")
        for part in (use.encode(), place.encode()):
            state.update(b"%d:%b" % (len(part), part))
        return state.digest()

    def signer(self, mark: str) -> "Signer":
        """Return the signer of this key whose signatures begin with one of `MARKS`."""
        return Signer(self._key, self.id, mark)


class Signer(dict[str, blake2b]):
    """Signs with one key in one format; such a signature is valid in no other format.

    As a dict, it maps each queue to the hash state with which all its signatures begin. A signer runs twice for every
    job, so it copies a state instead of beginning one, and looks it up without a Python call.
    """

    def __init__(self, key: bytes, key_id: str, mark: str) -> None:
        self._key = key
        self._person = b"delayq mac " + mark.encode()
        #: The format and the id of the key, with which all its signatures begin.
        self.head = mark + key_id

    def __repr__(self) -> str:
        return f"<Signer {self.head}>"

    def __missing__(self, queue: str) -> blake2b:
        if len(self) >= QUEUES_KEPT:
            self.clear()
        name = queue.encode()
        state = self[queue] = blake2b(
            b"%d:%b" % (len(name), name),
            key=self._key,
            digest_size=16,
            person=self._person,
        )
        return state

    def sign(self, queue: str, token: str, body: bytes) -> str:
        """Return the signature of a body that waits in ``queue`` under ``token``."""
        state = self[queue].copy()
        # All tokens have one length, so nothing has to separate the token from the body.
        state.update(token.encode() + body)
        return self.head + state.hexdigest()


def _as_bytes(secret: object, which: str) -> bytes:
    if not isinstance(secret, str | bytes):
        raise InvalidSettings(
            f"{which} is of type {type(secret).__name__}, and has to be text"
        )
    if not secret:
        raise InvalidSettings(f"{which} is empty")
    try:
        return secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        # Bytes of the environment that are not UTF-8. The error itself contains the secret, so it is not chained.
        raise InvalidSettings(f"{which} is not valid Unicode") from None


class Keyring:
    """The keys of a project: the first signs, and signatures of all are accepted."""

    def __init__(self, secrets: Sequence[str | bytes]) -> None:
        """Derive the keys; a secret that is given twice counts once.

        Raises:
            InvalidSettings: there is no secret, a secret is empty or no text, or the keys of two have the same id.
        """
        # Each character of a text would pass for a secret, which anybody could guess.
        if isinstance(secrets, str | bytes):
            raise InvalidSettings("a list of secrets is needed, and this is one secret")
        self._keys: dict[str, Key] = {}
        given = [
            _as_bytes(secret, f"secret {number} of {len(secrets)}")
            for number, secret in enumerate(secrets, 1)
        ]
        for secret in dict.fromkeys(given):
            key = Key(secret)
            if key.id in self._keys:
                raise InvalidSettings(
                    f"two different secrets have keys with the id {key.id!r}, and a signature could be of either; change"
                    " one of them"
                )
            self._keys[key.id] = key
        if not self._keys:
            raise InvalidSettings("there is no secret")
        first, *_ = self._keys.values()
        signers = [key.signer(mark) for key in self._keys.values() for mark in MARKS]
        #: The signers of the first key: of most envelopes, and of those with an encrypted part.
        self.signer, self.encrypted_signer = signers[: len(MARKS)]
        self._first = first
        # The signer that checks, by the head of a signature.
        self._checkers = {signer.head: signer for signer in signers}

    def __repr__(self) -> str:
        return f"<Keyring {' '.join(self._keys)}>"

    @property
    def ids(self) -> list[str]:
        """The ids of all keys, the signing key first."""
        return list(self._keys)

    def check(self, signature: str, queue: str, token: str, body: bytes) -> None:
        """Check that this project has signed a body.

        Raises:
            NotSigned: it has not, or that is unknown without the key or format that ``missing`` names.
        """
        signer = self._checkers.get(signature[:MAC_AT])
        # A token of another length could end in a part of the body.
        if signer is not None and len(token) == TOKEN_LENGTH:
            try:
                if compare_digest(signature, signer.sign(queue, token, body)):
                    return
            except TypeError:  # it is not ASCII
                pass
        raise self._refusal(signature, queue, token)

    def token(self, *parts: str) -> str:
        """Return the token that belongs to these parts: always the same, and only this key makes it."""
        digest = self._first.digest(b"delayq token", [part.encode() for part in parts])
        return urlsafe_b64encode(digest).rstrip(b"=").decode()

    def seal(self, place: str, body: bytes) -> bytes:
        """Sign a text that is not a job, for one place: the id of the key, a MAC in hex, the body."""
        mac = self._first.digest(b"delayq seal", [place.encode(), body])
        return self._first.id.encode() + mac.hex().encode() + body

    def unseal(self, place: str, sealed: bytes) -> bytes:
        """Return what `seal` has signed for a place.

        Raises:
            NotSigned: this project has not signed it.
        """
        key_id, mac, body = sealed[:4], sealed[4:SEAL_LENGTH], sealed[SEAL_LENGTH:]
        for key in self._keys.values():
            if key.id.encode() == key_id:
                right = key.digest(b"delayq seal", [place.encode(), body])
                if compare_digest(mac, right.hex().encode()):
                    return body
                raise NotSigned(f"its signature, of the key {key.id!r}, does not fit")
        shown = key_id.decode(errors="replace")
        if not _IS_KEY_ID.fullmatch(shown):
            raise NotSigned(
                f"it is signed with the key {shown!r}, and no key has such an id"
            )
        raise NotSigned(
            f"it is signed with the key {shown!r}, but this project has"
            f" {', '.join(map(repr, self._keys))}",
            missing=f"key {shown}",
        )

    def lacks_key_of(self, sealed: bytes) -> bool:
        """Return whether this is sealed, as it seems, with a key that we do not have: another process may."""
        key_id, mac = sealed[:4], sealed[4:SEAL_LENGTH]
        is_sealed = len(mac) == SEAL_LENGTH - 4 and not mac.strip(b"0123456789abcdef")
        return is_sealed and all(
            key.id.encode() != key_id for key in self._keys.values()
        )

    def encrypt(self, use: str, place: str, text: bytes) -> str:
        """Encrypt a text for one use and one place with the first key.

        Raises:
            InvalidSettings: the library for that is not installed.
        """
        key = self._first
        return encryption.encrypt(key.cipher_key(use, place), key.id, text)

    def is_encrypted_now(self, encrypted: str) -> bool:
        """Return whether the first key has encrypted a text, as far as it says so itself."""
        return encryption.key_id_of(encrypted) == self._first.id

    def decrypt(self, use: str, place: str, encrypted: str) -> bytes:
        """Return what `encrypt` has encrypted for this use and place.

        Raises:
            NotSigned: it was changed, or is of another place; or ``missing`` names the key or the library that it needs.
        """
        key_id = encryption.key_id_of(encrypted)
        if key_id is None:
            raise NotSigned(
                "it is encrypted in a form that this version does not know",
                missing=f"format {ENCRYPTED}",
            )
        if not _IS_KEY_ID.fullmatch(key_id):
            raise NotSigned(
                f"it is encrypted with the key {key_id!r}, and no key has such an id"
            )
        key = self._keys.get(key_id)
        if key is None:
            raise NotSigned(
                f"it is encrypted with the key {key_id!r}, but this project has {', '.join(map(repr, self._keys))}",
                missing=f"key {key_id}",
            )
        try:
            text = encryption.decrypt(key.cipher_key(use, place), encrypted)
        except InvalidSettings as error:
            raise NotSigned(str(error), missing=f"format {ENCRYPTED}") from error
        if text is None:
            raise NotSigned(
                f"its encrypted part, with the key {key_id!r}, was changed or belongs to another job"
            )
        return text

    def _refusal(self, signature: str, queue: str, token: str) -> NotSigned:
        if len(token) != TOKEN_LENGTH:
            return NotSigned(
                f"its token has {len(token)} characters instead of {TOKEN_LENGTH}"
            )
        if len(signature) != LENGTH:
            return NotSigned(
                f"its signature has {len(signature)} characters instead of {LENGTH}"
            )
        format, key_id = signature[0], signature[1:MAC_AT]
        if signature[:MAC_AT] in self._checkers:
            return NotSigned(
                f"its signature, of the key {key_id!r}, does not fit its token, its queue {queue!r} and its body"
            )
        if not (format.isascii() and format.isalnum()):
            return NotSigned(
                f"it is written in format {format!r}, which does not exist"
            )
        if format not in MARKS:
            return NotSigned(
                f"it is written in format {format!r}, and this version reads format {FORMAT}",
                missing=f"format {format}",
            )
        if not _IS_KEY_ID.fullmatch(key_id):
            return NotSigned(
                f"it is signed with the key {key_id!r}, and no key has such an id"
            )
        return NotSigned(
            f"it is signed with the key {key_id!r}, but this project has {', '.join(map(repr, self._keys))}",
            missing=f"key {key_id}",
        )
