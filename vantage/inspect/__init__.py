"""Attention weights, scores, costs and other measurements of a running model."""

from vantage.inspect.atlas import Atlas, HeadFacts, Thresholds, atlas
from vantage.inspect.capture import capture, capturing
from vantage.inspect.captured import Capture
from vantage.inspect.cost import Cost, cost
from vantage.inspect.decompose import decompose
from vantage.inspect.decomposition import Decomposition
from vantage.inspect.distances import Distances, distinguishable
from vantage.inspect.extend import Extension, extend
from vantage.inspect.machine import MACHINES, Machine, machine, measured
from vantage.inspect.plots import (
    plot_atlas,
    plot_attention,
    plot_cost,
    plot_decomposition,
    plot_distances,
    plot_extension,
    plot_heads,
)
from vantage.inspect.swap import swap

__all__ = [
    "MACHINES",
    "Atlas",
    "Capture",
    "Cost",
    "Decomposition",
    "Distances",
    "Extension",
    "HeadFacts",
    "Machine",
    "Thresholds",
    "atlas",
    "capture",
    "capturing",
    "cost",
    "decompose",
    "distinguishable",
    "extend",
    "machine",
    "measured",
    "plot_atlas",
    "plot_attention",
    "plot_cost",
    "plot_decomposition",
    "plot_distances",
    "plot_extension",
    "plot_heads",
    "swap",
]
