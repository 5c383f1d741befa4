"""The settings of Sphinx for the site. `make docs` builds it."""

import django_delayq

project = "django-delayq"
author = copyright = "the authors of django-delayq"
release = version = django_delayq.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
# Examples have … in the place of what does not matter. Headings of one page skip a level.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

# As GitHub reads them.
myst_heading_anchors = 6

# In docstrings `name` is a name of ours, or code.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"django-delayq {release}"
html_static_path = ["static"]
html_js_files = [("search.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
html_theme_options = {
    "source_repository": "https://github.com/django-delayq/django-delayq/",
    "top_of_page_buttons": [],
}
