"""Figures: charts as plain data (``chart``), and how each output is made from them.

``drawing``: matplotlib, as a figure, PNG or SVG. ``inline_svg``: line charts of reports, without a library. ``tables``:
the numbers. ``html``: tables and pictures for notebooks and pages. The studio sends charts as JSON: their fields.
"""

from vantage.figures.chart import Bars, Figure, Heat, Histogram, Line, Lines, Panel, Real

__all__ = ["Bars", "Figure", "Heat", "Histogram", "Line", "Lines", "Panel", "Real"]
