"""Token mixers with a state, chunk by chunk: products of matrices within a chunk, the state from one to the next.

What token j leaves for token i has decayed by the product of the factors between them, e^(g_(j+1) + … + g_i). That
product is never a quotient of two others: a quotient is nothing over nothing once a factor has underflowed. Sums of
logarithms alone are raised, each over the tokens that it is for, so a factor may be 0 (g = -∞).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.spec.positions import Positions

CHUNK = 64  # tokens of a chunk: the work within it grows with its size, the number of chunks falls
MAX_TOKENS_ONE_BY_ONE = 4  # up to so many tokens go one by one: a chunk costs more than they do


def goes_by_token(width: int) -> bool:
    return width <= MAX_TOKENS_ONE_BY_ONE


def chunk_size(width: int) -> int:
    """A power of two, for blocks are put together in pairs."""
    return min(CHUNK, 1 << (width - 1).bit_length())


@final
@dataclass(frozen=True)
class Chunks:
    """The tokens of a pass (B, T) in chunks. The last is filled up with places that change nothing, as padding is."""

    batch: int
    width: int
    size: int
    filled_BT: Tensor | None  # None: there is no padding
    begins_BT: Tensor | None  # where a document begins; None: nowhere

    @staticmethod
    def of(pos: Positions) -> Chunks:
        begins = None if pos.segment is None else (pos.order == pos.segment) & pos.filled
        return Chunks(*pos.shape, chunk_size(pos.shape[1]), pos.filled if pos.known.empty else None, begins)

    def cut(self, x_BTHd: Tensor) -> Tensor:
        """(N, B, H, C, d), with zeros in padding."""
        if self.filled_BT is not None:
            x_BTHd = torch.where(self.filled_BT[..., None, None], x_BTHd, 0)
        short = -self.width % self.size
        x = F.pad(x_BTHd, (0, 0, 0, 0, 0, short)) if short else x_BTHd
        return x.unflatten(1, (-1, self.size)).permute(1, 0, 3, 2, 4).contiguous()

    def cut_decays(self, g_BTHd: Tensor) -> Tensor:
        """The same of the logarithms of factors: nothing is left where a document begins."""
        if self.begins_BT is not None:
            g_BTHd = g_BTHd.masked_fill(self.begins_BT[..., None, None], -torch.inf)
        return self.cut(g_BTHd)

    def join(self, x_NBHCe: Tensor) -> Tensor:
        """(B, T, H, e)"""
        return x_NBHCe.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, : self.width]

    def states(
        self, columns: tuple[int, ...], before: list[Tensor], g_NBHCd: Tensor, k_NBHCd: Tensor, u_NBHCe: Tensor
    ) -> list[Tensor]:
        """(B, H, d, e) after each of these columns: what was there before the chunk, and Σ k ⊗ u up to the column.

        ``before``: the state before each chunk, and after the last.
        """
        kept = []
        for column in columns:
            n, c = divmod(column, self.size)
            if column in (self.width - 1, n * self.size + self.size - 1):
                kept.append(before[n + 1])
                continue
            g, k, u = (t[n, :, :, : c + 1] for t in (g_NBHCd, k_NBHCd, u_NBHCe))
            kept.append(g.sum(-2).exp()[..., None] * before[n] + (k * decay_to_end(g)).mT @ u)
        return kept


def decay_from_start(g_Cd: Tensor) -> Tensor:
    """(…, C, d): what is left at each token of what was there before the chunk."""
    return g_Cd.cumsum(-2).exp()


def decay_to_end(g_Cd: Tensor) -> Tensor:
    """(…, C, d): what is left after the chunk of what each token brings."""
    later = F.pad(g_Cd[..., 1:, :], (0, 0, 0, 1))
    return later.flip(-2).cumsum(-2).flip(-2).exp()


def decay_between(g_C: Tensor) -> Tensor:
    """(…, C, C): what is left at token i of what token j brought; 0 where j comes after i."""
    size = g_C.shape[-1]
    earlier = torch.ones(size, size, dtype=torch.bool, device=g_C.device).triu(1)  # [j, i]: j < i
    sums = torch.where(earlier, g_C[..., None, :], 0).cumsum(-1)
    return sums.masked_fill(earlier.mT, -torch.inf).exp().mT


@final
@dataclass(frozen=True)
class Decayed:
    """Queries and keys of chunks, each decayed on its way."""

    read: Tensor  # (…, C, C): queries times keys, decayed from key to query; 0 where the key comes later
    overlap: Tensor  # the same of keys times keys
    q_from_start: Tensor  # (…, C, d): as the state before the chunk is read
    k_from_start: Tensor
    k_to_end: Tensor  # as the state after the chunk takes it in


def decayed(q_Cd: Tensor, k_Cd: Tensor, g: Tensor) -> Decayed:
    """``g``: (…, C, 1), one for all channels, or (…, C, d)."""
    if g.shape[-1] > 1:
        return _decayed_by_channel(q_Cd, k_Cd, g)
    between, from_start = decay_between(g[..., 0]), decay_from_start(g)
    products = (q_Cd @ k_Cd.mT) * between, (k_Cd @ k_Cd.mT) * between
    return Decayed(*products, q_Cd * from_start, k_Cd * from_start, k_Cd * decay_to_end(g))


def _decayed_by_channel(q_Cd: Tensor, k_Cd: Tensor, g_Cd: Tensor) -> Decayed:
    """Two blocks become one, from single tokens up to a chunk. Between a row of the second and a key of the first lies
    the border: the key has decayed up to it, the row from it on, and both factors are at most 1."""
    left = g_Cd[..., None, :]  # (…, n, 1, d): logarithms of what a whole block leaves
    rows = [(x * g_Cd.exp())[..., None, :] for x in (q_Cd, k_Cd)]  # (…, n, h, d): decayed from the block's start on
    keys = k_Cd[..., None, :]  # decayed to the block's end
    products = [(x * k_Cd).sum(-1)[..., None, None] for x in (q_Cd, k_Cd)]  # (…, n, h, h)
    while keys.shape[-3] > 1:
        (first, second), (decay_first, decay_second) = _pairs(keys), _pairs(left.exp())
        pairs = [_pairs(x) for x in rows]
        across = [x @ first.mT for _, x in pairs]
        products = [_quarters(*_pairs(own), x) for own, x in zip(products, across, strict=True)]
        rows = [torch.cat([x, y * decay_first], -2) for x, y in pairs]
        keys = torch.cat([first * decay_second, second], -2)
        left = torch.add(*_pairs(left))
    return Decayed(*(x[..., 0, :, :] for x in (*products, *rows, keys)))


def _pairs(x_nhd: Tensor) -> tuple[Tensor, Tensor]:
    """The first of each two blocks, and the second."""
    return x_nhd[..., ::2, :, :], x_nhd[..., 1::2, :, :]


def _quarters(first_hh: Tensor, second_hh: Tensor, across_hh: Tensor) -> Tensor:
    """(…, 2h, 2h): nothing of the second block's keys reaches the first one's rows."""
    above = torch.cat([first_hh, torch.zeros_like(across_hh)], -1)
    return torch.cat([above, torch.cat([across_hh, second_hh], -1)], -2)
