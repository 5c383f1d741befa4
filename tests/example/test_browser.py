"""The example site in Chromium, while its visitors are about: what flips by itself, and what every page must be."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener
from zoneinfo import ZoneInfo

import pytest

from tests.chromium import chromium_in
from tests.example.demo import demo, port_of, wait_for_the_end_of_the_tour
from tests.polling import wait_until
from tests.settings import TIME_ZONE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = ("/", "/contests/", "/orders/", "/trades/", "/delays/", "/lateness/")
SIZES = ((1280, 900), (400, 860))
#: The texts of a page that stand out less from what is behind them than WCAG's AA asks.
FAINT = """
const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const linear = (part) => part <= 10.31 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function behind(element) {
  for (; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
}
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest("svg")) continue;
  const [a, b] = [parse(getComputedStyle(element).color), behind(element)].map(light).sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) faint.push(`${texts.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
}
return faint;
"""


class Site:
    """A person at the browser, on the site of a demo."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, page: str) -> None:
        self.driver.get(self.url + page)
        self.check()

    def check(self) -> None:
        """Nothing was refused by the policy or raised by a script, and nothing sticks out sideways."""
        severe = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]
        assert severe == []
        width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.driver.execute_script(width) <= 0

    def announce(self, title: str) -> str:
        """Announce a contest far ahead; return the address of its page."""
        due = datetime.now(UTC) + timedelta(days=1)
        page = self._post("/contests/", title=title, publish_at=_for_a_widget(due))
        assert re.fullmatch(rf"{self.url}/contests/\d+/", page)
        return page.removeprefix(self.url)

    def move_to_now(self, contest: str) -> None:
        """Have somebody else give a contest another time: the next second."""
        due = datetime.now(UTC) + timedelta(seconds=2)
        self._post(f"{contest}move/", contest, publish_at=_for_a_widget(due))

    def _post(self, action: str, page: str = "", **fields: str) -> str:
        """Send a form from another browser; return where it leads."""
        jar = HTTPCookieProcessor(CookieJar())
        other = build_opener(ProxyHandler({}), jar)
        with other.open(self.url + (page or action)) as answer:
            text = answer.read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', text)
        assert token
        data = urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        with other.open(self.url + action, data) as answer:
            return str(answer.url)

    def text(self, selector: str) -> str:
        """Return what an element says, which a script may replace at any moment."""
        found = self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent", selector
        )
        return " ".join((found or "").split())

    def source(self) -> str:
        """Return the markup of the page; empty while another page takes its place."""
        from selenium.common.exceptions import WebDriverException

        try:
            return str(self.driver.page_source)
        except WebDriverException:
            return ""


def _for_a_widget(moment: datetime) -> str:
    return f"{moment.astimezone(ZoneInfo(TIME_ZONE)):%Y-%m-%dT%H:%M:%S}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("demo")
    with (
        chromium_in(tmp_path_factory.mktemp("chromium")) as driver,
        demo(data) as (process, said),
    ):
        wait_for_the_end_of_the_tour(process, said)
        driver.set_window_size(*SIZES[0])
        yield Site(driver, f"http://127.0.0.1:{port_of(said)}")


def stays(site: Site) -> Callable[[], bool]:
    """Mark the page; return what says whether it is still the same one, not loaded anew."""
    site.driver.execute_script("window.mark = 'here'")
    return lambda: site.driver.execute_script("return window.mark") == "here"


def test_contest_flips_to_published_on_its_page_by_itself(site: Site) -> None:
    contest = site.announce("Lunar marathon")
    site.open(contest)
    is_the_same = stays(site)
    assert site.text("[data-live=state]") == "scheduled"
    assert re.fullmatch(r"(1 d 00|23:59):\d\d(:\d\d)?", site.text("[data-countdown]"))

    site.move_to_now(contest)
    wait_until(
        lambda: site.text("[data-live=state]") == "published",
        description="it is published",
    )

    assert is_the_same()
    assert site.text("[data-live=when]").startswith("Published ")
    # What could be done until then is gone.
    assert site.driver.find_elements("css selector", "[data-while]") == []
    site.check()


def test_contest_flips_in_the_list_by_itself(site: Site) -> None:
    contest = site.announce("Solar marathon")
    row = f"#contest-{contest.split('/')[2]}"
    site.open("/contests/")
    is_the_same = stays(site)
    assert "scheduled" in site.text(row)

    site.move_to_now(contest)
    wait_until(lambda: "published" in site.text(row), description="it is published")

    assert is_the_same()
    assert site.text(row).endswith("late")
    site.check()


def test_focus_stays_where_it_was_while_the_list_changes(site: Site) -> None:
    site.open("/orders/")
    is_the_same = stays(site)
    link = "tbody tr:nth-child(2) a"
    site.driver.execute_script(f"document.querySelector('{link}').focus()")
    focused = "return document.activeElement.id"
    held, first = site.driver.execute_script(focused), site.text("tbody tr")
    assert held.startswith("to-")

    wait_until(lambda: site.text("tbody tr") != first, description="the list changes")

    assert is_the_same()
    assert site.driver.execute_script(focused) == held


def test_page_follows_without_scripts(site: Site) -> None:
    contest = site.announce("Polar marathon")
    scripts = "Emulation.setScriptExecutionDisabled"
    site.driver.execute_cdp_cmd(scripts, {"value": True})
    try:
        site.driver.get(site.url + contest)
        wait_until(
            lambda: ">scheduled<" in site.source(), description="it is scheduled"
        )
        site.move_to_now(contest)

        wait_until(
            lambda: ">published<" in site.source(),
            description="a page loaded anew says that it is published",
        )
    finally:
        site.driver.execute_cdp_cmd(scripts, {"value": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_in_every_scheme_and_size(
    site: Site, scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    site.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        for size in SIZES:
            site.driver.set_window_size(*size)
            for page in PAGES:
                site.open(page)
                assert site.driver.execute_script(FAINT) == [], page
    finally:
        site.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        site.driver.set_window_size(*SIZES[0])


def test_admin_keeps_the_policy_and_shows_what_the_visitors_do(site: Site) -> None:
    site.open("/admin/login/?next=/admin/")
    for field in ("username", "password"):
        site.driver.find_element("name", field).send_keys("demo")
    site.driver.find_element("css selector", "[type=submit]").click()
    wait_until(
        lambda: site.driver.find_elements("id", "user-tools"),
        description="the admin is open",
    )

    site.open("/admin/django_delayq/job/")

    for queue in ("contests", "orders", "notifications", "delays", "sample"):
        site.driver.find_element("link text", queue)
