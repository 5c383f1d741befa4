"""The tables of docs/settings.md and docs/howto/django-tasks.md, made from the declarations of the settings, so that they say what the code does.

    python -m tests.settings_page

writes them anew; a test compares them.
"""

import inspect
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from django_delayq.backend.backend_options import BackendOptions
from django_delayq.backoff import Backoff
from django_delayq.conf import QueueSettings, Settings, WorkerSettings
from django_delayq.setting_fields import settings_of
from tests.pages import ROOT, with_tables

#: The tables of each page, by their names in it.
PAGES: dict[Path, dict[str, Any]] = {
    ROOT / "docs" / "settings.md": {
        "DELAYQ": Settings,
        "QUEUES": QueueSettings,
        "WORKER": WorkerSettings,
    },
    ROOT / "docs" / "howto" / "django-tasks.md": {"OPTIONS": BackendOptions},
}
_KEYS = {
    key
    for tables in PAGES.values()
    for cls in tables.values()
    for key in settings_of(cls)
}
#: What is code within the words of an error.
_CODE = re.compile(
    rf"\{{.*?\}}|'[^']*'|[\w.]+\(.*?\)|\b(?:None|True|False|DEBUG|Backoff|timedelta|[A-Z]+(?:_[A-Z]+)+|{'|'.join(_KEYS)})\b"
)


def table_of(cls: Any) -> str:
    """Return the table of a dataclass: of each setting its key, its default, what its comment says, and its values."""
    comments = {
        name: " ".join(comment.replace("#: ", "").split())
        for comment, name in re.findall(
            r"((?: {4}#: .*\n)+) {4}(\w+): ", inspect.getsource(cls)
        )
    }
    lines = ["| key | default | | value |", "|---|---|---|---|"]
    for key, each in settings_of(cls).items():
        values = _CODE.sub(lambda code: f"`{code[0]}`", each.wanted)
        default = written(default_of(cls, each.field))
        lines.append(f"| `{key}` | `{default}` | {comments[each.field]} | {values} |")
    return "\n".join(lines)


def default_of(cls: Any, name: str) -> Any:
    """Return the default of a setting, as one would write it into ``DELAYQ``."""
    (found,) = (each for each in fields(cls) if each.name == name)
    if isinstance(found.default, Backoff):
        return {key.upper(): value for key, value in asdict(found.default).items()}
    # Dicts of options are empty by default.
    return {} if name in ("queues", "worker") else found.default


def written(value: Any) -> str:
    """Return a value as Python, with the quotes that we write."""
    return repr(value).replace("'", '"')


def made_anew(page: Path) -> str:
    """Return a page with its tables as the code has them."""
    tables = {name: table_of(cls) for name, cls in PAGES[page].items()}
    return with_tables(page.read_text("utf-8"), tables)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(made_anew(each), "utf-8")
