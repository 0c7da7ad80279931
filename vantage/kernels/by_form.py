"""What kernels share that run masks and biases by their form and never form scores: cudnn, fused and tiles."""

from __future__ import annotations

from vantage.kernels.mask_flags import mask_flags
from vantage.spec.forms import Form, form_of, value_form_of
from vantage.spec.parts import Dense, Need
from vantage.spec.positions import Pair


def refuses_need(need: Need, kernel: str) -> str | None:
    """Why no such kernel can do this; ``kernel``: what it is called. A value bias that has a form is left to each."""
    if need.weights:
        return f"the {kernel} kernel does not hand back weights"
    if need.value_bias is not None and value_form_of(need.value_bias) is None:
        return f"a value bias needs the weights, which the {kernel} kernel does not form"
    if need.temperature is None:
        return f"the {kernel} kernel has softmax alone, not {type(need.normalise).__name__}"
    if need.dropout:
        return f"the {kernel} kernel has no dropout"
    if mask_flags(need.mask) is None:
        return f"the {kernel} kernel does not know the mask {need.mask!r}"
    if need.bias is None or form_of(need.bias) is not None:
        return None
    if isinstance(need.bias, Dense):
        return f"a dense bias is as large as the scores, which the {kernel} kernel does not form"
    return f"the bias {type(need.bias).__name__} has no form that the {kernel} kernel could run"


def form_of_need(need: Need) -> Form | None:
    return None if need.bias is None else form_of(need.bias)


def runs(pair: Pair) -> bool:
    """Whether queries and keys stand one after another, and none is empty."""
    return pair.q.known.first is not None and pair.k.known.first is not None
