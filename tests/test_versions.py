"""What docs/versions.md and the package claim is what `make versions` runs."""

import re
import tomllib
from itertools import combinations, product

from tests.versions import (
    CLIENT_TESTS,
    DJANGO_REDIS,
    PAIR_TESTS,
    REDIS,
    ROOT,
    ROWS,
    WHOLE_TESTS,
    Row,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAMES = ("django", "python", "redis", "django_redis")


def values(name: str) -> list[str]:
    return sorted({getattr(row, name) for row in ROWS})


def can_exist(one: tuple[str, str], other: tuple[str, str]) -> bool:
    # Django 6 needs Python 3.12.
    found = dict([one, other])
    return not (found.get("django", "") >= "6" and found.get("python") == "3.11")


def test_each_pair_that_can_exist_stands_in_a_row() -> None:
    wanted = {
        ((first, a), (second, b))
        for first, second in combinations(NAMES, 2)
        for a, b in product(values(first), values(second))
        if can_exist((first, a), (second, b))
    }

    run = {
        pair for row in ROWS for pair in combinations(zip(NAMES, row, strict=False), 2)
    }

    assert wanted == run


def test_each_django_and_each_python_is_run_whole_with_the_newest_of_the_rest() -> None:
    whole = [row for row in ROWS if row.tests is WHOLE_TESTS]

    assert sorted(row.django for row in whole) == values("django")
    assert sorted(row.python for row in whole) == values("python")
    newest = max(values("redis")), max(values("django_redis"))
    assert {(row.redis, row.django_redis) for row in whole} == {newest}


def test_each_older_redis_py_runs_all_that_uses_it_once() -> None:
    run = [row.redis for row in ROWS if row.tests is CLIENT_TESTS]

    # The newest is what all tests run with.
    assert sorted(run) == values("redis")[:-1]


def test_page_claims_the_versions_that_are_run() -> None:
    text = (ROOT / "docs" / "versions.md").read_text("utf-8")
    for title, name in (
        ("Python", "python"),
        ("Django", "django"),
        ("redis-py", "redis"),
        ("django-redis", "django_redis"),
    ):
        (row,) = re.findall(rf"^\| {title} \|.*", text, re.M)
        assert row.split("|")[3].strip() == ", ".join(
            sorted(values(name), key=lambda each: [*map(int, each.split("."))])
        )


def test_classifiers_name_the_versions_that_are_run() -> None:
    classifiers = "\n".join(PROJECT["classifiers"])
    for kind in ("Django", "Python"):
        found = re.findall(rf"{kind} :: (\d+\.\d+)", classifiers)
        assert found == values(kind.lower())


def test_the_oldest_that_the_package_takes_are_run() -> None:
    least = dict(
        re.findall(
            r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(PROJECT["dependencies"]), re.M
        )
    )

    assert least["django"] == values("django")[0]
    assert PROJECT["requires-python"] == f">={values('python')[0]}"
    assert REDIS[values("redis")[0]] == least["redis"]
    assert DJANGO_REDIS[values("django_redis")[0]] == f"{least['django-redis']}.*"


def test_ci_leaves_out_only_the_row_that_its_other_parts_run() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    (left_out,) = re.findall(r"--except (\d+)", text)

    assert ROWS[int(left_out) - 1] == Row("5.2", "3.11", "8", "7.0", WHOLE_TESTS)


def test_what_is_run_is_there() -> None:
    for name in {*WHOLE_TESTS, *CLIENT_TESTS, *PAIR_TESTS}:
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text("utf-8")
