"""The site of the documentation builds without a warning, and its search answers what people asked in public."""

import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import django_delayq
from tests.chromium import chromium_in
from tests.pages import ROOT

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if not find_spec(name)]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

#: How many questions are answered by one of the first three hits, at least.
ANSWERED = 18
QUESTIONS = tomllib.loads((ROOT / "tests" / "questions.toml").read_text("utf-8"))
PLACES = {"README.md": "index", "README.zh-CN.md": "zh", "docs/README.md": "contents"}


def build(root: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "docs" / "site" / "build.py"), folder, root],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as own:
        thread = threading.Thread(target=own.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{own.server_port}"
        own.shutdown()
        thread.join()


def hits_of(driver: Any, address: str, question: str) -> list[str]:
    """Return the pages that the search shows, the best first."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(f"{address}/search.html?q={quote(question)}")
    WebDriverWait(driver, 60).until(
        lambda driver: driver.execute_script(
            "return document.querySelector('#search-results .search-summary')?.innerText"
        )
    )
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll('#search-results ul.search > li > a')].map(link => link.href)"
    )
    places = [urlsplit(each).path.strip("/").removesuffix(".html") for each in found]
    return list(dict.fromkeys(places))


def test_search_answers_what_people_asked(address: str, tmp_path: Path) -> None:
    missed = []
    with chromium_in(tmp_path) as driver:
        for each in QUESTIONS["question"]:
            page = each.get("page", "")
            place = PLACES.get(page) or page.removeprefix("docs/").removesuffix(".md")
            hits = hits_of(driver, address, each["search"])[:3]
            if place not in hits:
                missed.append((each["search"], place, hits))
    answered = len(QUESTIONS["question"]) - len(missed)
    assert answered >= ANSWERED, missed


def test_dashboard_and_alert_rules_can_be_downloaded(site: Path) -> None:
    page = (site / "howto" / "monitor.html").read_text("utf-8")

    for name in ("grafana/django-delayq.json", "prometheus/django-delayq.yml"):
        link = re.search(rf'href="([^"]+/{Path(name).name})"', page)
        assert link is not None
        downloaded = (site / "howto" / link[1]).read_bytes()
        assert downloaded == (ROOT / "docs" / name).read_bytes()


@pytest.mark.parametrize(
    ("page", "language"), [("zh", "zh-Hans"), ("index", "en"), ("howto/admin", "en")]
)
def test_page_names_its_language(site: Path, page: str, language: str) -> None:
    text = (site / f"{page}.html").read_text("utf-8")

    assert re.findall(r"<html[^>]* lang=\"([^\"]*)\"", text) == [language]


def test_reference_has_every_public_name(site: Path) -> None:
    pages = "".join(
        path.read_text("utf-8") for path in (site / "reference").glob("*.html")
    )
    described = set(re.findall(r'id="django_delayq\.(\w+)"', pages))
    assert set(django_delayq.__all__) <= described


def test_reference_has_every_command_with_its_options(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text("utf-8")
    for path in (ROOT / "django_delayq").rglob("management/commands/delayq_*.py"):
        assert f'id="{path.stem.replace("_", "-")}"' in page
    assert 'id="cmdoption-delayq_worker-max-memory"' in page
    assert 'id="cmdoption-delayq_jobs-list-state"' in page


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+href="https?:|url\(["']?https?:"""
    )
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css"):
            assert not loaded.search(path.read_text("utf-8")), path


@pytest.mark.parametrize(
    ("target", "is_good"),
    [("why.md#reasons", True), ("missing.md", False), ("why.md#missing", False)],
)
def test_broken_link_fails_the_build(
    target: str, is_good: bool, tmp_path: Path
) -> None:
    pages = {
        "README.md": "# Start",
        "README.zh-CN.md": "# 开始",
        "docs/README.md": "# Documentation\n\n## Reference\n\n* [Why](why.md)\n* [Errors](errors.md)\n* [Logging](howto/logging.md)",
        "docs/errors.md": "# Errors",
        "docs/howto/logging.md": "# Logging",
        "docs/why.md": f"# Why\n\n[a link]({target})\n\n## Reasons",
    }
    for name, text in pages.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", "utf-8")

    done = build(tmp_path / "project", tmp_path / "site")

    assert (done.returncode == 0) is is_good, done.stderr
    assert ("missing" in done.stderr) is not is_good
