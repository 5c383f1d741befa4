"""Builds the site: ``python docs/site/build.py FOLDER [PROJECT]``. A broken link or anchor fails it."""

import sys
import time
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def build(folder: Path, root: Path = ROOT) -> int:
    """Build the site of a project into a folder; return 0 where nothing is wrong."""
    # Models, the admin and commands need the registry of the apps.
    settings.configure(
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django_delayq",
            "django_delayq.outbox",
        ],
        USE_TZ=True,
    )
    django.setup()
    import pages
    from sphinx.cmd.build import main

    source, extra = folder / "pages", folder / "extra"
    try:
        pages.write_pages(root, source, extra)
    except pages.BrokenLink as error:
        print(f"broken link: {error}", file=sys.stderr)
        return 1
    return main(
        [
            *("-q", "-W", "--keep-going"),
            *("-c", str(HERE), "-D", f"html_extra_path={extra}"),
            *("-d", str(folder / "trees"), "-b", "html"),
            str(source),
            str(folder / "html"),
        ]
    )


if __name__ == "__main__":
    began = time.monotonic()
    target = Path(sys.argv[1]).resolve()
    status = build(target, *map(Path, sys.argv[2:]))
    if status == 0:
        count = len(list((target / "html").rglob("*.html")))
        seconds = time.monotonic() - began
        print(f"{target / 'html' / 'index.html'}: {count} pages in {seconds:.0f} s")
    sys.exit(status)
