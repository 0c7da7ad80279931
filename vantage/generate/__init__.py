"""Generation: sampling, stops, the batching engine, and ``generate`` over it."""

import sys
import types

from vantage.generate.engine import Engine
from vantage.generate.generate import Generation, Piece, Stream, generate
from vantage.generate.prefix import Match
from vantage.generate.request import Event, Output, QueueFull, Request, RequestFailed
from vantage.generate.sampling import Constraint, Forks, Pick, Picker, Sampling
from vantage.generate.stats import Stats
from vantage.generate.stops import Detokeniser, Stop, StopWatcher

__all__ = [
    "Constraint",
    "Detokeniser",
    "Engine",
    "Event",
    "Forks",
    "Generation",
    "Match",
    "Output",
    "Pick",
    "Picker",
    "Piece",
    "QueueFull",
    "Request",
    "RequestFailed",
    "Sampling",
    "Stats",
    "Stop",
    "StopWatcher",
    "Stream",
    "generate",
]


class _Callable(types.ModuleType):
    """``vt.generate`` is this package and the function of that name: importing a part of it must not hide the other."""

    __call__ = staticmethod(generate)


sys.modules[__name__].__class__ = _Callable
