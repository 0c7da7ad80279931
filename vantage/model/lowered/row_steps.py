"""The steps of a lowered program for several rows on a GPU, whatever the rows are: requests, or tokens of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from vantage.kernels.gpu import gate_sums, head_vectors, packed, packed_rows, product
from vantage.kernels.gpu.score_bias import DeviceBias, device_bias
from vantage.kernels.gpu.value_bias import DeviceValues, device_values
from vantage.model.lowered.gpu_program import (
    ActivateStep,
    AddStep,
    AttendStep,
    GpuStep,
    LatentStep,
    LayerStep,
    LinearStep,
    NormStep,
    ScaleStep,
)
from vantage.spec.forms import GateSums, QueryForm
from vantage.spec.native import NormForm


def run_step(
    step: GpuStep,
    buffers: Sequence[Tensor],
    attend: Callable[[AttendStep | LatentStep], None],
    *,
    sums: packed_rows.RowSums | None = None,
    dependent: bool = False,
) -> None:
    """One step over buffers (rows, width). ``attend``: what an attention does, which knows where its rows stand.
    ``sums``: for weights in blocks, as ``sums_for`` makes them."""
    match step:
        case LinearStep():
            _linear(step, buffers, sums)
        case NormStep():
            product.norm(buffers[step.src], buffers[step.dst], **_norm(step.form), dependent=dependent)
        case ActivateStep():
            x, out = buffers[step.src], buffers[step.dst]
            product.activate(x, out, step.function, gated=step.gated, dependent=dependent)
        case AddStep():
            torch.add(buffers[step.a], buffers[step.b], out=buffers[step.dst])
        case ScaleStep():
            buffer = buffers[step.dst]
            if step.factor != 1.0:
                buffer.mul_(step.factor)
            if step.softcap is not None:
                buffer.copy_(step.softcap * torch.tanh(buffer / step.softcap))
        case AttendStep() | LatentStep():
            attend(step)
        case LayerStep():
            step.run()


def sums_for(steps: Iterable[GpuStep], rows: int, device: torch.device) -> packed_rows.RowSums | None:
    """Room for what programs leave to each other in products with weights in blocks."""
    weights = [step.weight for step in steps if isinstance(step, LinearStep)]
    blocks = [weight for weight in weights if not isinstance(weight, Tensor)]
    return packed_rows.RowSums.make(blocks, rows, device)


def _linear(step: LinearStep, buffers: Sequence[Tensor], sums: packed_rows.RowSums | None) -> None:
    x, out, weight = buffers[step.src], buffers[step.dst], step.weight
    if not isinstance(weight, Tensor):
        out = out[:, step.column : step.column + weight.outputs]
        if packed_rows.takes(weight, len(x)):
            packed_rows.multiply(x, weight, out, bias=step.bias, add=step.add, sums=sums)
            return
        weight = packed.unpacked(weight, x.dtype)  # its memory is the next one's
    if step.add:
        if step.bias is not None:
            out.add_(step.bias)
        torch.addmm(out, x, weight.T, out=out)
    elif step.bias is not None:
        torch.addmm(step.bias, x, weight.T, out=out)
    else:
        torch.mm(x, weight.T, out=out)


def head_options(step: AttendStep) -> dict[str, Any]:
    """What kernels want to know of a step's queries, keys and values."""
    s = step.shape
    return {
        "heads": s.heads,
        "kv_heads": s.kv_heads,
        "key_dim": s.key_dim,
        "value_dim": s.value_dim,
        "q_norm": _head_norm(step.q_norm),
        "k_norm": _head_norm(step.k_norm),
    }


def attention_options(step: AttendStep) -> dict[str, Any]:
    """What attention kernels want to know of a step, wherever its rows stand."""
    scores = step.scores
    return {
        **head_options(step),
        "scale": scores.scale,
        "softcap": scores.softcap,
        "window": scores.window,
        "sinks": scores.sinks,
    }


def bias_of(step: AttendStep | LatentStep, buffers: Sequence[Tensor], streams: Tensor) -> DeviceBias | None:
    """What the kernels read of a bias that is not made of the queries. ``streams``: (layers, STREAM) int64, where each
    layer's sums are, which may change from call to call."""
    form = step.scores.bias
    if isinstance(form, GateSums):
        assert isinstance(step, AttendStep)
        assert step.gates is not None
        return gate_sums.gate_bias(buffers[step.gates], streams[step.index])
    return None if form is None or isinstance(form, QueryForm) else device_bias(form, streams.device)


def values_of(step: AttendStep | LatentStep, device: torch.device) -> DeviceValues | None:
    form = step.scores.values
    return None if form is None else device_values(form, device)


def _norm(form: NormForm) -> dict[str, Any]:
    return {
        "gain": form.weight,
        "bias": form.bias,
        "eps": form.eps,
        "offset": form.offset,
        "centred": form.centred,
    }


def _head_norm(form: NormForm | None) -> head_vectors.HeadNorm | None:
    return None if form is None else head_norm(form)


def head_norm(form: NormForm) -> head_vectors.HeadNorm:
    return head_vectors.HeadNorm(form.weight, form.eps, form.offset)
