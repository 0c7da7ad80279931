"""Generation: sampling, stops, the batching engine, and ``generate`` over it."""

from vantage.generation.api import Stream, generate
from vantage.generation.beams import BeamResult, beam_search
from vantage.generation.conversation import Conversation
from vantage.generation.decode import Answer, speculative
from vantage.generation.engine import Engine
from vantage.generation.prefix import Match
from vantage.generation.request import Event, Output, QueueFull, Request, RequestFailed
from vantage.generation.results import Generation, Piece
from vantage.generation.sampling import Constraint, ForkableConstraint, Pick, Picker, Sampling
from vantage.generation.speculate import DraftModel, Lookup
from vantage.generation.stats import Stats
from vantage.generation.stops import AnswerText, Detokeniser, Stop, StopWatcher
from vantage.model.beam_search import Beams

__all__ = [
    "Answer",
    "AnswerText",
    "BeamResult",
    "Beams",
    "Constraint",
    "Conversation",
    "Detokeniser",
    "DraftModel",
    "Engine",
    "Event",
    "ForkableConstraint",
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
