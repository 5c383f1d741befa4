"""The built wheel, without the checkout: everything that is no Python file is in it, and it runs a job."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

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
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
import django_delayq
assert Path(django_delayq.__file__).is_relative_to(here), django_delayq.__file__
call_command("check")

from django_delayq import delayed_task, get_job
from django_delayq.calls.script import load_script
below = ("django_delayq.delivery", "django_delayq.wire")
for packages in (("django_delayq.queues", *below), ("django_delayq.repair", *below), below, below[1:]):
    for file in sorted((here / "installed" / packages[0].replace(".", "/") / "lua").glob("[a-z]*.lua")):
        load_script(packages, file.stem)
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


@pytest.mark.slow
def test_the_wheel_carries_scripts_and_templates_and_runs_a_job(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [
            *pip,
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            tmp_path,
            ROOT,
        ],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    expected = {
        str(path.relative_to(ROOT))
        for pattern in ("*/lua/*.lua", "templates/**/*.html", "py.typed")
        for path in (ROOT / "django_delayq").glob(pattern)
    }
    assert len(expected) > 20
    expected.add("pytest_delayq/__init__.py")
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    target = tmp_path / "installed"
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", target, wheel], check=True
    )

    done = subprocess.run(
        [sys.executable, "-c", SMOKE, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target), "DJANGO_SETTINGS_MODULE": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("result 42\n")
    assert done.stdout.count("script ") > 15
