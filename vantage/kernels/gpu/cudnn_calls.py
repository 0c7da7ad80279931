"""Running cuDNN's graphs over tensors as they come."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.kernels.cudnn_operator import empty_gradients, empty_outputs
from vantage.kernels.gpu.cudnn_graphs import GraphOptions, execute, planned

# of each a row of offsets, where there are documents
OFFSETS = ("q", "k", "v", "o", "stats", "dq", "dk", "dv")


def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], options: list[int], scale: float
) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e) and log-sum-exp (B, H, T, 1). ``tensors``: sinks, offsets and lengths of documents."""
    how = GraphOptions(*options)
    out, stats = empty_outputs(q, v, documents=how.documents > 0)
    if how.empty:
        out.zero_()
    given = {"q": q, "k": k, "v": v, "o": out, "stats": stats}
    given |= _small(given, tensors)
    execute(planned("forward", given, how, scale), given)
    return out, stats


def attend_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    stats: Tensor,
    grad: Tensor,
    tensors: list[Tensor | None],
    options: list[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and sinks."""
    how = GraphOptions(*options)
    grads = dict(zip(("dq", "dk", "dv"), empty_gradients(q, k, v), strict=True))
    if how.empty:
        for x in grads.values():
            x.zero_()
    if grad.stride() != out.stride():  # offsets of documents are the output's, and plans are few
        grad = torch.empty_like(out).copy_(grad)
    given = {"q": q, "k": k, "v": v, "o": out, "dO": grad, "stats": stats, **grads}
    if how.documents:  # in strides cuDNN 9.19 gave wrong gradients of queries and keys: side by side, as theirs are
        given |= {name: torch.empty_like(given[f"d{name}"]).copy_(given[name]) for name in _strided(given)}
    given |= _small(given, tensors)
    if how.documents:
        given |= {f"{name}_offsets": given[f"d{name}_offsets"] for name in "qkv"}
    d_sinks = q.new_zeros(1, q.shape[1], 1, 1, dtype=torch.float32)
    if tensors[0] is not None:
        given["d_sinks"] = d_sinks
    execute(planned("backward", given, how, scale), given)
    return *grads.values(), d_sinks.flatten()  # pyright: ignore[reportReturnType] (three gradients)


def _strided(given: dict[str, Tensor]) -> list[str]:
    return [name for name in "qkv" if given[name].stride() != given[f"d{name}"].stride()]


def _small(given: dict[str, Tensor], tensors: list[Tensor | None]) -> dict[str, Tensor]:
    """What goes with them: sinks, where documents begin and how long they are."""
    sinks, offsets, lengths = tensors
    small = {}
    if sinks is not None:
        small["sinks"] = sinks.view(1, -1, 1, 1)
    if offsets is not None and lengths is not None:
        small |= {f"{name}_offsets": at for name, at in zip(OFFSETS, offsets, strict=True) if name in given}
        if "dO" in given:
            small["dO_offsets"] = small["o_offsets"]
        small["lengths"] = lengths
    return small
