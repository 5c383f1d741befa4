"""What a type checker tells the users of tasks and jobs: mypy and pyright are held to the comments in tests/typing/.

Each error that a comment expects has to be reported, and no other.

DELAYQ_TEST_REQUIRE_PYRIGHT=1   a pyright that is missing, or does not run, fails its test
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from django_delayq.jobs.decorator import FIXED
from django_delayq.jobs.options import (
    CallOptions,
    DecoratorOptions,
    HandlerOptions,
    TaskOptions,
)

HERE = Path(__file__).parent
SAMPLES = sorted((HERE / "typing").glob("*.py"))

Told = dict[int, set[str]]


def expected_in(sample: Path) -> Told:
    """Return what the comments of a sample say of each line."""
    expected: Told = defaultdict(set)
    for number, line in enumerate(sample.read_text("utf-8").splitlines(), 1):
        for kind, what in re.findall(r"# ([RE]): (.+)$", line):
            codes = [what] if kind == "R" else what.split(", ")
            expected[number].update(f"{kind}: {code}" for code in codes)
    return expected


def told_by_mypy(sample: Path, cache: Path) -> Told:
    """Return what mypy says, in the form of the comments: names without their modules, errors by their code."""
    output = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            f"--config-file={HERE / 'typing' / 'mypy.ini'}",
            f"--cache-dir={cache}",
            "--show-error-codes",
            str(sample.relative_to(HERE.parent)),
        ],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode in (0, 1), output.stdout + output.stderr
    told: Told = defaultdict(set)
    for line in output.stdout.splitlines():
        if revealed := re.match(r'.*:(\d+): note: Revealed type is "(.*)"', line):
            shown = re.sub(r"\b(?:\w+\.)+(?=\w)", "", revealed[2])
            told[int(revealed[1])].add(f"R: {shown}")
        elif error := re.match(r".*:(\d+): error: .*\[([\w-]+)\]$", line):
            told[int(error[1])].add(f"E: {error[2]}")
    return told


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_types_are_as_the_sample_says(
    sample: Path, pytestconfig: pytest.Config
) -> None:
    pytest.importorskip("mypy")
    assert pytestconfig.cache is not None
    expected = expected_in(sample)
    assert len(expected) > 5

    assert told_by_mypy(sample, pytestconfig.cache.mkdir("mypy")) == expected


def told_by_pyright(sample: Path) -> Told:
    """Return what pyright says, in the form of the comments; an error without its kind, which it names differently."""
    output = subprocess.run(
        [
            sys.executable,
            "-m",
            "pyright",
            "--outputjson",
            f"--pythonpath={sys.executable}",
            str(sample.relative_to(HERE.parent)),
        ],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(output.stdout)["generalDiagnostics"]
    except ValueError:
        reason = f"pyright did not run: {output.stdout}{output.stderr}"
        if os.environ.get("DELAYQ_TEST_REQUIRE_PYRIGHT") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    told: Told = defaultdict(set)
    for item in found:
        line = item["range"]["start"]["line"] + 1
        revealed = re.match(r'Type of ".*" is "(.*)"$', item["message"], re.DOTALL)
        if item["severity"] == "error":
            told[line].add("E")
        elif revealed:
            told[line].add(f"R: {revealed[1]}")
    return told


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_pyright_says_the_same(sample: Path) -> None:
    if os.environ.get("DELAYQ_TEST_REQUIRE_PYRIGHT") != "1":
        pytest.importorskip("pyright")
    # The two show a signature in different words.
    expected = {
        line: {text[:1] if text.startswith("E") else text for text in texts}
        for line, texts in expected_in(sample).items()
        if "DelayedTask[" not in str(texts)
    }

    told = told_by_pyright(sample)

    assert {
        line: texts for line, texts in told.items() if "DelayedTask[" not in str(texts)
    } == expected


def test_decorator_takes_every_option_of_tasks() -> None:
    known = get_type_hints(TaskOptions)
    # One class is as good as a tuple of them.
    for name in ("retry_on", "no_retry_on"):
        known[name] = type[BaseException] | known[name]

    assert get_type_hints(DecoratorOptions) == {
        name: known[name] for name in (field.name for field in fields(TaskOptions))
    }


def test_calls_and_handlers_take_every_option_but_those_that_they_refuse() -> None:
    known = set(DecoratorOptions.__annotations__)

    # `using` refuses the name as well, and a handler is given its queue.
    assert known - set(CallOptions.__annotations__) == set(FIXED) - {"name"}
    assert known - set(HandlerOptions.__annotations__) == {
        "queue",
        "limit",
        "sensitive",
        "encrypt",
    }


def test_package_says_that_it_is_typed() -> None:
    assert (HERE.parent / "django_delayq" / "py.typed").is_file()
