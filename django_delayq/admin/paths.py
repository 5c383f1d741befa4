"""Ids of jobs and names of queues as parts of a URL, whatever characters they are made of."""

import re
from contextlib import suppress
from posixpath import normpath
from urllib.parse import quote

from django_delayq import conf
from django_delayq.exceptions import InvalidSettings

#: What may stand in a part of a path as it is: RFC 3986, "pchar".
_SAFE = "!$&'()*+,;=~:@"
_QUOTED = re.compile("_([0-9A-F]{2})")
#: A slash, and each "_" that would be read as the beginning of a quoted character, or of a page such as ``_find/``.
_UNSAFE = re.compile("/|^_|_(?=[0-9A-F]{2})")


class JobIdConverter:
    """The id of a job, ``queue:token``, as it is.

    The name of a queue may have any characters, and so a colon. The name of a queue of the settings, or of one of
    its shards, is not an id.
    """

    regex = "(?s:.+):[0-9A-Za-z_-]+"

    def to_python(self, value: str) -> str:
        # Wrong settings are reported by the page.
        with suppress(InvalidSettings):
            if conf.get_settings().find(value) is not None:
                raise ValueError(value)
        return value

    def to_url(self, value: str) -> str:
        return value


def job_path(job_id: str) -> str:
    """Return the part of a URL that names a job: its id, percent-encoded only where a URL demands it."""
    path = quote(job_id, safe=f"{_SAFE}/")
    # Browsers take out "..", and servers empty parts. As "%2F", a slash parts nothing; but not every server takes it.
    return path if normpath(f"/x/{path}") == f"/x/{path}" else quote(job_id, safe=_SAFE)


def to_path_part(name: str) -> str:
    """Quote the name of a queue as the admin quotes, but only where it has to be, so that it is one part of a path."""
    part = _UNSAFE.sub(lambda match: f"_{ord(match[0]):02X}", name)
    # "." and ".." are steps in a path: browsers take them out, percent-encoded or not.
    return part.replace(".", "_2E") if not part.strip(".") else part


def from_path_part(part: str) -> str:
    """Undo `to_path_part`, and the admin's ``quote``."""
    return _QUOTED.sub(lambda match: chr(int(match[1], 16)), part)
