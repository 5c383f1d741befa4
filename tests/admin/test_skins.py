"""Our pages under admins that have neither Django's style sheet nor its variables, breadcrumbs and titles.

Every page was looked at under django-unfold 0.91 and django-jazzmin 3.0.5. Neither is needed here: the tests hold
what was wrong there. To look again, put either into settings, and name them with ``make pictures ARGS='--ds …'``:

    from tests.settings import *
    INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
"""

import re
from pathlib import Path
from typing import Any

import pytest

import django_delayq
from tests.admin.conftest import url
from tests.admin.filling import Queue
from tests.admin.visiting import Visitor

PACKAGE = Path(django_delayq.__file__).parent
STYLE = PACKAGE / "static/django_delayq/admin"
TEMPLATES = PACKAGE / "templates/django_delayq/admin"
#: The blocks that Django, django-unfold and django-jazzmin all show.
SHOWN_BY_ALL = {"extrastyle", "bodyclass", "content"}
#: Django and django-jazzmin show breadcrumbs; the page of a job and that of limits have a way back besides.
#: Django alone has its title in `content_title`, which we leave empty, as the title stands in our own part.
NOT_SHOWN_BY_ALL = {"breadcrumbs", "content_title"}

#: Tailwind, as django-unfold has it, in the place of what Django's admin has for all pages.
OTHER_ADMIN = """
for (const each of document.querySelectorAll("link[rel=stylesheet]"))
  if (/admin\\/css\\/(base|dark_mode|nav_sidebar|responsive)\\.css/.test(each.href)) each.remove();
for (const each of document.querySelectorAll("div.breadcrumbs")) each.remove();
const style = document.createElement("style");
style.textContent = `
  @layer base {
    * { box-sizing: border-box; margin: 0; padding: 0; border: 0 solid; border-radius: 0; background-color: transparent;
        color: inherit; list-style: none; font: inherit; text-decoration: inherit; }
    .dark body { background-color: #0f172a; color: #cbd5e1; }
  }`;
document.head.append(style);
document.documentElement.className = arguments[0];
"""
#: Of each element: its colour as red, green and blue, and what its style says besides.
STYLE_OF = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
return [...document.querySelectorAll(arguments[0])].map(each => {
  const style = getComputedStyle(each);
  canvas.fillStyle = style.color;
  canvas.fillRect(0, 0, 1, 1);
  return {color: [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3), background: style.backgroundColor,
          border: style.borderTopWidth, display: style.display, mark: style.listStyleType};
});
"""


def blocks(template: str) -> set[str]:
    return set(re.findall(r"{% block (\w+) %}", template))


def test_each_variable_of_our_style_has_a_value_without_django() -> None:
    styles = [file.read_text("utf-8") for file in sorted(STYLE.glob("*.css"))]
    (values,) = re.findall(r"^:where\(:root\) {(.*?)^}", "\n".join(styles), re.M | re.S)

    given = set(re.findall(r"^ +(--[\w-]+):", values, re.M))
    used = set(re.findall(r"var\((--[\w-]+)", "\n".join(styles)))

    assert len(used) > 10
    assert used - given == set()


def test_pages_fill_only_blocks_that_each_admin_shows() -> None:
    base = blocks((TEMPLATES / "base.html").read_text("utf-8"))
    ours = {"trail", "back", "page"}

    assert base == SHOWN_BY_ALL | NOT_SHOWN_BY_ALL | ours
    for file in TEMPLATES.glob("*.html"):
        assert blocks(file.read_text("utf-8")) <= base, file.name


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["", "dark"])
def test_pages_are_usable_without_the_style_of_django(
    visitor: Visitor, queue: Queue, scheme: str
) -> None:
    token = queue.schedule(7_500_000, 42)

    def style(selector: str) -> dict[str, Any]:
        found = visitor.driver.execute_script(STYLE_OF, selector)
        assert found, selector
        return dict(found[0])

    visitor.open(url("queue", queue.name))
    visitor.driver.execute_script(OTHER_ADMIN, scheme)
    visitor.check()

    assert visitor.texts("#content-main h1") == [f"Queue {queue.name}"]
    assert style("#find-text")["border"] == "1px"
    assert style(".delayq-search button")["background"] == "rgb(65, 118, 144)"
    assert style("a#limits") == style("a#pause")
    assert style("a#limits")["color"] == [255, 255, 255]
    link, text = style("#result_list th a"), style("#result_list td.long")
    assert link["color"] != text["color"]
    for each in (link, style(".delayq-hint")):
        assert (sum(each["color"]) > 384) is (scheme == "dark")

    visitor.open(url("job", queue.name, token))
    assert style(".delayq-back")["display"] == "none"
    visitor.driver.execute_script(OTHER_ADMIN, scheme)

    assert style(".delayq-back")["display"] == "block"
    assert style(".delayq details > summary")["mark"] == "disclosure-closed"
    visitor.click(".delayq-back a")
    assert visitor.driver.current_url.endswith(url("queue", queue.name))
