"""The register of a queue: which of the texts that people write about its schedules are in force.

A signature says that this project once wrote a text, and not that the text still holds. A program that can write to the server
could write back one that was replaced or deleted. So one more signed text lists the stored definitions and the changes that
hold. Definitions in code are not in it: a worker goes by those of its own code only.
"""

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from django_delayq import conf
from django_delayq.decoder import Decoder
from django_delayq.exceptions import DecodeError, InvalidSchedule, NotSigned
from django_delayq.features.schedules import periodic as definitions
from django_delayq.features.schedules.calls import KEPT, Entry
from django_delayq.logs import get_log
from django_delayq.wire.signatures import SEAL_LENGTH

logger = get_log("django_delayq.jobs")

#: The kinds of text that people write. Their fields have the kind, a space, and the name of the schedule.
KINDS = ("stored", "change")
#: How its field begins; behind that is the id of the key that it is signed with: projects that share a queue have one each.
FIELD = "register "
_bodies = Decoder[tuple[int, dict[str, str]]](tuple[int, dict[str, str]], trusted=True)


class Register(NamedTuple):
    """The register of a queue."""

    #: The digest of each text that holds, by its field.
    digests: Mapping[str, str] = MappingProxyType({})
    #: The digests of texts whose key only others have, likewise. This process writes them, and does not go by them.
    others: Mapping[str, str] = MappingProxyType({})
    #: It rises with each change, so that of several the last one holds; 0: none is stored.
    number: int = 0
    #: The number of the next one, at least: the server's clock, as others may be signed with a key that is not here.
    next_number: int = 1
    #: The ids of the keys with which what is stored is signed.
    key_ids: tuple[str, ...] = ()
    #: Only other processes have the key that it is signed with, as it seems: this one had signed texts before.
    is_of_another_key: bool = False

    def fits(self, kind: str, name: str, text: bytes) -> bool:
        """Return whether a text is the one that holds; an empty one: whether none does."""
        return self.digests.get(f"{kind} {name}", "") == _digest(text)

    def changed(self, name: str, **texts: bytes | str) -> "Register":
        """Return what it says with other texts of a schedule, by kind; an empty text goes, and `KEPT` stays.

        Raises:
            InvalidSchedule: it cannot be read here, so it cannot be changed.
        """
        digests, others = dict(self.digests), dict(self.others)
        for kind, text in texts.items():
            if text == KEPT:
                continue
            digests.pop(f"{kind} {name}", None)
            others.pop(f"{kind} {name}", None)
            if isinstance(text, bytes) and text:
                digests[f"{kind} {name}"] = _digest(text)
        if digests != self.digests and self.is_of_another_key:
            raise InvalidSchedule(
                f"schedule {name!r} was not changed: the register of its queue is signed with a key that this process does"
                " not have; give it that key. If the key is lost for good, delete the fields of the queue's schedules that"
                f" begin with {FIELD!r}, then store and pause those schedules again"
            )
        return self._replace(digests=digests, others=others)

    def sealed(self, queue: str) -> bytes:
        """Sign it, as the next one."""
        digests = {**self.digests, **self.others}
        body = msgspec.json.encode((self.next_number, digests))
        return conf.get_keyring().seal(_place(queue), body)


def read(
    queue: str, texts: Mapping[str, bytes], entries: Mapping[str, Entry], now_us: int
) -> Register:
    """Read the register of a queue that has these schedules; ``texts`` are all that there are, by the id of the key."""
    found = _stored(queue, texts, entries)
    return found._replace(next_number=max(found.number + 1, now_us))


def _stored(
    queue: str, texts: Mapping[str, bytes], entries: Mapping[str, Entry]
) -> Register:
    keyring = conf.get_keyring()
    found: dict[str, tuple[int, dict[str, str]]] = {}
    has_others = False
    for key_id, text in texts.items():
        if keyring.lacks_key_of(text):
            has_others = True
            continue
        try:
            found[key_id] = _bodies.decode(keyring.unseal(_place(queue), text))
        except DecodeError as error:
            logger.error(
                "queue %s: a register of its schedules is ignored: %s", queue, error
            )
    if not found:
        return _without(queue, entries, has_others=has_others)
    number, digests = max(found.values(), key=lambda each: each[0])
    # While keys change, a process that has one more key writes a register that this one cannot read.
    others = _of_other_keys(entries) if has_others else {}
    return Register(digests, others, number, key_ids=tuple(found))


def _of_other_keys(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the digests of the texts whose key is not here. Those who have it check them."""
    lacks = conf.get_keyring().lacks_key_of
    return {
        f"{kind} {name}": _digest(text)
        for name, entry in entries.items()
        for kind in KINDS
        if lacks(text := getattr(entry, kind))
    }


def _without(queue: str, entries: Mapping[str, Entry], *, has_others: bool) -> Register:
    """Return the register where none is stored: all texts of an earlier version hold.

    An attacker who deletes a register gains nothing: the texts say that there was one.
    """
    keyring, found = conf.get_keyring(), dict[str, str]()
    for name, entry in entries.items():
        for kind in ("code", *KINDS):
            text: bytes = getattr(entry, kind)
            is_lacking = keyring.lacks_key_of(text)
            try:
                if not is_lacking:
                    definitions.unsealed(queue, kind, name, text)
            except NotSigned:
                continue
            if not is_lacking and definitions.is_registered(text):
                return Register(is_of_another_key=has_others)
            if kind in KINDS:
                # Those who have its key will check it.
                found[f"{kind} {name}"] = _digest(text)
    return Register(found)


def _place(queue: str) -> str:
    return f"register {queue}"


def _digest(text: bytes) -> str:
    """Return what stands for a signed text, whichever key has signed it, and whichever version."""
    body = text[SEAL_LENGTH:].lstrip(definitions.REGISTERED)
    body = definitions.without_encrypted(body)
    return blake2b(body, digest_size=12).hexdigest() if body else ""
