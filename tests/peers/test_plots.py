"""Plots are well-formed, to scale, and say what they show."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks.peers.plots import LEFT, RIGHT, THEMES, Plot, Row, number, scale

PLOT = Plot(
    title="Jobs & more",
    unit="jobs a second; more is better",
    series=("one", "two", "three"),
    rows=[
        Row("Ours", (10_000, 200, 0.0), is_ours=True),
        Row("<Other>", (1_000, None, 3)),
        Row("None", (None, None, None), missing="too slow"),
    ],
)


@pytest.mark.parametrize("theme", THEMES)
def test_plot_is_xml_that_names_every_row_and_series(theme: str) -> None:
    root = ElementTree.fromstring(PLOT.svg(THEMES[theme]))

    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    for said in ("Jobs & more", "Ours", "<Other>", "two", "too slow"):
        assert said in texts
    assert "10,000 · 200 · 0" in texts
    assert "1,000 · – · 3" in texts


def test_ours_stands_out_in_both_themes() -> None:
    for theme in THEMES.values():
        assert PLOT.svg(theme).count(theme.ours) == 1


def test_values_over_decades_are_on_a_logarithmic_scale() -> None:
    place, ticks = scale([3, 30_000])

    assert [label for _, label in ticks] == [
        "1",
        "10",
        "100",
        "1,000",
        "10,000",
        "100,000",
    ]
    steps = [b - a for a, b in pairwise(place(tick) for tick, _ in ticks)]
    assert steps == pytest.approx([steps[0]] * 5)
    assert (place(ticks[0][0]), place(ticks[-1][0])) == (LEFT, RIGHT)


def test_values_of_one_order_are_on_a_scale_from_zero() -> None:
    place, ticks = scale([300, 520])

    assert place(0) == LEFT
    assert place(520) <= RIGHT
    assert place(520) - place(260) == pytest.approx(place(260) - LEFT)
    assert 3 <= len(ticks) <= 8


@pytest.mark.parametrize("values", [[], [1.0], [0.1], [1_000.0], [999.0, 20_000.0]])
def test_every_value_has_a_place(values: list[float]) -> None:
    place, _ = scale(values)

    assert all(LEFT <= place(value) <= RIGHT + 0.001 for value in values)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.126, "0.13"),
        (3.0, "3"),
        (12.34, "12.3"),
        (20.0, "20"),
        (27_123.4, "27,123"),
        (-4.5, "-4.5"),
    ],
)
def test_figure_is_shown_with_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown
