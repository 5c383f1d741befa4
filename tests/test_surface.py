"""`tests/surface.txt` names everything that a user can name or match, and `tests.size` counts what is counted."""

import difflib
import sys
from pathlib import Path

import pytest

from tests import size, surface


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="another Python writes signatures otherwise"
)
def test_surface_is_as_the_file_has_it() -> None:
    there, here = surface.FILE.read_text("utf-8"), surface.text()

    changes = difflib.unified_diff(
        there.splitlines(), here.splitlines(), "surface.txt", "the code", lineterm=""
    )
    assert there == here, (
        "What users see has changed. If it should, run `python -m tests.surface`, and name the change in "
        "docs/changelog.md:\n" + "\n".join(changes)
    )


def test_size_counts_neither_comments_nor_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        '"""A docstring."""\n\n\ndef f() -> None:\n    # Why.\n    g("a")\n'
    )
    script = tmp_path / "code.lua"
    script.write_text("-- A header\n\nreturn 1\n")

    # def f ( ) -> None : g ( "a" )
    assert size.of_files([file, script]) == size.Size(11, 1, 2, "code.py", 1)
