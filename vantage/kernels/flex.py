"""torch's FlexAttention: masks and pointwise biases are fused into the kernel instead of built in memory."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, create_block_mask, flex_attention

from vantage.kernels.compiler_constants import constant_when_compiled
from vantage.kernels.sdpa import CHEAP_MASK_SIZE
from vantage.spec.masks import Everything, Mask, visible
from vantage.spec.normalisers import NOT_SOFTMAX
from vantage.spec.parts import Attended, Dense, Need, Pointwise, View
from vantage.spec.positions import Pair, Place, Positions
from vantage.spec.query_blocks import SeesStretches
from vantage.spec.registry import Entry, Refusal

LARGEST_MASK = 2**32  # pairs whose block mask torch may make: 4 GiB


class Flex:
    """``flex`` runs the unfused form, to check with; ``flex-compiled`` is the fast one."""

    def __init__(self, *, compiled: bool):
        self.name = "flex-compiled" if compiled else "flex"
        self.compiled = compiled

    def auto(self, device: str) -> bool:
        return self.compiled and device == "cuda"  # compiling takes half a minute on a CPU

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if need.weights:
            return "flex does not hand back weights"
        if need.value_bias is not None:
            return "a value bias needs the weights, which flex does not form"
        if need.temperature is None:
            return f"flex has softmax alone, not {type(need.normalise).__name__}"
        if need.dropout:
            return "flex has no dropout"
        if torch.is_grad_enabled() and (q.requires_grad or view.k.requires_grad):
            if q.device.type == "cpu":
                return "flex has no backward pass on a CPU"
            if not self.compiled:
                return "the unfused form of flex has no backward pass: use flex-compiled"
        if not self.compiled:
            return None
        if q.device.type == "cuda" and min(q.shape[-1], view.v.shape[-1]) < 16:
            return "compiled flex needs heads at least 16 wide on a GPU"
        if q.device.type == "cpu" and q.dtype == torch.float64:
            return "compiled flex has no float64 on a CPU"
        if q.device.type == "cpu" and (need.lse or need.sinks is not None):
            return "compiled flex does not give the log-sum-exp on a CPU, which sinks need too"
        if isinstance(need.bias, Dense) and self.forms(need, q, view) >= 2**31:
            return "compiled flex counts in 32 bits, and a dense bias of 2³¹ numbers or more is beyond that"
        if why := cannot_compile(q.device.type):
            return why
        return None

    def forms(self, need: Need, q: Tensor, view: View) -> int:
        """torch makes its block mask of a whole one."""
        if isinstance(need.bias, Dense):
            rows = 1 if view.pos.known.same_rows and view.pos.segment is None else q.shape[0]
            return need.bias.numbers(rows * q.shape[1] * q.shape[2] * view.k.shape[2])
        return 0 if need.mask == Everything() or q.shape[2] == 1 else q.shape[0] * q.shape[2] * view.k.shape[2]

    def most(self, need: Need) -> int:
        """A mask, one byte a pair and once for all layers, is worth its speed. A bias is not, nor is one that leaves a
        block of queries few keys to read."""
        return CHEAP_MASK_SIZE if isinstance(need.bias, Dense | SeesStretches) else LARGEST_MASK

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        assert need.temperature is not None
        mask = visible(need.mask, pair)
        block_mask = None if mask == Everything() else self._block_mask(mask, pair, need)
        run = _compiled() if self.compiled else _eager
        out, aux = run(
            q_BHTd,
            view.k,
            view.v,
            score_mod=_score_mod(need, pair),
            block_mask=block_mask,
            scale=need.scale,
            enable_gqa=q_BHTd.shape[1] != view.k.shape[1],
            return_aux=AuxRequest(lse=need.lse or need.sinks is not None),
        )
        lse = aux.lse
        if need.sinks is not None:  # a sink adds exp(sink) to the denominator and nothing to the sum
            assert lse is not None, "it was asked for"
            sinks = need.sinks.to(lse.dtype)
            sinks = (sinks[None, :, None] if sinks.dim() == 1 else sinks) / need.temperature
            out = out * torch.sigmoid(lse - sinks)[..., None].to(out.dtype)
            lse = torch.logaddexp(lse, sinks)
        return Attended(out, lse=lse if need.lse else None)  # uncompiled, it comes unasked

    def _block_mask(self, mask: Mask, pair: Pair, need: Need) -> BlockMask:
        def make() -> BlockMask:
            q_at, k_at = _reader(pair.q, pair.rows), _reader(pair.k, pair.rows)

            def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return mask(q_at(b, i), k_at(b, j))

            rows = None if pair.rows == 1 else pair.rows
            T, S = pair.q.shape[1], pair.k.shape[1]
            return create_block_mask(mask_mod, rows, None, T, S, device=pair.q.device)

        return pair.once(("block", mask), make)


def _score_mod(need: Need, pair: Pair) -> Callable[..., Tensor] | None:
    assert need.temperature is not None
    softcap, bias, temperature = need.softcap, need.bias, need.temperature
    if softcap is None and bias is None and temperature == 1.0:
        return None
    q_at, k_at = _reader(pair.q, pair.rows), _reader(pair.k, pair.rows)
    value = bias.value if isinstance(bias, Dense) else None  # now: while it traces a compiler cannot run all of it

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if value is not None:
            row = b if value.shape[0] > 1 else torch.zeros_like(b)
            score = score + value[row, h, i, j]
        elif isinstance(bias, Pointwise):
            score = score + bias(b, h, i, q_at(b, i), k_at(b, j))
        return score if temperature == 1.0 else score / temperature

    return score_mod


def _reader(pos: Positions, rows: int) -> Callable[[Tensor, Tensor], Place]:
    """Reads the place at (row, column): by arithmetic where places run on, by gathering where they do not."""
    first = pos.known.first
    if first is not None:
        return lambda b, i: Place(i + first, i + first, None, i)
    p, o, s = pos.pos, pos.order, pos.segment

    def read(b: Tensor, i: Tensor) -> Place:
        row = b if rows > 1 else torch.zeros_like(b)
        return Place(p[row, i], o[row, i], None if s is None else s[row, i], i)

    return read


def _eager(*args: Any, **options: Any) -> tuple[Tensor, AuxOutput]:
    """Without torch.compile at all: left to itself, flex would trace every new mask and bias."""
    before = flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        return flex_attention(*args, **options)
    finally:
        flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, AuxOutput]]:
    compiled = torch.compile(flex_attention)
    # A softcap or temperature that differs between two calls would become an input, which flex's lowering on a CPU
    # cannot take: every value is compiled for itself.
    patch = torch._dynamo.config.patch(specialize_float=True)

    def call(*args: Any, **options: Any) -> tuple[Tensor, AuxOutput]:
        with patch:
            return compiled(*args, **options)

    return call


@constant_when_compiled
def cannot_compile(device: str) -> str | None:
    """Why torch.compile cannot work on this machine; ``None``: it can. Triton, on a GPU, needs a compiler too."""
    return _cannot_compile(device)


@functools.cache
def _cannot_compile(device: str) -> str | None:
    compilers = ("c++", "g++", "clang++") if device == "cpu" else ("cc", "gcc", "clang")
    if not any(shutil.which(compiler) for compiler in compilers):
        return f"torch.compile needs a compiler ({', '.join(compilers)}) and this machine has none"
    return None


UNFUSED = Entry(
    "flex",
    Flex,
    "FlexAttention, unfused",
    "torch's FlexAttention without its compiler, to check with.",
    default=lambda number: Flex(compiled=False),
    refusals=(
        Refusal(
            {"attention": NOT_SOFTMAX},
            "flex has softmax alone",
        ),
    ),
)
COMPILED = Entry(
    "flex-compiled",
    Flex,
    "FlexAttention",
    "torch's FlexAttention, compiled: masks and biases inside one fused kernel.",
    default=lambda number: Flex(compiled=True),
    variants={},  # it takes half a minute to compile; tests of its own hold it to the reference
)
