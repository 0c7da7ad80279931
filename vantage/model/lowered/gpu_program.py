"""A program for a GPU under construction: the same modules say the same steps as for a CPU, kept as data.

For a few rows, norms and activations become a part of the products beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vantage.model.feed_forward import ACTIVATIONS
from vantage.model.lowered.buffers import ProgramBuffers
from vantage.model.norms import norm_form
from vantage.model.packed import PackedLinear, gpu_reads
from vantage.spec.forms import GateSums, QueryCounts, QueryDistances, QueryForm
from vantage.spec.native import (
    AngleTables,
    CannotLower,
    HeadColumns,
    LatentForm,
    NormForm,
    ScoreForm,
    fewest_positions,
    no_native_form,
)
from vantage.spec.parts import Shape

if TYPE_CHECKING:
    from vantage.kernels.gpu.packed import DeviceBlocks

# The kernels know activations by these numbers.
FUNCTIONS = {ACTIVATIONS[name]: i for i, name in enumerate(("relu", "gelu", "gelu_tanh", "silu"))}
NO_FUNCTION = -1


@dataclass(frozen=True, eq=False)
class LinearStep:
    src: int
    dst: int
    weight: Tensor | DeviceBlocks
    bias: Tensor | None
    add: bool  # to what is in ``dst``
    column: int = 0  # of ``dst``, where its outputs begin
    norm: NormForm | None = None  # of ``src``, first
    input: ActivateStep | None = None  # what is made of ``src``, first; for weights in blocks
    function: int = NO_FUNCTION  # of the result, last
    gated: bool = False


@dataclass(frozen=True, eq=False)
class NormStep:
    src: int
    dst: int
    form: NormForm


@dataclass(frozen=True, eq=False)
class ActivateStep:
    src: int
    dst: int
    function: int
    gated: bool


@dataclass(frozen=True, eq=False)
class AddStep:
    dst: int
    a: int
    b: int


@dataclass(frozen=True, eq=False)
class ScaleStep:
    dst: int
    factor: float
    softcap: float | None


@dataclass(frozen=True, eq=False)
class Turn:
    """How queries and keys are rotated."""

    tables: AngleTables
    turned: int
    adjacent: bool
    key_tables: AngleTables | None = None  # where keys have tables of their own


@dataclass(frozen=True, eq=False)
class AttendStep:
    src: int
    dst: int
    index: int  # of the layer
    shape: Shape
    scores: ScoreForm
    turn: Turn | None
    q_norm: NormForm | None
    k_norm: NormForm | None
    q_shift: Tensor | None = None  # (heads, key_dim): what its queries have got beside what is projected
    gates: int | None = None  # the buffer of what goes into the gates that are summed up


@dataclass(frozen=True, eq=False)
class LatentStep:
    src: int  # latents and rotary keys
    queries: int
    dst: int
    index: int  # of the layer
    form: LatentForm
    norm: NormForm
    scores: ScoreForm
    turn: Turn | None


@dataclass(frozen=True, eq=False)
class LayerStep:
    """The weights of a layer that is kept off the device: they are waited for, or let go of."""

    run: Callable[[], None]
    src: int = -1  # no buffer
    dst: int = -1


GpuStep = LayerStep | LinearStep | NormStep | ActivateStep | AddStep | ScaleStep | AttendStep | LatentStep


@dataclass
class GpuProgram(ProgramBuffers):
    """Steps over buffers of the model's own type."""

    dtype: torch.dtype = torch.float32
    steps: list[GpuStep] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # read where they lie, so they must stay there
    learned: list[Tensor] = field(default_factory=list)  # what numbers of its steps were made of
    hidden: int = 0  # the buffer of what goes into the head
    body_steps: int = 0  # those before the head's
    max_positions: int | None = None  # that its rotations have
    # by the buffer and column of the heads, until they attend
    _turns: dict[tuple[int, int], Turn] = field(default_factory=dict)
    _norms: dict[tuple[int, int], NormForm] = field(default_factory=dict)
    _shifts: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def attentions(self) -> list[AttendStep | LatentStep]:
        return [step for step in self.steps if isinstance(step, (AttendStep, LatentStep))]

    @property
    def takes_chunks(self) -> bool:
        """Whether many tokens of a row may be a pass, not only those of a draft."""
        return self.why_no_chunks is None

    @property
    def why_no_chunks(self) -> str | None:
        if any(isinstance(step, LatentStep) for step in self.attentions):
            return "many queries meet latents sooner in the expanded form"
        if self.grows:
            return "tables of many queries for every distance would be as large as their scores"
        if any(isinstance(step.scores.bias, QueryCounts) for step in self.attentions):
            return "what a query counts before a key is known only behind all later keys"
        return None

    @property
    def grows(self) -> bool:
        """Whether a bias has a vector for every distance, so that a graph is made for a number of positions."""
        forms = (step.scores.bias for step in self.attentions)
        return any(isinstance(form, QueryDistances) and form.last is None for form in forms)

    @property
    def body(self) -> list[GpuStep]:
        """The steps before the head's."""
        return self.steps[: self.body_steps]

    @staticmethod
    def touched(step: GpuStep) -> tuple[int, ...]:
        """The buffers that a step reads or writes."""
        return () if isinstance(step, LayerStep) else (_writes(step), *_reads(step))

    def linear(self, module: nn.Module, src: int, into: int | None, name: str) -> int:
        if isinstance(module, PackedLinear):
            return self._packed(module, src, into, name)
        if not isinstance(module, nn.Linear):
            raise no_native_form(module)
        if module.weight.dtype is not self.dtype or not module.weight.is_contiguous():
            raise CannotLower(f"weights of {module.weight.dtype} in a model of {self.dtype}")
        dst = self.buffer(name, module.out_features) if into is None else into
        self._hold(module.weight, module.bias)
        self.steps.append(LinearStep(src, dst, module.weight, module.bias, into is not None))
        return dst

    def _packed(self, module: PackedLinear, src: int, into: int | None, name: str) -> int:
        weight, column = module.weight, 0
        if not gpu_reads(weight.formats):
            raise CannotLower("weights of 16 bits laid out for a CPU have no form on a GPU: load them with device=")
        dst = self.buffer(name, weight.outputs) if into is None else into
        for part in weight.parts:
            end = column + part.outputs
            bias = None if module.bias is None else module.bias[column:end]
            self._hold(part.data, module.bias)
            self.steps.append(LinearStep(src, dst, part.blocks(), bias, into is not None, column))
            column = end
        return dst

    def norm(self, module: nn.Module, src: int, dst: int) -> None:
        form = _form(module)
        self._hold(form.weight, form.bias)
        self.steps.append(NormStep(src, dst, form))

    def norm_heads(self, module: nn.Module, heads: HeadColumns) -> None:
        form = _form(module)
        at = heads.buffer, heads.column
        if form.centred or form.bias is not None or at in self._turns:
            raise CannotLower(f"{type(module).__name__} of single heads has no form on a GPU")
        self._hold(form.weight)
        self._norms[at] = form

    def rotate(self, tables: AngleTables, heads: HeadColumns, turned: int, *, adjacent: bool) -> None:
        at = heads.buffer, heads.column
        if at in self._turns:
            raise CannotLower("two rotations of one head have no form on a GPU")
        self._turns[at] = Turn(tables, turned, adjacent)
        self.max_positions = fewest_positions(self.max_positions, tables, self.dtype)

    def shift(self, offset: Tensor, heads: HeadColumns) -> None:
        """Where heads are projected: a bias of that product."""
        at = heads.buffer, heads.column
        if at in self._turns or at in self._norms or at in self._shifts:
            raise CannotLower("a vector that is added to heads after a norm or a rotation has no form on a GPU")
        self._shifts[at] = added = offset.detach()
        self.learned.append(offset)
        end = heads.column + added.numel()
        for i in range(len(self.steps) - 1, -1, -1):
            step = self.steps[i]
            if not isinstance(step, LinearStep) or step.dst != heads.buffer:
                break
            outputs = len(step.weight) if isinstance(step.weight, Tensor) else step.weight.outputs
            whole = added.new_zeros(outputs) if step.bias is None else step.bias.detach().clone()
            first, last = max(heads.column, step.column), min(end, step.column + outputs)
            if first < last:
                whole[first - step.column : last - step.column] += added.flatten()[
                    first - heads.column : last - heads.column
                ]
                self.learned += [] if step.bias is None else [step.bias]
                self.steps[i] = replace(step, bias=whole)

    def attend(self, qkv: int, index: int, shape: Shape, scores: ScoreForm, gates: int | None = None) -> int:
        if index != len(self.attentions):
            raise CannotLower("its layers do not stand in order")
        columns = (0, shape.heads * shape.key_dim)
        q_norm, k_norm = (self._norms.pop((qkv, column), None) for column in columns)
        q_shift, _ = (self._shifts.pop((qkv, column), None) for column in columns)
        turn = self._turn_of(*((qkv, column) for column in columns))
        if isinstance(scores.bias, QueryCounts) and not (turn is None and q_shift is None and scores.values is None):
            raise CannotLower("counts of keys with a rotation, a vector added to queries or one to values have no form")
        self._hold(scores.sinks)
        self.learned += scores.learned
        attended = self.buffer("attended", shape.heads * shape.value_dim)
        step = AttendStep(qkv, attended, index, shape, scores, turn, q_norm, k_norm, q_shift, gates)
        self.steps.append(step)
        return attended

    def attend_latent(self, q: int, kv: int, index: int, form: LatentForm, scores: ScoreForm) -> int:
        if index != len(self.attentions):
            raise CannotLower("its layers do not stand in order")
        sizes, norm = form.sizes, _form(form.norm)
        if isinstance(scores.bias, QueryForm) or scores.values is not None or self._shifts:
            raise CannotLower("a bias that is made of queries, or one of values, has no form for latents on a GPU")
        if norm.centred or norm.bias is not None or self._norms:
            raise CannotLower(f"{type(form.norm).__name__} of a latent, or norms of its heads, have no form on a GPU")
        if isinstance(scores.bias, GateSums):
            raise CannotLower("sums of gates beside latents have no form on a GPU")
        turn = self._turn_of((q, sizes.nope), (kv, sizes.rank))
        self._hold(scores.sinks, norm.weight, form.k_up, form.v_up)
        self.learned += scores.learned
        attended = self.buffer("attended", sizes.heads * sizes.values)
        self.steps.append(LatentStep(kv, q, attended, index, form, norm, scores, turn))
        return attended

    def _turn_of(self, queries: tuple[int, int], keys: tuple[int, int]) -> Turn | None:
        """The rotation that both have."""
        q_turn, k_turn = (self._turns.pop(at, None) for at in (queries, keys))
        if q_turn is None and k_turn is None:
            return None
        if q_turn is None or k_turn is None or (q_turn.turned, q_turn.adjacent) != (k_turn.turned, k_turn.adjacent):
            raise CannotLower("queries and keys that are turned by different pairs have no form on a GPU")
        return q_turn if q_turn.tables is k_turn.tables else replace(q_turn, key_tables=k_turn.tables)

    def activate(self, src: int, hidden: int, function: Any, *, gated: bool) -> int:
        if function not in FUNCTIONS:
            raise CannotLower("this activation has no native form")
        dst = self.buffer("active", hidden)
        self.steps.append(ActivateStep(src, dst, FUNCTIONS[function], gated))
        return dst

    def add(self, dst: int, a: int, b: int) -> None:
        self.steps.append(AddStep(dst, a, b))

    def scale(self, buffer: int, factor: float, softcap: float | None) -> None:
        self.steps.append(ScaleStep(buffer, factor, softcap))

    def _hold(self, *tensors: Tensor | None) -> None:
        self.tensors += [t for t in tensors if t is not None]

    # ---- fewer steps

    def joined(self) -> list[GpuStep]:
        """The same with norms and activations inside the products, where nobody else reads what they make."""
        steps = list(self.steps)
        for i, step in enumerate(self.steps):
            if isinstance(step, NormStep) and not step.form.centred and step.form.bias is None:
                for r in self._products_of(step, i, steps):
                    steps[r] = replace(steps[r], src=step.src, norm=step.form)
                    steps[i] = _NOTHING
            elif isinstance(step, ActivateStep):
                before = steps[i - 1]
                if not isinstance(before, LinearStep):
                    continue
                if not isinstance(before.weight, Tensor):
                    for r in self._products_of(step, i, steps, blocks=True):
                        steps[r] = replace(steps[r], src=step.src, input=step)
                        steps[i] = _NOTHING
                elif before.dst == step.src and not before.add and _readers(step.src, steps[i + 1 :], self.out) == []:
                    steps[i - 1] = replace(before, dst=step.dst, function=step.function, gated=step.gated)
                    steps[i] = _NOTHING
        return [step for step in steps if step is not _NOTHING]

    def _products_of(
        self, step: NormStep | ActivateStep, i: int, steps: Sequence[GpuStep], *, blocks: bool = False
    ) -> list[int]:
        """The products that read what this step makes, if they are all that do and could make it themselves."""
        rest = steps[i + 1 :]
        readers = _readers(step.dst, rest, self.out) or []
        products = [one for r in readers if isinstance(one := rest[r], LinearStep)]
        if len(products) < len(readers) or (blocks and any(isinstance(one.weight, Tensor) for one in products)):
            return []
        overwritten = any(_writes(other) == step.src for other in rest[: max(readers, default=0)])
        return [] if overwritten else [i + 1 + r for r in readers]


_NOTHING = AddStep(-1, 0, 0)


def _form(module: nn.Module) -> NormForm:
    if (form := norm_form(module)) is None:
        raise no_native_form(module)
    return form


def _writes(step: GpuStep) -> int:
    return step.dst


def _reads(step: GpuStep) -> tuple[int, ...]:
    if isinstance(step, AddStep):
        return step.a, step.b
    if isinstance(step, LatentStep):
        return step.src, step.queries
    if isinstance(step, AttendStep) and step.gates is not None:
        return step.src, step.gates
    if isinstance(step, ScaleStep) or (isinstance(step, LinearStep) and step.add):
        return (step.dst, *((step.src,) if isinstance(step, LinearStep) else ()))
    return (step.src,)


def _readers(buffer: int, steps: Sequence[GpuStep], out: int) -> list[int] | None:
    """Which of these steps read a buffer before another writes it; ``None``: it is read at the end."""
    readers = []
    for i, step in enumerate(steps):
        if buffer in _reads(step):
            readers.append(i)
        if _writes(step) == buffer:
            return readers
    return None if buffer == out else readers


def lower_for_gpu(model: Any) -> GpuProgram:
    """Buffer 0 is the embedded token, (rows, width); the last step leaves the logits in the buffer ``out``."""
    if model.dtype is torch.float64:
        raise CannotLower("it computes in float64, and a graph's logits are float32")
    program = GpuProgram(dtype=model.dtype)
    x = program.buffer("x", model.spec.width)
    for i, block in enumerate(model.blocks):
        off = i in model.placement.layers
        program.steps += [LayerStep(partial(model.placement.begin, i))] * off
        kept, known = {id(parameter) for parameter in block.parameters()}, len(program.learned)
        with model.placement.bound(i, block):
            x = program.lower(block, x)
        if any(id(tensor) not in kept for tensor in program.learned[known:]):  # its numbers come only with the layer
            raise CannotLower("a learned score bias of a layer that is kept off the device has no form on a GPU")
        program.steps += [LayerStep(partial(model.placement.end, i))] * off
    program.hidden = program.lower(model.norm, x)
    program.body_steps = len(program.steps)
    program.out = program.lower(model.head, program.hidden)
    return program
