"""Whether a part treats heads differently though it learns nothing of them. Cut to a few heads it would be wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.spec.abilities import DividesByHead
from vantage.spec.model import Layer
from vantage.spec.parts import BiasInputs, Shape, materialise
from vantage.spec.positions import Positions

TOKENS = 3


def check_heads(index: int, layer: Layer, width: int) -> None:
    """Refuse parts that know heads apart and do not say what a few of them have (``of_heads``)."""
    shape = layer.attention.shape(width)
    roles = [("bias", layer.bias), ("value bias", layer.value_bias)]
    roles += [("qk", part) for part in layer.qk] + [("output", part) for part in layer.output]
    for role, part in roles:
        if part is not None and not isinstance(part, DividesByHead) and knows_heads(role, part, shape):
            raise Refused(
                f"layer {index}: {type(part).__name__} has something for each head that it does not learn, and does "
                "not say what a few of the heads have of it: give it of_heads(first, count, heads)"
            )


@torch.no_grad()
def knows_heads(role: str, part: Any, shape: Shape) -> bool:
    """Whether heads that are given the same come out different, in a part without parameters."""
    with torch.random.fork_rng(devices=[]):
        module = part.build(shape)
        if any(True for _ in module.parameters()):
            return False
        pos = Positions.arange(1, TOKENS)
        q = torch.randn(1, 1, TOKENS, shape.rotary_dim).expand(-1, shape.heads, -1, -1)
        k = torch.randn(1, 1, TOKENS, shape.rotary_dim).expand(-1, shape.kv_heads, -1, -1)
        x, rows = torch.randn(1, TOKENS, shape.width), torch.rand(1, 1, TOKENS, TOKENS).expand(-1, shape.heads, -1, -1)
        values = torch.randn(1, 1, TOKENS, shape.value_dim).expand(-1, shape.heads, -1, -1)
    out: Tensor | None
    if role == "bias":
        bias = module.at(BiasInputs(q, q, k, pos, pos, 1.0, x))
        out = materialise(bias, pos.against(pos), shape.heads, torch.float32)
    elif role == "value bias":
        out = module.at(rows, pos, pos)
    else:
        out = module.query(q, pos) if role == "qk" else module(values, x, pos)
    return out is not None and not torch.equal(out, out[:, :1].expand_as(out))
