"""Django's own tests of its tasks, run with the backend."""

import os
import re
import subprocess
import sys

import django
import pytest

from tests.backend.conformance import EXCLUDED, ROOT, unpack
from tests.backend.sources import source_of

VERSION = django.get_version()


@pytest.mark.redis
def test_django_s_own_tests_pass_with_the_backend(private_server, tmp_path) -> None:
    if django.VERSION < (6,):
        pytest.skip("Django 5.2 has no tasks, and its source no tests of them")
    if not source_of(VERSION).exists():
        if os.environ.get("DELAYQ_TEST_REQUIRE_SOURCES") == "1":
            pytest.fail(f"{source_of(VERSION)} is missing; tests.versions brings it")
        pytest.skip("python -m tests.versions brings the source of Django")
    folder = unpack(VERSION, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.backend.conformance", str(folder)],
        cwd=ROOT,
        env={**os.environ, "DELAYQ_TEST_URL": private_server().socket_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"(\d+) of (\d+) tests run", ended.stdout)
    assert found is not None
    assert int(found[1]) == int(found[2]) - len(EXCLUDED)
    assert int(found[1]) >= 60
