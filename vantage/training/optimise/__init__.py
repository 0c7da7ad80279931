"""Optimisers, learning-rate schedules, clipping and averaging."""

from vantage.spec.registry import Registry, entries_of
from vantage.training.optimise.adamw import AdamW
from vantage.training.optimise.average import Average, Averaged
from vantage.training.optimise.clip import clip
from vantage.training.optimise.muon import Muon
from vantage.training.optimise.optimiser import Optimiser, OptimiserConfig
from vantage.training.schedules import WSD, Constant, Cosine, Schedule

OPTIMISERS: Registry[OptimiserConfig] = Registry(
    "optimiser",
    entries_of(
        "vantage.training.optimise",
        "adamw",
        "muon",
    ),
    needs=("build",),
)

__all__ = [
    "OPTIMISERS",
    "WSD",
    "AdamW",
    "Average",
    "Averaged",
    "Constant",
    "Cosine",
    "Muon",
    "Optimiser",
    "OptimiserConfig",
    "Schedule",
    "clip",
]
