"""Training: settings, data, objectives, the loop, checkpoints. ``vt.train`` is this package and the function."""

import sys
import types

from vantage.train.log import Report, Scored, Stepped, read_log
from vantage.train.run import Run, Trained, train
from vantage.train.settings import Settings, read_settings, recipes

__all__ = ["Report", "Run", "Scored", "Settings", "Stepped", "Trained", "read_log", "read_settings", "recipes", "train"]


class _Callable(types.ModuleType):
    """Importing a part of this package must not hide the function of the same name."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Callable
