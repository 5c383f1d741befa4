"""tests/questions.toml has twenty questions, each with the address where it was asked."""

import tomllib

from tests.pages import ROOT

TEXT = (ROOT / "tests" / "questions.toml").read_text("utf-8")
QUESTIONS = tomllib.loads(TEXT)["question"]


def test_twenty_different_questions_have_an_address_and_a_page_that_exists() -> None:
    for key in ("search", "asked_at"):
        assert len({each[key] for each in QUESTIONS}) == len(QUESTIONS) == 20
    for each in QUESTIONS:
        assert 3 <= len(each["search"].split()) <= 12
        assert each["wants"].endswith(".")
        assert each["asked_at"].startswith("https://")
        assert (ROOT / each["page"]).is_file(), each["page"]
