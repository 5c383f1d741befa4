"""A language in which each text of ours is recognised: ⟦…⟧ around it, and no ASCII letter left in it.

What a page shows with ASCII letters is then data, or a text that nobody can translate.
"""

import copy
import re
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from tests.catalog import catalog

#: A language that writes dates and numbers in other ways than English.
LANGUAGE = "de"
#: What a translation has to keep: names of values, tags, entities.
_KEPT = re.compile(r"%\(\w+\)s|%%|\{[^{}]*\}|<[^<>]*>|&\w+;")
_WIDE = {
    code: code + 0xFEE0
    for code in (*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1))
}


def wrapped(text: str) -> str:
    """Translate a text: letters become wide ones, what stands for values stays."""
    parts, last = [], 0
    for match in _KEPT.finditer(text):
        parts += [text[last : match.start()].translate(_WIDE), match[0]]
        last = match.end()
    return f"⟦{''.join(parts)}{text[last:].translate(_WIDE)}⟧"


def write_pseudo_locale(folder: Path) -> Path:
    """Write the catalogue of the language below a folder, and return what LOCALE_PATHS names."""
    found = Catalog(locale=LANGUAGE)
    for message in catalog():
        if message.id:
            told = copy.copy(message.id)
            forms = told if isinstance(told, tuple) else (told,)
            translated = tuple(wrapped(form) for form in forms)
            found.add(
                told,
                translated if isinstance(told, tuple) else translated[0],
                context=message.context,
            )
    file = folder / LANGUAGE / "LC_MESSAGES" / "django.mo"
    file.parent.mkdir(parents=True)
    with file.open("wb") as stream:
        write_mo(stream, found)
    return folder
