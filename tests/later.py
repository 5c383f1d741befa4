"""A version that is yet to come: it reads and writes one format more, in which arguments stand in reverse order.

Whoever read such a body as one of format 1 would run the job with the wrong arguments.
"""

import msgspec
import pytest

from django_delayq import conf
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.envelope import Envelope, Format
from django_delayq.wire import signing


def _reversed(envelope: Envelope) -> Envelope:
    return msgspec.structs.replace(envelope, args=envelope.args[::-1])


def write(envelope: Envelope) -> bytes:
    """Write a body of the later format."""
    return envelopes.FORMATS[1].write(_reversed(envelope))


def read(body: bytes) -> Envelope:
    """Read a body of the later format."""
    return _reversed(envelopes.FORMATS[1].read(body))


def come(patch: pytest.MonkeyPatch) -> None:
    """Make this process one of the later version."""
    patch.setattr(signing, "FORMAT", signing.FORMAT + 1)
    patch.setitem(envelopes.FORMATS, signing.FORMAT, Format(write, read))
    # Its keys sign in both formats.
    conf.get_keyring.cache_clear()


def go(patch: pytest.MonkeyPatch) -> None:
    """Make it one of this version again."""
    patch.undo()
    conf.get_keyring.cache_clear()
