"""Training: settings, data, objectives, the loop, checkpoints.

Names are imported when they are first used: tasks and recipes are known without torch, whose import takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vantage.training.api import train
    from vantage.training.log import Reporter, ScoreRecord, StepRecord, read_log
    from vantage.training.run import Run, Trained
    from vantage.training.settings import TrainSettings, read_settings
    from vantage.training.tables import recipes

_HOME = {
    **dict.fromkeys(("Reporter", "ScoreRecord", "StepRecord", "read_log"), "vantage.training.log"),
    **dict.fromkeys(("Run", "Trained"), "vantage.training.run"),
    **dict.fromkeys(("TrainSettings", "read_settings"), "vantage.training.settings"),
    "recipes": "vantage.training.tables",
    "train": "vantage.training.api",
}

__all__ = [
    "Reporter",
    "Run",
    "ScoreRecord",
    "StepRecord",
    "TrainSettings",
    "Trained",
    "read_log",
    "read_settings",
    "recipes",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
