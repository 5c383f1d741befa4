"""What the README and the package claim is what `make versions` runs."""

import re
import tomllib

from tests.versions import PAIRS, ROOT, TESTS


def test_readme_claims_the_pairs_that_are_run() -> None:
    (row,) = re.findall(
        r"^\| Django \|.*", (ROOT / "README.md").read_text("utf-8"), re.M
    )

    claimed = row.split("|")[3].strip()

    assert claimed == ", ".join(f"{p.django} on Python {p.python}" for p in PAIRS)


def test_classifiers_name_the_versions_that_are_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {
        kind: re.findall(rf"{kind} :: (\d+\.\d+)", "\n".join(project["classifiers"]))
        for kind in ("Django", "Python")
    }

    assert found["Django"] == sorted({pair.django for pair in PAIRS})
    assert found["Python"] == sorted({pair.python for pair in PAIRS})


def test_what_is_run_is_there() -> None:
    assert [name for name in TESTS if not (ROOT / name).exists()] == []
