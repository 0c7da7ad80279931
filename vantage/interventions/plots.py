"""One picture for each kind of intervention. Every function returns the figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vantage.figures.canvas import new_figure
from vantage.figures.heatmap import heat, plain_token, token_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vantage.interventions.attribution import Attribution
    from vantage.interventions.lens import LogitLens
    from vantage.interventions.sweeps import Sweep

WORDS = 24  # tokens of a lens up to which guesses are written into the cells


def plot_sweep(sweep: Sweep) -> Figure:
    """Layers down, positions or heads across; blue raises the measure, red lowers it."""
    figure = new_figure(max(6.0, 0.28 * len(sweep.cells) + 3), max(4.0, 0.18 * len(sweep.layers) + 2))
    axes = figure.subplots()
    image = heat(axes, sweep.effects, title=f"{sweep.title}\n{sweep.measure}", signed=True)
    share = "recovered share (0: corrupted, 1: clean)" if sweep.goal is not None else f"change in {sweep.measure}"
    figure.colorbar(image, ax=axes, label=share)
    token_ticks(axes, list(map(str, sweep.layers)), list(sweep.labels))
    axes.set_ylabel("layer")
    axes.set_xlabel("position" if sweep.by == "positions" else "head")
    return figure


def plot_lens(lens: LogitLens) -> Figure:
    """What the model would write after each block: the best guess, coloured by its probability."""
    best = lens.probabilities[:, :, 0]
    written = best.shape[1] <= WORDS
    wide = 0.75 if written else 0.12
    figure = new_figure(max(6.0, wide * best.shape[1] + 2), max(4.0, 0.22 * best.shape[0] + 1.5))
    axes = figure.subplots()
    image = heat(axes, best, title=repr(lens))
    figure.colorbar(image, ax=axes, label="probability of the best guess (square-root scale)")
    token_ticks(axes, list(lens.stages), list(lens.labels))
    if written:
        high = float(best.max())
        for i, row in enumerate(lens.guesses):
            for j, words in enumerate(row):
                colour = "black" if float(best[i, j]) > 0.45 * high else "white"
                axes.text(j, i, plain_token(words[0])[:9], ha="center", va="center", fontsize=6, color=colour)
    axes.set_ylabel("after block")
    axes.set_xlabel("token read")
    return figure


def plot_attribution(attribution: Attribution) -> Figure:
    """Heads and neuron groups by layer, and what each layer adds in all."""
    figure = new_figure(12, max(4.5, 0.2 * attribution.layers + 2))
    grid = figure.subplots(1, 3, width_ratios=[2, 2, 1])
    for axes, kind, across in ((grid[0], "head", "head"), (grid[1], "neurons", "group of neurons")):
        image = heat(axes, attribution.by_layer(kind), title=f"by {across}", signed=True)
        figure.colorbar(image, ax=axes)
        axes.set_xlabel(across)
        axes.set_ylabel("layer")
    layers = range(attribution.layers)
    by_attention = [attribution.total(n, "head", "cross head", "attention") for n in layers]
    by_feed_forward = [attribution.total(n, "neurons", "feed-forward") for n in layers]
    grid[2].barh([n - 0.2 for n in layers], by_attention, height=0.4, label="attention")
    grid[2].barh([n + 0.2 for n in layers], by_feed_forward, height=0.4, label="feed-forward")
    grid[2].set_ylim(attribution.layers - 0.5, -0.5)
    grid[2].set_title("by layer", fontsize=9)
    grid[2].legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.06))
    figure.suptitle(f"{attribution.measure}: {attribution.logit:.2f}")
    return figure
