"""The reason why a job is held, as scripts write it, parse it and find jobs by it.

``lua/_held.lua`` does the same in Lua.
"""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kind of reason why a job is held."""

    #: A task that a worker does not know; without a name, for what is no job on a queue without a handler.
    TASK = "task"
    #: A call that the function does not take here; the name is `Shape.held_name`. Without a name: all such calls.
    CALL = "call"
    #: The key of a signature, by its id.
    KEY = "key"
    #: A format that a worker does not read, by its number.
    FORMAT = "format"
    #: A codec that did not read the job, by its name: another may.
    CODEC = "codec"
    #: A task that is paused.
    PAUSED = "paused"
    #: A limit, by its name and its key.
    LIMIT = "limit"
    #: A batch, by the token of its callback. Without a name: all batches.
    BATCH = "batch"
    #: A move to another server, by the id of its run.
    MOVING = "moving"


class Reason(NamedTuple):
    """The reason why a job is held."""

    #: A `Kind`. Anybody may have written another one.
    kind: str
    name: str = ""
    #: Only of a limit: its key, or nothing.
    key: str = ""

    @property
    def text(self) -> str:
        """The reason as scripts know it: each part with its length in bytes before it, ``4:task8:shop.new``."""
        parts = self if self.kind == Kind.LIMIT else self[:2]
        return "".join(map(measured, parts))

    @classmethod
    def of_text(cls, text: bytes) -> "Reason":
        """Read what a script returned; without a name, it is all of a kind. Bytes that are no UTF-8 are replaced.

        A script returns whole parts only. Anybody may have written more of them than a reason has: the rest is left out.
        """
        parts: list[str] = []
        while text and len(parts) < len(cls._fields):
            size, _, text = text.partition(b":")
            parts.append(text[: int(size)].decode(errors="replace"))
            text = text[int(size) :]
        return cls(*parts)


def measured(part: str) -> str:
    """Return a part of a reason with its length before it, with which all reasons that have this part begin."""
    return f"{len(part.encode())}:{part}"
