"""docs/pairs.md says what `features.py` says."""

from tests.pairs.features import FEATURES
from tests.pairs.page import PAGE, SHOWN_AS, written


def test_page_is_written_from_the_data() -> None:
    assert PAGE.read_text() == written(), "run python -m tests.pairs.page"


def test_page_shows_every_feature() -> None:
    assert SHOWN_AS.keys() == FEATURES.keys()
