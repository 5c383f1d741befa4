"""Where the source distributions of Django lie, for tests of its own; `tests.versions` brings them."""

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / ".cache" / "sources"


def source_of(version: str) -> Path:
    """Return where the source distribution of a version of Django lies, if it is there."""
    return SOURCES / f"django-{version}.tar.gz"
