"""The walks in docs/internals.md, made from what was recorded, so that they say what the code does.

    python -m tests.walk.page

writes them anew; a test compares them.
"""

import ast
import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import django

from tests.pages import with_tables
from tests.servers import Server, available_kinds
from tests.test_layers import ROOT, rank_of
from tests.walk import walks
from tests.walk.recorder import PROJECT, Function, Step
from tests.walk.walks import Walk

PAGE = Path(__file__).parents[2] / "docs" / "internals.md"
#: The threads of a worker, by how their names begin.
LOOP, TASK = "inline-worker", "delayq-task"
#: What is handed in from the right and called from the left: the layer that calls, what its source calls, and why.
HANDED_IN = {
    ("transport", "call.read"): "a call knows how its reply is read",
    ("transport", "keys.key"): "the keys of a queue know their names",
    ("transport", "pool.get_connection"): "a pool makes the connections that it lends",
    (
        "transport",
        "steps.send",
    ): "steps of several calls are a generator of their layer",
    ("transport", "self.state"): "tests put another server in the place of this one",
    ("waiting", "callback"): "a subscriber handles the message",
}


@dataclass
class Row:
    """Functions of one file that are entered one after the other, the first of them from another file."""

    file: str
    called_from: str
    #: By which name the caller has what was handed in; "": it imports it.
    through: str = ""
    functions: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def continues(self, file: str, called_from: str) -> bool:
        """Return whether one more function of a file belongs into this row."""
        return file == self.file and called_from in ("", self.called_from)

    def __str__(self) -> str:
        if self.file == PROJECT.file:
            return "1. **The project**: its task, or its handler, runs"
        shown = (name.removesuffix(".__init__") for name in self.functions)
        names = dict.fromkeys(name.rpartition(".")[2] for name in shown)
        functions = ", ".join(f"`{name}`" for name in names)
        scripts = "".join(f", `{script}.lua`" for script in self.scripts)
        through = f", handed in as `{self.through}`" if self.through else ""
        purpose = f": {self._purpose()}".rstrip(": ")
        return f"1. [{self.file}](../django_delayq/{self.file}) {functions}{through}{scripts}{purpose}"

    def _purpose(self) -> str:
        """Return how the docstring of the first function that has one begins; "" if none has."""
        docs = docstrings_of(self.file)
        text = next((docs[name] for name in self.functions if docs.get(name)), "")
        words = " ".join(text.partition("\n\n")[0].split())
        return re.split(r"[.,;:]( |$)", words, maxsplit=1)[0].replace("``", "`")


@cache
def docstrings_of(file: str) -> dict[str, str]:
    """Return the docstrings of a file by the names of classes and functions; its own is ''."""
    found: dict[str, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                found[inner] = ast.get_docstring(child) or ""
                visit(child, inner)

    tree = ast.parse((ROOT / file).read_text("utf-8"))
    found[""] = ast.get_docstring(tree) or ""
    visit(tree, "")
    return found


def is_upward(step: Step) -> bool:
    """Return whether a step goes to a layer on the right of its caller's."""
    if step.caller is None or step.function == PROJECT:
        return False
    return _rank(step.function) > _rank(step.caller)


def _rank(function: Function) -> int:
    return rank_of(function.file.removesuffix(".py").replace("/", "."))


def is_handed_in(step: Step) -> bool:
    """Return whether a step up goes through what `HANDED_IN` declares, or from the worker to its part of a feature."""
    if step.caller is None:
        return False
    called = step.function.file
    is_of_feature = called.startswith("features/") and called.endswith("/worker.py")
    return (step.caller.layer, step.expression) in HANDED_IN or (
        step.caller.layer == "worker" and is_of_feature
    )


def parts_of(walk: Walk) -> dict[str, list[Step]]:
    """Return the steps with the job in hand, by thread; the claim loop has a part before the run and one after it."""
    parts: dict[str, list[Step]] = {
        "The thread that calls schedule()": [],
        "The claim loop: a claim": [],
        "A thread of the worker: the run": [],
        "The claim loop: the end": [],
    }
    caller, claim, run, end = parts.values()
    for step in walk.in_hand():
        if step.thread.startswith(TASK):
            run.append(step)
        elif step.thread != LOOP:
            caller.append(step)
        else:
            (end if run else claim).append(step)
    return parts


def rows_of(steps: list[Step]) -> list[Row]:
    """Return rows in the order in which each function first had the job in hand, or called one that had.

    A script stands in the first row of a file that had its call.
    """
    rows: list[Row] = []
    scripts: set[str] = set()
    seen: dict[Function, Row] = {}
    for step in steps:
        if _is_inside_codec(step):
            continue
        for function in filter(None, (step.caller, step.function)):
            if function not in seen:
                is_entered = function is step.function
                came_from = _came_from(step) if is_entered else ""
                if not rows or not rows[-1].continues(function.file, came_from):
                    through = step.expression if is_entered and is_upward(step) else ""
                    rows.append(Row(function.file, came_from, through))
                rows[-1].functions.append(function.name)
                seen[function] = rows[-1]
            if function.layer == "transport":
                new = [script for script in step.scripts if script not in scripts]
                seen[function].scripts += new
                scripts.update(new)
    return rows


def _is_inside_codec(step: Step) -> bool:
    """Return whether a codec calls a part of itself: how it reads a payload is no part of the walk."""
    layers = {step.caller.layer if step.caller else "", step.function.layer}
    return layers == {"codecs"}


def _came_from(step: Step) -> str:
    """Return the file of the caller; "" if it is the function's own."""
    if step.caller is None or step.caller.file == step.function.file:
        return ""
    return step.caller.file


def lists_of(walk: Walk, known: Walk | None = None) -> str:
    """Return a list for each thread that the job passes through; name those lists only that a known walk has as well."""
    known_parts = {} if known is None else _parts_as_text(known)
    parts = []
    for title, rows in _parts_as_text(walk).items():
        is_known = known_parts.get(title) == rows
        parts.append(f"*{title}*: as above." if is_known else f"*{title}*\n\n{rows}")
    return "\n\n".join(parts)


def _parts_as_text(walk: Walk) -> dict[str, str]:
    return {
        title: "\n".join(map(str, rows_of(steps)))
        for title, steps in parts_of(walk).items()
        if steps
    }


def handed_in_list() -> str:
    """Return the list of what may be called to the right."""
    return "\n".join(
        f"* `{expression}` in {layer}: {reason}"
        for (layer, expression), reason in HANDED_IN.items()
    )


def with_walks(text: str, job: Walk, element: Walk) -> str:
    """Return the page with its walks made anew."""
    tables = {
        "handed in": handed_in_list(),
        "walk of a job": lists_of(job),
        "walk of an element": lists_of(element, job),
    }
    return with_tables(text, tables)


def main() -> None:
    """Record both walks on a server of one's own, and write the page."""
    server = Server(available_kinds()[0]).start()
    try:
        job, element = walks.both(server.socket_url, "walk")
    finally:
        server.stop()
    PAGE.write_text(with_walks(PAGE.read_text("utf-8"), job, element), "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    main()
