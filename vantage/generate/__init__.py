"""Generation: sampling, stops, the batching engine, and ``generate`` over it."""

import sys
import types

from vantage.generate.beams import Beams, beam_search
from vantage.generate.conversation import Conversation
from vantage.generate.engine import Engine
from vantage.generate.generate import Generation, Piece, Stream, generate
from vantage.generate.prefix import Match
from vantage.generate.request import Event, Output, QueueFull, Request, RequestFailed
from vantage.generate.sampling import Constraint, Forks, Pick, Picker, Sampling
from vantage.generate.speculate import DraftModel, Lookup, speculative
from vantage.generate.stats import Stats
from vantage.generate.stops import Detokeniser, Stop, StopWatcher

__all__ = [
    "Beams",
    "Constraint",
    "Conversation",
    "Detokeniser",
    "DraftModel",
    "Engine",
    "Event",
    "Forks",
    "Generation",
    "Lookup",
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
    "beam_search",
    "generate",
    "speculative",
]


class _Callable(types.ModuleType):
    """``vt.generate`` is this package and the function of that name: importing a part of it must not hide the other."""

    __call__ = staticmethod(generate)


sys.modules[__name__].__class__ = _Callable
