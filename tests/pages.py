"""The pages, the fenced blocks of each, and a process that runs Python blocks.

A block's fence and first line say what it is:

===========================  =====================================================================
```python, ``# shop/x.py``   that file of the app ``shop``; several of one path are put together
```python, ``# settings.py`` added to the settings; a worker and a namespace begin again
```python                    executed, in order, in one namespace with ``order`` and the tasks
```pycon                     a doctest in the same namespace
```console                   its commands run on the pages of `tests.test_readme.FOLLOWED`
===========================  =====================================================================

``<!-- not run: the reason -->`` before the fence leaves the block out. Other languages are not ours to run.
``<!-- needs: NAME -->`` runs it only where that module is installed.
``<!-- terminal: NAME -->`` runs the last command of a console block beside what follows.
"""

import doctest
import importlib.util
import json
import re
import select
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
DOCUMENTS = [README, ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)$")
_NOT_RUN = re.compile(r"^<!-- not run: (\S.*) -->$")
_NEEDS = re.compile(r"^<!-- needs: (\w+) -->$")
_TERMINAL = re.compile(r"^<!-- terminal: (\w+) -->$")
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
    #: Whose command goes on beside what follows; "" for the reader's first terminal.
    terminal: str

    @property
    def is_run(self) -> bool:
        return self.language in ("python", "pycon", "console") and not self.not_run

    @property
    def path(self) -> str | None:
        """The file that it is, by its first line."""
        match = PATH.match(self.text.partition("\n")[0])
        return match[1] if match and self.language == "python" else None


def blocks_of(document: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    blocks: list[Block] = []
    language, first, text, reason, terminal = None, 0, [], "", ""
    previous = ""
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, first, text = fence[1], number, []
            match = _NOT_RUN.match(previous)
            reason = match[1] if match else ""
            match = _NEEDS.match(previous)
            if match and importlib.util.find_spec(match[1]) is None:
                reason = f"{match[1]} is not installed"
            match = _TERMINAL.match(previous)
            terminal = match[1] if match else ""
        elif language is not None and line == "```":
            said = "\n".join(text) + "\n"
            blocks.append(Block(language, said, first, reason, terminal))
            language = None
        elif language is not None:
            text.append(line)
        previous = line
    assert language is None, f"{document.name}:{first}: the fence is not closed"
    return blocks


#: What differs from run to run, and what stands for it when two texts are compared.
_MASKS = [
    (re.compile(pattern, re.MULTILINE), mask)
    for pattern, mask in (
        (r":[\w-]{22}(?![\w-])", ":ID"),
        (r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 \d+ ", "TIME PID "),
        (r"\b(lateness|duration)_ms=[\d.]+", r"\1_ms=MS"),
        (r"\b(Ran \d+ tests? in) [\d.]+s", r"\1 TIME"),
        (r"\bdjango-delayq \d\S*", "django-delayq VERSION"),
        (r"(127\.0\.0\.1):\d+", r"\1:PORT"),
    )
]


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with what stands between ``<!-- name: …`` and ``<!-- end of name -->`` made anew."""
    for name, table in tables.items():
        before, start, rest = text.partition(f"<!-- {name}: ")
        first, _, rest = rest.partition("\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert start, name
        assert end, name
        text = f"{before}{start}{first}\n\n{table}\n\n{end}{after}"
    return text


def masked(text: str) -> str:
    """Return a text with ids, times, ports and our version masked."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with what is shown below it; "" for what was started before."""
    command, shown = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ ") or line == "^C\n":
            if command or shown:
                yield command, shown
            command, shown = line.removeprefix("$ ").rstrip("\n"), ""
        else:
            shown += line
    yield command, shown


class MaskedChecker(doctest.OutputChecker):
    """Compare what a page shows with what came out, both masked; ``...`` stands for anything."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        flags = optionflags | doctest.ELLIPSIS
        return super().check_output(masked(want), masked(got), flags)


class Session:
    """A Python process that runs blocks one after another in one namespace: see `serve`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, document: Path, language: str, text: str, line: int) -> None:
        """Run a block of a page.

        Raises:
            AssertionError: it failed, or printed something else than the page shows.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said = json.dumps([str(document), language, text, line])
        print(said, file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], 300)
        assert ready, f"{document.name}:{line}: not done within 300 s"
        answer = self._process.stdout.readline()
        assert answer, f"{document.name}:{line}: the process has ended"
        fault = json.loads(answer)
        assert not fault, fault


@contextmanager
def session(
    command: list[str], *, cwd: Path, env: dict[str, str], log: Path
) -> Iterator[Session]:
    """Start a command that calls `serve`; what it prints itself goes to a file."""
    with log.open("ab") as file:
        process = forked.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    with process:
        try:
            yield Session(process)
        except BaseException:
            process.kill()
            raise
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def serve() -> None:
    """Run the blocks that stdin brings, one a line, and answer each with its fault, "" for none."""
    answers, sys.stdout = sys.stdout, sys.stderr
    names: dict[str, Any] = {"__name__": "__console__"}
    for line in sys.stdin:
        print(json.dumps(_fault_of(names, *json.loads(line))), file=answers, flush=True)


def _fault_of(
    names: dict[str, Any], document: str, language: str, text: str, line: int
) -> str:
    if language == "pycon":
        report: list[str] = []
        test = doctest.DocTestParser().get_doctest(
            text, names, document, document, line
        )
        runner = doctest.DocTestRunner(checker=MaskedChecker(), verbose=False)
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        return "".join(report)
    try:
        exec(compile("\n" * line + text, document, "exec"), names)
    except Exception:
        return traceback.format_exc()
    return ""
