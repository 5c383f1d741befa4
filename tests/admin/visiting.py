"""A person at Chromium, and the fixtures that bring one to the admin."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from tests.admin.filling import Queue
from tests.chromium import chromium_in

SIZES = {"desktop": (1280, 900), "phone": (400, 844)}


@pytest.fixture(scope="session")
def chromium(
    tmp_path_factory: pytest.TempPathFactory, live_server: Any
) -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    # Asks for the live server, to end before it: so the connections it keeps open end first.
    with chromium_in(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


class Visitor:
    """A person at the browser, logged in."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver = driver
        self.base = base

    def log_in(self, client: Client) -> None:
        self.driver.delete_all_cookies()
        self.driver.get(f"{self.base}/static/admin/css/base.css")
        session = client.cookies[django_settings.SESSION_COOKIE_NAME].value
        self.driver.add_cookie(
            {"name": django_settings.SESSION_COOKIE_NAME, "value": session, "path": "/"}
        )

    def open(self, address: str) -> None:
        self.driver.get(f"{self.base}{address}")
        self.check()

    def check(self) -> None:
        """Whatever a page shows, no script of a stranger ran and nothing sticks out sideways."""
        assert not self.driver.execute_script("return window.owned")
        assert not self.find("img[src=x]")
        width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.driver.execute_script(width) <= 0
        severe = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
        ]
        assert [text for text in severe if "status of" not in text] == []

    def find_barriers(self) -> list[str]:
        """Return what axe-core finds that keeps somebody from using the page."""
        package = importlib.util.find_spec("axe_core_python")
        path = os.environ.get("DELAYQ_TEST_AXE") or (
            package and Path(str(package.origin)).with_name("axe.min.js")
        )
        if not path:
            reason = "the Python package axe-core-python is missing, and DELAYQ_TEST_AXE names no axe.min.js"
            if os.environ.get("DELAYQ_TEST_REQUIRE_BROWSER") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        self.driver.execute_script(Path(path).read_text("utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run('#content-main', {}).then(found => done(found.violations))"
        )
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]} {node['failureSummary']}"
            for each in found
            for node in each["nodes"]
        ]

    def find(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        # At once: a page that refreshes itself may drop an element before it is asked for its text.
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText.trim())"
        return list(self.driver.execute_script(script, selector))

    def click(self, selector: str) -> None:
        (element,) = self.find(selector)
        self.follow(element)
        self.check()

    def follow(self, element: Any) -> None:
        """Click, and wait for the page that comes."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.expected_conditions import staleness_of
        from selenium.webdriver.support.ui import WebDriverWait

        element.click()
        # Between two pages, Chromium has other words for an element that is gone.
        wait = WebDriverWait(self.driver, 30, ignored_exceptions=[WebDriverException])
        wait.until(staleness_of(element))
        wait.until(
            lambda driver: (
                driver.execute_script("return document.readyState") == "complete"
            )
        )

    def picture(self, name: str) -> None:
        folder = os.environ.get("DELAYQ_TEST_SCREENSHOTS")
        if folder is None:
            return
        for size, (width, height) in SIZES.items():
            self.driver.set_window_size(width, height)
            self.check()
            self.driver.save_screenshot(str(Path(folder) / f"{name}-{size}.png"))
        self.driver.set_window_size(*SIZES["desktop"])

    @contextmanager
    def prefers(self, scheme: str) -> Iterator[None]:
        """Have pages drawn in the light or in the dark scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": features}
        )
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def brightness(self) -> int:
        """Return the sum of red, green and blue behind the page, 0 to 765."""
        colours = "return getComputedStyle(document.body).backgroundColor"
        found = re.findall(r"\d+", self.driver.execute_script(colours))
        return sum(map(int, found[:3]))

    def paint(self, file: Path, shown_as: dict[str, str], width: int = 1280) -> None:
        """Write a picture of the whole page, with some words in place of others."""
        for word, other in shown_as.items():
            self.driver.execute_script(
                "document.body.innerHTML = document.body.innerHTML.replaceAll(...arguments)",
                word,
                other,
            )
        size = {"width": width, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        # From a low window on, so that the page is as high as what it shows; the side bar needs more than the least pages.
        for script in ("return 480", "return document.documentElement.scrollHeight"):
            size["height"] = self.driver.execute_script(script)
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.save_screenshot(str(file))
        self.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture
def visitor(
    chromium: Any, live_server: Any, login: Callable[..., Client], queue: Queue
) -> Iterator[Visitor]:
    """Somebody who may do everything."""
    visitor = Visitor(chromium, live_server.url)
    chromium.set_window_size(*SIZES["desktop"])
    visitor.log_in(login(is_superuser=True))
    yield visitor
    # A page that refreshes itself would go on asking while the next test fills its database.
    chromium.get("about:blank")
