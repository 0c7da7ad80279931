"""Pictures of a study as SVG inside the page: no library, no script, and the page's colours by day and by night.

An entry is told apart by its colour, its marker and its dashes, so that no one of them has to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from vantage.compare.statistics import Estimate

MANY = 8  # curves in a chart, from which on their bands are fainter
Place = Callable[[float], float]  # where a number stands, in pixels
WIDTH, HEIGHT = 360, 250  # as many pixels on a telephone, so that 12 is a readable size of type
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 22, 40
# By entry, for light and for dark paper; each at least 3:1 against its paper. style.css is written from these.
LIGHT = ("#0060a8", "#c4451c", "#00785a", "#9c3d8f", "#8a6100", "#1a7f9c", "#b0284f", "#555c66")
DARK = ("#6bb5f0", "#ff9466", "#4fcba3", "#e39adb", "#e0b24d", "#66cfe8", "#ff8aa8", "#b3bac4")
PAPER = ("#ffffff", "#15181d")
DASHES = ("", "5 3", "1.5 2.5", "7 2 1.5 2")
# From low to high: dark blue to yellow, by lightness alone, so that it reads in any eye and in print (after cividis).
SCALE = ("#00224e", "#2b446e", "#575c6d", "#7d7c78", "#a59c74", "#d2c060", "#fee838")


@dataclass(frozen=True)
class Series:
    entry: str
    style: int  # which colour, marker and dashes; the same on the whole page
    points: tuple[tuple[int, Estimate], ...]


@dataclass(frozen=True)
class Axes:
    """What a chart of one task needs besides its curves."""

    task: str
    trained: int
    loss: bool = False
    chance: float | None = None
    reach: str = "trained to"  # what is marked
    along: str = "length"


def curves(axes: Axes, series: Sequence[Series]) -> Markup:
    """Score over length, one line for each entry with the band of its interval; the training length is marked."""
    lengths = sorted({length for one in series for length, _ in one.points} | {axes.trained})
    low, high = _range(axes, series)

    first, last = (_along(lengths, end) for end in (lengths[0], lengths[-1]))

    def x(length: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (_along(lengths, length) - first) / ((last - first) or 1)

    def y(value: float) -> float:
        share = (_scaled(axes, min(max(value, low), high)) - _scaled(axes, low)) / (
            _scaled(axes, high) - _scaled(axes, low)
        )
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    name, kind = f"c{abs(hash_of(axes.task)):x}", "chart many" if len(series) > MANY else "chart"
    parts = [
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}t {name}d">',
        f'<title id="{name}t">{escape(axes.task)}: {_measure(axes)} over {axes.along}</title>',
        f'<desc id="{name}d">{escape(_told(axes, series))}</desc>',
        *_grid(axes, lengths, low, high, x, y),
    ]
    for one in series:
        upper = [(x(length), y(found.high)) for length, found in one.points]
        lower = [(x(length), y(found.low)) for length, found in one.points]
        band = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        if len(one.points) > 1:
            parts.append(f'<polygon class="band s{one.style % len(LIGHT)}" points="{band}"/>')
    for one in series:
        line = " ".join(f"{x(length):.1f},{y(found.value):.1f}" for length, found in one.points)
        parts.append(f'<g class="line s{one.style % len(LIGHT)}"><polyline points="{line}"{_dash(one.style)}/>')
        for length, found in one.points:
            parts.append(
                marker(
                    one.style,
                    x(length),
                    y(found.value),
                    f"{one.entry}, {axes.along} {length}: {told(found, axes.loss)}",
                )
            )
            if len(one.points) == 1:
                parts.append(f'<path d="M{x(length):.1f} {y(found.low):.1f}V{y(found.high):.1f}"/>')
        parts.append("</g>")
    if axes.chance is not None:  # over the lines, which often lie on it
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{y(axes.chance) + 13:.1f}" text-anchor="end">chance</text>')
    return Markup("".join(parts) + "</svg>")


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


def told(found: Estimate, loss: bool = False) -> str:
    """A number with its interval, as it is printed everywhere."""
    digits = 2 if loss else 3
    if math.isinf(found.high) or (loss and found.high > 1e300):
        return f"{found.value:.{digits}f} (no interval)"
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


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


def _scaled(axes: Axes, value: float) -> float:
    return math.log(value) if axes.loss else value


def _measure(axes: Axes) -> str:
    return "perplexity" if axes.loss else "accuracy"


def _range(axes: Axes, series: Sequence[Series]) -> tuple[float, float]:
    if not axes.loss:
        return 0.0, 1.0
    values = [found.value for one in series for _, found in one.points] or [1.0, 10.0]
    low, high = max(min(values) * 0.9, 1e-3), min(max(values) * 1.2, 1e12)
    return low, max(high, low * 2)


def _ticks(axes: Axes, low: float, high: float) -> list[float]:
    if not axes.loss:
        return [0.0, 0.25, 0.5, 0.75, 1.0]
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [step * 10.0**ten for ten in tens for step in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) < 3:  # all of them close together: even steps of a round size
        step = 10.0 ** math.floor(math.log10((high - low) / 2))
        step *= next(by for by in (5, 2, 1) if (high - low) / (by * step) >= 2)
        return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return inside if len(inside) <= 7 else [tick for tick in inside if f"{tick:e}".startswith("1.0")]


def _grid(axes: Axes, lengths: list[int], low: float, high: float, x: Place, y: Place) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<rect class="seen" x="{LEFT}" y="{TOP}" width="{x(axes.trained) - LEFT:.1f}" height="{bottom - TOP}"/>']
    for tick in _ticks(axes, low, high):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    if axes.chance is not None:
        parts.append(f'<path class="chance" d="M{LEFT} {y(axes.chance):.1f}H{right}"/>')
    shown: list[float] = []
    for length in [axes.trained, lengths[-1], lengths[0], *lengths]:
        if all(abs(x(length) - other) >= 30 for other in shown):
            shown.append(x(length))
            parts.append(f'<text x="{x(length):.1f}" y="{bottom + 16}" text-anchor="middle">{length}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    parts.append(f'<path class="trained" d="M{x(axes.trained):.1f} {TOP - 4}V{bottom}"/>')
    side = ("start", 4) if x(axes.trained) < WIDTH / 2 else ("end", -4)
    at = f'x="{x(axes.trained) + side[1]:.1f}" y="{TOP - 8}" text-anchor="{side[0]}"'
    far = f"{axes.along} (logarithmic)" if _wide(lengths) else axes.along
    parts.append(f"<text {at}>{axes.reach} {axes.trained}</text>")
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{far}</text>')
    return parts


def _told(axes: Axes, series: Sequence[Series]) -> str:
    """The picture in words, for who does not see it."""
    ends = [
        f"{one.entry} {told(one.points[0][1], axes.loss)} at {one.points[0][0]} "
        f"and {told(one.points[-1][1], axes.loss)} at {one.points[-1][0]}"
        for one in series
        if one.points
    ]
    return f"{_measure(axes)} with intervals at 95 %, {axes.reach} {axes.trained}. {'; '.join(ends)}."


def _dash(style: int) -> str:
    dash = DASHES[style // len(LIGHT) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


# -------------------------------------------------------------------------------------------------------- colours


def shade(share: float) -> tuple[str, str]:
    """The colour of a cell between 0 and 1, and the ink that reads best on it."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    i = min(int(at), len(SCALE) - 2)
    mixed = [round(a + (b - a) * (at - i)) for a, b in zip(_rgb(SCALE[i]), _rgb(SCALE[i + 1]), strict=True)]
    colour = "#" + "".join(f"{part:02x}" for part in mixed)
    return colour, max(("#000000", "#ffffff"), key=lambda ink: contrast(colour, ink))


def contrast(a: str, b: str) -> float:
    """Of two colours, as WCAG counts it: 4.5 for text, 3 for lines."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    parts = [part / 255 for part in _rgb(colour)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
