"""RoPE (Su et al. 2021): pair k of a query or key at position t is turned by the angle t·w_k, w_k = base^(-2k/d).

Three independent choices: the frequency rule (``scaling``), which dimensions form a pair (``pairing``)
and how much of the head is turned (``share``). Values are never turned. No parameters.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vantage.errors import BadInput, LengthExceeded
from vantage.position.angles import angles, bound, cos_sin, highest, need_even, rows
from vantage.position.scaling import Default, Rule
from vantage.spec.abilities import Bands, Effect
from vantage.spec.native import HeadColumns, Program
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

PAIRINGS = ("halves", "adjacent")


@dataclass(frozen=True)
class Rope:
    """Pairing "halves": k with k + d/2 (LLaMA in the Hugging Face layout); "adjacent": 2k with 2k + 1 (the paper)."""

    base: float = field(
        default=10000.0,
        metadata=parameter("the slowest pair has a wavelength of 2π times this", 2.0, 1e9),
    )
    scaling: Rule | None = None
    pairing: str = field(default="halves", metadata=parameter("which dimensions form a pair", choices=PAIRINGS))
    share: float = field(  # the first share of the dimensions is turned, the rest passes through (GPT-NeoX)
        default=1.0, metadata=parameter("fraction of the head's dimensions that are rotated", 0.05, 1.0)
    )

    shared = True  # no annotation: not a field, and so below
    effect = Effect("rotation", linear=True)

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        if not 0 < self.base < math.inf:  # so written, it refuses nan
            raise BadInput(f"base={self.base}: use a positive number (the paper's is 10000)")
        if not 0.0 < self.share <= 1.0:
            raise BadInput(f"share={self.share}: the share of the head that is turned lies above 0 and up to 1")

    @property
    def rule(self) -> Rule:
        return Default() if self.scaling is None else self.scaling

    @property
    def original_length(self) -> int | None:
        return self.rule.original_length

    def describe(self) -> str:
        words = [f"RoPE, base {self.base:,.0f}"]
        words += [] if self.scaling is None else [_describe_rule(self.scaling)]
        words += [] if self.share == 1.0 else [f"on {self.share:g} of each head"]
        return ", ".join(words)

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return Rotation(self, shape.rotary_dim)


def _describe_rule(rule: Any) -> str:
    factors = [f" × {getattr(rule, f.name):g}" for f in fields(rule) if f.name == "factor"]
    return type(rule).__name__ + "".join(factors)


class Rotation(nn.Module):
    """Turns queries and keys alike."""

    def __init__(self, config: Rope, dim: int):
        super().__init__()
        self.config, self.dim = config, dim
        self.turned = int(dim * config.share)
        self._rates: dict[Any, tuple[Tensor, float]] = {}  # by length and device: the same for every step
        self._steps: tuple[Any, Any, Any] = (None, None, None)  # the last tables for single steps: which, of what
        need_even(self.turned, f"RoPE (share {config.share} of {dim})")

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(q_BHTd, pos)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(k_BGTd, pos)

    def query_and_key(self, q_BHTd: Tensor, k_BGTd: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        if not in_one_launch(q_BHTd, k_BGTd):
            return self.query(q_BHTd, pos), self.key(k_BGTd, pos)
        return rotate_both(q_BHTd, k_BGTd, *self.tables(pos, q_BHTd.dtype), self.config.pairing)

    def turn(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.turn_by(x_BHTd, *self.tables(pos, x_BHTd.dtype))

    def back(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        """Turned the other way; a rule's factor is applied once more."""
        cos, sin = self.tables(pos, x_BHTd.dtype)
        return self.turn_by(x_BHTd, cos, -sin)

    def turn_by(self, x_BHTd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """What ``tables`` gave, applied to the share of a head that turns."""
        return rotate(x_BHTd, cos, sin, self.config.pairing)

    def bands(self, pos: Positions) -> Bands:
        rule = self.config.rule
        length = context_length(pos) if rule.depends_on_length else None
        rate, _ = rule.frequencies(self.turned, self.config.base, length)
        return Bands(rate, banded(self.dim, self.turned, self.config.pairing))

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        for heads in (queries, keys):
            program.rotate(self, heads, self.turned, adjacent=self.config.pairing == "adjacent")

    def rates(self, pos: Positions) -> tuple[Tensor, float]:
        """The frequency of each pair in a context of these positions, and what cos and sin are multiplied by."""
        rule = self.config.rule
        length = context_length(pos) if rule.depends_on_length else None
        at = length, pos.device
        if at not in self._rates:
            with torch.inference_mode(False):  # they serve training as well
                self._rates[at] = rule.frequencies(self.turned, self.config.base, length, pos.device)
        return self._rates[at]

    def tables(self, pos: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, (R, 1, T, turned), made once for all layers of a forward pass."""

        def make() -> tuple[Tensor, Tensor]:
            freq, factor = self.rates(pos)
            if torch.compiler.is_compiling():
                return _opaque(rows(pos), freq, factor, self.config.pairing, dtype)
            first = pos.known.first
            if first is None or pos.shape[1] != 1:
                return turns(rows(pos), freq, factor, self.config.pairing, dtype)
            # a step: tables of a few positions in a row, of which the next steps take theirs
            block, of, tables = self._steps
            if block != (first // STEPS, dtype) or of is not freq:
                start = first - first % STEPS
                with torch.inference_mode(False):
                    ahead = torch.arange(start, start + STEPS, device=pos.device)[None]
                    tables = turns(ahead, freq, factor, self.config.pairing, dtype)
                self._steps = (first // STEPS, dtype), freq, tables
            cos, sin = tables
            return cos.narrow(2, first % STEPS, 1), sin.narrow(2, first % STEPS, 1)

        return pos.once((self.config, self.turned, dtype), make)


STEPS = 32  # positions in a row whose tables are made together, once steps come one by one


def turns(pos_RT: Tensor, freq_k: Tensor, factor: float, pairing: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin of every angle, (R, 1, T, 2k), where the pairing has them."""
    cos, sin = (x * factor for x in cos_sin(angles(pos_RT, freq_k)))
    return join(cos, cos, pairing).to(dtype), join(-sin, sin, pairing).to(dtype)


# A compiler sees through the tables: it would work out a float64 cosine anew for every element of every query and
# key, which took a quarter of a training step on an H200. This it cannot see into.
@torch.library.custom_op("vantage::turns", mutates_args=())
def _opaque(pos_RT: Tensor, freq_k: Tensor, factor: float, pairing: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return turns(pos_RT, freq_k, factor, pairing, dtype)


@_opaque.register_fake
def _(pos_RT: Tensor, freq_k: Tensor, factor: float, pairing: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cos = pos_RT.new_empty((len(pos_RT), 1, pos_RT.shape[1], 2 * len(freq_k)), dtype=dtype)
    return cos, torch.empty_like(cos)


def context_length(pos: Positions) -> int:
    """The declared length, or else what the host knows of the positions."""
    top = highest(pos)
    if pos.length is None:
        return bound(pos, "a RoPE rule that depends on the length") + 1
    if top is not None and top >= pos.length:
        raise LengthExceeded(
            f"position {top} lies past the declared length of {pos.length}, for which the frequencies were chosen: "
            "declare a longer length and compute from the start (a cache made for the old length cannot be kept)"
        )
    return pos.length


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x turned as far as the tables reach; the rest passes through. One roll and two fused passes: on a CPU faster than
    slicing and concatenating; compiled, slower. On a GPU one pass."""
    if _in_one_pass(x):
        turned: Tensor = _Turn.apply(x, cos, sin, pairing)
        return turned
    if (width := cos.shape[-1]) < x.shape[-1]:
        turning, still = x.split((width, x.shape[-1] - width), dim=-1)
        return torch.cat((rotate(turning, cos, sin, pairing), still), dim=-1)
    if pairing == "halves" and torch.compiler.is_compiling():
        turned = _Turn.apply(x, cos, sin, pairing)
        return turned
    return rotate_by(x, cos, sin, pairing)


def in_one_launch(q: Tensor, k: Tensor) -> bool:
    """Whether ``rotate_both`` can take both at once: on a GPU, outside of vmap and its like."""
    together = _in_one_pass(q) and _in_one_pass(k) and q.dtype == k.dtype
    return together and not torch._C._are_functorch_transforms_active()


def rotate_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """Queries and keys of the same tokens, turned alike."""
    turned: tuple[Tensor, Tensor] = _TurnBoth.apply(q, k, cos, sin, pairing)
    return turned


def _in_one_pass(x: Tensor) -> bool:
    """Whether a kernel of ours turns it; in float64 it would lose half the digits."""
    return x.is_cuda and x.element_size() <= 4 and not torch.compiler.is_compiling() and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def rotate_by(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The same for tables that are learned: gradients reach them however it is run."""
    if pairing == "halves":
        partner = x.roll(x.shape[-1] // 2, -1)
    else:
        partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, partner, sin)


# The gradients of q, k and v are joined into one tensor. A compiler draws a rotation that it can see into the kernel
# that joins them, which then took ten times as long as apart: an eighth of a training step on an H200.
class _Turn(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
        if torch.compiler.is_compiling():  # it is drawn into the kernel before
            return torch.addcmul(x * cos, torch.cat(x.chunk(2, -1)[::-1], -1), sin)
        return _turned(x, cos, sin, pairing)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.pairing = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _turned_back(grads[0], *ctx.saved_tensors, ctx.pairing), None, None, None


class _TurnBoth(torch.autograd.Function):
    """Queries and keys in one launch there and one back, without an operator around it: no compiler sees it."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> tuple[Tensor, ...]:
        from vantage.position.gpu.rope import turned  # what it needs is not everywhere

        return tuple(turned((q, k), cos, sin, pairing, back=False))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *_, cos, sin, ctx.pairing = inputs
        ctx.save_for_backward(cos, sin)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        from vantage.position.gpu.rope import turned

        (cos, sin), wanted = ctx.saved_tensors, [grad for grad in grads if grad is not None]
        back = iter(turned(wanted, cos, sin, ctx.pairing, back=True) if wanted else ())
        return *(None if grad is None else next(back) for grad in grads), None, None, None


def in_passes(grad: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The gradient of x from that of what was turned: turned the other way."""
    if pairing == "adjacent":
        return rotate_by(grad, cos, sin.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), pairing)
    turned = torch.mul(grad, cos, out=torch.empty_like(grad))
    (turned_a, turned_b), (a, b), (sin_a, sin_b) = turned.chunk(2, -1), grad.chunk(2, -1), sin.chunk(2, -1)
    turned_a.addcmul_(b, sin_b)
    turned_b.addcmul_(a, sin_a)
    return turned


def _part_by_part(turn: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor, str], Tensor]:
    """As far as the tables reach; the rest is copied."""

    def whole(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
        width = cos.shape[-1]
        turned = turn(x[..., :width], cos, sin, pairing)
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)

    return whole


_there, _back = _part_by_part(rotate_by), _part_by_part(in_passes)
_turned = torch.library.custom_op("vantage::turned", _there, mutates_args=())
_turned_back = torch.library.custom_op("vantage::turned_back", _back, mutates_args=())


@_turned.register_kernel("cuda")
def _there_on_gpu(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return _one_pass(x, cos, sin, pairing, back=False) if _kernel_does(x) else _there(x, cos, sin, pairing)


@_turned_back.register_kernel("cuda")
def _back_on_gpu(grad: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    return _one_pass(grad, cos, sin, pairing, back=True) if _kernel_does(grad) else _back(grad, cos, sin, pairing)


def _kernel_does(x: Tensor) -> bool:
    """It does not count the dimensions of many models at once."""
    return x.dim() == 4 and x.element_size() <= 4 and _has_triton()


def _one_pass(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, *, back: bool) -> Tensor:
    from vantage.position.gpu.rope import turned  # what it needs is not everywhere

    return turned((x,), cos, sin, pairing, back=back)[0]


def _rules(operator: Any) -> None:
    """What compilers and vmap ask of both."""

    @operator.register_fake
    def _(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
        return torch.empty_like(x)

    @operator.register_vmap
    def _(info: Any, dims: tuple[int | None, ...], x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Any:
        tensors = zip((x, cos, sin), dims, strict=False)
        x, cos, sin = (t if dim is None else t.movedim(dim, 0) for t, dim in tensors)
        return operator(x, cos, sin, pairing), 0


_rules(_turned)
_rules(_turned_back)


def join(first: Tensor, second: Tensor, pairing: str) -> Tensor:
    """The first and second members of all pairs (…, k), put where the pairing has them (…, 2k)."""
    if pairing == "halves":
        return torch.cat((first, second), dim=-1)
    return torch.stack((first, second), dim=-1).flatten(-2)


def banded(dim: int, turned: int, pairing: str) -> Tensor:
    """(dim,): which pair each dimension belongs to, -1 for those behind the turned ones."""
    pair = torch.arange(turned // 2)
    return torch.cat((join(pair, pair, pairing), torch.full((dim - turned,), -1)))


def permutation(dim: int, to: str = "halves") -> Tensor:
    """(dim,): the rows of a projection made for one pairing, in the order that the other wants (P8).

    ``weight.view(heads, dim, -1)[:, permutation(dim)]`` takes adjacent pairs to halves, ``to="adjacent"`` back.
    """
    need_even(dim, "a pairing")
    check_pairing(to)
    order = torch.arange(dim)
    return order.view(-1, 2).T.flatten() if to == "halves" else order.view(2, -1).T.flatten()


def ropes_among(parts: Iterable[object]) -> list[Rope]:
    """Those of some parts that are RoPE."""
    return [part for part in parts if isinstance(part, Rope)]


def check_pairing(pairing: str) -> None:
    if pairing not in PAIRINGS:
        raise BadInput(f"pairing={pairing!r}: use one of {', '.join(map(repr, PAIRINGS))}")


ENTRY = Entry(
    "rope",
    Rope,
    "RoPE",
    "Pairs of dimensions of queries and keys are turned by angles that grow with the position (Su et al. 2021).",
    variants={
        "rope": lambda size: Rope(),
        "rope-adjacent": lambda size: Rope(pairing="adjacent"),
        "rope-partial": lambda size: Rope(share=0.5),
    },
)
