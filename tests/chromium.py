"""A headless Chromium with a profile of its own.

DELAYQ_TEST_REQUIRE_BROWSER=1   a missing Chromium fails the tests that need it
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium_in(profile: Path) -> Iterator[Any]:
    """Start it; skips the test, or fails it, where there is none."""
    driver_path = shutil.which("chromedriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from selenium import webdriver
    except ImportError:
        webdriver = None
    missing = [
        name
        for name, found in (
            ("chromedriver", driver_path),
            ("chromium", binary),
            ("the Python package selenium", webdriver),
        )
        if not found
    ]
    if missing:
        reason = f"no browser: {', '.join(missing)} missing"
        if os.environ.get("DELAYQ_TEST_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{reason}, and DELAYQ_TEST_REQUIRE_BROWSER is set")
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        # Bootstrap scrolls smoothly: what is clicked would still be on its way.
        "--force-prefers-reduced-motion",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(driver_path)
    )
    # axe looks at a page for 30 s and more on a busy machine.
    driver.set_script_timeout(300)
    try:
        yield driver
    finally:
        driver.quit()
