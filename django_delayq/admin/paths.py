"""Names of queues and tokens of jobs as parts of a URL, whatever characters they are made of."""

import re

from django.contrib.admin.utils import quote

_QUOTED = re.compile("_([0-9A-F]{2})")


def to_path_part(name: str) -> str:
    """Quote a name as the admin does: no slash is left, and browsers do not undo it."""
    part = quote(name)
    # "." and ".." are steps in a path: browsers take them out, percent-encoded or not.
    return part.replace(".", "_2E") if not part.strip(".") else part


def from_path_part(part: str) -> str:
    """Undo `to_path_part`, and the admin's ``quote``."""
    return _QUOTED.sub(lambda match: chr(int(match[1], 16)), part)
