"""The pages, and the fenced blocks of each.

What a block is, is told by its fence and its first line:

===========================  =====================================================================
```python, ``# shop/x.py``   that file of the app ``shop``; several of one path are put together
```python, ``# settings.py`` checked as settings; its queues are those of the project
```python                    executed, in order, in one namespace with ``order`` and the tasks
```pycon                     a doctest in the same namespace
```console                   its ``$ python manage.py …`` lines are parsed, not run
===========================  =====================================================================

``<!-- not run: the reason -->`` before the fence leaves it out. Other languages are not ours to run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)$")
_NOT_RUN = re.compile(r"^<!-- not run: (\S.*) -->$")
PATH = re.compile(r"^# ((?:\w+/)*\w+\.py)$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    #: Of the fence, from 1 on.
    line: int
    #: Why it is not run; "" where it is.
    not_run: str

    @property
    def path(self) -> str | None:
        """The file that it is, by its first line."""
        match = PATH.match(self.text.partition("\n")[0])
        return match[1] if match and self.language == "python" else None


def blocks_of(document: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    blocks: list[Block] = []
    language, first, text, reason = None, 0, [], ""
    previous = ""
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, first, text = fence[1], number, []
            match = _NOT_RUN.match(previous)
            reason = match[1] if match else ""
        elif language is not None and line == "```":
            blocks.append(Block(language, "\n".join(text) + "\n", first, reason))
            language = None
        elif language is not None:
            text.append(line)
        previous = line
    assert language is None, f"{document.name}:{first}: the fence is not closed"
    return blocks
