"""Colours that can be told apart and read."""

from __future__ import annotations

import re

from vantage.figures.palette import DARK, LIGHT, PAPER, contrast, report_css, shade


def test_colours_are_told_from_their_paper() -> None:
    for colours, paper in zip((LIGHT, DARK), PAPER, strict=True):
        assert all(contrast(colour, paper) >= 3 for colour in colours)
    for i in range(101):
        colour, ink = shade(i / 100)
        assert contrast(colour, ink) >= 4.5
    lights = [contrast(shade(i / 20)[0], "#000000") for i in range(21)]
    assert lights == sorted(lights)  # brighter is better, in any eye


def test_text_is_told_from_its_paper() -> None:
    """The page's own inks, as report.css has them."""
    for theme in re.findall(r":root \{(.*?)\}", report_css(), re.S):
        inks = dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", theme))
        whole = {name: "#" + "".join(c * 2 for c in ink[1:]) if len(ink) == 4 else ink for name, ink in inks.items()}
        for name in ("ink", "soft", "link", "good", "bad", "open"):
            assert contrast(whole[name], whole["paper"]) >= 4.5
        assert contrast(whole["soft"], whole["shade"]) >= 4.5
