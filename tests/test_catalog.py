"""The catalogues of texts are those of the sources, complete in each language, and nothing that people read is outside of them."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import django
import pytest
from babel.messages.catalog import Message
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from django.template.base import Lexer, TokenType

from tests.catalog import (
    LANGUAGES,
    PACKAGE,
    catalog,
    compiled,
    is_whole,
    open_of,
    read,
    source_of,
    translated,
    write,
)

TEMPLATES = sorted(PACKAGE.rglob("*.html"))
_DUE = "run: python -m tests.catalog, and commit what it writes"
#: What a translation has to keep as it is.
_KEPT = re.compile(
    r"%\(\w+\)s|\{[^{}]*\}|</?\w[^<>]*>|&\w+;|--[a-z][\w-]*|\bdelayq_\w+|\b[A-Z]+_[A-Z_]+\b|\bDELAYQ\b"
)
#: What shows texts to people, beside templates. Errors and log lines are English.
SHOWING = [
    *sorted((PACKAGE / "admin").glob("*.py")),
    PACKAGE / "translations.py",
    *sorted((PACKAGE / "display").glob("*.py")),
    *sorted((PACKAGE / "management").glob("*.py")),
    *sorted((PACKAGE / "management" / "commands").glob("delayq_*.py")),
    *sorted((PACKAGE / "features").glob("*/pages.py")),
    *sorted((PACKAGE / "features").glob("*/command.py")),
]
_TRANSLATING = re.compile(r"n?p?gettext(_lazy)?")
#: Attributes of tags that a browser shows or reads aloud.
_SHOWN = re.compile(r'\b(?:value|placeholder|aria-label|title|alt)="([^"]*)"')
_ASCII_WORD = re.compile(r"[A-Za-z]{2,}")
#: Entities.
_NO_TEXT = {"nbsp", "rsaquo", "lsaquo"}


def test_catalogue_is_that_of_the_sources():
    assert source_of("en").read_bytes() == write(catalog()), _DUE


@pytest.mark.parametrize("language", LANGUAGES)
def test_language_has_each_text_and_no_other(language):
    """Nothing is missing, fuzzy or left over, and what Django reads is what translators have written."""
    found = translated(language)

    assert [message.id for message in open_of(found)][1:] == [], (
        f"run: python -m tests.catalog --open {language}, fill it in, then --fill"
    )
    assert source_of(language).read_bytes() == write(found), _DUE
    machine = source_of(language).with_suffix(".mo").read_bytes()
    assert machine == compiled(found), _DUE
    read_back = read_mo(io.BytesIO(machine))
    assert len(read_back) == len(catalog())
    assert read_back.num_plurals == found.num_plurals


@pytest.mark.parametrize("language", LANGUAGES)
def test_translation_keeps_what_is_not_language(language):
    """Values, tags, options, commands and settings stand in each form; line ends where the text has them."""
    lost = {}
    for message in translated(language):
        for english, form in _forms(message):
            kept = [sorted(set(_KEPT.findall(text))) for text in (english, form)]
            edges = [(text[:1] == "\n", text[-1:] == "\n") for text in (english, form)]
            if kept[0] != kept[1] or edges[0] != edges[1]:
                lost[form] = kept

    assert lost == {}


def _forms(message: Message):
    """Yield each form with the English one whose values it has to show."""
    if not message.id:
        return
    if isinstance(message.id, tuple):
        *others, last = message.string
        yield from ((message.id[0], form) for form in others)
        yield message.id[1], last
    else:
        yield message.id, message.string


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_django_says_too_is_said_in_its_words(language):
    """One catalogue serves a whole site: ours replaces the texts of Django that are spelled alike."""
    ours = translated(language)
    pages = Path(django.__file__).parent / "contrib" / "admin"
    theirs = read(pages / "locale" / language / "LC_MESSAGES" / "django.po")

    others = {
        message.id: (message.string, other.string)
        for message in ours
        if message.id
        and (other := theirs.get(message.id, message.context)) is not None
        and is_whole(other.string)
        and other.string != message.string
    }

    assert theirs.get("Home").string, "their catalogue is read"
    assert others == {}


def test_catalogue_is_filled_from_another(tmp_path):
    """As a translator does it, and whoever merges two branches."""
    text = "Resume the queue"
    left = translated("de")
    left.get(text).string = ""
    sheet = tmp_path / "de.po"
    sheet.write_bytes(write(open_of(left)))

    (_, asked) = read(sheet)
    sheet.write_text(
        sheet.read_text("utf-8")
        .replace('msgstr ""\n', 'msgstr "weiter"\n')
        .replace('msgid ""\nmsgstr "weiter"', 'msgid ""\nmsgstr ""'),
        "utf-8",
    )

    assert asked.id == text
    assert translated("de", read(sheet)).get(text).string == "weiter"


def test_makemessages_finds_the_same_texts(tmp_path):
    if shutil.which("xgettext") is None:
        pytest.skip("makemessages needs GNU gettext")
    copied = tmp_path / "django_delayq"
    shutil.copytree(
        PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__", "*.lua")
    )
    (copied / "locale" / "en" / "LC_MESSAGES" / "django.po").unlink()

    done = subprocess.run(
        [sys.executable, "-m", "django", "makemessages", "--locale", "en"],
        cwd=copied,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = copied / "locale" / "en" / "LC_MESSAGES" / "django.po"
    with written.open("rb") as file:
        found = {(each.context, each.id) for each in read_po(file) if each.id}
    assert found == {(each.context, each.id) for each in catalog() if each.id}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_template_has_no_text_outside_of_the_catalogue(template):
    """Of every branch, also of those that no test walks."""
    shown, is_inside = "", False
    for token in Lexer(template.read_text("utf-8")).tokenize():
        name = token.contents.split(" ")[0]
        if token.token_type is TokenType.BLOCK:
            if name in ("blocktranslate", "endblocktranslate"):
                is_inside = name == "blocktranslate"
            if token.contents == "block bodyclass":
                is_inside = True
            elif name == "endblock":
                is_inside = False
            shown += "\N{REPLACEMENT CHARACTER}"
        elif token.token_type is TokenType.TEXT and not is_inside:
            shown += token.contents
        else:
            shown += "\N{REPLACEMENT CHARACTER}"
    shown = re.sub(r"<style.*?</style>", "", shown, flags=re.DOTALL)
    fields = re.sub(
        r"<(?:input|button)\b[^>]*(?:type=\"hidden\"|name=\"action\")[^>]*>", "", shown
    )
    texts = [*_SHOWN.findall(fields), re.sub(r"<[^>]*>", " ", shown)]

    words = {word for text in texts for word in _ASCII_WORD.findall(text)}

    assert words - _NO_TEXT == set()


def _untranslated(tree: ast.Module):
    """Yield the literal texts of a module that look like language and go through no translation."""
    exempt: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            is_error = called.endswith(("Error", "Http404")) or called in _ENGLISH
            if _TRANSLATING.fullmatch(called) or is_error:
                exempt |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.Raise | ast.Assert):
            exempt |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            exempt.add(id(node.value))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in exempt
            and _LANGUAGE.search(node.value)
        ):
            yield node.value


#: Calls whose texts stay English: the log, types.
_ENGLISH = {
    "compile", "cast",
    "log", "debug", "info", "warning", "error", "exception", "Formatter", "getLogger",
}  # fmt: skip
#: Two words, or a word with a capital.
_LANGUAGE = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}|^[A-Z][a-z]+|[a-z]{3,}: ")
#: Literals that look like language and are none.
_NO_LANGUAGE = {
    "lease expired",  # the key of a state, which translations.STATES has
    # Categories of Unicode.
    "Mn", "Me", "Cf",
    # How a payload's value is shown, in the place of JSON.
    "<integer of ",
    # Commands to type.
    "manage.py delayq_frames ", "  manage.py delayq_frames ",
    # Parts of errors.
    "Nothing was changed.", "The steps done so far stand.", "the formats ",
    "The steps done so far stand. Fix the problem, then run the command again.",
    " Fix the problem, then run the command again.",
    "Interrupted. No step is half done. The jobs that were taken out are held; run the command again: its file will have everything.",
    " of its worker processes cannot read format ",
    # Names of types, and of a codec.
    "Moment", "Moment | None", "Pager", "JobAdmin", "ModelAdmin[Job]", "Filter", "ShownProgress | None", "ByteArrayCodec",
    "Sequence[QueueStatus]",
    # The name of a command.
    "Command",
}  # fmt: skip


@pytest.mark.parametrize(
    "module", SHOWING, ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_module_has_no_text_outside_of_the_catalogue(module):
    found = set(_untranslated(ast.parse(module.read_text("utf-8"))))

    assert found - _NO_LANGUAGE == set()


@pytest.mark.parametrize(
    "module", SHOWING, ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_no_text_stands_in_an_f_string_where_the_tools_do_not_look(module):
    """Babel looks there from Python 3.12 on, xgettext never."""
    hidden = [
        ast.unparse(call)
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _TRANSLATING.search(ast.unparse(call.func))
    ]

    assert hidden == []
