"""torch's scaled_dot_product_attention: no mask where the facts allow it, ``is_causal`` where they allow that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vantage.kernels.alignment import is_aligned, side_by_side
from vantage.kernels.documents import gradients_on_hopper
from vantage.kernels.recurring import RecurringShapes
from vantage.spec.masks import Causal, Everything, Mask, SameSegment, conjuncts, dense, is_plain_causal, visible
from vantage.spec.normalisers import NOT_SOFTMAX
from vantage.spec.parts import Attended, Need, View, materialise
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, Refusal

CHEAP_MASK_SIZE = 2**23  # numbers of a mask or bias up to which forming them costs no more than to start another kernel
MANY_PAIRS = 2**27  # of all rows and heads, from which on looking at a mask or bias for each costs more than that
FUSED_FROM_QUERIES = 4_096  # queries from which on a GPU's attention without a plan is slower than the fused kernel
TILES_FROM_QUERIES = 64  # queries from which on a CPU's attention in tiles is the faster one
PLANNED = 512  # queries from which on a GPU's planned attention is worth its plan, if shapes come again
PAYS_AFTER = 1e14  # operations in which a plan of 50 ms is won back: 430 and 570 TFLOP/s, without and with
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # all but cuDNN's
_shapes = RecurringShapes(PAYS_AFTER)  # without gradients


class Sdpa:
    name = "sdpa"

    def auto(self, device: str) -> bool:
        return True

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if need.weights or need.lse:
            return "sdpa does not hand back weights or the log-sum-exp"
        if need.softcap is not None:
            return "sdpa has no softcap"
        if need.sinks is not None:
            return "sdpa has no sinks"
        if need.value_bias is not None:
            return "a value bias needs the weights, which sdpa does not form"
        if need.temperature is None:
            return f"sdpa has softmax alone, not {type(need.normalise).__name__}"
        return None

    def forms(self, need: Need, q: Tensor, view: View) -> int:
        B, H, T, _ = q.shape
        S = view.k.shape[2]
        known = view.pos.known
        rows = 1 if known.same_rows and view.pos.segment is None else B
        if T == 1:
            return 0  # one query: whatever is formed is no larger than the keys
        if q.device.type == "cpu" and (need.dropout or q.shape[-1] != view.v.shape[-1]):
            return B * H * T * S  # torch's attention in tiles has neither on a CPU, and writes the scores out
        if need.bias is not None:
            return rows * H * T * S
        if view.pos.segment is not None or known.first is None:
            return rows * T * S
        parts = {part for part in conjuncts(need.mask) if part not in (Everything(), SameSegment())}
        return 0 if not parts or (parts == {Causal()} and T == S) else rows * T * S

    def yields(self, need: Need, q: Tensor, view: View) -> bool:
        """To a kernel that forms nothing. On a CPU wherever tiles can run; on a GPU where a mask or bias would be
        large or looked at often, where torch has no plan for a long row, without which its attention is half as fast,
        and where it would make the gradients of grouped keys once for each query head."""
        if q.device.type == "cpu":
            return q.shape[-2] >= TILES_FROM_QUERIES
        if q.device.type != "cuda" or q.shape[-2] == 1:
            return False
        formed = self.forms(need, q, view)
        pairs = q.shape[0] * q.shape[1] * q.shape[2] * view.k.shape[2]
        if formed == 0 and grouped_gradients_elsewhere(need, q, view):
            return True
        if formed > CHEAP_MASK_SIZE or (formed and pairs >= MANY_PAIRS):
            return True
        return q.shape[-2] >= FUSED_FROM_QUERIES and q.element_size() == 2 and not plans_pay(q, view)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        assert need.temperature is not None
        q, k, v = (readable(x) for x in (q_BHTd, view.k, view.v))
        B, H, T, d = q.shape
        G = k.shape[1]
        mask = visible(need.mask, pair)
        if need.bias is None and T > 1 and is_plain_causal(mask, pair):
            attn_mask, causal = None, True  # written out: to the compiler the condition itself may be a symbol
        else:
            attn_mask, causal = self._mask(mask, pair, need, H, q.dtype), False
        scale, folded = need.scale / need.temperature, T == 1 and G != H
        if folded:  # one query: the heads that share a key become its rows, and keys are read once
            q = q.reshape(B, G, H // G, d)
            if attn_mask is not None and attn_mask.shape[1] != 1:
                attn_mask = attn_mask.reshape(attn_mask.shape[0], G, H // G, -1)
        if torch.compiler.is_compiling():
            unplanned = nullcontext() if may_plan_compiled(q) else sdpa_kernel(UNPLANNED)
        else:
            planned = may_plan(q) or (attn_mask is None and plans_pay(q, view))
            unplanned = nullcontext() if planned else without_cudnn()
        with unplanned:
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask,
                dropout_p=need.dropout,
                is_causal=causal,
                scale=scale,
                enable_gqa=not folded and G != H,
            )
        return Attended(out.reshape(B, H, T, -1))

    def _mask(self, mask: Mask, pair: Pair, need: Need, heads: int, dtype: torch.dtype) -> Tensor | None:
        assert need.temperature is not None
        shown = None if mask == Everything() else dense(mask, pair)
        bias = materialise(need.bias, pair, heads, dtype)
        if bias is None:
            return shown
        bias = bias if need.temperature == 1.0 else bias / need.temperature
        return bias if shown is None else bias.masked_fill(~shown, float("-inf"))


def grouped_gradients_elsewhere(need: Need, q: Tensor, view: View) -> bool:
    """Whether keys have several query heads and gradients, and a kernel of our own that takes half of the memory and no
    more time. It is launched from Python, so that rows must be long."""
    grouped = q.shape[1] != view.k.shape[1]
    return grouped and q.shape[2] >= FUSED_FROM_QUERIES and need.dropout == 0 and gradients_on_hopper(need, q, view)


def plans_pay(q: Tensor, view: View) -> bool:
    """Whether torch may choose cuDNN's attention. It is the fastest on a recent GPU, but makes a plan for every new
    shape: about 50 ms on an H200. A cache gives a new shape at every step, which made a step of 24 layers take 53 ms;
    so do prompts, and rows of sentences. What comes again as it was are long rows that are trained on, and others once
    they have come again.
    """
    if may_plan(q):
        return True
    if q.shape[-2] < PLANNED or torch.compiler.is_compiling():
        return False
    k, v = view.k, view.v
    operations = 2.0 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])
    return _shapes.planned((q.shape, k.shape, v.shape, q.dtype, q.device), view.pos, operations)


def readable(x: Tensor) -> Tensor:
    """A copy of what torch's attention on a GPU would read at addresses that are no multiples of 16 bytes. In 16 bits
    it takes them for granted, compiled or not, and ends in an error that no later call survives. Keys lie so where
    something of an odd width is projected beside them. Heads of an odd width it pads itself."""
    if x.element_size() != 2 or not on_gpu(x) or x.shape[-1] % 8:
        return x
    return x if is_aligned(x) else side_by_side(x)


def on_gpu(q: Tensor) -> bool:
    return q.device.type == "cuda"


def may_plan(q: Tensor) -> bool:
    """Whether there are no plans, or long rows are trained on."""
    return not on_gpu(q) or (torch.is_grad_enabled() and q.shape[-2] >= PLANNED)


def may_plan_compiled(q: Tensor) -> bool:
    """The same in compiled code, where shapes that come again cannot be counted: what is trained on and long rows."""
    return not on_gpu(q) or torch.is_grad_enabled() or q.shape[-2] >= PLANNED


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Without cuDNN's attention, unless the caller has left torch nothing else."""
    torch_cuda = torch.backends.cuda
    if not (torch_cuda.cudnn_sdp_enabled() and torch_cuda.flash_sdp_enabled()):
        yield
        return
    torch_cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch_cuda.enable_cudnn_sdp(True)


ENTRY = Entry(
    "sdpa",
    Sdpa,
    "torch's SDPA",
    "torch's scaled_dot_product_attention: the fastest there is for what it can do.",
    refusals=(
        Refusal({"attention": ("softcap",)}, "sdpa has no softcap"),
        Refusal({"attention": ("sinks",)}, "sdpa has no sinks"),
        Refusal(
            {"attention": NOT_SOFTMAX},
            "sdpa has softmax alone",
        ),
    ),
)
