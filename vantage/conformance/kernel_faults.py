"""What a kernel does instead of the formula: each likely mistake is put into the formula, and the one that gives what
the kernel gave is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from vantage.conformance.fault import Fault
from vantage.conformance.probe import gap
from vantage.conformance.trace import Attend
from vantage.kernels.reference import Reference, grouped_matmul, normalise
from vantage.spec.masks import And, Mask, Or, SameSegment, Window, dense, visible
from vantage.spec.normalisers import Normaliser, Softmax
from vantage.spec.parts import Pointwise, materialise
from vantage.spec.positions import Positions

LOW = (torch.bfloat16, torch.float16)


def formula(attend: Attend) -> Tensor:
    """What the kernel should have given."""
    return Reference()(attend.q, attend.view, attend.pair, replace(attend.need, dropout=0.0)).out


def filled(attend: Attend, out_BHTd: Tensor) -> Tensor:
    """The outputs of real tokens, (n, H, d): nobody sees what stands in padding."""
    return out_BHTd.transpose(1, 2)[attend.pair.q.filled]


@final
@dataclass
class Mistake:
    """The formula with something else in it. What is left out is as it should be."""

    scale: float | None = None
    seen: Tensor | None = None  # (R, 1, T, S)
    bias: Tensor | None = None
    no_bias: bool = False
    heads: tuple[bool, bool] = (False, False)  # keys, values: head h goes with h % G, not h // (H / G)
    low: tuple[torch.dtype, str] | None = None  # scores or weights are rounded to this
    softcap: bool = True
    sinks: bool = True
    normalise: Normaliser | None = None
    value_bias: bool = True

    def out(self, a: Attend) -> Tensor:
        wide = torch.promote_types(a.q.dtype, torch.float32)
        need, H = a.need, a.q.shape[1]
        q, k, v = a.q.to(wide), a.view.k.to(wide), a.view.v.to(wide)
        k, v = (_by_turns(x, H) if wrong else x for x, wrong in zip((k, v), self.heads, strict=True))
        scores = grouped_matmul(q, k.transpose(-1, -2)) * (need.scale if self.scale is None else self.scale)
        if need.softcap is not None and self.softcap:
            scores = need.softcap * torch.tanh(scores / need.softcap)
        bias = materialise(need.bias, a.pair, H, wide) if self.bias is None else self.bias
        scores = scores if bias is None or self.no_bias else scores + bias
        seen = dense(visible(need.mask, a.pair), a.pair) if self.seen is None else self.seen
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.low is not None and self.low[1] == "scores":
            scores = scores.to(self.low[0]).to(wide)
        sinks = need.sinks.to(wide) if need.sinks is not None and self.sinks else None
        weights, _ = normalise(scores, sinks, need.normalise if self.normalise is None else self.normalise, a.pair)
        if self.low is not None and self.low[1] == "weights":
            weights = weights.to(self.low[0]).to(wide)
        if self.low is not None and self.low[1] == "softmax":
            weights = scores.to(self.low[0]).softmax(-1).nan_to_num(0.0).to(wide)
        out = grouped_matmul(weights, v)
        if need.value_bias is not None and self.value_bias:
            out = out + need.value_bias.at(weights, a.pair.q, a.pair.k)
        return out.to(a.q.dtype)


def _by_turns(x_BGSd: Tensor, heads: int) -> Tensor:
    return x_BGSd.repeat(1, heads // x_BGSd.shape[1], 1, 1)


# ---- what may be wrong

Mistakes = dict[str, tuple[str, Callable[[], Mistake]]]  # by name: what to look at, and the formula with it


EMPTY_PLACES = "the mask: visible(need.mask, pair) leaves empty places out, and dense(…, pair) is its tensor"


def mistakes(a: Attend) -> Mistakes:
    """By name: what to look at, and the formula with that mistake."""
    need = a.need
    likely: Mistakes = {
        "the scale is applied twice": (
            f"need.scale: it is {need.scale:.3g} and multiplies the scores once",
            lambda: Mistake(scale=need.scale**2),
        ),
        "the scale is forgotten": (f"need.scale, which is {need.scale:.3g}", lambda: Mistake(scale=1.0)),
        "padding is attended": (
            EMPTY_PLACES,
            lambda: Mistake(seen=dense(need.mask, a.pair)),
        ),
        "padding is attended, as if it stood at 0": (
            EMPTY_PLACES,
            lambda: Mistake(seen=_padding_at_zero(a)),
        ),
        "the mask is ignored": ("need.mask", lambda: Mistake(seen=torch.ones_like(_seen(a)))),
        "the mask of the first row is used for all rows": (
            "the mask's first dimension, which is the row",
            lambda: Mistake(seen=_seen(a)[:1]),
        ),
        "the mask counts slots, not positions: a query's slot in this call is put for its position": (
            "is_causal, or an arange over the scores: with a cache the first query does not stand at 0",
            lambda: Mistake(seen=_by_slot(a, 0)),
        ),
        "the causal mask is off by one: a token sees the next one": (
            "<= in the mask",
            lambda: Mistake(seen=_later(a, 1)),
        ),
        "the causal mask is off by one: no token sees itself": (
            "< where <= is meant",
            lambda: Mistake(seen=_later(a, 0)),
        ),
    }
    return likely | _mistakes_of_heads(a) | _mistakes_of_windows(a) | _mistakes_of_options(a)


def _mistakes_of_heads(a: Attend) -> Mistakes:
    likely: Mistakes = {}
    if a.view.k.shape[1] not in (1, a.q.shape[1]):
        look = "repeat() where repeat_interleave() is meant: query head h uses key/value head h // (H / G)"
        for heads, what in (((True, True), "keys and values"), ((True, False), "keys"), ((False, True), "values")):
            likely[f"heads are grouped wrongly: {what} go round by turns"] = (
                look,
                lambda heads=heads: Mistake(heads=heads),
            )
    for dtype in LOW:
        word = str(dtype).removeprefix("torch.")
        for stage in ("softmax", "scores", "weights"):
            what = {
                "softmax": "the softmax is computed",
                "scores": "scores are rounded",
                "weights": "weights are rounded",
            }
            likely[f"{what[stage]} in low precision ({word})"] = (
                f"casts to {word}: scores and softmax belong in float32",
                lambda dtype=dtype, stage=stage: Mistake(low=(dtype, stage)),
            )
    return likely


def _mistakes_of_windows(a: Attend) -> Mistakes:
    need, kinds = a.need, _kinds(a.need.mask)
    likely: Mistakes = {}
    for n, off, word in ((n, off, word) for n in kinds["windows"] for off, word in ((1, "wide"), (-1, "narrow"))):
        if n + off > 0:
            likely[f"the window is one too {word}"] = (
                f"the window of {n}: a query sees {n} keys, itself included",
                lambda n=n, off=off: Mistake(
                    seen=_seen(a, need.mask, lambda m: Window(m.n + off) if m == Window(n) else m)
                ),
            )
    if kinds["documents"]:
        likely["documents of a row see each other"] = (
            "segment in the mask",
            lambda: Mistake(seen=_seen(a, _without_documents(need.mask))),
        )
    return likely


def _mistakes_of_options(a: Attend) -> Mistakes:
    need = a.need
    likely: Mistakes = {}
    if need.bias is not None:
        likely["the score bias is ignored"] = ("need.bias", lambda: Mistake(no_bias=True))
        likely["the score bias is added twice"] = ("need.bias", lambda: Mistake(bias=2 * _bias_value(a)))
    if isinstance(need.bias, Pointwise):
        likely["the score bias counts slots, not positions"] = (
            "the places that need.bias is called with",
            lambda: Mistake(bias=_bias_by_slot(a)),
        )
    if need.softcap is not None:
        likely["the softcap is ignored"] = ("need.softcap", lambda: Mistake(softcap=False))
    if need.sinks is not None:
        likely["the sinks are ignored"] = ("need.sinks", lambda: Mistake(sinks=False))
    if need.normalise != Softmax():
        likely["the normaliser is ignored: a plain softmax"] = ("need.normalise", lambda: Mistake(normalise=Softmax()))
    if need.value_bias is not None:
        likely["the value bias is ignored"] = ("need.value_bias", lambda: Mistake(value_bias=False))
    return likely


def name_kernel_fault(attend: Attend, where: str, relative: float, others: Sequence[Attend] = ()) -> Fault:
    """The mistakes that give what this kernel gave here, and in all other passes as well.

    ``relative`` is the tolerance, as a share of the output.
    """
    right, out = filled(attend, formula(attend)), filled(attend, attend.out)
    scale = max(float(right.abs().max()), 1e-6)
    shows = f"the kernel {attend.kernel.name!r} is {gap(out, right):.1e} off the formula (largest output {scale:.2g})"
    same = {
        name: look
        for name, (look, mistake) in mistakes(attend).items()
        if _gives(attend, mistake(), name, relative)
        and gap(filled(attend, mistake().out(attend)), right) > relative * scale
    }
    # one that gives it here may give something else elsewhere: only where none is left do all of them stand
    same = {name: look for name, look in same.items() if _everywhere(name, others, relative)} or same
    same = {name: look for name, look in same.items() if not any(name.startswith(f"{other},") for other in same)}
    if not same:
        if not bool(out.isfinite().all()):
            return Fault("the kernel gives what is not a number", where, shows, "rows with nothing to see: they give 0")
        name = "the kernel computes something else than the formula"
        return Fault(name, where, shows, "kernels/reference.py, step by step")
    also = "each of these gives" if len(same) > 1 else "this gives"
    return Fault(" or ".join(same), where, f"{shows}, and {also} the same", next(iter(same.values())))


def _everywhere(name: str, others: Sequence[Attend], relative: float) -> bool:
    for attend in others:
        likely = mistakes(attend)
        mistake = likely[name][1]() if name in likely else Mistake()
        if not _gives(attend, mistake, name, relative):
            return False
    return True


def _gives(attend: Attend, mistake: Mistake, name: str, relative: float) -> bool:
    """Whether this mistake gives what the kernel gave."""
    out, mistaken = filled(attend, attend.out), filled(attend, mistake.out(attend))
    scale = max(float(filled(attend, formula(attend)).abs().max()), 1e-6)
    return gap(mistaken, out) <= _precision(name, relative) * scale


def _precision(name: str, relative: float) -> float:
    return max(relative, 1e-4) if "low precision" in name else relative


# ---- masks that are wrong


def _seen(a: Attend, mask: Mask | None = None, change: Callable[[Any], Mask] | None = None) -> Tensor:
    mask = a.need.mask if mask is None else mask
    mask = mask if change is None else _changed(mask, change)
    return dense(visible(mask, a.pair), a.pair)


def _later(a: Attend, ahead: int) -> Tensor:
    """The mask with its causal edge moved: one further on, or back by one."""
    q, k = a.pair.places()
    return (_seen(a) & (k.order < q.order)) if ahead == 0 else (_seen(a) | (k.order == q.order + 1))


def _padding_at_zero(a: Attend) -> Tensor:
    q, k = a.pair.places()
    return a.need.mask(q, k._replace(order=k.order.clamp_min(0)))


def _by_slot(a: Attend, first: int) -> Tensor:
    T, S = a.q.shape[2], a.view.k.shape[2]
    device = a.q.device
    return (torch.arange(S, device=device) <= torch.arange(T, device=device)[:, None] + first)[None, None]


def _bias_value(a: Attend) -> Tensor:
    value = materialise(a.need.bias, a.pair, a.q.shape[1], torch.promote_types(a.q.dtype, torch.float32))
    assert value is not None
    return value


def _bias_by_slot(a: Attend) -> Tensor:
    B, H, T, _ = a.q.shape
    slots = Positions.arange(B, T, device=a.q.device).against(Positions.arange(B, a.view.k.shape[2], device=a.q.device))
    value = materialise(a.need.bias, slots, H, torch.promote_types(a.q.dtype, torch.float32))
    assert value is not None
    return value


def _changed(mask: Mask, change: Callable[[Any], Mask]) -> Mask:
    if isinstance(mask, And):
        return _changed(mask.a, change) & _changed(mask.b, change)
    if isinstance(mask, Or):
        return _changed(mask.a, change) | _changed(mask.b, change)
    return change(mask)


def _without_documents(mask: Mask) -> Mask:
    from vantage.spec.masks import Everything

    return _changed(mask, lambda m: Everything() if isinstance(m, SameSegment) else m)


def _kinds(mask: Mask) -> dict[str, Any]:
    windows: list[int] = []
    documents: list[Mask] = []

    def note(m: Mask) -> Mask:
        windows.extend([m.n] if isinstance(m, Window) else [])
        documents.extend([m] if isinstance(m, SameSegment) else [])
        return m

    _changed(mask, note)
    return {"windows": dict.fromkeys(windows), "documents": documents}
