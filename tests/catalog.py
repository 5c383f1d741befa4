"""Reads every text that people are shown out of the sources, and keeps the catalogues of all languages up to date.

``python -m tests.catalog``
    writes ``locale/LANGUAGE/LC_MESSAGES/``: English anew; the others with new texts added and old ones removed, compiled.
    It tells how many texts each language lacks.
``python -m tests.catalog --open de``
    prints the texts that German lacks, as a catalogue to fill in.
``python -m tests.catalog --fill de FILE``
    takes translations from that catalogue.

`tests/test_catalog.py` says when that is due. It finds what ``manage.py makemessages`` finds, and needs no gettext tools:
Babel reads Python, and Django turns a template into something that Babel can read.
"""

import argparse
import functools
import io
import re
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_file
from babel.messages.extract import extract as extract_from
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

PACKAGE = Path(__file__).parent.parent / "django_delayq"
LOCALE = PACKAGE / "locale"
#: Names of locales as Django has them.
LANGUAGES = ("de", "zh_Hans")
#: The functions that Django's makemessages looks for, and where their texts stand.
KEYWORDS = {
    **DEFAULT_KEYWORDS,
    "gettext_noop": None,
    "gettext_lazy": None,
    "ngettext_lazy": (1, 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext_lazy": ((1, "c"), 2, 3),
}
HEADERS = {
    "en": """\
# Every text of django-delayq that people are shown. `python -m tests.catalog` writes this file.
# A translation is a copy of it in locale/LANGUAGE/LC_MESSAGES/, with the msgstr filled in; see docs/contributing.md.""",
    **dict.fromkeys(
        LANGUAGES,
        """\
# Fill in msgstr, and run `python -m tests.catalog`, which adds what is new, removes what is gone, and compiles;
# see docs/contributing.md.""",
    ),
}

#: Context ("" for none), text, and text for many ("" if it counts nothing).
Message = tuple[str, str, str]


class BareCatalog(Catalog):
    """A catalogue without dates and versions, which change by themselves."""

    @property
    def mime_headers(self) -> list[tuple[str, str]]:
        return [
            ("Content-Type", "text/plain; charset=UTF-8"),
            ("Language", self.locale_identifier or ""),
            ("Plural-Forms", f"{self.plural_forms}\n"),
        ]


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
    found = _empty("en")
    for (context, singular, plural), where in messages():
        name = (singular, plural) if plural else singular
        found.add(name, locations=[(where, 0)], context=context or None)
    return found


def translated(language: str, *filled: Catalog) -> Catalog:
    """Collect all texts with their translations, from ``filled`` or else from the language's file."""
    known = source_of(language)
    sources = [*filled, read(known)] if known.is_file() else [*filled]
    found = _empty(language)
    for message in catalog():
        if not message.id:
            continue
        strings = (
            other.string
            for source in sources
            if (other := source.get(message.id, message.context)) is not None
            and other.id == message.id
            and not other.fuzzy
        )
        string = next((each for each in strings if is_whole(each)), "")
        found.add(
            message.id, string, locations=message.locations, context=message.context
        )
    return found


def is_whole(string: str | tuple[str, ...]) -> bool:
    """Return whether a translation has all its forms."""
    return all(string) if isinstance(string, tuple) else bool(string)


def open_of(found: Catalog) -> Catalog:
    """Collect what a catalogue does not translate."""
    left = _empty(found.locale_identifier or "")
    for message in found:
        if message.id and not is_whole(message.string):
            left.add(message.id, locations=message.locations, context=message.context)
    return left


def _empty(language: str) -> Catalog:
    header = HEADERS[language]
    return BareCatalog(language, "django", header_comment=header, fuzzy=False)


def english_beside(language: str) -> set[str]:
    """Return the texts without values that a language says otherwise, their spaces as in one line."""
    forms = {
        (each, message.string if isinstance(message.string, str) else message.string[0])
        for message in translated(language)
        if message.id
        for each in (message.id if isinstance(message.id, tuple) else [message.id])
    }
    return {
        " ".join(text.split())
        for text, said in forms
        if text != said and not re.search(r"%\(|\{", text)
    }


def source_of(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / "django.po"


def read(file: Path) -> Catalog:
    with file.open("rb") as stream:
        return read_po(stream, abort_invalid=True)


def write(found: Catalog) -> bytes:
    """Write a catalogue without line numbers."""
    buffer = io.BytesIO()
    write_po(buffer, found, include_lineno=False, sort_by_file=False, width=0)
    return buffer.getvalue()


def compiled(found: Catalog) -> bytes:
    """Write a catalogue as Django reads it."""
    buffer = io.BytesIO()
    write_mo(buffer, found)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.catalog")
    parser.add_argument("--open", choices=LANGUAGES)
    parser.add_argument("--fill", nargs=2, metavar=("LANGUAGE", "FILE"))
    asked = parser.parse_args()
    if asked.open:
        print(write(open_of(translated(asked.open))).decode(), end="")
        return
    source_of("en").write_bytes(write(catalog()))
    for language in LANGUAGES:
        filled = []
        if asked.fill and asked.fill[0] == language:
            filled.append(read(Path(asked.fill[1])))
        found = translated(language, *filled)
        file = source_of(language)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(write(found))
        file.with_suffix(".mo").write_bytes(compiled(found))
        print(f"{language}: {len(open_of(found))} of {len(found)} texts are open")


if __name__ == "__main__":
    main()
