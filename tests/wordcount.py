"""How long the documentation is: ``python -m tests.wordcount`` prints the words of each page, by the parts of docs/README.md.

A word has a letter or a digit; tables and code are included. Prose is without blocks of code, tables and lines of markup.
`tests/test_wordcount.py` keeps both within bounds.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.pages import README, ROOT

DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
#: Pages that a command writes as a whole, and the command.
GENERATED = {
    "compatibility.md": "make interop",
    "compatibility-detail.md": "make interop",
    "pairs.md": "python -m tests.pairs.page",
    "peers.md": "python -m benchmarks.peers",
}
#: For maintainers, not for users.
NOT_COUNTED = {"internals.md": "for maintainers", **GENERATED}

#: Bound of the README, in words of prose.
README_PROSE = 900
#: Bound of all pages that are counted, in words.
DOCUMENTATION = 60_000
#: Bound of internals.md, in words as `wc -w` counts them.
INTERNALS = 10_000


class Page(NamedTuple):
    #: As the index names it; "README.md" is the index.
    name: str
    part: str
    words: int
    prose: int

    @property
    def is_counted(self) -> bool:
        return self.name not in NOT_COUNTED


def words_of(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def prose_of(text: str) -> int:
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = (line for line in text.splitlines() if not line.startswith(("|", "<")))
    return words_of("\n".join(lines))


def parts_of(index: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of the index and their text; what stands before the first is the tutorial."""
    first, *others = re.split(r"^## ", index, flags=re.MULTILINE)
    yield "Tutorial", first
    for other in others:
        title, _, text = other.partition("\n")
        yield title, text


def pages() -> Iterator[Page]:
    """Yield each page that the index links, once, and the index itself."""
    index = INDEX.read_text("utf-8")
    yield _page("README.md", "Tutorial")
    seen = {"README.md"}
    for part, text in parts_of(index):
        for name in re.findall(r"\]\(([\w/-]+\.md)", text):
            if name not in seen:
                seen.add(name)
                yield _page(name, part)


def _page(name: str, part: str) -> Page:
    text = (DOCS / name).read_text("utf-8")
    return Page(name, part, words_of(text), prose_of(text))


def _total(name: str, found: list[Page]) -> str:
    words = sum(page.words for page in found)
    prose = sum(page.prose for page in found)
    return f"{words:8,} {prose:8,}  {name}"


def report() -> Iterator[str]:
    """Yield the lines of the table."""
    found = list(pages())
    counted = [page for page in found if page.is_counted]
    yield "   words    prose"
    for part in dict.fromkeys(page.part for page in found):
        yield ""
        yield _total(part, [page for page in counted if page.part == part])
        for page in found:
            if page.part == part:
                why = NOT_COUNTED.get(page.name)
                note = f" (not counted: {why})" if why else ""
                yield _total(f"  {page.name}{note}", [page])
    yield ""
    yield _total(f"all that is counted, at most {DOCUMENTATION:,} words", counted)
    yield _total("generated pages", [page for page in found if page.name in GENERATED])
    yield _total("all", found)
    text = README.read_text("utf-8")
    readme = Page("README", "", words_of(text), prose_of(text))
    yield _total(f"README.md of the project, at most {README_PROSE} of prose", [readme])


def main() -> None:
    print("\n".join(report()))


if __name__ == "__main__":
    main()
