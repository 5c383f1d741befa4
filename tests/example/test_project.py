import re
from pathlib import Path

from tests.example.project import manage


def test_the_project_passes_its_checks(tmp_path: Path):
    manage(tmp_path, "check", "--fail-level", "WARNING")


def test_every_model_has_its_migration(tmp_path: Path):
    manage(tmp_path, "makemigrations", "--check", "--dry-run")


def test_its_own_tests_pass(tmp_path: Path):
    told = manage(tmp_path, "test", "--noinput")

    ran = re.search(r"^Ran (\d+) tests", told, re.MULTILINE)
    assert ran, told
    assert int(ran[1]) >= 30
