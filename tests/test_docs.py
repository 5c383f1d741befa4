"""README.md and docs/ say what the code says: settings, options, errors, scripts, codecs, bytes, links."""

import ast
import json
import re
from base64 import b64encode
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from django.core.management import BaseCommand, load_command_class

import django_delayq
from benchmarks.peers import report
from django_delayq import exceptions, signals
from django_delayq.codecs import CODEC_NAMES, default_codec, get_codec
from django_delayq.codecs.unsupported import UnsupportedCodec
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import EncodeError
from django_delayq.jobs.envelope import Envelope, encode
from django_delayq.jobs.options import TaskOptions
from django_delayq.wire.frame import FrameFormat, unpack
from django_delayq.wire.signatures import Keyring
from tests.codecs.vectors import VERSIONS
from tests.pages import DOCUMENTS, ROOT, blocks_of
from tests.scripts import FILES
from tests.settings_page import PAGES, made_anew

DOCS = ROOT / "docs"

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
#: The end of a sentence in the middle of a line.
_TWO_SENTENCES = re.compile(r"[a-z0-9)`*\]][.!?] [A-Z`*\[]")


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def prose_of(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of a page's tables by what their first cell names."""
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([^`|]+)`", line.split("|")[1]):
                rows[name] = line
    return rows


def anchors_of(text: str) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    anchors: set[str] = set()
    for heading in _HEADING.findall(prose_of(text)):
        words = re.sub(r"[`*\[\]]|\([^)]*\)", "", heading)
        anchors.add(
            re.sub(r"[^\w\- ]", "", words.lower(), flags=re.UNICODE).replace(" ", "-")
        )
    return anchors


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_of_a_page_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    for target in _LINK.findall(prose_of(text)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{target!r} leads nowhere"
        if anchor:
            assert anchor in anchors_of(file.read_text("utf-8")), (
                f"{target!r}: no such heading"
            )


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_files_and_scripts_that_a_page_names_exist(document: Path) -> None:
    scripts = {path.name for path in (ROOT / "django_delayq").rglob("*.lua")}
    for code in _CODE.findall(prose_of(document.read_text("utf-8"))):
        if re.fullmatch(r"\w+\.lua", code):
            assert code in scripts
        elif re.fullmatch(r"(?:django_delayq|tests|docs|benchmarks)/[\w./-]+", code):
            assert (ROOT / code).exists(), code


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_commands_that_a_page_names_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", text):
        path = ROOT / Path(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), (
            module
        )
    for name in re.findall(r"python -m benchmarks (\w+)", text):
        choices = re.search(r"^NAMES = (.*)$", text_of("benchmarks/__main__.py"), re.M)
        assert choices is not None
        assert name in ast.literal_eval(choices[1])
    for name in re.findall(r"(?:^|\$ |`)make ([\w-]+)(?=`| |$)", text, re.MULTILINE):
        assert re.search(rf"^{name}:", text_of("Makefile"), re.MULTILINE), name


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_prose_of_a_page_has_one_sentence_a_line(document: Path) -> None:
    lines = prose_of(document.read_text("utf-8")).splitlines()
    # Tables and headings cannot be broken.
    prose = [line for line in lines if not line.startswith(("|", "#", "<!--"))]
    texts = [re.sub(r"^\s*(?:\*|\d+\.) ", "", line) for line in prose]
    assert [text for text in texts if _TWO_SENTENCES.search(text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_settings_are_documented_as_they_are_declared(page: Path) -> None:
    text = page.read_text("utf-8")

    assert made_anew(page) == text, "run python -m tests.settings_page"


def test_every_exception_is_documented() -> None:
    public = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.DelayqError)
    }
    documented = rows_of(text_of("docs/errors.md"))
    assert public <= set(documented)
    named = set(re.findall(r"`(\w+)` \|", text_of("docs/errors.md")))
    assert {name for name in named if hasattr(exceptions, name)} == public


def test_every_check_is_documented() -> None:
    ids = set()
    for path in (ROOT / "django_delayq").rglob("*.py"):
        ids |= set(re.findall(r"""["'.]([EWI]\d{3})\b""", path.read_text("utf-8")))
    documented = {
        name.removeprefix("django_delayq.")
        for name in rows_of(text_of("docs/errors.md"))
        if name.startswith("django_delayq.")
    }
    assert documented == ids


def test_every_task_option_is_documented() -> None:
    text = text_of("docs/settings.md")
    section = text.split("\n## Task options\n")[1].split("\n## ")[0]
    known = {item.name for item in fields(TaskOptions)} | {"name"}
    assert set(rows_of(section)) == known
    # The README has the first few.
    assert set(rows_of(text_of("README.md"))) < known


def test_every_option_of_the_worker_is_documented() -> None:
    parser = load_command_class("django_delayq", "delayq_worker").create_parser("", "")
    of_django = BaseCommand().create_parser("", "")._option_string_actions
    for action in parser._actions:
        longest = max(action.option_strings, key=len)
        if longest not in of_django:
            assert f"`{longest}" in text_of("docs/howto/deploy.md"), longest


def test_every_signal_is_documented_with_its_arguments() -> None:
    source = text_of("django_delayq/signals.py")
    comments = dict(
        (name, comment)
        for comment, name in re.findall(r"^#: (.*)\n(job_\w+) = ", source, re.MULTILINE)
    )
    rows = rows_of(text_of("docs/howto/signals.md"))
    assert (
        set(rows) == set(comments) == {name for name in vars(signals) if "job_" in name}
    )
    for name, row in rows.items():
        named = re.findall(r"`(\w+)`", row.split("|")[3])
        assert [each for each in named if each != "timedelta"] == re.findall(
            r"``(\w+)``", comments[name]
        )


def test_every_state_is_in_the_glossary() -> None:
    documented = rows_of(text_of("docs/glossary.md").split("## States of a job")[1])
    assert set(documented) == {str(state) for state in State}


def test_glossary_has_few_words_in_their_order() -> None:
    section = text_of("docs/glossary.md").split("\n## ")[0]
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE)
    assert len(words) <= 40
    assert words == sorted(words)


def scripts() -> dict[str, str]:
    """Return every Lua file and the folder that it belongs to."""
    return {f"{name}.lua": path.parts[-3] for name, path in FILES.items()}


def test_internals_name_every_script() -> None:
    text = text_of("docs/internals.md").split("\n## Scripts\n")[1]
    for name in scripts():
        assert f"`{name}`" in text, name


def test_wire_format_names_every_script_of_the_wire() -> None:
    text = text_of("docs/wire-format.md")
    for name, layer in scripts().items():
        if layer in ("wire", "queues"):
            assert f"`{name}`" in text or name.startswith("_"), name


def test_wire_format_names_every_codec_and_promises_no_other() -> None:
    section = (
        text_of("docs/wire-format.md").split("### Each codec")[1].split("\n### ")[0]
    )
    rows = rows_of(section)
    assert set(CODEC_NAMES) <= set(rows)
    for name, row in rows.items():
        if "read, written" in row:
            assert not isinstance(get_codec(name), UnsupportedCodec)


def test_bytes_of_the_codecs_are_those_of_the_table() -> None:
    section = text_of("docs/wire-format.md").split("The same three values")[1]
    lines = [line for line in section.split("\n\n")[1].splitlines() if "Codec" in line]
    assert len(lines) == 9
    for line in lines:
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        for cell, value in zip(cells, ("hello", 42, [1, "a"]), strict=True):
            codec = get_codec(name, version="4.0.0")
            if cell == "–":
                with pytest.raises(EncodeError):
                    codec.encode(value)
            else:
                assert codec.encode(value) == shown_bytes(cell.strip("`"), name), name


def shown_bytes(text: str, codec: str) -> bytes:
    """Return what a cell shows: JSON as it is, else hexadecimal digits with text in quotes among them."""
    if "Json" in codec:
        return text.encode()
    parts = text.split('"')
    return b"".join(
        part.encode() if i % 2 else bytes.fromhex(part) for i, part in enumerate(parts)
    )


def test_envelope_is_signed_as_the_page_says() -> None:
    section = text_of("docs/wire-format.md").split("### Envelope")[1].split("\n### ")[0]
    (shown,) = re.findall(r"```json\n(.*)\n```", section)
    found = re.search(r"in the queue `(\w+)`, and `(.+)` is the secret", section)
    assert found is not None
    queue, secret = (part.encode() for part in found.groups())
    seen = json.loads(shown)
    persons = re.findall(r"\*(delayq [\w ]+)\*", section)
    assert persons == ["delayq key", "delayq key id", "delayq mac 2"]
    of_key, of_id, of_mac = (person.encode() for person in persons)
    key = blake2b(secret, digest_size=32, person=of_key).digest()
    key_id = blake2b(key=key, digest_size=3, person=of_id).digest()
    signed = b"%d:%b" % (len(queue), queue) + (seen["delayq"] + seen["body"]).encode()
    mac = blake2b(signed, key=key, digest_size=16, person=of_mac).digest()

    signature = "2" + b64encode(key_id).decode() + mac.hex()

    assert seen["mac"] == signature
    body = msgspec.json.decode(seen["body"], type=Envelope)
    token, keyring = seen["delayq"], Keyring([secret])
    assert encode(body, token, queue.decode(), keyring) == shown.encode()
    rows = rows_of(section.split("field of the body")[1].split("\n\n")[0])
    assert set(rows) == {item.name for item in msgspec.structs.fields(Envelope)}


def test_default_codecs_are_those_of_the_table() -> None:
    section = text_of("docs/wire-format.md").split("### Defaults")[1].split("\n### ")[0]
    table = [
        line.split("|")[1:3] for line in section.splitlines() if line.startswith("| 3")
    ]
    for version in ("3.2.0", "3.9.1", *VERSIONS):
        minor = tuple(map(int, version.split(".")[:2]))
        for span, codec in table:
            first, last = re.match(
                r"\s*(3\.\d+)(?: – (3\.\d+)| and later)", span
            ).groups()  # type: ignore[union-attr]
            if (
                tuple(map(int, first.split(".")))
                <= minor
                <= tuple(map(int, (last or "99.0").split(".")))
            ):
                assert default_codec(version) == codec.strip(), version
                break
        else:
            pytest.fail(f"{version} is in no row")


def test_dumps_of_frames_are_frames() -> None:
    dumps = [
        block.text
        for block in blocks_of(DOCS / "wire-format.md")
        if block.text.startswith(("dLc0\n", "Bc0Lc0\n"))
    ]
    assert len(dumps) == 2
    for dump in dumps:
        digits = "".join(re.findall(r"^\d{8}((?:  ?[0-9a-f]{2})+)", dump, re.MULTILINE))
        frame = unpack(bytes.fromhex(digits))
        assert frame.format is FrameFormat(dump.partition("\n")[0])
        assert frame.payload.decode() == "hello 😀"
        # The last column says the same.
        shown = "".join(re.findall(r"\|(.*)\|$", dump, re.MULTILINE))
        assert shown == "".join(
            chr(byte) if 32 <= byte < 127 else "." for byte in bytes.fromhex(digits)
        )


def test_names_that_wire_format_refuses_are_refused() -> None:
    for name in ("x}y", "a{b"):
        assert f"`{name}`" in text_of("docs/wire-format.md")
        with pytest.raises(EncodeError):
            DeliveryKeys.of(name)
    section = text_of("docs/wire-format.md").split("## Keys")[1].split("\n## ")[0]
    for line in section.splitlines():
        if match := re.match(r"\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|", line):
            keys = DeliveryKeys.of(match[1]).queue
            assert (keys.tag, keys.timeout_set) == (match[2], match[3])


def test_internals_name_every_key_of_ours() -> None:
    keys = DeliveryKeys.of("NAME")
    documented = rows_of(
        text_of("docs/internals.md").split("## Our keys")[1].split("\n## ")[0]
    )
    own = {
        getattr(keys, item.name).replace("{NAME}", "T")
        for item in fields(keys)
        if item.name != "queue"
    }
    assert own <= set(documented)
    assert keys.result("TOKEN").replace("{NAME}", "T") in documented


def test_headings_that_comments_name_exist() -> None:
    named: set[tuple[str, str]] = set()
    for path in (ROOT / "django_delayq").rglob("*"):
        if path.suffix in (".py", ".lua"):
            text = path.read_text("utf-8")
            named |= set(re.findall(r'(docs/[\w/-]+\.md), "([^"]+)"', text))

    assert named
    missing = [
        (page, heading)
        for page, heading in sorted(named)
        if heading not in _HEADING.findall(text_of(page))
    ]
    assert missing == []


def test_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\d\S*?)[,\s]", text_of("docs/changelog.md"), re.MULTILINE)
    assert first is not None
    assert first[1] == django_delayq.__version__


def test_public_names_are_documented() -> None:
    pages = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    assert [name for name in django_delayq.__all__ if name not in pages] == []


def test_scripts_of_why_are_named_by_it() -> None:
    text = text_of("docs/why.md")
    for path in (ROOT / "benchmarks" / "why").glob("*.py"):
        if path.stem != "__init__":
            assert f"python -m benchmarks.why.{path.stem}" in text


def glance_of(text: str) -> dict[str, dict[str, str]]:
    """Return the cells of the first table below "At a glance" or "Compared", by row and column."""
    table = re.split(r"^## (?:At a glance|Compared)$", text, flags=re.MULTILINE)[1]
    lines = [line for line in table.split("\n## ")[0].splitlines() if line[:1] == "|"]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines
    ]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_readme_quotes_the_page_of_peers() -> None:
    quoted, page = glance_of(text_of("README.md")), glance_of(text_of("docs/peers.md"))

    assert len(quoted) == 5
    for system, cells in quoted.items():
        for column, cell in cells.items():
            assert page[system][column] == cell, (system, column)


def test_page_of_peers_says_what_was_measured(tmp_path: Path) -> None:
    results = sorted((ROOT / "benchmarks" / "peers").glob("results-*.jsonl"))
    page = tmp_path / "peers.md"

    report.main(results, page)

    assert page.read_text("utf-8") == text_of("docs/peers.md")
    for plot in (tmp_path / "peers").iterdir():
        kept = DOCS / "peers" / plot.name
        assert plot.read_bytes() == kept.read_bytes(), plot.name


def test_index_names_every_page() -> None:
    index = text_of("docs/README.md")
    folder = ROOT / "docs"
    for path in folder.rglob("*.md"):
        if path.name != "README.md":
            assert f"]({path.relative_to(folder)})" in index
