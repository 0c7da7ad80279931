"""Optimisers, learning-rate schedules, clipping and averaging."""

from vantage.train.optimise.adamw import AdamW
from vantage.train.optimise.average import Average, Averaged
from vantage.train.optimise.clip import clip
from vantage.train.optimise.muon import Muon
from vantage.train.optimise.optimiser import Optimiser, OptimiserConfig
from vantage.train.optimise.schedules import WSD, Constant, Cosine, Schedule

__all__ = [
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
