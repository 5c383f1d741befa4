"""The old patterns of our prose stay out; `tests.words` has them, and prints where they are."""

from pathlib import Path

import pytest

from tests.words import (
    PATTERNS,
    Pattern,
    findings,
    sentences_of,
    texts_of_module,
    texts_of_packages,
    texts_of_page,
    texts_of_pages,
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern_finds_its_example(pattern: Pattern) -> None:
    assert pattern.find(pattern.example)


def test_pages_have_none_of_the_patterns() -> None:
    found = findings(texts_of_pages())

    assert not found, "\n".join(map(str, found))


def test_packages_have_no_more_of_the_patterns_than_are_left() -> None:
    found = findings(texts_of_packages())

    for pattern in PATTERNS:
        of_it = [each for each in found if each.pattern == pattern]
        assert len(of_it) <= pattern.left, "\n".join(map(str, of_it))


def test_code_and_links_are_no_part_of_a_sentence() -> None:
    text = "A `told` [job](#what-is) ends.\nNext: ``what so many`` is **bold**."

    assert sentences_of(text) == ["A … [job] ends.", "Next:", "… is bold."]


def test_blocks_of_code_are_no_part_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What is it?\n\n* One.\n\n```python\ntold = 1\n```\n\n| a b | c |\n"
    )

    seen = [(line, sentence) for _, line, sentence in texts_of_page(page, tmp_path)]

    assert seen == [(1, "# What is it?"), (3, "One."), (9, "a b"), (9, "c")]


def test_docstrings_and_messages_of_a_module_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Two sentences. Here."""\n\n'
        "# A comment is not read.\n"
        'raise ValueError(f"queue {name} is " "not known", "name")\n'
    )

    seen = [(line, sentence) for _, line, sentence in texts_of_module(module, tmp_path)]

    assert seen == [
        (1, "Two sentences."),
        (1, "Here."),
        (4, "queue … is not known"),
    ]
