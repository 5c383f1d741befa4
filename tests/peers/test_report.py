"""The page of a small results file is the one that is kept here, and its plots are beside it.

``python -m benchmarks.peers report tests/peers/results.jsonl --to tests/peers/page.md`` makes it again; its plots are not
kept.
"""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import report
from benchmarks.peers.plots import THEMES
from tests.test_docs import _TWO_SENTENCES, prose_of

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"


def test_page_is_the_one_that_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"

    command.main(["report", str(RESULTS), "--to", str(page)])

    assert page.read_text("utf-8") == (HERE / "page.md").read_text("utf-8")


def test_page_shows_each_plot_that_is_made_in_both_themes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"

    command.main(["report", str(RESULTS), "--to", str(page)])

    text = page.read_text("utf-8")
    plots = list((tmp_path / "page").iterdir())
    assert len(plots) == len(THEMES) * text.count("<picture>") > 0
    for plot in plots:
        assert f'"page/{plot.name}"' in text
        ElementTree.parse(plot)


def test_without_a_page_the_tables_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.main(["report", str(RESULTS)])

    printed = capsys.readouterr().out
    assert "**django-delayq**" in printed
    assert "<picture>" not in printed


def test_prose_of_the_page_has_one_sentence_a_line() -> None:
    lines = prose_of((HERE / "page.md").read_text("utf-8")).splitlines()

    assert [
        line
        for line in lines
        if line[:1] not in ("|", "#") and _TWO_SENTENCES.search(line)
    ] == []


def test_several_passes_are_a_median_and_what_they_lie_between() -> None:
    rows = [{"rate": 10.0}, {"rate": 30.0}, {"rate": 20.0}, {"error": "gone"}]

    assert report.figure(rows, "rate") == "20 (10 – 30)"
    assert report.figure(rows[:1], "rate") == "10"
    assert report.figure([], "rate") == "–"


def test_system_that_could_not_begin_has_its_reason_on_the_page(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(
        json.dumps(
            {
                "test": "system",
                "system": "rq",
                "error": "describe failed: no such module",
            }
        )
    )

    text = report.Page(report.load([results]), "").make().text

    assert "describe failed: no such module" in text


@pytest.mark.parametrize(
    ("lost", "late", "promised_s", "watch_s", "said"),
    [
        (0, 0, 30, 45, "all again, after 29.5 s"),
        (8, 0, 310, 10, "again after 310 s (documented)"),
        (8, 0, None, 10, "8 of 9 lost"),
        (8, 0, 5, 45, "8 of 9 lost"),
        (1, 99, None, 10, "1 of 9 lost; 99 others not within 10 s"),
    ],
)
def test_fate_of_jobs_of_a_killed_worker_is_said_in_a_few_words(
    lost: int, late: int, promised_s: float | None, watch_s: float, said: str
) -> None:
    row = {
        "in_flight": 9,
        "lost": lost,
        "never_started": late,
        "again_last_s": 29.5,
        "promised_s": promised_s,
        "watch_s": watch_s,
    }

    assert report._fate([row]) == said


def test_fate_that_was_not_measured_is_a_dash() -> None:
    assert report._fate([]) == report._fate([{"error": "it is gone"}]) == "–"


def test_unknown_system_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--systems", "selery"])

    assert (
        "no 'selery', there are delayq, delayq-redisson, bullmq"
        in capsys.readouterr().err
    )
