"""How many operations each part of a pass takes (A16), from the spec alone.

Operations of matrix products are counted, two for a multiply and an add, as torch's FlopCounter counts them with the
reference kernel: every query against every key it is given, hidden or not. Norms, activations and softmax are not
products and not counted. ``tests/inspect/test_cost.py`` holds every formula to that counter, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from vantage.attention import GroupedQueryAttention, LatentAttention
from vantage.attention.cross import CrossAttention
from vantage.model import Model
from vantage.model.experts import Experts
from vantage.model.pooling import First, Pooler
from vantage.model.routers import GroupLimited
from vantage.position.cope import CoPE
from vantage.position.fire import Fire
from vantage.position.late_temperature import LateTemperature
from vantage.position.shaw import ShawKeys, ShawValues
from vantage.position.shifted import Shifted
from vantage.position.xl import DistanceTerm
from vantage.spec.model import Layer
from vantage.spec.parts import Shape

PARTS = ("embedding", "projections", "scores", "position", "weighted sum", "output", "feed-forward", "head")


class Pass(NamedTuple):
    """``queries`` new tokens in each of ``batch`` rows, looking at ``keys`` (the new ones included)."""

    batch: int
    queries: int
    keys: int
    source: int = 0  # tokens an encoder-decoder reads
    fresh: bool = True  # the source is read in this pass

    @property
    def tokens(self) -> int:
        return self.batch * self.queries


@dataclass(frozen=True)
class Site:
    """One attention in one pass."""

    shape: Shape
    at: Pass
    keys: int  # that its kernel is given
    met: int  # width in which queries and keys meet: a head's, or MLA's latent and rotary key


Counter = Callable[[Any, Site], int]


def _pairs(s: Site) -> int:
    return s.at.batch * s.shape.heads * s.at.queries * s.keys


def _rows(s: Site) -> int:
    return s.at.batch * s.shape.heads * s.at.queries


def _fire(c: Fire, s: Site) -> int:
    cells = s.at.queries * s.keys  # one row for all: positions are the same in each
    return 2 * cells * c.hidden * (1 + s.shape.heads)


def _late(c: LateTemperature, s: Site) -> int:
    return 2 * _pairs(s) * s.met if s.keys - 1 > c.length else 0


# What position encodings multiply. Those that are not here multiply no matrices.
BIASES: dict[type, Counter] = {
    ShawKeys: lambda c, s: 2 * _rows(s) * s.shape.key_dim * (2 * c.max_distance + 1),
    ShawValues: lambda c, s: 2 * _rows(s) * s.shape.value_dim * (2 * c.max_distance + 1),
    DistanceTerm: lambda c, s: 2 * (_rows(s) * s.shape.key_dim * s.shape.width + _pairs(s) * s.shape.width),
    Shifted: lambda c, s: 2 * _pairs(s) * s.shape.key_dim,
    CoPE: lambda c, s: 2 * (_pairs(s) * s.met + _rows(s) * s.shape.key_dim * c.max_positions),
    Fire: _fire,
    LateTemperature: _late,
}


def attention(module: Any, layer: Layer, shape: Shape, at: Pass, keys: int) -> dict[str, int]:
    """One attention over so many keys: projections, scores, weighted sum, output, and what position multiplies."""
    absorbs = isinstance(module, LatentAttention) and _absorbs(module, at.queries, keys)
    met = module.config.kv_rank + module.config.rope_dim if absorbs else shape.key_dim
    s = Site(shape, at, keys, met)
    if isinstance(module, CrossAttention):
        parts = _cross(module, s)
    elif isinstance(module, LatentAttention):
        parts = _latent(module, s)
    else:
        assert isinstance(module, GroupedQueryAttention), f"no count for {type(module).__name__}"
        parts = _core(s, s.shape.value_dim)
        parts["projections"] = linear(module.qkv, s.at.tokens)
    parts["output"] = parts.get("output", 0) + linear(module.out, s.at.tokens)
    if not isinstance(module, CrossAttention):
        biases = (b for b in (layer.bias, layer.value_bias) if b is not None)
        parts["position"] = sum(BIASES[type(b)](b, s) for b in biases if type(b) in BIASES)
    return parts


def _core(s: Site, value_dim: int) -> dict[str, int]:
    return {"scores": 2 * _pairs(s) * s.met, "weighted sum": 2 * _pairs(s) * value_dim}


def _absorbs(module: LatentAttention, queries: int, keys: int) -> bool:
    return module.absorbable and module.absorbing_is_cheaper(queries, keys)


def _cross(module: CrossAttention, s: Site) -> dict[str, int]:
    read = s.at.batch * s.at.source if s.at.fresh else 0
    parts = _core(s, s.shape.value_dim)
    return parts | {"projections": linear(module.q, s.at.tokens) + linear(module.kv, read)}


def _latent(module: LatentAttention, s: Site) -> dict[str, int]:
    c, B, H, T = module.config, s.at.batch, s.shape.heads, s.at.queries
    maps = [m for m in (module.q_down, module.q_up, module.kv_down) if isinstance(m, nn.Linear)]
    projected = sum(linear(m, s.at.tokens) for m in maps)
    if _absorbs(module, T, s.keys):
        parts = _core(s, c.kv_rank)
        parts["projections"] = projected + 2 * B * H * T * c.nope_dim * c.kv_rank
        parts["output"] = 2 * B * H * T * c.kv_rank * c.value_dim
        return parts
    up = 2 * B * H * s.keys * c.kv_rank * (c.nope_dim + c.value_dim)
    return _core(s, s.shape.value_dim) | {"projections": projected + up}


def feed_forward(module: nn.Module, config: Any, tokens: int) -> int:
    """A dense layer, or the experts that each token is sent to."""
    if not isinstance(config, Experts):
        return sum(linear(m, tokens) for m in _linears(module))
    expert: Any = module
    one = feed_forward(expert.experts[0], config.expert, tokens)
    router: Any = config.router
    routed = 2 * tokens * expert.router.weight.numel() if isinstance(router, GroupLimited) else 0
    routed += sum(linear(m, tokens) for m in _linears(expert.router))
    shared = 0 if config.shared is None else feed_forward(expert.shared, config.shared, tokens)
    return routed + router.k * one + shared


def head(model: Model, at: Pass) -> int:
    config = model.spec.head
    if config is None:
        return 0
    module: Any = model.head
    one_a_row = isinstance(config.transform, (First, Pooler))
    tokens = at.batch if one_a_row else at.tokens
    return linear(module.linear, tokens) + sum(linear(m, tokens) for m in _linears(module.transform))


def embedding(model: Model, at: Pass) -> int:
    embed: Any = model.embed
    total = linear(embed.project, at.tokens) if isinstance(embed.project, nn.Linear) else 0
    if model.spec.embedding.source is not None:  # patches: a convolution, all but the class token
        total += 2 * embed.tokens.weight.numel() * at.batch * (at.queries - 1)
    return total


def linear(module: nn.Module, tokens: int) -> int:
    """2 · inputs · outputs for each token."""
    assert isinstance(module, nn.Linear)
    return 2 * module.in_features * module.out_features * tokens


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def uncounted(layer: Layer) -> list[str]:
    """Parts of a layer that are not ours, so that nobody knows what they multiply."""
    parts = [layer.bias, layer.value_bias, *layer.qk]
    return [type(p).__name__ for p in parts if p is not None and not type(p).__module__.startswith("vantage.")]
