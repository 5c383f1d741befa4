"""The Lua scripts of the package, by name."""

from pathlib import Path

import django_delayq
from django_delayq.core.scripts import PACKAGES
from django_delayq.transport.script import Script, load_script, variants_of

FILES = {
    path.stem: path
    for path in sorted(Path(django_delayq.__file__).parent.rglob("lua/*.lua"))
}
#: Those that are called; the others are pieces of these.
SCRIPTS = {name: path for name, path in FILES.items() if name[0] != "_"}


def script_of(name: str) -> Script:
    """Return a script with all its keys."""
    return load_script(PACKAGES, name)


def names_by_sha() -> dict[str, str]:
    """Return the name of each script by the SHA-1 of each of its variants."""
    return {
        script.sha: name for name in SCRIPTS for script in variants_of(PACKAGES, name)
    }
