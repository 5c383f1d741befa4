"""Writes and reads how jobs and attempts ended, as the server keeps it: a JSON object, a part of it encrypted or not."""

from collections.abc import Callable
from typing import Any

import msgspec

from django_delayq.conf import get_keyring
from django_delayq.core.states import State
from django_delayq.decoder import Count, Decoder
from django_delayq.exceptions import DecodeError, NotSigned
from django_delayq.wire.signatures import Keyring

_encoder = msgspec.json.Encoder()

#: Encrypts a text for one use.
Encrypt = Callable[[str, bytes], str]


def result_text(
    state: str,
    *,
    result: object = None,
    error: str | None = None,
    last: dict[str, Any] | None = None,
    at_ms: int | None = None,
    encrypt: Encrypt | None = None,
) -> bytes:
    """Write how a job ended, for callers that wait for its result.

    ``last`` is its last attempt, which says when it ended; ``at_ms`` is when a job ended that did not run. ``encrypt``
    encrypts its result or error.
    """
    body: dict[str, Any] = {"state": state}
    if at_ms is not None:
        body["at"] = at_ms
    if last is not None:
        body["last"] = last
    told = {"result": result} if error is None else {"error": error}
    if encrypt is not None:
        told = {"encrypted": encrypt("result", _encoder.encode(told))}
    return _encoder.encode(body | told)


#: Of what this project has encrypted.
_decrypted = Decoder[dict[str, Any]](dict[str, Any], trusted=True)
_body = Decoder[dict[str, Any]](dict[str, Any], holds_any=True)
_any = Decoder[Any](Any, holds_any=True)


class _Last(msgspec.Struct):
    """The part of the last attempt that we rely on."""

    attempts: Count = 0
    kills: Count = 0


def read_result(text: bytes | str, token: str = "") -> dict[str, Any]:
    """Read what `result_text` wrote: its state is a `State`, and a last attempt of another form is left out.

    With the token of the job, it is decrypted: then ``encrypted`` is True.

    Raises:
        DecodeError: no version up to this one has written it.
    """
    try:
        body = _body.decode(text)
        body["state"] = State(str(body.get("state")))
    except ValueError as error:
        raise DecodeError(
            f"the stored result or error of a job cannot be read: {error}"
        ) from error
    try:
        msgspec.convert(body.get("last"), _Last)
    except msgspec.ValidationError:
        body.pop("last", None)
    return _decrypted_part("result", body, token)


def error_text(
    error: str,
    *,
    kind: str,
    traceback: str = "",
    at_ms: int,
    began_ms: int | None = None,
    worker: str = "",
    class_path: str = "",
    encrypt: Encrypt | None = None,
) -> bytes:
    """Write why an attempt failed, for the admin and the dead letter; and when it began, and where, if it did begin.

    ``class_path`` is what imports the class of the exception that the task raised. ``encrypt`` encrypts error and
    traceback.
    """
    told: dict[str, Any] = {
        "error": error,
        "kind": kind,
        "traceback": traceback,
        "at": at_ms,
    }
    if encrypt is not None:
        text = _encoder.encode(
            {name: told.pop(name) for name in ("error", "traceback")}
        )
        told["encrypted"] = encrypt("error", text)
    if began_ms is not None:
        told |= {"began": began_ms, "worker": worker}
    if class_path:
        told["class"] = class_path
    return _encoder.encode(told)


def read_history(lines: bytes, token: str = "") -> list[dict[str, Any]]:
    """Read the attempts behind a job, a line each; for ``token`` see `read_error`."""
    found = [read_error(line, token) for line in lines.split(b"\n") if line]
    return [each for each in found if each is not None]


def read_error(text: bytes, token: str = "") -> dict[str, Any] | None:
    """Read what `error_text`, or a script, wrote.

    With the token of the job, it is decrypted: then ``encrypted`` is True.
    """
    if not text:
        return None
    try:
        error = _any.decode(text)
    except DecodeError:
        return {"error": text.decode(errors="replace")}
    if not isinstance(error, dict):
        return {"error": str(error)}
    return _decrypted_part("error", error, token)


def _decrypted_part(use: str, body: dict[str, Any], token: str) -> dict[str, Any]:
    """Decrypt the encrypted part of a result, an error or a progress; without a token, leave it encrypted."""
    encrypted = body.get("encrypted")
    if encrypted is None:
        return body
    # We write none of these beside it.
    for name in ("result", "error", "traceback"):
        body.pop(name, None)
    if not token:
        return body
    body["encrypted"] = True
    try:
        text = get_keyring().decrypt(use, token, str(encrypted))
        return body | _decrypted.decode(text)
    except DecodeError as error:
        # Anybody who can write to the server may have written it; or the key has gone.
        return body | {"error": f"(cannot be decrypted: {error})"}


def encrypted_anew(
    use: str, lines: bytes, token: str, keyring: Keyring
) -> bytes | None:
    """Return what `error_text` or `result_text` wrote, a line each, encrypted with the first key; None: it already is.

    Raises:
        NotSigned: ``missing`` names the key that it needs.
    """
    found = [_encrypted_anew(use, line, token, keyring) for line in lines.split(b"\n")]
    new = b"\n".join(found)
    return None if new == lines else new


def _encrypted_anew(use: str, line: bytes, token: str, keyring: Keyring) -> bytes:
    if b'"encrypted":"' not in line:
        return line
    try:
        body = _body.decode(line)
        encrypted = str(body.get("encrypted"))
        if keyring.is_encrypted_now(encrypted):
            return line
        text = keyring.decrypt(use, token, encrypted)
    except DecodeError as error:
        if isinstance(error, NotSigned) and error.missing:
            raise
        # Anybody who can write to the server may have written it.
        return line
    return _encoder.encode(body | {"encrypted": keyring.encrypt(use, token, text)})
