"""The protocols: what a position encoding, a cache and a kernel must be to fit anywhere.

Configuration is frozen data with a ``build`` method; what it builds does the work. Dimension
letters: B batch, H query heads, G key/value heads, T queries, S keys, d head width, D model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.spec.dense import WHOLE
from vantage.spec.dense import Dense as Dense
from vantage.spec.images import ImageTokens
from vantage.spec.kept import StateCache
from vantage.spec.masks import Mask
from vantage.spec.normalisers import Normaliser, Softmax
from vantage.spec.positions import Pair, Place, Positions
from vantage.spec.selected import Selected

INIT_STD = 0.02  # of fresh weights and embeddings (GPT-2)


@dataclass(frozen=True)
class Shape:
    """What a part may need to know of the attention it is built into."""

    width: int  # D
    heads: int  # H
    kv_heads: int  # G
    key_dim: int  # width of a whole query or key head
    value_dim: int  # width of a value head
    rotary_dim: int  # width of what the q/k transforms see: key_dim, or MLA's decoupled share

    def __post_init__(self) -> None:
        for name in ("width", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)}: use 1 or more")


# ---- position


class InputPosition(Protocol):
    """Added to the embeddings: sinusoidal, learned, token types."""

    def __call__(self, x_BTD: Tensor, pos: Positions) -> Tensor: ...


class Pointwise(ABC):
    """A score bias as a function of one query and one key. Subclasses are frozen dataclasses (eq=False)."""

    @abstractmethod
    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        """The bias of row b, head h, the i-th query at place q, a key at place k. All broadcast."""

    def key(self) -> Any:
        """Biases with the same key are the same function: layers that share one build it once."""
        values = (getattr(self, f.name) for f in fields(self))  # pyright: ignore[reportArgumentType] (always a dataclass)
        return (type(self), *(id(v) if isinstance(v, Tensor) else v for v in values))


class BiasInputs(NamedTuple):
    """What a score bias may look at."""

    q_raw: Tensor  # (B, H, T, d), before the q/k transforms
    q: Tensor  # (B, H, T, d)
    k: Tensor  # (B, G, S, d)
    q_pos: Positions
    k_pos: Positions
    scale: float
    x: Tensor | None = None  # (B, T, D): the hidden state that the queries were made of
    streams: tuple[Tensor, ...] = ()  # what it keeps of each key: (B, heads, S, width)
    own: tuple[Tensor, ...] = ()  # the same of the queries' own tokens: (B, heads, T, width)
    softcap: float | None = None  # what caps a score before the bias is added
    shift: Tensor | None = None  # (H, d): q is q_raw and this, for every token; ``None``: nobody says so

    def of_queries(self, cut: slice) -> BiasInputs:
        """The same for some of the queries."""
        if cut == WHOLE:
            return self
        return self._replace(
            q_raw=self.q_raw[:, :, cut],
            q=self.q[:, :, cut],
            q_pos=self.q_pos.narrow(cut.start, cut.stop - cut.start),
            x=None if self.x is None else self.x[:, cut],
            own=tuple(stream[:, :, cut] for stream in self.own),
        )

    def dense(
        self,
        whole: Callable[[BiasInputs], Tensor],
        form: Callable[[], Any] | None = None,
        *,
        pairwise: bool = False,
    ) -> Dense:
        """A bias that is made of such inputs, for as many queries at once as a kernel wants."""
        return Dense(lambda cut: whole(self.of_queries(cut)), form, pairwise=pairwise)


class ScoreBias(Protocol):
    """Added to the scaled scores: ALiBi, T5, KERPLE, Shaw (pointwise); FIRE, CoPE (dense, with a form)."""

    def at(self, inputs: BiasInputs) -> Pointwise | Dense | None: ...


class OutputTransform(Protocol):
    """Acts between the kernel and the output map: a gate, a norm for each head."""

    def __call__(self, out_BHTe: Tensor, x_BTD: Tensor, pos: Positions) -> Tensor:
        """``x`` is the layer's input. A query that sees nothing comes in as 0."""
        ...


@runtime_checkable
class ReadsOwnValues(Protocol):
    """An output transform that is given the values of the queries' own tokens, in the place of the layer's input."""

    def with_values(self, out_BHTe: Tensor, v_BGTe: Tensor) -> Tensor: ...


class ValueBias(Protocol):
    """Added to the output, from the weights: Shaw's value term."""

    def at(self, weights_BHTS: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor: ...


class Sampler(Protocol):
    """Draws positions for a training batch (randomised positions)."""

    def draw(self, pos: Positions) -> Positions: ...


class Buildable(Protocol):
    """The frozen configuration of a part that is built once per layer, or once per model if ``shared``."""

    @property
    def shared(self) -> bool: ...
    def build(self, shape: Shape) -> nn.Module: ...


@dataclass(frozen=True)
class Parts:
    """Where a position encoding acts."""

    inputs: tuple[Buildable, ...] = ()
    qk: tuple[Buildable, ...] = ()
    bias: Buildable | None = None
    value_bias: Buildable | None = None
    sampler: Sampler | None = None
    unit: bool = False  # what is added to the embeddings has the size of one: they are brought to that as well


@runtime_checkable
class Encoding(Protocol):
    """What ``position=`` takes: something that knows where it acts."""

    def parts(self, *, causal: bool) -> Parts: ...


# ---- cache


class View(NamedTuple):
    """What there is to look at, and where each of it stands."""

    k: Tensor  # (B, G, S, d)
    v: Tensor  # (B, G, S, d_v)
    pos: Positions  # (B, S)
    streams: tuple[Tensor, ...] = ()  # what else is kept, (B, heads, S, width)
    own: tuple[Tensor, ...] = ()  # the same of the tokens of this pass alone
    selected: Selected | None = None  # of a cache that forgets
    widest: int | None = None  # where other processes have more keys: how many the one with most of them has

    @property
    def keys(self) -> int:
        """How many to reckon with: the same in all processes, so that they choose the same way to compute."""
        return self.k.shape[2] if self.widest is None else self.widest

    def unobserved(self) -> View:
        """For layers that read another's keys: what is forgotten goes by the weights of the layer that made them."""
        if self.selected is None or self.selected.observe is None:
            return self
        return self._replace(selected=replace(self.selected, observe=None))


class Cache(Protocol):
    """The keys and values of one attention layer, and its states if it has any."""

    late: bool  # keys are kept before the q/k transforms, which act on what is read

    @property
    def states(self) -> StateCache: ...

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        """Take in new keys and values; return all there is to look at, in any arrangement."""
        ...

    def view(self) -> View:
        """Look without appending (cross-attention after its first step)."""
        ...


# ---- kernel


@dataclass(frozen=True)
class Need:
    """All that is asked of a kernel besides q, k and v.

    The order of application is fixed: scale, softcap, bias, mask, sinks, normaliser,
    dropout, value bias. A row with nothing to see gives 0.
    """

    mask: Mask
    scale: float
    softcap: float | None = None
    bias: Pointwise | Dense | None = None
    sinks: Tensor | None = None  # (H,) or (B, H, T): a logit that takes weight and gives nothing
    normalise: Normaliser = field(default_factory=Softmax)  # an object here would stop torch 2.11's compiler
    dropout: float = 0.0
    value_bias: ValueBias | None = None
    weights: bool = False  # hand back the weights
    lse: bool = False  # hand back the log of the sum of exponentials

    @property
    def temperature(self) -> float | None:
        """Of the softmax; ``None``: weights are made of scores in another way."""
        return self.normalise.temperature if isinstance(self.normalise, Softmax) else None


class Attended(NamedTuple):
    """What a kernel returns."""

    out: Tensor  # (B, H, T, d_v)
    weights: Tensor | None = None  # (B, H, T, S), after the normaliser, before dropout
    lse: Tensor | None = None  # (B, H, T)


class Kernel(Protocol):
    """A way to compute attention."""

    name: str

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        """Why it cannot do this; ``None``: it can."""
        ...

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended: ...


@runtime_checkable
class AutoKernel(Kernel, Protocol):
    """A kernel that ``kernel="auto"`` may take."""

    def auto(self, device: str) -> bool:
        """Whether to try it on this kind of device ("cpu", "cuda", …) though nobody named it."""
        ...


# ---- what travels through a forward pass


class EncoderOutput(NamedTuple):
    """An encoder's output, for cross-attention."""

    hidden: Tensor  # (B, S, D)
    pos: Positions


@dataclass
class Context:
    """Everything a layer needs besides its input."""

    pos: Positions
    choose: Callable[[Need, Tensor, View], Kernel]
    caches: Sequence[Cache]  # one per layer
    cross: Sequence[Cache] = ()
    memory: EncoderOutput | None = None
    watch: Callable[[str, int, View, Need, Attended], None] | None = None  # sees every attention, weights included
    views: dict[int, View] = field(default_factory=dict)  # of this pass, of layers whose keys others read
    images: ImageTokens | None = None  # what stands at the tokens that are an image's
    values: dict[int, Tensor] = field(default_factory=dict)  # of these tokens, of layers whose values others mix in

    def standing(self, view: View) -> Positions:
        """Where the queries stand: where the pass has them, unless the cache numbers tokens anew."""
        return self.pos if view.selected is None or view.selected.queries is None else view.selected.queries

    def attend(self, site: str, index: int, q: Tensor, view: View, need: Need) -> Tensor:
        """Run the first kernel that can; show the result to whoever watches."""
        need = need if self.watch is None else replace(need, weights=True)
        if view.selected is None:
            attended = self.choose(need, q, view)(q, view, self.pos.against(view.pos), need)
        else:
            attended = self._attend_selected(q, view, need, view.selected)
        if self.watch is not None:
            self.watch(site, index, view, need, attended)
        return attended.out

    def _attend_selected(self, q: Tensor, view: View, need: Need, selected: Selected) -> Attended:
        """The same over the keys that a cache has not forgotten."""
        if self.watch is not None and selected.heads > 1:
            raise Refused("each head of this cache keeps keys of its own, so weights have no common columns to be seen")
        mask = need.mask if selected.mask is None else need.mask & selected.mask
        need = replace(need, mask=mask, weights=need.weights or selected.observe is not None)
        pos = self.standing(view)
        if selected.heads == 1:
            attended = self.choose(need, q, view)(q, view, pos.against(view.pos), need)
        else:
            attended = _attend_by_head(self.choose, q, view, pos, need, selected.heads)
        if selected.observe is not None:
            assert attended.weights is not None
            selected.observe(attended.weights)
        return attended


def _attend_by_head(
    choose: Callable[[Need, Tensor, View], Kernel], q: Tensor, view: View, pos: Positions, need: Need, heads: int
) -> Attended:
    """Key/value heads as rows of the batch: each looks at keys of its own."""
    B, H = q.shape[:2]

    def rows(x: Tensor) -> Tensor:
        return x.reshape(B * heads, -1, *x.shape[2:])

    bias, sinks = need.bias, need.sinks
    if isinstance(bias, Dense):
        whole = bias
        bias = Dense(lambda cut: rows(whole.of_queries(cut).expand(B, -1, -1, -1)))
    elif bias is not None:
        bias = HeadRows(bias, heads, H // heads)
    if sinks is not None:
        sinks = rows((sinks[None, :, None] if sinks.dim() == 1 else sinks).expand(B, H, q.shape[2]))
    need, q, view = replace(need, bias=bias, sinks=sinks), rows(q), view._replace(k=rows(view.k), v=rows(view.v))
    where = pos.once(("heads", heads), lambda: pos.repeat(heads))
    attended = choose(need, q, view)(q, view, where.against(view.pos), need)
    return Attended(*(None if x is None else x.reshape(B, H, *x.shape[2:]) for x in attended))  # pyright: ignore[reportArgumentType] (the first is never None)


@dataclass(frozen=True, eq=False)
class HeadRows(Pointwise):
    """A bias for rows that are the key/value heads of a batch, each with ``per`` query heads."""

    inner: Pointwise
    heads: int
    per: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.inner(b // self.heads, b % self.heads * self.per + h, i, q, k)

    def key(self) -> Any:
        return (HeadRows, self.inner.key(), self.heads, self.per)


def materialise(bias: Pointwise | Dense | None, pair: Pair, heads: int, dtype: torch.dtype) -> Tensor | None:
    """A bias as a tensor (R, H, T, S), built once for all layers that share it."""
    if bias is None:
        return None
    if isinstance(bias, Dense):
        return bias.value.to(dtype)

    def make() -> tuple[Tensor, Pointwise]:
        q, k = pair.places()
        device = q.pos.device
        b = torch.arange(pair.q.shape[0], device=device)[:, None, None, None]
        h = torch.arange(heads, device=device)[None, :, None, None]
        i = torch.arange(pair.q.shape[1], device=device)[None, None, :, None]
        k = k._replace(column=torch.arange(pair.k.shape[1], device=device)[None, None, None])
        # the bias itself rides along, so that the ids in its key stay taken
        return bias(b, h, i, q, k).to(dtype), bias

    if torch.compiler.is_compiling():  # a compiler sees for itself what is the same, and cannot ask for an id
        return make()[0]
    return pair.once(("bias", bias.key(), dtype), make)[0]
