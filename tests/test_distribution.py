"""What is published, built as for an index: all that git holds is in it, and without the checkout it runs a job."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.pages import DOCUMENTS, ROOT
from tests.settings import TIME_ZONE

SMOKE = """
import sys
from pathlib import Path
import django
from django.conf import settings
from django.core.management import call_command

here = Path(sys.argv[1])
settings.configure(
    DEBUG=True,
    SECRET_KEY="of this test alone",
    BASE_DIR=here,
    USE_TZ=True,
    TIME_ZONE=sys.argv[2],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
import django_delayq
assert Path(django_delayq.__file__).is_relative_to(here), django_delayq.__file__
call_command("check")

from django_delayq import delayed_task, get_job
from django_delayq.core.scripts import PACKAGES
from django_delayq.transport.script import load_script
for file in sorted(Path(django_delayq.__file__).parent.rglob("lua/[a-z]*.lua")):
    load_script(PACKAGES, file.stem)
    print("script", file.stem)

@delayed_task(name="smoke", keep_result=60)
def add(a: int, b: int) -> int:
    return a + b

job = add.schedule(0, 20, b=22)
try:
    call_command("delayq_worker", burst=True, verbosity=0)
except SystemExit as end:
    assert not end.code, end.code
print("result", job.wait(5))
"""


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def held_by_git(*paths: str) -> set[str]:
    """Return the files that git holds, or would with the next commit."""
    told = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name for name in told.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the source archive, and of the wheel that is made from that."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_wheel_holds_each_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if ".dist-info/" not in name}

    assert package == held_by_git("django_delayq", "pytest_delayq")
    kinds = {Path(name).suffix for name in package} | {Path(n).name for n in package}
    assert kinds >= {".py", ".lua", ".html", "py.typed"}
    assert len([name for name in names if name.endswith("licenses/LICENSE")]) == 1


@pytest.mark.slow
def test_source_archive_holds_what_the_wheel_is_made_of(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    patterns = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    included = [pattern.removeprefix("/") for pattern in patterns]

    assert names - {"PKG-INFO", ".gitignore"} == {
        *held_by_git(*included),
        "pyproject.toml",
    }


@pytest.mark.slow
def test_an_index_would_take_both(built: Path) -> None:
    pytest.importorskip("twine")

    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_installed_into_an_empty_environment_it_runs_a_job(
    wheel: Path, tmp_path: Path
) -> None:
    target = tmp_path / "installed"
    venv.create(target, with_pip=False)
    python = target / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    pip += ["--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", f"{wheel}[embedded]"], check=True)
    subprocess.run([*pip, "check"], check=True)

    done = subprocess.run(
        [python, "-c", SMOKE, tmp_path, TIME_ZONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "DJANGO_SETTINGS_MODULE": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("result 42\n")
    assert done.stdout.count("script ") > 15


def test_extras_are_those_that_pages_name() -> None:
    pages = "".join(document.read_text("utf-8") for document in DOCUMENTS)

    named = set(re.findall(r"django-delayq\[(\w+)\]", pages))

    assert named == set(PROJECT["project"]["optional-dependencies"])
