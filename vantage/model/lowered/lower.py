"""From a model's modules to a program. What has no native form is refused by name, and the model runs as it is.

A module that can be lowered is one entry in ``EMIT``: a function that adds its steps and says in which buffer
its result stands. ``into`` asks for the result to be added to a buffer instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vantage.attention.grouped import GroupedQueryAttention
from vantage.attention.qk import QKNormed
from vantage.attention.scorer import NoBias
from vantage.kernels.native import Format, Kind, matrix
from vantage.model.block import Chain, Residual, Side
from vantage.model.ends import Unembed
from vantage.model.feed_forward import ACTIVATIONS, Gated, Plain
from vantage.model.lowered.program import Program, Site
from vantage.model.norms import OffsetRMSNormed, RMSNormed
from vantage.model.packed import PackedLinear
from vantage.position.alibi import AlibiSlopes
from vantage.position.rope import Rotation
from vantage.spec.masks import And, Causal, Mask, SameSegment, Window
from vantage.spec.parts import Softmax

LANES = 16
KINDS = {function: i for i, function in enumerate(ACTIVATIONS[name] for name in ("relu", "gelu", "gelu_tanh", "silu"))}


class CannotLower(Exception):
    """Why a model has no native form."""


def lower(blocks: nn.ModuleList, norm: nn.Module, width: int) -> Program:
    """Buffer 0 is the input, (rows, width); the last step leaves its result in the buffer "out"."""
    program = Program()
    x = program.buffer("x", width)
    for block in blocks:
        x = emit(program, block, x)
    final = emit(program, norm, x)
    program.names["out", 0] = final
    return program


def lower_head(head: nn.Module, width: int) -> Program:
    program = Program()
    x = program.buffer("x", width)
    program.names["out", 0] = emit(program, head, x)
    return program


def emit(program: Program, module: nn.Module, src: int, into: int | None = None) -> int:
    if type(module) not in EMIT:
        raise CannotLower(f"{type(module).__name__} has no native form")
    return EMIT[type(module)](program, module, src, into)


# ---- around sublayers


def _chain(p: Program, m: Chain, src: int, into: int | None) -> int:
    for step in m.steps:
        src = emit(p, step, src)
    return src


def _residual(p: Program, m: Residual, src: int, into: int | None) -> int:
    width = p.widths[src]
    normed = emit(p, m.before, src)
    kept = normed if m.normed else src
    if isinstance(m.after, nn.Identity) and isinstance(m.outer, nn.Identity) and kept == src:
        return emit(p, m.sublayer, normed, src)  # the sum is made in place
    out = emit(p, m.after, emit(p, m.sublayer, normed))
    if isinstance(m.outer, nn.Identity):
        p.emit(Kind.ADD, src, kept, out, n=[width])
        return src
    total = p.buffer("sum", width)
    p.emit(Kind.ADD, total, kept, out, n=[width])
    _norm(p, m.outer, total, src, width, 1, 0)
    return src


def _side(p: Program, m: Side, src: int, into: int | None) -> int:
    width = p.widths[src]
    normed = [p.buffer(f"normed {i}", width) for i in range(len(m.norms))]
    for norm, dst in zip(m.norms, normed, strict=True):
        _norm(p, norm, src, dst, width, 1, 0)
    for i, sublayer in enumerate(m.sublayers):
        emit(p, sublayer, normed[min(i, len(normed) - 1)], src)
    return src


# ---- norms

RMS, LAYER = 0, 1


def _identity(p: Program, m: nn.Identity, src: int, into: int | None) -> int:
    return src


def _norm(p: Program, m: nn.Module, src: int, dst: int, width: int, heads: int, column: int) -> None:
    if isinstance(m, nn.LayerNorm):
        kind, eps, offset, weight, bias = LAYER, m.eps, 0.0, m.weight, m.bias
    elif isinstance(m, (RMSNormed, OffsetRMSNormed)):
        kind, eps, offset, weight, bias = RMS, m.config.eps, m.config.offset, m.weight, None
    else:
        raise CannotLower(f"{type(m).__name__} has no native form")
    _need_float32(weight)
    p.emit(Kind.NORM, dst, src, n=[width, heads, kind, column, column], f=[eps, offset], p=[weight, bias])


def _whole_norm(p: Program, m: nn.Module, src: int, into: int | None) -> int:
    width = p.widths[src]
    dst = p.buffer("normed", width)
    _norm(p, m, src, dst, width, 1, 0)
    return dst


# ---- linear maps


def _linear(p: Program, m: nn.Linear, src: int, into: int | None, name: str = "linear") -> int:
    _need_float32(m.weight)
    p.dense = True
    data, shape, bias = p.hold(m.weight), m.weight.shape, m.bias
    if bias is not None:
        p.hold(bias)
    return _product(p, matrix(data, bias, Format.DENSE, shape), src, into, name)


def _packed(p: Program, m: PackedLinear, src: int, into: int | None, name: str = "linear") -> int:
    if m.weight.device.type != "cpu":
        raise CannotLower("its weights are not in host memory")
    p.hold(m.weight.data)
    if m.bias is not None:
        p.hold(m.bias)
    return _product(p, m.weight.matrix(m.bias), src, into, name)


def _product(p: Program, what: Any, src: int, into: int | None, name: str) -> int:
    dst = p.buffer(name, what.outputs) if into is None else into
    p.emit(Kind.LINEAR, dst, src, n=[into is not None], p=[what])
    return dst


def _map(p: Program, m: nn.Module, src: int, into: int | None, name: str) -> int:
    """A linear map into a buffer of its own name."""
    if isinstance(m, nn.Linear):
        return _linear(p, m, src, into, name)
    if isinstance(m, PackedLinear):
        return _packed(p, m, src, into, name)
    raise CannotLower(f"{type(m).__name__} has no native form")


# ---- feed-forward


def _gated(p: Program, m: Gated, src: int, into: int | None) -> int:
    return _feed_forward(p, m.act, m.gate_up, m.down, True, src, into)


def _plain(p: Program, m: Plain, src: int, into: int | None) -> int:
    return _feed_forward(p, m.act, m.up, m.down, False, src, into)


def _feed_forward(p: Program, act: Any, up: Any, down: Any, gated: bool, src: int, into: int | None) -> int:
    if act not in KINDS:
        raise CannotLower("this activation has no native form")
    wide = _map(p, up, src, None, "hidden")
    hidden = p.widths[wide] // (2 if gated else 1)
    if hidden % LANES:
        raise CannotLower(f"a hidden layer of {hidden} is no multiple of {LANES}")
    active = p.buffer("active", hidden)
    p.emit(Kind.ACTIVATE, active, wide, n=[hidden, KINDS[act], gated])
    return _map(p, down, active, into, "fed forward")


# ---- attention


def _attention(p: Program, m: GroupedQueryAttention, src: int, into: int | None) -> int:
    s, scorer = m.shape, m.scorer
    if s.key_dim % LANES or s.value_dim % LANES:
        raise CannotLower(f"heads of {s.key_dim} and {s.value_dim} are no multiples of {LANES}")
    if not isinstance(m.clip, nn.Identity) or scorer.value_bias is not None:
        raise CannotLower("clipped projections and value biases have no native form")
    if scorer.scores.normalise != Softmax():
        raise CannotLower("only a plain softmax has a native form")
    window, slopes = _window(scorer.mask), _slopes(scorer.bias)
    qkv = _map(p, m.qkv, src, None, "qkv")
    q, k, v = 0, m.widths[0], m.widths[0] + m.widths[1]
    for transform in m.qk:
        if isinstance(transform, Rotation):
            table = p.rotation(transform)
            for column, heads in ((q, s.heads), (k, s.kv_heads)):
                pairing = int(transform.config.pairing == "adjacent")
                p.emit(Kind.ROPE, qkv, n=[column, heads, s.key_dim, transform.turned, pairing, table])
        elif isinstance(transform, QKNormed):
            _norm(p, transform.q_norm, qkv, qkv, s.key_dim, s.heads, q)
            _norm(p, transform.k_norm, qkv, qkv, s.key_dim, s.kv_heads, k)
        else:
            raise CannotLower(f"{type(transform).__name__} has no native form")
    if m.index != len(p.sites):
        raise CannotLower("its layers do not stand in order")
    p.sites.append(Site(m.index, s, needs_run=slopes is not None))
    p.emit(Kind.APPEND, qkv, qkv, n=[k, v, m.index, m.index, s.kv_heads])
    attended = p.buffer("attended", s.heads * s.value_dim)
    numbers = [q, s.heads, s.kv_heads, m.index, m.index, window]
    factors = [scorer.scale, scorer.scores.softcap or 0.0]
    tensors = [None if slopes is None else p.numbers(slopes), scorer.sinks]
    for kind in (Kind.ATTEND, Kind.JOIN):
        p.emit(kind, attended, qkv, n=numbers, f=factors, p=tensors)
    return _map(p, m.out, attended, into, "out of attention")


def _window(mask: Mask) -> int:
    """0: all that came before."""
    parts = set(_flat(mask))
    windows = {part for part in parts if isinstance(part, Window)}
    if Causal() not in parts or parts - windows - {Causal(), SameSegment()}:
        raise CannotLower(f"the mask {mask} has no native form")
    return min((window.n for window in windows if isinstance(window, Window)), default=0)


def _flat(mask: Mask) -> Iterator[Mask]:
    if isinstance(mask, And):
        yield from _flat(mask.a)
        yield from _flat(mask.b)
    else:
        yield mask


def _slopes(bias: Any) -> tuple[float, ...] | None:
    if isinstance(bias, NoBias):
        return None
    if isinstance(bias, AlibiSlopes):
        return bias.slopes
    raise CannotLower(f"{type(bias).__name__} has no native form")


# ---- the head


def _unembed(p: Program, m: Unembed, src: int, into: int | None) -> int:
    logits = _map(p, m.linear, emit(p, m.transform, src), None, "logits")
    if m.config.scale != 1.0 or m.config.softcap is not None:
        p.emit(Kind.SCALE, logits, n=[p.widths[logits]], f=[m.config.scale, m.config.softcap or 0.0])
    return logits


def _need_float32(tensor: Tensor) -> None:
    if tensor.dtype is not torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise CannotLower(f"its weights are {tensor.dtype} on {tensor.device}: float32 in host memory is wanted")


Emitter = Callable[[Program, Any, int, int | None], int]
EMIT: dict[type[nn.Module], Emitter] = {
    Chain: _chain,
    Residual: _residual,
    Side: _side,
    nn.Identity: _identity,
    nn.LayerNorm: _whole_norm,
    RMSNormed: _whole_norm,
    OffsetRMSNormed: _whole_norm,
    Gated: _gated,
    Plain: _plain,
    GroupedQueryAttention: _attention,
    Unembed: _unembed,
}
