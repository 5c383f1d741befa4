"""README.zh-CN.md says what README.md says: section by section the same code, links, names and figures.

What is translated cannot be compared; what must not be translated can. A section that changed in English fails here by
name, with what is missing from the Chinese one.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pages import ROOT

ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
_BLOCK = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:srcset|src)=\"([^\"]+)\"")
_SPAN = re.compile(r"`([^`]+)`")
_FIGURE = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)*")


class Section(NamedTuple):
    """A heading and what stands below it, to the next one."""

    level: int
    title: str
    text: str

    @property
    def prose(self) -> str:
        return _BLOCK.sub("", self.text)

    @property
    def slug(self) -> str:
        """The anchor that GitHub gives to the heading."""
        bare = re.sub(r"[^\w\- ]", "", self.title.lower())
        return bare.replace(" ", "-")


def sections_of(name: str) -> list[Section]:
    text = (ROOT / name).read_text("utf-8")
    # A heading in a block of code is none.
    hidden = _BLOCK.sub(lambda block: re.sub(r"[^\n]", "x", block[0]), text)
    heads = list(re.finditer(r"^(#+) (.+)$", hidden, re.MULTILINE))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        Section(len(head[1]), head[2], text[head.end() : end])
        for head, end in zip(heads, ends, strict=True)
    ]


PAIRS = list(zip(sections_of(ENGLISH), sections_of(CHINESE), strict=False))


def links_of(section: Section, sections: list[Section]) -> Counter[str]:
    """Count the links; one to a heading of the page counts as one to the place of that heading."""
    places = {f"#{each.slug}": f"#{place}" for place, each in enumerate(sections)}
    found = [one or other for one, other in _LINK.findall(section.prose)]
    return Counter(places.get(link, link) for link in found)


def missing(english: Counter[str], chinese: Counter[str]) -> str:
    """Say what one section has and the other has not."""
    lines = [f"  {CHINESE} lacks {each}" for each in (english - chinese).elements()]
    lines += [f"  only {CHINESE} has {each}" for each in (chinese - english).elements()]
    return "\n".join(lines)


def check(english: Section, found: Counter[str], expected: Counter[str]) -> None:
    assert found == expected, (
        f"section {english.title!r} of {ENGLISH} is not what {CHINESE} has in its place:\n"
        + missing(expected, found)
    )


def test_both_have_the_same_sections_in_the_same_order() -> None:
    english, chinese = sections_of(ENGLISH), sections_of(CHINESE)
    told = "\n".join(
        f"  {one.title}  =  {other.title}"
        for one, other in zip(english, chinese, strict=False)
    )

    assert [each.level for each in english] == [each.level for each in chinese], (
        f"{ENGLISH} has {len(english)} headings and {CHINESE} {len(chinese)}. Write the missing one in its place, and"
        f" look where these pairs go apart:\n{told}"
    )


@pytest.mark.parametrize("pair", PAIRS, ids=[one.title for one, _ in PAIRS])
def test_section_has_the_same_code_links_names_figures_and_rows(
    pair: tuple[Section, Section],
) -> None:
    english, chinese = pair

    check(
        english,
        Counter(_BLOCK.findall(chinese.text)),
        Counter(_BLOCK.findall(english.text)),
    )
    assert _BLOCK.findall(english.text) == _BLOCK.findall(chinese.text), english.title
    check(
        english,
        links_of(chinese, sections_of(CHINESE)),
        links_of(english, sections_of(ENGLISH)),
    )
    check(
        english,
        Counter(_SPAN.findall(chinese.prose)),
        Counter(_SPAN.findall(english.prose)),
    )
    check(
        english,
        Counter(_FIGURE.findall(chinese.prose)),
        Counter(_FIGURE.findall(english.prose)),
    )
    for mark in ("|", "* ", "1. ", "<!-- "):
        lines = [
            Counter({mark: len(re.findall(f"^{re.escape(mark)}", each.text, re.M))})
            for each in pair
        ]
        check(english, lines[1], lines[0])


def test_links_of_the_chinese_page_lead_somewhere() -> None:
    anchors = {f"#{each.slug}" for each in sections_of(CHINESE)}
    for section in sections_of(CHINESE):
        for one, other in _LINK.findall(section.prose):
            link = one or other
            if link.startswith("#"):
                assert link in anchors, link
            else:
                assert (ROOT / link.partition("#")[0]).exists(), link


def test_first_lines_link_the_two_to_each_other() -> None:
    english, chinese = (
        Path(ROOT / name).read_text("utf-8").splitlines()[0]
        for name in (ENGLISH, CHINESE)
    )

    assert f"]({CHINESE})" in english
    assert f"]({ENGLISH})" in chinese


def test_chinese_page_is_chinese() -> None:
    """A paragraph that was copied and not translated has no Chinese letter."""
    text = _BLOCK.sub("", (ROOT / CHINESE).read_text("utf-8"))
    lines = [
        line
        for line in text.splitlines()
        if re.search(r"[A-Za-z]{3,} [a-z]{3,} [a-z]{3,}", _SPAN.sub("", line))
        and not re.search(r"[\u4e00-\u9fff]", line)
        and not line.startswith("<!-- not run")
    ]

    assert lines == []
