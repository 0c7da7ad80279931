"""Training: settings, data, objectives, the loop, checkpoints."""

from vantage.training.log import Reporter, ScoreRecord, StepRecord, read_log
from vantage.training.run import Run, Trained, train
from vantage.training.settings import TrainSettings, read_settings, recipes

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
