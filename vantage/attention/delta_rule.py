"""The delta rule itself: S ← e^g S; S ← S + k ⊗ β(v - kᵀS); o = qᵀS / √d, in chunks, or one token after the other.

In a chunk that begins with the state S token i puts in u_i = β_i (v_i - k_iᵀ S_i - Σ_(j<i) (k_i · k_j(i)) u_j), with
S_i and k_j(i) decayed up to i. That is a triangular system. It is solved for v and for k at once, before S is known;
what is put in is then own - known S (the WY form, Yang et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention.chunks import Chunks, chunk_size, decayed, goes_by_token
from vantage.attention.token_steps import over_tokens
from vantage.spec.operations import PassSize
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions


def delta_rule(
    q_BTHd: Tensor,
    k_BTHd: Tensor,
    v_BTHe: Tensor,
    g: Tensor,
    beta_BTH: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    """The outputs (B, T, H, e), and the states (B, H, d, e) after each of these columns. In float32 at least.

    ``g``: one for each head (B, T, H), or for each channel of the keys (B, T, H, d); none above 0. Outputs in padding
    mean nothing.
    """
    wide = state_BHde.dtype
    q, k, v, g, beta = (t.to(wide) for t in (q_BTHd, k_BTHd, v_BTHe, g, beta_BTH))
    g = g[..., None] if g.dim() == 3 else g
    rule = delta_rule_by_token if goes_by_token(pos.shape[1]) else delta_rule_in_chunks
    return rule(q * q.shape[-1] ** -0.5, k, v, g, beta[..., None], state_BHde, pos, columns)


def delta_rule_by_token(
    q_BTHd: Tensor,
    k_BTHd: Tensor,
    v_BTHe: Tensor,
    g_BTHd: Tensor,
    beta_BTH1: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    def token(t: int, state: Tensor) -> tuple[Tensor, Tensor]:
        decayed = state * g_BTHd[:, t].exp()[..., None]
        missing = v_BTHe[:, t] - torch.einsum("bhd,bhde->bhe", k_BTHd[:, t], decayed)
        new = decayed + torch.einsum("bhd,bhe->bhde", k_BTHd[:, t], beta_BTH1[:, t] * missing)
        return new, torch.einsum("bhd,bhde->bhe", q_BTHd[:, t], new)

    return over_tokens(token, state_BHde, pos, columns)


def delta_rule_in_chunks(
    q_BTHd: Tensor,
    k_BTHd: Tensor,
    v_BTHe: Tensor,
    g_BTHd: Tensor,
    beta_BTH1: Tensor,
    state_BHde: Tensor,
    pos: Positions,
    columns: tuple[int, ...],
) -> tuple[Tensor, list[Tensor]]:
    chunks = Chunks.of(pos)
    q, k, v, beta = (chunks.cut(t) for t in (q_BTHd, k_BTHd, v_BTHe, beta_BTH1))
    g = chunks.cut_decays(g_BTHd)
    f = decayed(q, k, g)
    right = torch.cat([beta * v, beta * f.k_from_start], -1)
    # The diagonal is taken for ones, and what is above it for zeros.
    solved = torch.linalg.solve_triangular(beta * f.overlap, right, upper=False, unitriangular=True)
    own, known = (t.flatten(1, 2) for t in solved.split((v.shape[-1], k.shape[-1]), -1))
    kept, keys = g.sum(-2).exp()[..., None].flatten(1, 2), f.k_to_end.mT.flatten(1, 2)
    states, put_in = [state_BHde.flatten(0, 1)], []
    for own_n, known_n, kept_n, keys_n in zip(*(t.unbind(0) for t in (own, known, kept, keys)), strict=True):
        put_in.append(torch.baddbmm(own_n, known_n, states[-1], alpha=-1))
        states.append(torch.baddbmm(kept_n * states[-1], keys_n, put_in[-1]))
    u = torch.stack(put_in).view_as(v)
    states = [s.view_as(state_BHde) for s in states]
    out = f.q_from_start @ torch.stack(states[:-1]) + f.read @ u
    return chunks.join(out), chunks.states(columns, states, g, k, u)


def delta_rule_operations(size: PassSize, s: Shape, *, by_channel: bool) -> dict[str, int]:
    """Of its products of matrices; the triangular system's solution is none."""
    matrix = 2 * s.key_dim * s.value_dim  # a product with the state
    if goes_by_token(size.queries):
        rows = size.tokens * s.heads
        return {"scores": rows * matrix, "weighted sum": rows * matrix}  # what it says of a key already; of a query
    chunk = chunk_size(size.queries)
    rows = size.batch * s.heads * -(-size.queries // chunk) * chunk
    keys = chunk - 1 if by_channel else 2 * chunk  # by halves a key meets later rows alone
    return {
        "scores": 2 * rows * keys * s.key_dim,  # queries and keys with keys
        "weighted sum": rows * (3 * matrix + 2 * chunk * s.value_dim),
    }
