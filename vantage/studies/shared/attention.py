"""Attention on its own, in float64: the kernel, a module with weights from a seed, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vantage.attention import NoBias
from vantage.cache import NoCache
from vantage.kernels import chooser, kernel_named
from vantage.model.linear import dense
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.model import AttentionConfig, BuildContext
from vantage.spec.normalisers import Normaliser, Softmax
from vantage.spec.parts import Attended, Cache, Context, Dense, EncoderOutput, Need, View
from vantage.spec.positions import Positions
from vantage.studies.shared.models import F64, random_normal

WEIGHTS = 1_000_000  # seeds from here on are those of maps: no input is drawn with one
Watch = Callable[[str, int, View, Need, Attended], None]


# ---- the kernel on its own


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float = 1.0,
    normalise: Normaliser = Softmax(),
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and weights of one head: q (T, d), k (S, d), v (S, e), or many of them at once, (B, T, d) and so on."""
    single = q.dim() == 2
    q, k, v = (t[None] if t.dim() == 2 else t for t in (q, k, v))
    rows = max(len(q), len(k))
    view = View(k.expand(rows, -1, -1)[:, None], v.expand(rows, -1, -1)[:, None], Positions.arange(rows, k.shape[1]))
    pos = Positions.arange(rows, q.shape[1])
    dense_bias = None if bias is None else Dense(bias[None, None])
    need = Need(Everything() if mask is None else mask, scale, bias=dense_bias, normalise=normalise, weights=True)
    attended = kernel_named("reference")(q.expand(rows, -1, -1)[:, None], view, pos.against(view.pos), need)
    assert attended.weights is not None  # asked for
    return (attended.out[0, 0], attended.weights[0, 0]) if single else (attended.out[:, 0], attended.weights[:, 0])


def weights_of(scores: Tensor, *, normalise: Normaliser = Softmax()) -> Tensor:
    """The weights that attention makes of scores (T, S): the queries are their rows, the keys the unit vectors."""
    hidden = scores == -torch.inf
    eye = torch.eye(scores.shape[1], dtype=F64)
    bias = torch.zeros_like(scores).masked_fill(hidden, -torch.inf) if bool(hidden.any()) else None
    return attend(scores.masked_fill(hidden, 0.0), eye, eye, bias=bias, normalise=normalise)[1]


# ---- the modules


def build_attention(config: AttentionConfig, width: int, mask: Mask, *, cross: bool = False) -> Any:
    """An attention module as a block would build it, without a position encoding."""
    context = BuildContext(0, mask, (), NoBias(), None, dense)
    return (config.build_cross if cross else config.build)(width, context).to(F64).eval()


def sharp_attention(config: AttentionConfig, width: int, mask: Mask | None = None, *, cross: bool = False) -> Any:
    """The same with weights large enough to look somewhere; causal unless said, or cross-attention."""
    mask = (Everything() if cross else Causal()) if mask is None else mask
    module = build_attention(config, width, mask, cross=cross)
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(random_normal(*p.shape, seed=WEIGHTS + i) * 1.5 * p.shape[-1] ** -0.5)
    return module


def set_projections(module: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Give a self-attention its maps, written for rows: x W. What comes out is left as it is."""
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([q, k, v], 1).T)
        module.out.weight.copy_(torch.eye(*module.out.weight.shape))


@torch.no_grad()
def run_attention(
    module: Any,
    x_BTD: Tensor,
    pos: Positions | None = None,
    cache: Cache | None = None,
    *,
    source: Tensor | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """One pass, from position 0 unless said; cross-attention looks at ``source`` (B, S, D)."""
    pos = Positions.arange(len(x_BTD), x_BTD.shape[1]) if pos is None else pos
    encoded = None if source is None else EncoderOutput(source, Positions.arange(len(source), source.shape[1]))
    caches = (NoCache() if cache is None else cache,)
    return module(x_BTD, Context(pos, chooser("reference"), caches, (NoCache(),), encoded, watch))


def site_and_weights(module: Any, x: Tensor, *, source: Tensor | None = None) -> tuple[str, Tensor]:
    """Which kind of attention ran, "self" or "cross", and its weights (B, H, T, S)."""
    seen: list[tuple[str, Tensor]] = []

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        assert attended.weights is not None  # somebody watches
        seen.append((site, attended.weights))

    run_attention(module, x, source=source, watch=watch)
    return seen[0]


def heat_cells(matrix: Tensor, places: int | None = None) -> list[list[float | None]]:
    """A matrix for a heat map, rounded where its numbers are written; −∞ is an empty cell."""
    rows = matrix.tolist()
    return [[None if x == -torch.inf else x if places is None else round(x, places) for x in row] for row in rows]
