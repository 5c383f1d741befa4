"""``python -m tests.size`` prints how much code the package has, by folder.

Tokens are those of Python without comments, docstrings and the tokens for lines and indentation.
"""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.pages import ROOT

PACKAGE = ROOT / "django_delayq"
_NOT_COUNTED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}


class Size(NamedTuple):
    """How much code some files have."""

    tokens: int
    files: int
    #: Lines with a counted token, in the file that has most of them.
    longest: int
    longest_name: str
    lua_lines: int


def of_files(files: Iterable[Path]) -> Size:
    """Return the size of Python and Lua files."""
    tokens = count = longest = lua = 0
    name = ""
    for file in files:
        text = file.read_text("utf-8")
        if file.suffix == ".lua":
            lua += sum(
                bool(line.strip()) and not line.lstrip().startswith("--")
                for line in text.splitlines()
            )
            continue
        counted = list(_tokens(text))
        lines = len({row for first, last in counted for row in range(first, last + 1)})
        tokens += len(counted)
        count += 1
        if lines > longest:
            longest, name = lines, file.name
    return Size(tokens, count, longest, name, lua)


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each token that counts."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        and ast.get_docstring(node, clean=False) is not None
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_COUNTED and token.start not in docstrings:
            yield token.start[0], token.end[0]


def by_folder() -> dict[str, Size]:
    """Return the size of each folder of the package, with all that is below it, and of the whole."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]
    folders: dict[str, list[Path]] = {}
    for file in sorted(files):
        parts = file.relative_to(PACKAGE).parts
        folders.setdefault(parts[0] if len(parts) > 1 else ".", []).append(file)
    found = {name: of_files(each) for name, each in sorted(folders.items())}
    return {**found, "all": of_files(files)}


def main() -> None:
    """Print the table."""
    print(f"{'folder':12} {'tokens':>8} {'files':>6} {'Lua':>6}  longest file")
    for name, size in by_folder().items():
        print(
            f"{name:12} {size.tokens:8,} {size.files:6,} {size.lua_lines:6,}  "
            f"{size.longest:,} {size.longest_name}"
        )


if __name__ == "__main__":
    main()
