"""Running cuDNN's graphs over tensors as they come."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vantage.kernels.cudnn_operator import empty_gradients, empty_outputs
from vantage.kernels.fused_operator import SLOPE
from vantage.kernels.gpu.cudnn_graphs import GraphOptions, Planned, execute, planned
from vantage.kernels.gpu.far import LOG2E

# of each a row of offsets, where there are documents
OFFSETS = ("q", "k", "v", "o", "stats", "dq", "dk", "dv")


class Launch(NamedTuple):
    """A plan, and what it reads in every call of a pass."""

    plan: Planned
    uids: tuple[int, ...]  # cuDNN's numbers of what a call is given, and of what all calls share
    shared: tuple[Tensor, ...]  # offsets and lengths of documents


class PassCalls:
    """cuDNN's calls over tensors of one layout in one pass. Plans are looked up when they first run: a GPU is done with
    a short row before a host that asks for everything again has launched the next."""

    def __init__(
        self,
        options: list[int],
        scale: float,
        offsets: Tensor | None = None,
        lengths: Tensor | None = None,
        key_blocks: Tensor | None = None,
        slopes: Tensor | None = None,
    ):
        """``key_blocks``: of rows or documents whose gradients a kernel of our own makes, since it is faster; with
        ``slopes`` (H,), if there are some."""
        self.how, self.scale, self.lengths, self.key_blocks = GraphOptions(*options), scale, lengths, key_blocks
        self.slopes = slopes
        self.offsets = {} if offsets is None else dict(zip(OFFSETS, offsets.unbind(), strict=True))
        self.launches: dict[str, Launch] = {}

    def run(self, way: str, given: dict[str, Tensor]) -> None:
        launch = self.launches.get(way)
        if launch is None:
            launch = self.launches[way] = self._prepared(way, given)
        execute(launch.plan, launch.uids, (*given.values(), *launch.shared))

    def _prepared(self, way: str, given: dict[str, Tensor]) -> Launch:
        shared = {} if self.lengths is None else {"lengths": self.lengths}
        shared |= {f"{name}_offsets": at for name, at in self.offsets.items() if name in given}
        if shared and way == "backward":
            shared["dO_offsets"] = shared["o_offsets"]
            shared |= {f"{name}_offsets": shared[f"d{name}_offsets"] for name in "qkv"}
        plan = planned(way, given | shared, self.how, self.scale)
        return Launch(plan, tuple(plan.uids[name] for name in (*given, *shared)), tuple(shared.values()))


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, calls: PassCalls) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e) and log-sum-exp (B, H, T, 1)."""
    out, stats = empty_outputs(q, v, documents=calls.how.documents > 0)
    if calls.how.empty:
        out.zero_()
    given = {"q": q, "k": k, "v": v, "o": out, "stats": stats}
    if sinks is not None:
        given["sinks"] = sinks.view(1, -1, 1, 1)
    calls.run("forward", given)
    return out, stats


def attend_back(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, out: Tensor, stats: Tensor, grad: Tensor, calls: PassCalls
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and sinks."""
    dq, dk, dv = grads = empty_gradients(q, k, v)
    if calls.how.empty:
        for x in grads:
            x.zero_()
    if grad.stride() != out.stride():  # offsets of documents are the output's, and plans are few
        grad = torch.empty_like(out).copy_(grad)
    if calls.key_blocks is not None:
        from vantage.kernels.gpu.hopper_rows import NO_BIAS, RowBias
        from vantage.kernels.gpu.hopper_rows_backward import row_gradients

        units, bias = (calls.scale * LOG2E, 1.0), NO_BIAS if calls.slopes is None else RowBias(SLOPE, calls.slopes)
        row_gradients(
            q, k, v, out, stats.squeeze(3), grad, (dq, dk, dv), calls.key_blocks, units, calls.scale, bias,
            window=calls.how.window,
        )  # fmt: skip
        return dq, dk, dv, None
    if calls.how.documents:  # in strides cuDNN 9.19 gave wrong gradients of queries and keys: so as theirs lie
        q, k, v = (
            x if x.stride() == dx.stride() else torch.empty_like(dx).copy_(x)
            for x, dx in zip((q, k, v), grads, strict=True)
        )
    given = {"q": q, "k": k, "v": v, "o": out, "dO": grad, "stats": stats, "dq": dq, "dk": dk, "dv": dv}
    d_sinks = None
    if sinks is not None:
        d_sinks = q.new_zeros(1, q.shape[1], 1, 1, dtype=torch.float32)
        given |= {"sinks": sinks.view(1, -1, 1, 1), "d_sinks": d_sinks}
    calls.run("backward", given)
    return dq, dk, dv, None if d_sinks is None else d_sinks.flatten()
