"""The other way round: a transformers model that runs on our kernels.

    vantage.interop.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="vantage")

transformers is imported here and nowhere else in the package, and only when ``register`` is called. (``vt.load`` takes
its models too; whoever has one has imported it.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.kernels import chooser
from vantage.spec.masks import Causal, Everything
from vantage.spec.parts import Dense, Kernel, Need, View
from vantage.spec.positions import Positions

# What transformers also hands to an attention function and what changes nothing here: windows and positions are
# in the mask already, the rest speaks of caches, losses and other kernels.
INERT = frozenset(
    [
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    ]
)


def register(name: str = "vantage", *, kernel: str | Kernel = "auto") -> None:
    """Make ``attn_implementation=name`` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    choose = chooser(kernel)

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if unknown := sorted(name for name, value in rest.items() if value is not None and name not in INERT):
            raise Refused(
                f"transformers asks for {', '.join(unknown)}, which Vantage's kernels do not support: use "
                f"attn_implementation='eager'"
            )
        T, S = query.shape[2], key.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        need = Need(
            # as in transformers: without a mask the square is causal, and a single query sees everything
            mask=Causal() if attention_mask is None and causal and T > 1 else Everything(),
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=softcap,
            bias=_added(attention_mask, position_bias, query.dtype),
            sinks=s_aux,
            dropout=dropout,
            weights=output_attentions,
        )
        view = View(key, value, Positions.arange(len(key), S, device=key.device))
        pair = Positions.arange(len(query), T, 0 if T > 1 else S - 1, device=query.device).against(view.pos)
        attended = choose(need, query, view)(query, view, pair, need)
        return attended.out.transpose(1, 2).contiguous(), attended.weights

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def _added(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Dense | None:
    """A mask of transformers (true, or 0, where a key is seen) and a bias, as something to add to the scores."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    parts = [x for x in (mask, bias) if x is not None]
    return Dense(sum(parts[1:], parts[0])) if parts else None
