"""Line charts as SVG inside a report's page: no library, no script, and the page's colours by day and by night.

A line is told apart by its colour, its marker and its dashes, so that no one of them has to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from markupsafe import Markup, escape

from vantage.figures.chart import Line, Lines
from vantage.figures.palette import LIGHT

FAINT_FROM_LINES = 8  # lines in a chart, from which on their bands are fainter
WIDTH, HEIGHT = 360, 250  # as many pixels on a telephone, so that 12 is a readable size of type
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 22, 40
DASHES = ("", "5 3", "1.5 2.5", "7 2 1.5 2")


class Reached(NamedTuple):
    """A place along the chart, up to which its ground is shaded: "trained to" 20."""

    label: str
    x: int


class Point(NamedTuple):
    """A value with its interval."""

    x: int
    y: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class Scale:
    """Where numbers stand, in pixels."""

    xs: Sequence[int]
    low: float
    high: float
    log: bool  # values by their logarithms; else they are shares, from 0 to 1

    def x(self, value: float) -> float:
        first, last = _along(self.xs, self.xs[0]), _along(self.xs, self.xs[-1])
        return LEFT + (WIDTH - LEFT - RIGHT) * (_along(self.xs, value) - first) / ((last - first) or 1)

    def y(self, value: float) -> float:
        of: Callable[[float], float] = math.log if self.log else float
        share = (of(min(max(value, self.low), self.high)) - of(self.low)) / (of(self.high) - of(self.low))
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def line_chart(panel: Lines, styles: Sequence[int], reached: Reached) -> Markup:
    """Every line with the band of its interval. Values are shares, or anything above 0 where ``log_y`` says so.

    ``styles``: which colour, marker and dashes each line has, so that they are the same on the whole page.
    """
    lines = [(line.name, style, _points(line)) for line, style in zip(panel.lines, styles, strict=True)]
    xs = sorted({point.x for _, _, points in lines for point in points} | {reached.x})
    scale = Scale(xs, *_range(panel), log=panel.log_y)
    name, kind = f"c{abs(hash_of(panel.title)):x}", "chart many" if len(lines) > FAINT_FROM_LINES else "chart"
    parts = [
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}t {name}d">',
        f'<title id="{name}t">{escape(panel.title)}: {panel.y_label} over {panel.x_label}</title>',
        f'<desc id="{name}d">{escape(_in_words(panel, reached))}</desc>',
        *_grid(panel, reached, scale),
    ]
    parts += [_band(scale, style, points) for _, style, points in lines if len(points) > 1]
    for line, style, points in lines:
        parts += _line(panel, scale, line, style, points)
    for mark, at in panel.marks:  # over the lines, which often lie on it
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{scale.y(at) + 13:.1f}" text-anchor="end">{mark}</text>')
    return Markup("".join(parts) + "</svg>")


def _points(line: Line) -> list[Point]:
    low, high = line.y if line.low is None else line.low, line.y if line.high is None else line.high
    return [Point(int(x), *point) for x, *point in zip(line.x, line.y, low, high, strict=True)]


def _band(scale: Scale, style: int, points: Sequence[Point]) -> str:
    upper = [(scale.x(point.x), scale.y(point.high)) for point in points]
    lower = [(scale.x(point.x), scale.y(point.low)) for point in points]
    band = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
    return f'<polygon class="band s{style % len(LIGHT)}" points="{band}"/>'


def _line(panel: Lines, scale: Scale, name: str, style: int, points: Sequence[Point]) -> Iterator[str]:
    line = " ".join(f"{scale.x(point.x):.1f},{scale.y(point.y):.1f}" for point in points)
    yield f'<g class="line s{style % len(LIGHT)}"><polyline points="{line}"{_dash(style)}/>'
    for point in points:
        x, text = scale.x(point.x), interval_text(*point[1:], log=panel.log_y)
        yield marker(style, x, scale.y(point.y), f"{name}, {panel.x_label} {point.x}: {text}")
        if len(points) == 1:
            yield f'<path d="M{x:.1f} {scale.y(point.low):.1f}V{scale.y(point.high):.1f}"/>'
    yield "</g>"


def marker(style: int, x: float, y: float, title: str = "") -> str:
    """A circle, a square, a triangle, a diamond, a cross or a plus, with what it says for who points at it."""
    r = 3.2
    shapes = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r:.1f} 0a{r} {r} 0 1 0 {-2 * r:.1f} 0z",
        f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        f"M{x:.1f} {y - r - 0.6:.1f}L{x + r + 0.4:.1f} {y + r:.1f}H{x - r - 0.4:.1f}z",
        f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
        f"M{x - r - 0.6:.1f} {y:.1f}h{2 * r + 1.2:.1f}M{x:.1f} {y - r - 0.6:.1f}v{2 * r + 1.2:.1f}",
        f"M{x:.1f} {y + r + 0.6:.1f}L{x + r + 0.4:.1f} {y - r:.1f}H{x - r - 0.4:.1f}z",
    )
    hint = f"<title>{escape(title)}</title>" if title else ""
    return f'<path class="mark" d="{shapes[style % len(shapes)]}">{hint}</path>'


def swatch(style: int) -> Markup:
    """The line of an entry, for a legend."""
    line = f'<polyline points="1,7 31,7"{_dash(style)}/>'
    body = f'<g class="line s{style % len(LIGHT)}">{line}{marker(style, 16, 7)}</g>'
    return Markup(f'<svg class="swatch" viewBox="0 0 32 14" width="32" height="14" aria-hidden="true">{body}</svg>')


def interval_text(value: float, low: float, high: float, *, log: bool = False) -> str:
    """A number with its interval, as it is printed everywhere."""
    digits = 2 if log else 3
    if math.isinf(high) or (log and high > 1e300):
        return f"{value:.{digits}f} (no interval)"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


# ---------------------------------------------------------------------------------------------------------- axes


def hash_of(text: str) -> int:
    """The same in every process, unlike Python's own."""
    value = 7
    for letter in text:
        value = (value * 131 + ord(letter)) % (1 << 48)
    return value


def _wide(lengths: Sequence[int]) -> bool:
    return lengths[-1] > 16 * lengths[0]


def _along(lengths: Sequence[int], length: float) -> float:
    """Lengths of very different sizes are set out by their logarithms, or the short ones would lie on each other."""
    return math.log(length) if _wide(lengths) else float(length)


def _tick(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"10^{math.log10(value):.0f}"


def _range(panel: Lines) -> tuple[float, float]:
    if not panel.log_y:
        return 0.0, 1.0
    values = [value for line in panel.lines for value in line.y] or [1.0, 10.0]
    low, high = max(min(values) * 0.9, 1e-3), min(max(values) * 1.2, 1e12)
    return low, max(high, low * 2)


def _ticks(log: bool, low: float, high: float) -> list[float]:
    if not log:
        return [0.0, 0.25, 0.5, 0.75, 1.0]
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [step * 10.0**ten for ten in tens for step in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) < 3:  # all of them close together: even steps of a round size
        step = 10.0 ** math.floor(math.log10((high - low) / 2))
        step *= next(by for by in (5, 2, 1) if (high - low) / (by * step) >= 2)
        return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return inside if len(inside) <= 7 else [tick for tick in inside if f"{tick:e}".startswith("1.0")]


def _grid(panel: Lines, reached: Reached, scale: Scale) -> list[str]:
    bottom, right, border = HEIGHT - BOTTOM, WIDTH - RIGHT, scale.x(reached.x)
    parts = [f'<rect class="seen" x="{LEFT}" y="{TOP}" width="{border - LEFT:.1f}" height="{bottom - TOP}"/>']
    for tick in _ticks(scale.log, scale.low, scale.high):
        parts.append(f'<path class="grid" d="M{LEFT} {scale.y(tick):.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{scale.y(tick) + 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    parts += [f'<path class="chance" d="M{LEFT} {scale.y(at):.1f}H{right}"/>' for _, at in panel.marks]
    shown: list[float] = []
    for value in [reached.x, scale.xs[-1], scale.xs[0], *scale.xs]:
        if all(abs(scale.x(value) - other) >= 30 for other in shown):
            shown.append(scale.x(value))
            parts.append(f'<text x="{scale.x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{value}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    parts.append(f'<path class="trained" d="M{border:.1f} {TOP - 4}V{bottom}"/>')
    side = ("start", 4) if border < WIDTH / 2 else ("end", -4)
    at = f'x="{border + side[1]:.1f}" y="{TOP - 8}" text-anchor="{side[0]}"'
    label = f"{panel.x_label} (logarithmic)" if _wide(scale.xs) else panel.x_label
    parts.append(f"<text {at}>{reached.label} {reached.x}</text>")
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    return parts


def _in_words(panel: Lines, reached: Reached) -> str:
    """The picture in words, for who does not see it."""
    ends = []
    for line in panel.lines:
        first, last = (
            f"{interval_text(*point[1:], log=panel.log_y)} at {point.x}"
            for point in (_points(line)[0], _points(line)[-1])
        )
        ends.append(f"{line.name} {first} and {last}")
    return f"{panel.y_label} with intervals at 95 %, {reached.label} {reached.x}. {'; '.join(ends)}."


def _dash(style: int) -> str:
    dash = DASHES[style // len(LIGHT) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""
