"""Writes, signs and reads a job as it is on the wire: a JSON object of three strings, its token first.

``{"delayq":"<token, 22>","mac":"<signature, 37>","body":"{\\"task\\":…}"}``. The body is a string, so that a peer may
decode and encode the envelope without changing the signed text. The scripts read token and signature at the front
(``_job.lua``, token_of), so their places and names are part of the format. docs/wire-format.md, "Envelope".
"""

import re
from typing import Any

import msgspec

from django_delayq.codecs import Codec
from django_delayq.codecs.guess import looks_like
from django_delayq.conf import QueueSettings, get_keyring, get_settings
from django_delayq.decoder import Decoder, Number
from django_delayq.exceptions import (
    DecodeError,
    DelayqError,
    EncodeError,
    InvalidArguments,
    NotSigned,
)
from django_delayq.redaction import brief
from django_delayq.wire.signatures import (
    ENCRYPTED,
    FORMAT,
    JOB_START,
    LENGTH,
    MAC_AT,
    MARKS,
    TOKEN_BEFORE,
    TOKEN_LENGTH,
    TOKEN_MARK,
    Keyring,
)


class Follower(msgspec.Struct, omit_defaults=True):
    """A job that follows the one in whose envelope it is."""

    token: str
    queue: str
    #: When it is due, as `parse_delay` writes it; a wait counts from the end of the job before it.
    when: str
    call: "Envelope"
    #: Its unique key, as `tail_of` takes it.
    unique: str = ""
    priority: Number = 0
    #: Its limit, as `tail_of` takes it.
    limit: str = ""
    #: The queue that ``queue`` is a shard of; empty: that is no shard.
    whole: str = ""
    #: Whether its limit or unique key has led to that shard.
    by_key: bool = False


class Follow(msgspec.Struct, omit_defaults=True):
    """The jobs that follow one."""

    #: Once it has succeeded.
    then: list[Follower] = []
    #: Once it is a dead letter.
    dead: list[Follower] = []


@brief
class Envelope(msgspec.Struct, omit_defaults=True):
    """One call to make: the body of a payload, signed as a whole."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    #: Options that `DelayedTask.using` changed, see TaskOptions.CARRIED.
    options: dict[str, Any] | None = None
    #: When it was enqueued, epoch ms by the clock of the process that did; only a job of Django's tasks has it.
    at: Number | None = None
    #: Texts that travel with the call, beside its arguments.
    headers: dict[str, str] = {}
    #: Bits that change the meaning of the rest: `IS_ENCRYPTED` and `CARRIES_ENCRYPTED`.
    flags: Number = 0
    #: The jobs that follow it.
    follow: Follow | None = None
    #: The token of the callback of its batch.
    batch: str = ""
    #: From when its `expires` counts, epoch ms by the server's clock, if that is later than its start time.
    since: Number = 0
    #: The token of the later call that has brought the arguments; empty: they are the job's first.
    later: str = ""
    #: What `IS_ENCRYPTED` says of the call, while it is encrypted.
    encrypted: str = ""


@brief
class _Secret(msgspec.Struct, omit_defaults=True):
    """The encrypted part of a call."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    headers: dict[str, str] = {}


#: The call is encrypted where it is stored; and some of the calls that follow it are.
IS_ENCRYPTED, CARRIES_ENCRYPTED = 1, 2
#: The headers by which a job knows its schedule, which are never encrypted.
SCHEDULE, OCCURRENCE = "schedule", "occurrence"
_SHOWN_HEADERS = frozenset({SCHEDULE, OCCURRENCE})


class _Sealed(msgspec.Struct):
    delayq: str
    mac: str
    body: str

    __repr__ = object.__repr__


_encoder = msgspec.json.Encoder()
#: Of a call that is signed, and of one of anybody.
_signed = Decoder[Envelope](
    Envelope, "not a call that this version reads", trusted=True
)
_claimed = Decoder[Envelope](
    Envelope, "it does not hold a call of a task", holds_any=True
)
_secrets = Decoder[_Secret](_Secret, "not what this version encrypts", trusted=True)

#: Of an envelope that is signed.
_trusted = Decoder[dict[str, Any]](dict[str, Any], trusted=True)
_unsealer = Decoder[_Sealed](_Sealed, "not a job")
#: How `NotSigned.missing` begins where a codec did not read the payload; its name follows.
OTHER_CODEC = "codec other than "
#: `peek_task` looks at this many bytes.
PEEK_BYTES = 512
# What the scripts look for near the front of a payload, whichever codec wraps it; `_job.lua`, token_of.
_SHOWN = re.compile(
    rb'"delayq":".{%d}","mac":"(.{%d})"' % (TOKEN_LENGTH, LENGTH), re.DOTALL
)
# The text of a whole envelope, as every codec that scripts can look into writes it.
_SEALED = re.compile(
    rb'"delayq":".{%d}","mac":".{%d}","body":"[^"\\]*(?:\\.[^"\\]*)*"'
    % (TOKEN_LENGTH, LENGTH),
    re.DOTALL,
)
# Where a payload as we write it has its task's name.
_TASK_AT = (
    len(JOB_START) + TOKEN_LENGTH + len('","mac":"') + LENGTH + len('","body":"{')
)
_TASK_KEY = b'\\"task\\":\\"'
_TASK = re.compile(rb'"body":"\{\\"task\\":\\"((?:[^"\\]|\\\\(?:[^"\\]|\\.))*)\\"')
# Codecs that write a JSON object as plain JSON.
_PLAIN = frozenset(
    {
        "json",
        "StringCodec",
        "ByteArrayCodec",
        "TypedJsonJacksonCodec",
        "TypedJsonJackson3Codec",
    }
)


def encode(
    envelope: Envelope,
    token: str,
    queue: str,
    keyring: Keyring,
    codec: Codec | None = None,
) -> bytes:
    """Write and sign an envelope. On a queue shared with Java its codec wraps it: as a string, or else as a map.

    Raises:
        InvalidArguments: an argument holds text that is not Unicode, or a number that is too long.
        EncodeError: the queue's codec hides token and signature from the scripts.
    """
    signer, follow = keyring.signer, envelope.follow
    try:
        if envelope.flags or (follow is not None and _carries_encrypted(follow)):
            call: dict[str, Any] = msgspec.to_builtins(envelope)
            _encrypt(call, token, keyring)
            body, signer = _encoder.encode(call), keyring.encrypted_signer
        else:
            body = _encoder.encode(envelope)
    except (ValueError, OverflowError) as error:
        # Half a surrogate pair, or an int of more than 4,300 digits.
        raise InvalidArguments(
            f"arguments of {envelope.task!r} cannot be written as JSON: {error}"
        ) from error
    sealed = _Sealed(token, signer.sign(queue, token, body), body.decode())
    return _wrap(sealed, codec) if codec else _encoder.encode(sealed)


def _reseal(sealed: _Sealed, source: str, target: str, keyring: Keyring) -> _Sealed:
    """Return a job signed for another queue, or with the key that signs now."""
    call = _open(sealed, source, keyring, decrypts=False)
    # The body may have fields of a later version: they stay.
    body, signer = sealed.body.encode(), keyring.signer
    if call.flags:
        signer = keyring.encrypted_signer
        fields = _trusted.decode(body)
        if _encrypt(fields, sealed.delayq, keyring):
            body = _encoder.encode(fields)
    mac = signer.sign(target, sealed.delayq, body)
    return _Sealed(sealed.delayq, mac, body.decode())


def _carries_encrypted(follow: Follow) -> bool:
    return any(job.call.flags for job in (*follow.then, *follow.dead))


def _encrypt(call: dict[str, Any], token: str, keyring: Keyring) -> bool:
    """Encrypt with the first key what is to be, in a call and those that follow it; return whether anything changed.

    So a process with the key of a job's signature can decrypt all of it.
    """
    has_changed, flags = False, call.get("flags", 0)
    follow = call.get("follow") or {}
    jobs = [*follow.get("then", ()), *follow.get("dead", ())]
    for job in jobs:
        has_changed |= _encrypt(job["call"], job["token"], keyring)
    if any(job["call"].get("flags") for job in jobs):
        flags |= CARRIES_ENCRYPTED
    if flags & IS_ENCRYPTED:
        encrypted = call.get("encrypted", "")
        if not encrypted:
            headers = call.pop("headers", {})
            secret = _Secret(call.pop("args", []), call.pop("kwargs", {}))
            secret.headers = {
                name: text
                for name, text in headers.items()
                if name not in _SHOWN_HEADERS
            }
            if shown := {
                name: headers[name] for name in headers.keys() & _SHOWN_HEADERS
            }:
                call["headers"] = shown
            text = _encoder.encode(secret)
        elif keyring.is_encrypted_now(encrypted):
            text = b""
        else:
            text = keyring.decrypt("call", token, encrypted)
        if text:
            call["encrypted"] = keyring.encrypt("call", token, text)
            has_changed = True
    if flags:
        call["flags"] = flags
    return has_changed


def decrypted(call: Envelope, token: str, keyring: Keyring) -> Envelope:
    """Return a call as it is run: if it is encrypted, a copy of it that is not.

    Raises:
        NotSigned: the text that is encrypted was changed, or is of another job; or `Keyring.decrypt` lacks something.
    """
    if call.flags & ~(IS_ENCRYPTED | CARRIES_ENCRYPTED):
        raise NotSigned(
            f"a later version wrote it, with the flags {call.flags}",
            missing=f"format {ENCRYPTED}.{call.flags}",
        )
    if not call.encrypted:
        return call
    text = keyring.decrypt("call", token, call.encrypted)
    secret = _secrets.decode(text)
    return msgspec.structs.replace(
        call,
        args=secret.args,
        kwargs=secret.kwargs,
        headers={**call.headers, **secret.headers},
        encrypted="",
    )


def _wrap(sealed: _Sealed, codec: Codec | None) -> bytes:
    text = _encoder.encode(sealed)
    if codec is None or codec.name in _PLAIN:
        return text
    for value in (text.decode(), msgspec.to_builtins(sealed)):
        try:
            payload = codec.encode(value)
        except DelayqError:
            raise
        except Exception as error:  # a codec of the project's own
            raise EncodeError(
                f"{codec.name} failed: {type(error).__name__}: {error}"
            ) from error
        if _shown(payload) is not None:
            return payload
    raise EncodeError(
        f"a job cannot be scheduled on a queue with {codec.name}: the scripts would not find its token and signature;"
        " set CODEC to StringCodec, or offer the value with DelayedQueue"
    )


def _shown(payload: bytes) -> bytes | None:
    """Return the signature that the scripts find in a payload, or None."""
    at = payload.find(TOKEN_MARK, 0, TOKEN_BEFORE)
    found = _SHOWN.match(payload, at) if at >= 0 else None
    return found[1] if found is not None else None


def shown_key(payload: bytes) -> bytes | None:
    """Return the id of the key that the scripts find in a payload, or None."""
    signature = _shown(payload)
    return signature[1:MAC_AT] if signature is not None else None


def task_text(name: str) -> bytes:
    """Return a task's name in the form that `peek_task` returns."""
    # A JSON string within a JSON string, without the quotes of either.
    return _encoder.encode(_encoder.encode(name).decode())[3:-3]


def peek_task(payload: bytes) -> bytes | None:
    """Return the name of a job's task as `task_text` writes it, or None if it is not at its usual place.

    This decodes nothing, so every payload costs the same and the claim loop can afford it. It does not check the name:
    `open_payload` does.
    """
    # The form that we write is tried first: this runs for each job, and a regular expression costs more.
    start = _TASK_AT + len(_TASK_KEY)
    if payload[_TASK_AT:start] == _TASK_KEY and payload.startswith(JOB_START):
        name = payload[start : payload.find(b'\\"', start, PEEK_BYTES)]
        if name and b"\\" not in name:
            return name
    found = _TASK.search(payload, 0, PEEK_BYTES)
    return found[1] if found is not None else None


def is_readable(payload: bytes, max_foreign_bytes: int) -> bool:
    """Return whether `open_payload` may look at a payload: it begins like ours, or is small enough for any codec."""
    return len(payload) <= max_foreign_bytes or payload.startswith(JOB_START)


def open_payload(
    payload: bytes,
    queue: str,
    keyring: Keyring,
    codec: Codec | None = None,
    *,
    decrypts: bool = True,
) -> Envelope:
    """Read a payload that this project has signed for a queue.

    ``codec`` may be another than the one that wrote it. Without ``decrypts``, an encrypted part is returned as it is.

    Raises:
        NotSigned: it has the form of a job, but no valid signature of this project.
        DecodeError: it is not a job of ours.
    """
    try:
        return _open(_unseal(payload, codec), queue, keyring, decrypts=decrypts)
    except DecodeError as error:
        error.data = payload
        raise


def call_in(payload: bytes, queue: str) -> Envelope | None:
    """Read a payload that this project has signed for a queue; None: it is not, or cannot be read here."""
    configured = get_settings()
    if not is_readable(payload, configured.max_foreign_bytes):
        return None
    settings = configured.find(queue)
    codec = settings.payload_codec if settings else None
    try:
        return open_payload(payload, queue, get_keyring(), codec)
    except DecodeError:
        return None


def claimed_call(payload: bytes, codec: Codec | None = None) -> Envelope:
    """Read a payload without checking who wrote it. Use it to show the call, never to run it.

    Nothing is decrypted.

    Raises:
        DecodeError: it cannot be read, or has a format that this version does not know.
    """
    sealed = _unseal(payload, codec)
    if not sealed.mac.startswith(MARKS):
        raise DecodeError(
            f"it is written in format {sealed.mac[:1]!r}, and this version reads format {FORMAT}",
            payload,
        )
    try:
        return _claimed.decode(sealed.body)
    except DecodeError as error:
        error.data = payload
        raise


def _unseal(payload: bytes, codec: Codec | None) -> _Sealed:
    try:
        if payload.startswith(JOB_START) or codec is None or codec.name in _PLAIN:
            return _unsealer.decode(payload)
        return _seal_in(codec.decode(payload))
    except DecodeError as error:
        why = error
    except DelayqError:
        raise
    except Exception as error:  # of msgspec, or of the project's own codec
        why = DecodeError(f"not a job: {error}", payload)
        why.__cause__ = error
    if payload.startswith(JOB_START) or _shown(payload) is None:
        raise why
    return _taken_out(payload, codec.name if codec else "json")


def _taken_out(payload: bytes, unfit: str) -> _Sealed:
    """Return the envelope whose text stands in a payload that the codec ``unfit`` does not read.

    CODEC may have changed while the job waited. No other codec is tried: anybody can write a payload for one.

    Raises:
        NotSigned: the codec that wrote it has changed the text, as those of CBOR do with a long one.
    """
    found = _SEALED.match(payload, payload.find(TOKEN_MARK))
    try:
        if found is not None:
            # Kryo5Codec and MarshallingCodec write a character outside the BMP as two halves.
            halves = found[0].decode("utf-8", "surrogatepass")
            text = halves.encode("utf-16", "surrogatepass").decode("utf-16")
            return _unsealer.decode("{" + text + "}")
    except (UnicodeError, DecodeError):
        pass
    raise NotSigned(
        f"{unfit} does not read it, and it {looks_like(payload)}",
        missing=OTHER_CODEC + unfit,
    )


def signed_for(payload: bytes, source: str, target: str) -> bytes:
    """Return a job's payload signed and written for another queue; return any other payload as it is."""
    settings, keyring = get_settings(), get_keyring()
    origin, other = settings.queues.get(source), settings.queues.get(target)
    if source == target or not is_readable(payload, settings.max_foreign_bytes):
        return payload
    try:
        codec = origin.payload_codec if origin else None
        sealed = _unseal(payload, codec)
        new = _reseal(sealed, source, target, keyring)
    except DecodeError:
        return payload
    shared = other is not None and other.is_shared
    return _wrap(new, other.payload_codec if other and shared else None)


def signed_as(
    payload: bytes,
    token: str,
    queue: QueueSettings,
    keyring: Keyring,
    *,
    linked: Envelope | None = None,
    since_ms: int = 0,
) -> bytes:
    """Return the call in a job's payload as the payload of another job of the queue.

    ``linked`` is that job's own call: the jobs that follow it, and its batch, stay. ``since_ms`` is from when its
    `expires` counts.

    Raises:
        EncodeError: it is larger than MAX_PAYLOAD_BYTES.
    """
    later = _unseal(payload, queue.payload_codec)
    envelope = _open(later, queue.name, keyring)
    envelope.since, envelope.later = since_ms, later.delayq
    if linked is not None:
        envelope.follow, envelope.batch = linked.follow, linked.batch
    codec = queue.payload_codec if queue.is_shared else None
    written = encode(envelope, token, queue.name, keyring, codec)
    most = get_settings().max_payload_bytes
    if len(written) > most:
        raise EncodeError(
            f"the job of {envelope.task!r}, with what it keeps of the job that it replaces, has {len(written):,}"
            " bytes, more than"
            f" DELAYQ['MAX_PAYLOAD_BYTES'], {most:,}; store the data elsewhere and pass its key"
        )
    return written


def signed_anew(payload: bytes, queue: QueueSettings, keyring: Keyring) -> bytes | None:
    """Return a job's payload signed with the current key; None if it already is.

    Raises:
        NotSigned, DecodeError: as `open_payload`.
    """
    sealed = _unseal(payload, queue.payload_codec)
    new = _reseal(sealed, queue.name, queue.name, keyring)
    if new.mac == sealed.mac:
        return None
    if payload.startswith(JOB_START):
        return _wrap(new, None)
    try:
        return _wrap(new, queue.payload_codec)
    except EncodeError:
        # By now the queue has a codec of numbers. Every worker reads what no codec wraps.
        return _wrap(new, None)


def _seal_in(value: object) -> _Sealed:
    if type(value) is str:  # not a Char, which is a single letter of Java's
        return _unsealer.decode(value)
    if isinstance(value, dict):
        return msgspec.convert(value, _Sealed)
    raise DecodeError(f"not a job: a {type(value).__name__}")


def _open(
    sealed: _Sealed, queue: str, keyring: Keyring, *, decrypts: bool = True
) -> Envelope:
    try:
        body = sealed.body.encode()
        keyring.check(sealed.mac, queue, sealed.delayq, body)
    except UnicodeEncodeError:
        # Half a surrogate pair: a Java codec may bring it, we never write it.
        raise NotSigned("it holds text that is not Unicode") from None
    # The body is signed: if it cannot be read, the fault is ours or another version's.
    call = _signed.decode(body)
    if call.flags and decrypts:
        return decrypted(call, sealed.delayq, keyring)
    return call
