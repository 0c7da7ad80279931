"""The library's parts in the small forms that checks ask for: one head, one module, one model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.attention import GroupedQuery, NoBias
from vantage.cache import NoCache
from vantage.kernels import chooser, kernel_named
from vantage.model.linear import dense
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.model import BuildContext
from vantage.spec.normalisers import Normaliser, Softmax
from vantage.spec.parts import Attended, Cache, Context, Need, View
from vantage.spec.positions import Positions
from vantage.studies.shared import models


def random_normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers from a seed, of the type that students' code usually gets."""
    return models.random_normal(*shape, seed=seed, dtype=dtype)


def attend(
    q_Td: Tensor,
    k_Sd: Tensor,
    v_Se: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    normalise: Normaliser = Softmax(),
) -> Attended:
    """One head of the reference kernel: out (T, e) and weights (T, S). The last query stands at the last key."""
    keys = len(k_Sd)
    pos = Positions.arange(1, len(q_Td), keys - len(q_Td) if causal else 0)
    view = View(k_Sd[None, None], v_Se[None, None], Positions.arange(1, keys))
    by = q_Td.shape[-1] ** -0.5 if scale is None else scale
    need = Need(Causal() if causal else Everything(), by, normalise=normalise, weights=True)
    attended = kernel_named("reference")(q_Td[None, None], view, pos.against(view.pos), need)
    assert attended.weights is not None
    return Attended(attended.out[0, 0], attended.weights[0, 0])


def attention_module(
    config: GroupedQuery, width: int, mask: Mask, seed: int = 0, qk: tuple[nn.Module, ...] = ()
) -> nn.Module:
    """An attention module with weights from a seed, large enough to matter."""
    built = config.build(width, BuildContext(0, mask, qk, NoBias(), None, dense))  # pyright: ignore[reportArgumentType] (modules that are transforms)
    return with_seeded_weights(built, seed)


def with_seeded_weights(part: nn.Module, seed: int) -> nn.Module:
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in part.parameters():
            size = 1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5
            p.copy_(torch.randn(p.shape, generator=gen) * size)
    return part.eval()


@torch.no_grad()
def run_module(part: nn.Module, x_BTD: Tensor, pos: Positions | None = None, caches: tuple[Cache, ...] = ()) -> Tensor:
    at = Positions.arange(x_BTD.shape[0], x_BTD.shape[1]) if pos is None else pos
    return part(x_BTD, Context(at, chooser("reference"), caches or (NoCache(),)))
