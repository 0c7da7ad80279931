"""Training: settings, data, objectives, the loop, checkpoints."""

from vantage.training.api import train
from vantage.training.log import Reporter, ScoreRecord, StepRecord, read_log
from vantage.training.run import Run, Trained
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
