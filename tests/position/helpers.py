"""What the tests of all encodings share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from vantage.spec.parts import BiasInputs, Buildable, Dense, Parts, Pointwise, Shape, materialise
from vantage.spec.positions import EMPTY, Pair, Place, Positions

SHAPE = Shape(width=12, heads=4, kv_heads=2, key_dim=6, value_dim=5, rotary_dim=6)
F64 = torch.float64


def only_bias(parts: Parts) -> Buildable:
    """The bias of an encoding that is nothing else."""
    assert parts.bias is not None
    assert parts == Parts(bias=parts.bias)
    return parts.bias


def built(config: Buildable, shape: Shape = SHAPE, dtype: torch.dtype = F64, seed: int = 0) -> nn.Module:
    """A part with sharp random parameters."""
    torch.manual_seed(seed)
    module = config.build(shape).to(dtype)
    for p in module.parameters():
        nn.init.normal_(p, std=0.7)
    return module


def vectors(B: int, H: int, T: int, d: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(B, H, T, d, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs_of(
    module: nn.Module, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions, scale: float = 0.3
) -> BiasInputs:
    """What a bias may look at. Hidden states are made of queries and keys, so that they move with them."""
    x_q, x_k = (side[:, : SHAPE.kv_heads].transpose(1, 2).flatten(2) for side in (q, k))
    own, streams = ((), ()) if not hasattr(module, "keep") else (module.keep(x_q, q_pos), module.keep(x_k, k_pos))
    return BiasInputs(q, q, k, q_pos, k_pos, scale, x_q, streams, own)


def bias_of(
    module: nn.Module,
    q_pos: Positions,
    k_pos: Positions,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    shape: Shape = SHAPE,
    scale: float = 0.3,
    x: Tensor | None = None,
    streams: tuple[Tensor, ...] = (),
    own: tuple[Tensor, ...] = (),
    softcap: float | None = None,
) -> Tensor:
    """The bias as a tensor (B, H, T, S)."""
    (B, T), S = q_pos.shape, k_pos.shape[1]
    q = vectors(B, shape.heads, T, shape.key_dim, 1) if q is None else q
    k = vectors(B, shape.kv_heads, S, shape.key_dim, 2) if k is None else k
    inputs = inputs_of(module, q, k, q_pos, k_pos, scale)._replace(softcap=softcap)
    inputs = inputs if x is None else inputs._replace(x=x)
    inputs = inputs if not streams else inputs._replace(streams=streams, own=own)
    value = materialise(module.at(inputs), q_pos.against(k_pos), shape.heads, q.dtype)
    value = q.new_zeros(1) if value is None else value  # a rule that changes nothing here
    return value.expand(B, shape.heads, T, S)


def pointwise_of(module: nn.Module, q_pos: Positions, k_pos: Positions, shape: Shape = SHAPE) -> Pointwise:
    (B, T), S = q_pos.shape, k_pos.shape[1]
    q, k = vectors(B, shape.heads, T, shape.key_dim, 1), vectors(B, shape.kv_heads, S, shape.key_dim, 2)
    bias = module.at(inputs_of(module, q, k, q_pos, k_pos))
    assert isinstance(bias, Pointwise)
    assert not isinstance(bias, Dense)
    return bias


def one_by_one(bias: Pointwise, pair: Pair, heads: int) -> Tensor:
    """The bias called as FlexAttention calls it: with single numbers, under vmap."""

    def read(pos: Positions, b: Tensor, i: Tensor) -> Place:
        return Place(pos.pos[b, i], pos.order[b, i], None if pos.segment is None else pos.segment[b, i], i)

    def at(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return bias(b, h, i, read(pair.q, b, i), read(pair.k, b, j))

    over: Callable[..., Tensor] = at
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        over = torch.vmap(over, in_dims=dims)
    (B, T), S = pair.q.shape, pair.k.shape[1]
    return over(torch.arange(B), torch.arange(heads), torch.arange(T), torch.arange(S))


def unread(pos: Tensor) -> Positions:
    """Positions of which the host knows nothing, as on an accelerator."""
    return Positions(pos, pos)


@st.composite
def positions(draw: st.DrawFn, max_width: int = 6, high: int = 200, batch: int = 2) -> Positions:
    """Rows of distinct positions in any arrangement, some places empty."""
    width = draw(st.integers(1, max_width))
    rows = []
    for _ in range(batch):
        row = draw(st.lists(st.integers(0, high), min_size=width, max_size=width, unique=True))
        gone = draw(st.lists(st.booleans(), min_size=width, max_size=width))
        rows.append([EMPTY if g else p for p, g in zip(row, gone, strict=True)])
    return Positions.of(torch.tensor(rows))


def moved(pos: Positions, by: int) -> Positions:
    """The same places further on."""
    return Positions.of(torch.where(pos.filled, pos.pos + by, EMPTY))


def permuted(pos: Positions, index: Tensor) -> Positions:
    """The same places, kept in another arrangement."""
    segment = None if pos.segment is None else pos.segment[:, index]
    return Positions.of(pos.pos[:, index], order=pos.order[:, index], segment=segment)


def check_gradients(module: nn.Module, call: Callable[[], Tensor]) -> None:
    """torch.autograd.gradcheck over all parameters of a module in float64. ``call`` makes its own positions."""
    names = [name for name, _ in module.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert values, "nothing to check"

    def run(*inputs: Tensor) -> Tensor:
        given = {f"part.{name}": value for name, value in zip(names, inputs, strict=True)}
        return torch.func.functional_call(_Call(module, call), given, ())

    assert torch.autograd.gradcheck(run, values)


class _Call(nn.Module):
    def __init__(self, part: nn.Module, call: Callable[[], Tensor]):
        super().__init__()
        self.part, self.call = part, call

    def forward(self) -> Tensor:
        return self.call()
