"""The picture of a soak is well-formed, to scale, and names every line."""

from xml.etree import ElementTree

import pytest

from benchmarks.peers.plots import THEMES
from benchmarks.soak.picture import BOTTOM, TOP, draw, panels_of, scale
from benchmarks.soak.sampling import Sample
from tests.soak.samples import samples


def texts_of(svg: str) -> list[str | None]:
    root = ElementTree.fromstring(svg)
    return [element.text for element in root.iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize("theme", THEMES)
def test_picture_names_panels_and_lines(theme: str) -> None:
    texts = texts_of(draw(samples(), "Ten & more", "<what it was>", THEMES[theme]))

    assert {"Ten & more", "<what it was>", "worker 1", "worker 2"} <= set(texts)
    for panel in panels_of(samples()):
        assert panel.title in texts
        assert all(name in texts for name in panel.lines if name)


def test_value_that_is_missing_parts_its_line() -> None:
    def miss(sample: Sample, share: float) -> None:
        if 0.4 < share < 0.6:
            sample.p50_ms = None

    whole, parted = (
        draw(each, "", "", THEMES["light"]) for each in (samples(), samples(miss))
    )

    assert parted.count("<path") == whole.count("<path") + 1


def test_nodes_are_drawn_together() -> None:
    def have_nodes(sample: Sample, share: float) -> None:
        for column in (sample.rss, sample.handles):
            whole = column.pop("server")
            column.update({"node 1": whole, "node 2": 2 * whole, "node 3": 3 * whole})

    alone, together = (
        {panel.title: panel.lines for panel in panels_of(each)}
        for each in (samples(), samples(have_nodes))
    )

    for title in ("Memory of processes, RSS, MiB", "Open files and sockets"):
        assert "server" not in together[title]
        assert together[title]["nodes"] == [
            6 * (value or 0) for value in alone[title]["server"]
        ]
    assert {"Keys of the nodes", "Memory of the nodes, MiB"} < together.keys()


def test_lines_of_a_panel_differ_without_their_colours() -> None:
    svg = draw(samples(), "", "", THEMES["dark"])

    for dashes in ("", "7 3", "2 3", "9 3 2 3"):
        assert f'stroke-dasharray="{dashes}"' in svg


@pytest.mark.parametrize("values", [[], [0.0], [0.4], [7.0, 31.0], [1_000.0, 90_000.0]])
@pytest.mark.parametrize("is_logarithmic", [True, False])
def test_every_value_has_a_place(values: list[float], is_logarithmic: bool) -> None:
    place, ticks = scale(values, is_logarithmic=is_logarithmic)

    for value in (*values, *ticks):
        assert TOP - 0.001 <= place(value) <= BOTTOM + 0.001
    assert len(ticks) >= 2


def test_linear_scale_begins_at_zero() -> None:
    place, ticks = scale([52.0, 60.0], is_logarithmic=False)

    assert place(0) == BOTTOM
    assert place(60) - place(30) == pytest.approx(place(30) - BOTTOM)
    assert ticks == [0, 20, 40, 60]
