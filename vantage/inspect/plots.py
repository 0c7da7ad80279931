"""One picture for each thing that can be inspected. Every function returns the figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures.canvas import new_figure
from vantage.figures.heatmap import heat, token_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vantage.inspect.atlas import Atlas
    from vantage.inspect.captured import Capture
    from vantage.inspect.cost import Cost
    from vantage.inspect.decomposition import Decomposition
    from vantage.inspect.distances import Distances
    from vantage.inspect.extend import Extension

COLUMNS = 4
SMALL = 160  # cells along a side of one heat map among many


def plot_attention(capture: Capture, layer: int, head: int, kind: str | None = None, row: int = 0) -> Figure:
    """One head's weights: queries down, keys across."""
    kind = capture.kind(layer, kind)
    weights = capture.weights(layer, head, kind=kind, row=row)
    figure = new_figure(8, 7)
    axes = figure.subplots()
    image = heat(axes, weights, title=f"{kind} attention, layer {layer}, head {head}")
    figure.colorbar(image, ax=axes, label="weight (square-root scale)")
    _sides(axes, capture, layer, kind, row, weights)
    return figure


def plot_heads(capture: Capture, layer: int, kind: str | None = None, row: int = 0) -> Figure:
    """All captured heads of a layer, side by side."""
    kind = capture.kind(layer, kind)
    weights, heads = capture.weights(layer, kind=kind, row=row), capture.heads(layer, kind)
    columns = min(COLUMNS, len(heads))
    lines = math.ceil(len(heads) / columns)
    figure = new_figure(3.2 * columns, 3.0 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, head, one in zip(grid, heads, weights, strict=False):
        heat(axes, one, title=f"head {head}", side=SMALL)
    for axes in grid[len(heads) :]:
        axes.set_visible(False)
    figure.suptitle(f"{kind} attention, layer {layer}: queries down, keys across")
    return figure


def _sides(axes: Any, capture: Capture, layer: int, kind: str, row: int, weights: Tensor) -> None:
    keys = capture.tokens("self" if kind == "self" else "encoder", row)
    queries = capture.tokens("encoder" if kind == "encoder" else "self", row)
    order = capture.queries(layer, kind)[row].tolist()
    shown = [queries[o] if o >= 0 else "" for o in order] if queries and max(order) < len(queries) else []
    token_ticks(axes, shown, keys if len(keys) == weights.shape[1] else [])
    axes.set_xlabel("key")
    axes.set_ylabel("query")


def plot_decomposition(parts: Decomposition, head: int | None = None) -> Figure:
    """The scores of one head, what content says, what position says; and each frequency band's share of that."""
    head = parts.heads[0] if head is None else head
    if head not in parts.heads:
        raise BadInput(f"head {head!r} was not taken apart: there are {', '.join(map(str, parts.heads))}")
    at = parts.heads.index(head)
    shown = [("score", parts.score[at])]
    hidden = ~parts.seen[at]
    for of in ("content", "position"):
        shown.append((of, parts.part(of)[at].masked_fill(hidden, float("-inf"))))
    bands = parts.band_share()
    figure = new_figure(4.2 * (len(shown) + (bands is not None)), 4.2)
    grid = figure.subplots(1, len(shown) + (bands is not None))
    for axes, (title, value) in zip(grid, shown, strict=False):
        image = heat(axes, value, title=title, signed=True, side=SMALL)
        figure.colorbar(image, ax=axes, shrink=0.8)
        token_ticks(axes, list(parts.query_labels), list(parts.key_labels))
    if bands is not None and parts.frequency is not None:
        wavelength = 2 * torch.pi / parts.frequency
        names = [f"{w:,.0f}" if math.isfinite(w) else "∞" for w in wavelength.tolist()]
        grid[-1].barh(range(len(names)), bands[:, at].tolist(), color="0.4")
        grid[-1].set_yticks(range(len(names)), names, fontsize=6)
        grid[-1].set_ylabel("wavelength of the band (positions)")
        grid[-1].set_title("share explained by position", fontsize=9)
        grid[-1].invert_yaxis()
    figure.suptitle(f"{parts.kind} attention, layer {parts.layer}, head {head}: scores before the softmax")
    return figure


def plot_atlas(atlas: Atlas) -> Figure:
    """Every head as a cell, coloured by what it is called; the stronger, the fuller the colour."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    sites = list(dict.fromkeys((head.site, head.layer) for head in atlas.heads))
    kinds = [kind for kind in atlas.counts if kind != "mixed" and any(h.kind == kind for h in atlas.heads)]
    palette = dict(zip(kinds, colormaps["tab10"].colors, strict=False))  # pyright: ignore[reportAttributeAccessIssue] (a listed map has them)
    most = 1 + max(head.head for head in atlas.heads)
    image = torch.ones(len(sites), most, 3)
    for head in atlas.heads:
        strength = min(1.0, head.measures[head.kind]) if head.kinds else 0.0
        colour = torch.tensor(palette.get(head.kind, (0.75, 0.75, 0.75)))
        fill = 0.35 + 0.65 * strength if head.kinds else 0.5
        image[sites.index((head.site, head.layer)), head.head] = fill * colour + (1 - fill)
    figure = new_figure(max(5.5, 0.35 * most + 3.5), max(3.0, 0.24 * len(sites) + 1.2))
    axes = figure.subplots()
    axes.imshow(image.numpy(), aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(sites)), [f"{site} {layer}" for site, layer in sites], fontsize=7)
    axes.set_xticks(range(most))
    axes.set_xlabel("head")
    axes.set_title(f"{len(atlas.heads)} heads, measured on {atlas.tokens:,} tokens", fontsize=10)
    legend = [Patch(color=palette[kind], label=f"{kind} ({atlas.counts[kind]})") for kind in kinds]
    legend.append(Patch(color="0.87", label=f"mixed ({atlas.counts['mixed']})"))
    axes.legend(handles=legend, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
    return figure


def plot_cost(cost: Cost) -> Figure:
    """Operations by part, bytes by part, and the cache beside what other kinds of attention would keep."""
    figure = new_figure(13, 3.8)
    first, second, third = figure.subplots(1, 3)
    for axes, what, label in ((first, "operations", "operations"), (second, "bytes", "bytes read")):
        for i, one in enumerate(cost.passes):
            shown = [part for part in one.parts if getattr(part, what)]
            places = [[p.name for p in one.parts].index(part.name) + 0.4 * i for part in shown]
            axes.barh(places, [getattr(part, what) for part in shown], height=0.38, label=one.name)
        axes.set_yticks([n + 0.2 for n in range(len(cost.passes[0].parts))], [p.name for p in cost.passes[0].parts])
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.invert_yaxis()
        _legend_above(axes, 8)
    kept = {"this model": cost.cache, **cost.instead}
    third.barh(list(kept), [n / 2**20 for n in kept.values()], color=["C2"] + ["0.6"] * len(cost.instead))
    third.set_xlabel("cache, MiB")
    third.locator_params(axis="x", nbins=5)
    third.invert_yaxis()
    figure.suptitle(f"{cost.total:,} parameters, {cost.batch} x {cost.context:,} tokens, {cost.dtype}")
    return figure


def _legend_above(axes: Any, size: int) -> None:
    """Bars reach any corner of their axes, so the legend stands over them."""
    axes.legend(fontsize=size, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def plot_extension(extension: Extension) -> Figure:
    """Perplexity over position at each length, before and after; and passkeys found."""
    lengths = sorted({one.length for one in extension.results})
    figure = new_figure(9, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for one in extension.results:
        step = one.length / len(one.over_position)
        at = [(i + 0.5) * step for i in range(len(one.over_position))]
        colour, style = f"C{lengths.index(one.length)}", "--" if one.model == "before" else "-"
        left.plot(at, one.over_position, style, color=colour, marker=".", label=f"{one.model}, {one.length:,}")
    left.set_yscale("log")
    left.set_xlabel("position")
    left.set_ylabel("perplexity")
    left.legend(fontsize=7)
    for i, name in enumerate(("before", "after")):
        measured = [one for one in extension.results if one.model == name and one.passkeys is not None]
        share = [(one.passkeys or 0) / max(1, one.tries) for one in measured]
        right.bar([lengths.index(one.length) + 0.4 * i for one in measured], share, width=0.38, label=name)
    right.set_xticks([i + 0.2 for i in range(len(lengths))], [f"{n:,}" for n in lengths])
    right.set_ylim(0, 1.05)
    right.set_ylabel("passkeys found")
    _legend_above(right, 7)
    figure.suptitle(extension.change)
    return figure


def plot_distances(distances: Distances) -> Figure:
    """How far position moves each head's scores, over the distance; grey: never met in training."""
    figure = new_figure(8, 4)
    axes = figure.subplots()
    for head, line in enumerate(distances.swing.tolist()):
        axes.plot(range(1, len(line)), line[1:], lw=0.9, label=f"head {head}")
    if distances.trained is not None and distances.trained < distances.upto:
        axes.axvspan(distances.trained, distances.upto, color="0.88", zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("distance")
    axes.set_ylabel("change of the score since distance 0")
    axes.legend(fontsize=6, ncols=2)
    axes.set_title(repr(distances), fontsize=8)
    return figure
