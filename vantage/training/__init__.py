"""Training: settings, data, objectives, the loop, checkpoints."""

from vantage.training.log import Report, Scored, Stepped, read_log
from vantage.training.run import Run, Trained, train
from vantage.training.settings import Settings, read_settings, recipes

__all__ = ["Report", "Run", "Scored", "Settings", "Stepped", "Trained", "read_log", "read_settings", "recipes", "train"]
