"""The record of an ended job, which the server keeps as long as its result."""

from typing import Any, NamedTuple

from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.queue_reads import Inspected
from django_delayq.core.states import GRAVES, State
from django_delayq.jobs import stored_results
from django_delayq.redaction import brief
from django_delayq.transport.plain_command import Command


@brief
class Record(NamedTuple):
    """The record of an ended job."""

    #: Its result or its error, as `stored_results.read_result` returns it.
    body: dict[str, Any]
    #: Its payload and the attempts behind it; empty: the record was written without them.
    payload: bytes
    history: bytes

    def over(self, seen: Inspected) -> Inspected:
        """Add to a look at the job what the server has forgotten."""
        last, state = self.body.get("last") or {}, seen.state
        if state is State.MISSING:
            # A dead letter that the server does not know any more was discarded.
            state = self.body["state"]
            state = State.DISCARDED if state in GRAVES else state
        return seen._replace(
            state=state,
            payload=self.payload or seen.payload,
            history=self.history or seen.history,
            attempts=last.get("attempts", seen.attempts),
            kills=last.get("kills", seen.kills),
        )

    @property
    def last_attempt(self) -> dict[str, Any] | None:
        """The attempt with which the job ended, as those of `Job.history`; None: that is not known."""
        last = self.body.get("last")
        if not last:
            return None
        known = {name: last[name] for name in ("began", "at", "worker") if name in last}
        return {"kind": self.body["state"], **known}


def read_record(keys: DeliveryKeys, token: str) -> Command[list[bytes]]:
    """Read the record of an ended job, for `record_of`."""
    return Command(("LRANGE", keys.result(token), 0, 2))


def record_of(reply: list[bytes], token: str = "") -> Record | None:
    """Return the record that `read_record` has read; None: there is none.

    With the token of the job, it is decrypted, as by `stored_results.read_result`.

    Raises:
        DecodeError: no version up to this one has written it.
    """
    if not reply:
        return None
    payload, history = reply[1:] if len(reply) == 3 else (b"", b"")
    return Record(stored_results.read_result(reply[0], token), payload, history)
