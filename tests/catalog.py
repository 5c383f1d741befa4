"""Reads every text that people are shown out of the sources, and writes ``locale/en/LC_MESSAGES/django.po``.

``python -m tests.catalog`` writes the file; `tests/test_catalog.py` says when that is due. It finds what
``manage.py makemessages`` finds, and needs no gettext tools: Babel reads Python, and Django turns a template into
something that Babel can read.
"""

import functools
import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_file
from babel.messages.extract import extract as extract_from
from babel.messages.pofile import write_po
from django.utils.translation.template import templatize

PACKAGE = Path(__file__).parent.parent / "django_delayq"
SOURCE = PACKAGE / "locale" / "en" / "LC_MESSAGES" / "django.po"
#: The functions that Django's makemessages looks for, and where their texts stand.
KEYWORDS = {
    **DEFAULT_KEYWORDS,
    "gettext_noop": None,
    "gettext_lazy": None,
    "ngettext_lazy": (1, 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext_lazy": ((1, "c"), 2, 3),
}
HEADER = """\
# Every text of django-delayq that people are shown. `python -m tests.catalog` writes this file.
# A translation is a copy of it in locale/LANGUAGE/LC_MESSAGES/, with the msgstr filled in; see docs/contributing.md."""

#: Context ("" for none), text, and text for many ("" if it counts nothing).
Message = tuple[str, str, str]


def messages() -> Iterator[tuple[Message, str]]:
    """Yield each text of the sources and the file that has it, in the order of files and lines."""
    for path in sorted(PACKAGE.rglob("*.py")):
        found = extract_from_file("python", str(path), keywords=KEYWORDS)
        yield from _named(found, path)
    for path in sorted(PACKAGE.rglob("*.html")):
        source = templatize(path.read_text("utf-8"), origin=str(path))
        # What was not a text is left as letters X, whose indentation means nothing.
        lines = "\n".join(line.strip() for line in source.splitlines())
        found = extract_from(
            "python", io.BytesIO(lines.encode()), keywords=KEYWORDS, options={}
        )
        yield from _named(found, path)


def _named(found, path: Path) -> Iterator[tuple[Message, str]]:
    where = path.relative_to(PACKAGE.parent).as_posix()
    for _, text, _, context in found:
        singular, plural = text if isinstance(text, tuple) else (text, "")
        yield (context or "", singular, plural), where


@functools.cache
def catalog() -> Catalog:
    """Collect all texts; each names the files that have it."""
    found = Catalog(locale="en", domain="django", fuzzy=False)
    for (context, singular, plural), where in messages():
        name = (singular, plural) if plural else singular
        found.add(name, locations=[(where, 0)], context=context or None)
    return found


def write(found: Catalog) -> bytes:
    """Write a catalogue without what changes by itself: dates and line numbers."""
    buffer = io.BytesIO()
    write_po(
        buffer,
        found,
        include_lineno=False,
        sort_by_file=False,
        omit_header=True,
        width=0,
    )
    header = (
        f'{HEADER}\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        '"Language: en\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    )
    return header.encode() + buffer.getvalue()


if __name__ == "__main__":
    SOURCE.parent.mkdir(parents=True, exist_ok=True)
    SOURCE.write_bytes(write(catalog()))
