"""One model over several processes: the tokens of a pass (context parallel), or heads and columns (tensor parallel)."""

from vantage.parallel.context import ContextParallel, ContextShare
from vantage.parallel.cut import Cut
from vantage.parallel.tensor import TensorParallel
from vantage.parallel.wire import Wire

__all__ = ["ContextParallel", "ContextShare", "Cut", "TensorParallel", "Wire"]
