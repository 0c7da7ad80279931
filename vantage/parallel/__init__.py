"""One model over several processes: the tokens of a pass (context parallel), heads and columns (tensor parallel), or
experts."""

from vantage.parallel.context import ContextParallel, ContextShare
from vantage.parallel.cut import Cut
from vantage.parallel.experts import ExpertParallel
from vantage.parallel.model_share import Divide, Divided, ModelShare
from vantage.parallel.spread_cache import SpreadCache
from vantage.parallel.tensor import TensorParallel
from vantage.parallel.wire import Wire

__all__ = [
    "ContextParallel",
    "ContextShare",
    "Cut",
    "Divide",
    "Divided",
    "ExpertParallel",
    "ModelShare",
    "SpreadCache",
    "TensorParallel",
    "Wire",
]
