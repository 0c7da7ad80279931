"""Mamba-2's rule itself: S ← e^(Δ a) S + Δ · b ⊗ x; o = cᵀS, in chunks (Dao and Gu 2024), or token by token.

In chunks the products of c and b are those of a group of heads: only how they decay differs from head to head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention.chunks import Chunks, chunk_size, decay_between, decay_from_start, decay_to_end, goes_by_token
from vantage.attention.token_steps import over_tokens
from vantage.spec.operations import PassSize
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions


def state_space(
    x_BTHe: Tensor,
    step_BTH: Tensor,
    rate_H: Tensor,
    b_BTGd: Tensor,
    c_BTGd: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    """The outputs (B, T, H, e), and the states (B, H, d, e) after each of these columns. In float32 at least.

    No rate is above 0. Outputs in padding mean nothing.
    """
    wide = state_BHde.dtype
    x, step, b, c = (t.to(wide) for t in (x_BTHe, step_BTH, b_BTGd, c_BTGd))
    rule = state_space_by_token if goes_by_token(pos.shape[1]) else state_space_in_chunks
    return rule(step[..., None] * x, step * rate_H, b, c, state_BHde, pos, columns)


def state_space_by_token(
    x_BTHe: Tensor,
    g_BTH: Tensor,
    b_BTGd: Tensor,
    c_BTGd: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    heads = x_BTHe.shape[2] // b_BTGd.shape[2]
    b, c = (t.repeat_interleave(heads, 2) for t in (b_BTGd, c_BTGd))
    decays = g_BTH.exp()

    def token(t: int, state: Tensor) -> tuple[Tensor, Tensor]:
        new = decays[:, t, :, None, None] * state + b[:, t, :, :, None] * x_BTHe[:, t, :, None]
        return new, torch.einsum("bhd,bhde->bhe", c[:, t], new)

    return over_tokens(token, state_BHde, pos, columns)


def state_space_in_chunks(
    x_BTHe: Tensor,
    g_BTH: Tensor,
    b_BTGd: Tensor,
    c_BTGd: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    chunks, groups = Chunks.of(pos), b_BTGd.shape[2]
    x, b, c = (chunks.cut(t) for t in (x_BTHe, b_BTGd, c_BTGd))
    g = chunks.cut_decays(g_BTH[..., None])

    def by_group(t_NBHCe: Tensor) -> Tensor:
        """(N, B, G, C, H / G · e): the heads of a group side by side."""
        return t_NBHCe.unflatten(2, (groups, -1)).transpose(3, 4).flatten(4)

    def by_head(t: Tensor) -> Tensor:
        """The way back."""
        return t.unflatten(4, (-1, x.shape[-1])).transpose(3, 4).flatten(2, 3)

    brought = by_head(b.mT @ by_group(x * decay_to_end(g)))
    states = [state_BHde]
    for kept_n, brought_n in zip(g.sum(-2).exp()[..., None].unbind(0), brought.unbind(0), strict=True):
        states.append(kept_n * states[-1] + brought_n)
    between = decay_between(g[..., 0]).unflatten(2, (groups, -1))
    read = ((c @ b.mT)[:, :, :, None] * between).flatten(2, 3)
    from_state = by_head(c @ by_group(torch.stack(states[:-1])))
    out = read @ x + decay_from_start(g) * from_state
    k = b.repeat_interleave(x.shape[2] // groups, 2) if columns else b
    return chunks.join(out), chunks.states(columns, states, g, k, x)


def state_space_operations(size: PassSize, s: Shape) -> dict[str, int]:
    """Of its products of matrices."""
    matrix = 2 * s.key_dim * s.value_dim  # a product with the state
    if goes_by_token(size.queries):
        return {"weighted sum": size.tokens * s.heads * matrix}
    chunk = chunk_size(size.queries)
    tokens = size.batch * -(-size.queries // chunk) * chunk
    return {
        "scores": 2 * tokens * s.kv_heads * chunk * s.key_dim,
        "weighted sum": tokens * s.heads * (2 * matrix + 2 * chunk * s.value_dim),
    }
