"""``python -m tests.surface`` writes `tests/surface.txt`: everything of django-delayq that a user can name or match.

The file is reviewed as a golden file is: a commit that changes it changes `docs/changelog.md` as well.
`tests/test_surface.py` holds the file to the code.
"""

import argparse
import ast
import functools
import hashlib
import importlib
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from tests.pages import DOCUMENTS, README, ROOT

FILE = ROOT / "tests" / "surface.txt"
PACKAGE = ROOT / "django_delayq"
NAME = "django_delayq"
#: Pages for maintainers: they name modules that may move.
_INTERNAL = {"internals.md", "contributing.md", "changelog.md"}
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def sections() -> dict[str, Callable[[], Iterable[str]]]:
    """Return what the file has, by heading."""
    return {
        "Python": names,
        "Exceptions": exceptions,
        "Settings": settings,
        "Commands": commands,
        "Exit codes": exit_codes,
        "System checks": checks,
        "Signals": signals,
        "Log lines": log_lines,
        "Fields of record.delayq": log_fields,
        "Metrics": metrics,
        "URLs": urls,
        "States": states,
        "Bytes on the server": golden,
    }


def text() -> str:
    """Return the whole file."""
    parts = []
    for heading, lines in sections().items():
        found = list(lines())
        assert found, f"nothing found for {heading!r}"
        parts.append("\n".join([f"# {heading}", "", *found]) + "\n")
    return "\n".join(parts)


# Python.


def names() -> Iterator[str]:
    """Yield each public name with its signature: those that `django_delayq` exports, and those that a page names."""
    package = importlib.import_module(NAME)
    paths = {f"{NAME}.{name}" for name in package.__all__} | set(paths_of_pages())
    for path in sorted(paths):
        yield from _described(path, resolve(path))


@functools.cache
def pages() -> str:
    """Return the pages that users read."""
    return "\n".join(
        page.read_text("utf-8") for page in DOCUMENTS if page.name not in _INTERNAL
    )


@functools.cache
def members() -> frozenset[str]:
    """Return what stands behind a dot or a backtick on a page."""
    return frozenset(re.findall(r"[.`](\w+)", pages()))


def paths_of_pages() -> Iterator[str]:
    """Yield each dotted path that a page names and that exists."""
    words = pages()
    for path in re.findall(rf"\b{NAME}(?:\.[A-Za-z_]\w*)+", words):
        found = path
        while found != NAME and _or_none(found) is None:
            found = found.rpartition(".")[0]
        if found != NAME:
            yield found
    for module, listed in re.findall(
        rf"from ({NAME}[\w.]*) import (\([^)]*\)|[^\n]*)", words
    ):
        for name in re.findall(r"\b[A-Za-z]\w*", listed.partition("#")[0]):
            if _or_none(f"{module}.{name}") is not None:
                yield f"{module}.{name}"


def _or_none(path: str) -> Any:
    try:
        return resolve(path)
    except (ImportError, AttributeError):
        return None


def resolve(path: str) -> Any:
    """Return the module, or the object, that a dotted path names."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        if not parent:
            raise
        return getattr(resolve(parent), name)


def _described(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"module {path}"
    elif inspect.isclass(value):
        bases = ", ".join(each.__name__ for each in value.__bases__)
        yield f"class {path}({bases})"
        if not issubclass(value, Exception):
            yield from (f"    {line}" for line in _members(value))
    elif callable(value):
        yield from (f"def {path}{each}" for each in _signatures(value))
    else:
        yield f"value {path}: {type(value).__name__}"


def _members(cls: type) -> Iterator[str]:
    found: dict[str, list[str]] = {"__init__": [f"__init__{_signature(cls)}"]}
    for each in reversed(cls.__mro__):
        if not each.__module__.startswith(NAME):
            continue
        for name in inspect.get_annotations(each):
            found[name] = [f"{name}: {_shown(inspect.get_annotations(each)[name])}"]
        for name, raw in vars(each).items():
            value = getattr(each, name, raw)
            if isinstance(raw, property) or hasattr(raw, "func"):
                found[name] = [f"{name}: property"]
            elif callable(value):
                found[name] = [f"{name}{each}" for each in _signatures(value)]
            elif name not in found:
                found[name] = [_without_modules(f"{name} = {value!r}")]
    for name in sorted(found):
        # Other members are for us: no page names them.
        if name == "__init__" or {name, name.removeprefix("a")} & members():
            yield from found[name]


def _signatures(value: Any) -> list[str]:
    overloads = (
        typing.get_overloads(inspect.unwrap(value)) if _is_function(value) else []
    )
    return [_signature(each) for each in overloads or [value]]


def _is_function(value: Any) -> bool:
    return inspect.isfunction(inspect.unwrap(value))


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    shown = _without_modules(str(signature))
    for each in signature.parameters.values():
        for options in typing.get_args(each.annotation):
            if each.kind is each.VAR_KEYWORD and typing.is_typeddict(options):
                keys = ", ".join(sorted(options.__annotations__))
                shown += f" with {options.__name__}: {keys}"
    return shown


def _shown(annotation: Any) -> str:
    if isinstance(annotation, str):
        return _without_modules(annotation)
    return _without_modules(inspect.formatannotation(annotation))


def _without_modules(words: str) -> str:
    """Return a signature without the modules of its types, which may move, and without addresses."""
    words = re.sub(r"<function (?:\w+\.)*(\w+) at 0x\w+>", r"\1", words)
    words = re.sub(r" object at 0x\w+", "", words)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=_?[A-Za-z])", "", words)


def exceptions() -> Iterator[str]:
    """Yield each exception type with its bases."""
    module = importlib.import_module(f"{NAME}.exceptions")
    for name, value in sorted(vars(module).items()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            bases = ", ".join(each.__name__ for each in value.__bases__)
            yield f"{name}({bases}){_signature(value)}"


# Settings, commands and checks.


def settings() -> Iterator[str]:
    """Yield each setting and task option with its default, as the tables of the reference have them."""
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif found := re.match(r"\| `([\w.\"']+)` \| (.*?) \| ", line):
            yield f"{heading}: {found[1]} = {found[2]}"


def commands() -> Iterator[str]:
    """Yield each option of each command."""
    for file in sorted((PACKAGE / "management" / "commands").glob("delayq_*.py")):
        module = importlib.import_module(f"{NAME}.management.commands.{file.stem}")
        parser = module.Command().create_parser("manage.py", file.stem)
        yield from _options(file.stem, parser)


#: Options that Django gives to each command.
_OF_DJANGO = {
    *("-h", "--version", "-v", "--settings", "--pythonpath", "--traceback"),
    *("--no-color", "--force-color", "--skip-checks"),
}


def _options(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield name
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, each in action.choices.items():
                yield from _options(f"{name} {verb}", each)
        elif not _OF_DJANGO.intersection(action.option_strings):
            names = ", ".join(action.option_strings) or action.dest
            given = {
                "metavar": action.metavar,
                "nargs": action.nargs,
                "default": action.default,
                "choices": action.choices and [*action.choices],
                "required": action.required and bool(action.option_strings),
            }
            more = ", ".join(
                f"{key}={value!r}"
                for key, value in given.items()
                if value not in (None, False) and value is not argparse.SUPPRESS
            )
            yield f"{name} {names}" + (f" ({more})" if more else "")


def exit_codes() -> Iterator[str]:
    """Yield the exit codes that the pages of the commands promise."""
    for page in DOCUMENTS:
        if page.name in _INTERNAL or page == README:
            continue
        lines = page.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            if found := re.match(r"\| exit status \| of `(\w+)` \|", line):
                for row in lines[number + 2 :]:
                    if not row.startswith("|"):
                        break
                    yield f"{found[1]} {row.split('|')[1].strip()}: {row.split('|')[2].strip()}"
            elif re.search(r"[Tt]he exit status is", line):
                yield f"{page.name}: {line.strip()}"


def checks() -> Iterator[str]:
    """Yield the ids of the system checks, with the title that the reference gives them."""
    errors = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for found in sorted(set(_matches(rf"{NAME}\.([EWI]\d{{3}})"))):
        assert found in errors, f"docs/errors.md does not name {found}"
        yield found


# What a project can hear and read.


def signals() -> Iterator[str]:
    """Yield each signal with its arguments, as its page has them."""
    page = (ROOT / "docs" / "howto" / "signals.md").read_text("utf-8")
    module = importlib.import_module(f"{NAME}.signals")
    for name in sorted(vars(module)):
        if isinstance(getattr(module, name), module.Signal):
            (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
            yield row


def log_lines() -> Iterator[str]:
    """Yield level and text of each log line."""
    found = set()
    for tree in _trees("logger."):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(f"{node.func.attr}: {node.args[0].value}")
    return iter(sorted(found))


def log_fields() -> Iterator[str]:
    """Yield the fields of ``record.delayq``: all text in a function that passes them, if it may be the name of one."""
    found = set()
    for tree in _trees('extra={"delayq"'):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "extra={'delayq'" in ast.unparse(
                node
            ):
                found |= set(_keys(node))
    return iter(sorted(found))


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        texts: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            texts = node.keys
        elif isinstance(node, ast.Subscript):
            texts = [node.slice]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            texts = [node.value.body, node.value.orelse]
        for text in texts:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value


def metrics() -> Iterator[str]:
    """Yield each metric, with its type and its help."""
    for tree in _trees("Family("):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Family"
                and len(node.args) >= 3
            ):
                yield " | ".join(ast.unparse(each) for each in node.args[:3])


def urls() -> Iterator[str]:
    """Yield the patterns and names of the admin's pages and of the metrics."""
    from django.contrib import admin

    from django_delayq.metrics import urls as of_metrics
    from django_delayq.models import Job

    for each in admin.site._registry[Job].get_urls():
        yield f"{each.pattern} ({each.name})"
    for each in of_metrics.urlpatterns:
        yield f"metrics: {each.pattern} ({each.name})"


def states() -> Iterator[str]:
    """Yield each state of a job."""
    package = importlib.import_module(NAME)
    return (f"{each.name} = {each.value}" for each in package.State)


def golden() -> Iterator[str]:
    """Yield a digest of each file of golden bytes."""
    for file in sorted((ROOT / "tests" / "golden").glob("*.jsonl")):
        yield f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _trees(having: str) -> Iterator[ast.Module]:
    """Parse the files of the package that have some text."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if having in (text := file.read_text("utf-8")):
            yield ast.parse(text)


def _matches(pattern: str) -> Iterator[str]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield from re.findall(pattern, file.read_text("utf-8"))


def main() -> None:
    """Write the file."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    FILE.write_text(text(), "utf-8")
    print(f"{FILE.name}: {len(FILE.read_text('utf-8').splitlines()):,} lines")


if __name__ == "__main__":
    main()
