"""The package in every time zone of Django's ``TIME_ZONE``."""

import os
import subprocess
import sys
import zoneinfo
from datetime import UTC, datetime
from pathlib import Path

from django.utils import timezone

from django_delayq.display.time_texts import Moment
from django_delayq.translations import moment_text
from django_delayq.wire.delay import MAX_START_TIME_MS, MIN_START_TIME_MS

#: The zones furthest from UTC on both sides; CI runs all tests in others.
ZONES = ("Etc/GMT+12", "Pacific/Kiritimati")

#: Forks one process for each zone, after the slow imports.
START = """
import importlib, os, pkgutil, sys, time
import django.core.management, django.forms, django.template, django.test, redis.asyncio

for zone in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["DELAYQ_TEST_TIME_ZONE"] = zone
        django.setup()
        from django.conf import settings
        import django_delayq, pytest_delayq
        assert settings.TIME_ZONE == os.environ["TZ"] == zone
        for package in (django_delayq, pytest_delayq):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not module.name.endswith("__main__") and ".migrations." not in module.name:
                    importlib.import_module(module.name)
        django.core.management.call_command("check")
        sys.exit()
    _, status = os.wait()
    assert status == 0, zone
"""


def test_a_project_in_any_zone_imports_every_module_and_passes_its_checks() -> None:
    started = subprocess.run(
        [sys.executable, "-W", "error", "-c", START, *ZONES],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert started.returncode == 0, started.stderr
    assert started.stdout.count("no issues") == len(ZONES)


def test_every_moment_can_be_shown_in_every_zone() -> None:
    ends = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    beyond_ms = MIN_START_TIME_MS - 1, -(2**63), MAX_START_TIME_MS + 1, 2**63

    for name in sorted(zoneinfo.available_timezones()):
        with timezone.override(name):
            for moment in (*ends, datetime.now(UTC)):
                assert moment_text(moment).count(" ") == 2, name
            for ms in (MIN_START_TIME_MS, -1, 0, MAX_START_TIME_MS):
                shown = Moment.of(ms, 0)
                assert shown is not None
                assert shown.zone, name
            for ms in beyond_ms:
                shown = Moment.of(ms, 0)
                assert shown is not None
                assert not shown.zone, name
