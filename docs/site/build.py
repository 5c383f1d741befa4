"""Builds the site: ``python docs/site/build.py FOLDER``. A broken link or anchor fails it."""

import sys
from pathlib import Path

import pages
from sphinx.cmd.build import main

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def build(folder: Path, root: Path = ROOT) -> int:
    """Build the site of a project into a folder; return 0 where nothing is wrong."""
    source, extra = folder / "pages", folder / "extra"
    try:
        pages.write_pages(root, source, extra)
    except pages.BrokenLink as error:
        print(f"broken link: {error}", file=sys.stderr)
        return 1
    options = [
        "-q",
        "-W",
        "--keep-going",
        "-c",
        str(HERE),
        "-D",
        f"html_extra_path={extra}",
    ]
    return main(
        [
            *options,
            "-d",
            str(folder / "trees"),
            "-b",
            "html",
            str(source),
            str(folder / "html"),
        ]
    )


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve()))
