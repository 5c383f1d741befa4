"""The README and the documentation stay short; `tests.wordcount` counts."""

from tests.pages import DOCUMENTS, README
from tests.wordcount import (
    DOCS,
    DOCUMENTATION,
    INTERNALS,
    NOT_COUNTED,
    README_PROSE,
    pages,
    parts_of,
    prose_of,
    words_of,
)


def test_readme_is_read_in_a_few_minutes() -> None:
    assert prose_of(README.read_text("utf-8")) <= README_PROSE


def test_documentation_keeps_within_its_bound() -> None:
    assert sum(page.words for page in pages() if page.is_counted) <= DOCUMENTATION


def test_internals_keep_within_their_bound() -> None:
    assert len((DOCS / "internals.md").read_text("utf-8").split()) <= INTERNALS


def test_every_page_is_in_one_part() -> None:
    seen = [page.name for page in pages()]

    of_docs = [path for path in DOCUMENTS if path.is_relative_to(DOCS)]
    assert sorted(seen) == sorted(str(path.relative_to(DOCS)) for path in of_docs)
    assert set(NOT_COUNTED) <= set(seen)


def test_parts_are_the_headings_of_the_index() -> None:
    index = "# Docs\n\n[a](a.md)\n\n## How-to guides\n\n[b](b.md)\n\n## Reference\n"

    parts = [part for part, _ in parts_of(index)]

    assert parts == ["Tutorial", "How-to guides", "Reference"]


def test_prose_is_without_code_and_tables() -> None:
    text = "# A page\n\nTwo words.\n\n```python\nx = 1\n```\n\n| a | b |\n<picture>\n"

    assert words_of(text) == 10
    assert prose_of(text) == 4
