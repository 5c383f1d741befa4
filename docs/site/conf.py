"""The settings of Sphinx for the site. `make docs` builds it."""

import re
from typing import Any

from pages import CHINESE, place_of
from reference import MADE
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import django_delayq

project = "django-delayq"
author = copyright = "the authors of django-delayq"
release = version = django_delayq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
# Dashes only: quotes are code.
smartquotes_action = "D"
# Examples have … in the place of what does not matter. Headings of one page skip a level.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

# As GitHub reads them.
myst_heading_anchors = 6

# In docstrings `name` is a name of ours, or code.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
# What Django says of its own methods is in its documentation.
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 150
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"django-delayq {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("search.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
html_theme_options = {
    "source_repository": "https://github.com/django-delayq/django-delayq/",
    "top_of_page_buttons": [],
}


analyze = ModuleAnalyzer.analyze


def analyze_without_overloads(analyzer: ModuleAnalyzer) -> None:
    """Overloads are for type checkers; people read the signature of the function itself."""
    analyze(analyzer)
    analyzer.overloads = {}


ModuleAnalyzer.analyze = analyze_without_overloads  # type: ignore[method-assign]
#: Stands for a colon that is none of Napoleon's: it takes what is before it for a type.
COLON = "\N{MODIFIER LETTER COLON}"


def shorten(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    text: str | None,
    returns: str,
) -> tuple[str, str] | None:
    """Leave out how to make what only this package makes, and the types of a task's own arguments."""
    if text is None:
        return None
    if what in ("class", "exception") and name not in MADE:
        return "", ""
    return re.sub(r": ~typing\.~\w+", "", text), returns


def hide_colons(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Hide the colons in the comment of an attribute."""
    if what in ("attribute", "data", "property"):
        lines[:] = [re.sub("(?<!:):(?!:)", COLON, line) for line in lines]


def show_colons(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Show them again, and leave out what Python says of fields without a comment."""
    if lines and lines[0].startswith("Alias for field number "):
        lines.clear()
    lines[:] = [line.replace(COLON, ":") for line in lines]


def name_language(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Name the language of the page that is not English: browsers choose the font by it, screen readers the voice."""
    if f"{name}.md" == place_of(CHINESE):
        context["language"] = "zh-Hans"


def setup(app: Sphinx) -> None:
    """Connect the functions above: Napoleon has the priority 500."""
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("html-page-context", name_language)
