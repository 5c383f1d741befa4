"""No regular expression of the package takes much longer for a text twice as long, whatever the text.

Others' texts can be long: an argument of a job, an error message, a line of an import. The test counts steps, see
tests/steps.py, and not seconds. It finds all patterns of the package by itself.
"""

import ast
import importlib
import itertools
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import django_delayq
from tests.steps import Steps, TooMany

ROOT = Path(django_delayq.__file__).parent
#: Repeats in the shorter text; the longer has twice as many.
SIZE = 30
#: Methods that look for a pattern in one place of a text, and those that look in all places.
ONE_PLACE = {"match", "fullmatch"}
ALL_PLACES = {"search", "sub", "subn", "findall", "finditer", "split"}
#: Modules whose patterns read only texts of the package itself.
OWN_TEXTS = {"django_delayq.transport.script"}


def _patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Yield each pattern with its module and name, and whether a text is searched for it."""
    found = set()
    for each in pkgutil.walk_packages([str(ROOT)], "django_delayq."):
        if each.name in OWN_TEXTS or ".migrations" in each.name:
            continue
        try:
            module = importlib.import_module(each.name)
        except ImportError:  # It needs a package that is not installed.
            continue
        source = Path(module.__file__ or "").read_text()
        held = {name: [*_inside(value)] for name, value in vars(module).items()}
        if "re." not in source and not any(held.values()):
            continue
        methods: dict[str, set[str]] = {}
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=method),
                    args=[ast.Constant(value=text), *_],
                ) if method in ONE_PLACE | ALL_PLACES:
                    yield (
                        f"{each.name}:{node.lineno}",
                        re.compile(text),
                        method in ALL_PLACES,
                    )
                case ast.Attribute(value=ast.Name(id=name), attr=method):
                    methods.setdefault(name, set()).add(method)
        for name, patterns in held.items():
            searched = not methods.get(name, set()) & ONE_PLACE or bool(
                methods[name] & ALL_PLACES
            )
            for pattern in patterns:
                if (pattern, searched) not in found:
                    found.add((pattern, searched))
                    yield f"{each.name}.{name}-{len(found)}", pattern, searched


def _inside(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _inside(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _inside(each)


def _growth(pattern: re.Pattern[Any], is_searched: bool) -> tuple[float, str]:
    """Return how many times the steps of a text are those of one of half its length, and the worst text."""
    steps = Steps(pattern)
    count = steps.search if is_searched else steps.match
    alphabet = steps.alphabet()
    starts, repeated = {""}, {steps.sample(steps.tree), *alphabet}
    repeated.update(map("".join, itertools.product(alphabet, repeat=2)))
    for before, body in steps.parts():
        starts.add(before)
        repeated |= {before, body, before + body}
    worst = (0.0, "")
    for start, item, end in itertools.product(starts, repeated - {""}, ("", "\0")):
        text = start + item * 3 + "…" + end
        try:
            longer = count(start + item * 2 * SIZE + end)
        except TooMany:
            return float("inf"), text
        # Few steps a character: no need to count those of the shorter text.
        if longer > 8 * len(item) * 2 * SIZE:
            shorter = count(start + item * SIZE + end)
            worst = max(worst, (longer / shorter, text))
    return worst


PATTERNS = {name: (pattern, searched) for name, pattern, searched in _patterns()}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_text_twice_as_long_takes_at_most_three_times_the_steps(name: str) -> None:
    pattern, is_searched = PATTERNS[name]

    growth, text = _growth(pattern, is_searched)

    assert growth <= 3, f"{pattern.pattern!r} on {text!r}"


def test_the_patterns_of_the_package_are_found() -> None:
    names = " ".join(PATTERNS)

    assert "redaction._URL" in names
    assert "guess._MARKS" in names
    assert "worker.attempt:" in names


@pytest.mark.parametrize(
    ("source", "is_searched"),
    [
        (r"\b[a-z][a-z0-9+.-]*://\S+", True),
        (r"\s+$", True),
        (r"(a+)+b", False),
        (r"[0-9]+\.?[0-9]*x", False),
        (r"(?:a|ab|b)*?c", True),
    ],
)
def test_a_pattern_that_grows_faster_is_seen(source: str, is_searched: bool) -> None:
    assert _growth(re.compile(source), is_searched)[0] > 3


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"\b[a-z]+\b|(\d)\1", "ab 11 12 c_ d"),
        (r"(?<!\\)((?:\\\\)*\\u00[01])([a-f])", r"\u001a \\u001a \\\u000b"),
        (r"^a.*?b$", "a\na b\nab"),
    ],
)
def test_steps_finds_what_re_finds(source: str, text: str) -> None:
    pattern = re.compile(source, re.MULTILINE)

    steps = Steps(pattern)

    assert steps.spans(text) == [found.span() for found in pattern.finditer(text)]


def test_scripts_of_pages_have_no_regular_expression() -> None:
    calls = re.compile(
        r"RegExp|\.(?:match|matchAll|replace|replaceAll|search|split|test|exec)\("
    )

    for path in ROOT.rglob("*.js"):
        assert not calls.search(path.read_text()), path
