"""Line charts of reports, as SVG without a library."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from vantage.figures import Line, Lines
from vantage.figures import inline_svg as charts
from vantage.figures.inline_svg import Reached, line_chart

LENGTHS = (10, 20, 40, 60, 80, 100)


def test_the_lines_stand_where_the_numbers_are() -> None:
    """Length 20 of 10 to 100 is a ninth of the way along; what is wholly right is at the top."""
    panel = Lines("ordering", "length", "accuracy", (Line("none", LENGTHS, [1.0] * 6),))
    drawn = line_chart(panel, [0], Reached("trained to", 20))
    line = re.search(r'<polyline points="([^"]+)"', drawn)
    assert line
    places = [tuple(map(float, pair.split(","))) for pair in line.group(1).split()]
    across = charts.WIDTH - charts.LEFT - charts.RIGHT
    assert places[0] == (charts.LEFT, charts.TOP)
    assert places[1] == (pytest.approx(charts.LEFT + across / 9, abs=0.1), charts.TOP)
    assert places[-1] == (charts.LEFT + across, charts.TOP)


def test_a_chart_says_in_words_what_it_shows() -> None:
    lines = (Line("a < b", (10, 20), (0.9, 0.5), (0.8, 0.4), (1.0, 0.6)), Line("alone", (10,), (0.25,)))
    drawn = line_chart(
        Lines("t", "length", "accuracy", lines, marks=(("chance", 0.25),)), [3, 9], Reached("context", 10)
    )
    svg = ElementTree.fromstring(drawn)
    assert svg.findtext("title") == "t: accuracy over length"
    assert "a < b 0.900 [0.800, 1.000] at 10 and 0.500 [0.400, 0.600] at 20" in (svg.findtext("desc") or "")
    assert [one.get("class") for one in svg.iter("polygon")] == ["band s3"]  # a single point has no band
    assert [one.get("class") for one in svg.findall("g")] == ["line s3", "line s1"]
    assert {"chance", "context 10"} <= {one.text for one in svg.iter("text")}


@pytest.mark.parametrize(("low", "high"), [(15.1, 22.0), (2.0, 300.0), (258.2, 263.9), (1.001, 2.5), (3.0, 1e9)])
def test_a_perplexity_has_a_scale_to_read_it_by(low: float, high: float) -> None:
    ticks = charts._ticks(True, low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)
