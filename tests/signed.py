"""Payloads as this project writes and signs them, and what they say."""

import json
from typing import Any

from django_delayq.codecs import Codec
from django_delayq.conf import get_keyring
from django_delayq.core.store import new_token
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.envelope import Envelope


def signed(
    task: str,
    queue: str,
    *args: Any,
    token: str = "",
    options: dict[str, Any] | None = None,
    codec: Codec | None = None,
    **kwargs: Any,
) -> bytes:
    """Return the payload of a call, under a token of its own unless one is given."""
    call = Envelope(task, list(args), kwargs, options)
    return envelopes.encode(call, token or new_token(), queue, get_keyring(), codec)


def sealed(
    body: bytes, queue: str, token: str, *, signature: str = "", **fields: str
) -> bytes:
    """Return a payload with any body and any more fields, signed unless a signature is given."""
    mac = signature or get_keyring().signer.sign(queue, token, body)
    envelope = {"delayq": token, "mac": mac, "body": body.decode()}
    return json.dumps(envelope | fields, separators=(",", ":")).encode()


def token_in(payload: bytes) -> str:
    """Return the token that a payload says is its own."""
    return str(json.loads(payload)["delayq"])


def opened(payload: bytes, queue: str, codec: Codec | None = None) -> Envelope:
    """Return what a payload says, if it is signed for a queue."""
    return envelopes.open_payload(payload, queue, get_keyring(), codec)
