"""Puts the pages of the site into a folder: README.md, those of docs/, and the reference of the public API.

A page stays as it is but for its links: those to other files than pages, pictures and downloads lead to the repository.
docs/README.md says which page is in which part of the navigation, and in which order.
"""

import re
import shutil
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import reference

REPOSITORY = "https://github.com/django-delayq/django-delayq/blob/main"
#: The first page, and the one that says where the others are; by path in the repository and on the site.
START, INDEX = "README.md", "docs/README.md"
CHINESE = "README.zh-CN.md"
MOVED = {START: "index.md", INDEX: "contents.md", CHINESE: "zh.md"}
PICTURES = (".png", ".svg")
#: The dashboard and the alert rules.
DOWNLOADS = (".json", ".yml")
#: Where the index names a part.
_PART = re.compile(r"^(?:## (.+)|([A-Z][\w ]+):)$")
_PAGE = re.compile(r"\]\(([\w./-]+\.md)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'(\]\(|(?:src|srcset|href)=")([^)\s"]+)([)"])')
#: A picture follows the site's own switch between light and dark, not that of the machine.
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)


class BrokenLink(Exception):
    """A link leads to no file."""


def place_of(path: str) -> str:
    """Return where a page, a picture or a download of the repository is on the site."""
    return MOVED.get(path) or path.removeprefix("docs/")


def pages_of(root: Path) -> list[str]:
    """Return the paths of all pages."""
    folder = root / "docs"
    found = [path.relative_to(root).as_posix() for path in folder.rglob("*.md")]
    return [START, CHINESE, *sorted(found)]


def navigation_of(root: Path) -> list[tuple[str, list[str]]]:
    """Return each part with its pages, from the links of docs/README.md."""
    parts: list[tuple[str, list[str]]] = [("Tutorial", [])]
    seen = {START, CHINESE}
    for line in (root / INDEX).read_text("utf-8").splitlines():
        if match := _PART.match(line):
            parts.append((match[1] or match[2], []))
        for target in _PAGE.findall(line):
            path = normpath(join(dirname(INDEX), target))
            if path not in seen:
                seen.add(path)
                parts[-1][1].append(path)
    return parts


def moved(root: Path, page: str, text: str) -> str:
    """Return the text of a page with its links as they are on the site.

    Raises:
        BrokenLink: there is no such file.
    """
    pages = set(pages_of(root))

    def target_of(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, sharp, anchor = target.partition("#")
        file = normpath(join(dirname(page), path))
        if not (root / file).exists():
            raise BrokenLink(f"{page}: {target}")
        if file in pages or (
            file.startswith("docs/") and file.endswith(PICTURES + DOWNLOADS)
        ):
            place = relpath(place_of(file), dirname(place_of(page)) or ".")
        else:
            place = f"{REPOSITORY}/{file}"
        return f"{before}{place}{sharp}{anchor}{after}"

    def switched(match: re.Match[str]) -> str:
        dark, text, light = match.groups()
        return f'<img class="only-light" alt="{text}" src="{light}"><img class="only-dark" alt="{text}" src="{dark}">'

    parts = _FENCED.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _LINK.sub(target_of, _PICTURE.sub(switched, parts[index]))
    return "".join(parts)


def tree_of(caption: str, entries: list[str]) -> str:
    lines = [f":caption: {caption}", ":hidden:", "", *entries]
    return "\n".join(["", "```{toctree}", *lines, "```", ""])


def navigation_text(root: Path) -> str:
    """Return the navigation as Sphinx wants it, below the text of the first page."""
    text = ""
    for caption, pages in navigation_of(root):
        entries = [place_of(page).removesuffix(".md") for page in pages]
        if caption == "Tutorial":
            entries += ["contents", "简体中文 <zh>"]
        if caption == "Reference":
            # Below the settings.
            entries[1:1] = ["reference/index", "reference/commands"]
            entries.append("reference/log-lines")
        if entries:
            text += tree_of(caption, entries)
    return text


def write_pages(root: Path, folder: Path, extra: Path) -> None:
    """Write all pages and downloads into one folder, and the pictures into another."""
    for each in (folder, extra):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    for page in pages_of(root):
        text = moved(root, page, (root / page).read_text("utf-8"))
        if page == START:
            text += navigation_text(root)
        place = folder / place_of(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    for path in (root / "docs").rglob("*"):
        if path.suffix in PICTURES + DOWNLOADS:
            # Sphinx itself copies a download to where its link leads.
            target = extra if path.suffix in PICTURES else folder
            place = target / place_of(path.relative_to(root).as_posix())
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    reference.write_pages(folder / "reference")
