"""Text of bounded length that can be sent to a browser or a terminal. The templates escape it."""

from django_delayq.translations import ngettext

#: Characters of the arguments, and of an error, in a row of a table.
ROW_CHARACTERS = 160
#: Characters of the arguments, and of a traceback, on a job's page.
PAGE_CHARACTERS = 65_536
# They change the direction in which a browser writes whatever follows, also what is not of the same text.
_TURNING = {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def clean(text: object) -> str:
    """Return text that can be sent, and that reads in the order in which it is written.

    JSON may hold half a surrogate pair, which would stop the response.
    """
    sendable = str(text).encode("utf-8", "backslashreplace").decode()
    return sendable if sendable.isascii() else sendable.translate(_TURNING)


def cut(text: str, limit: int) -> str:
    """Shorten text, with an ellipsis where something is missing."""
    return text if len(text) <= limit else text[:limit] + "…"


def size_text(size: int) -> str:
    """Write a number of bytes."""
    return ngettext("{number} byte", "{number} bytes", size)
