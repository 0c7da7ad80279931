"""What every attention module asks of a kernel, put together in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from vantage.attention.indexer import choice_of
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns, PositionParts
from vantage.spec.chosen import ChosenKeys
from vantage.spec.forms import (
    DistanceForm,
    GateSums,
    HasForm,
    HasGateSums,
    HasQueryForm,
    QueryForm,
    ValueTable,
    value_form_of,
)
from vantage.spec.indexing import Indexer, IndexerInputs
from vantage.spec.kept import StreamSource
from vantage.spec.masks import causal_window
from vantage.spec.model import BuildContext, Scores
from vantage.spec.native import CannotLower, ScoreForm, implements, no_native_form
from vantage.spec.normalisers import Normaliser, Softmax, needs_causal
from vantage.spec.parts import BiasInputs, Dense, Need, Pointwise, ScoreBias, Shape, View
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain


class MakesNormaliser(Protocol):
    """A module that makes the normaliser of a pass from what its queries are made of."""

    def __call__(self, x_BTD: Tensor) -> Normaliser: ...

    def operations(self, tokens: int) -> int: ...


class Scorer(nn.Module):
    """From queries and keys to a ``Need``. Holds the biases, the sinks and the indexer.

    ``rank``: of the small form that latent attention makes its queries of. ``normaliser``: makes one for each pass, in
    the place of that of the scores.
    """

    def __init__(
        self,
        scores: Scores,
        shape: Shape,
        context: BuildContext,
        rank: int | None = None,
        normaliser: MakesNormaliser | None = None,
    ):
        super().__init__()
        if context.indexer is not None and context.indexer.rank not in (None, rank):
            origin = "from x: rank=None" if rank is None else f"of rank {rank}"
            raise BadInput(f"an indexer of rank {context.indexer.rank} in a layer whose queries are made {origin}")
        if needs_causal(scores.normalise) and not context.mask.causal:
            raise Refused(f"{type(scores.normalise).__name__} needs causal attention: use another normaliser here")
        self.scores = scores
        self.scale = shape.key_dim**-0.5 if scores.scale is None else scores.scale
        self.mask = context.mask
        self.bias = context.bias
        self.value_bias = context.value_bias
        self.keeps = isinstance(context.bias, StreamSource)
        self.indexer, self.index = context.indexer, context.index
        self.indexer_streams = 0 if context.indexer is None else context.indexer.kept
        self.sinks = nn.Parameter(torch.zeros(shape.heads)) if scores.sinks else None
        self.normaliser: Any = normaliser

    def streams(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """What the indexer and the bias want kept of these tokens."""
        sources = (self.indexer if self.indexer_streams else None, self.bias if self.keeps else None)
        return tuple(x for source in sources if source is not None for x in cast(StreamSource, source).keep(x_BTD, pos))

    def need(
        self,
        q_raw: Tensor,
        q: Tensor,
        view: View,
        pos: Positions,
        x_BTD: Tensor,
        low: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Need:
        """``pos`` is where the queries stand, ``x`` what they were made of, ``low`` its small form if there is one,
        ``shift`` what ``q`` is more than ``q_raw``, where that is the same for all tokens."""
        n, softcap = self.indexer_streams, self.scores.softcap
        streams, own = view.streams[n:], view.own[n:]
        inputs = BiasInputs(q_raw, q, view.k, pos, view.pos, self.scale, x_BTD, streams, own, softcap, shift)
        heads = 1 if view.selected is None else view.selected.heads
        bias = self.bias.at(inputs) if heads == 1 else _bias_by_head(self.bias, inputs, heads)
        if self.indexer is not None:
            pair = pos.against(view.pos)
            given = IndexerInputs(x_BTD, low, view.streams[:n], pair, self.mask)
            columns = self.chosen(self.indexer, given)
            bias = bias if columns is None else ChosenKeys(columns, bias).bias(pair, q.shape[1], q.dtype)
        return Need(
            mask=self.mask,
            scale=self.scale,
            softcap=softcap,
            bias=bias,
            sinks=self.sinks,
            normalise=self.scores.normalise if self.normaliser is None else self.normaliser(x_BTD),
            dropout=self.scores.dropout if self.training else 0.0,
            value_bias=self.value_bias,
        )

    def chosen(self, indexer: Indexer, inputs: IndexerInputs) -> Tensor | None:
        """Held for the rest of the pass: later layers may follow."""
        return inputs.pair.once(choice_of(self.index), lambda: indexer.choose(inputs))

    def score_form(self) -> ScoreForm:
        """For the native kernels."""
        if self.indexer is not None:
            raise CannotLower("an indexer has no native form")
        window = causal_window(self.mask)
        if window is None:
            raise CannotLower(f"the mask {self.mask} has no native form")
        if self.normaliser is not None or self.scores.normalise != Softmax():
            raise CannotLower("only a plain softmax has a native form")
        form, values = self._bias_form(), self._value_form()
        # what a gate's numbers are made of is multiplied as it is, like other weights
        biases = [None if isinstance(form, GateSums) else self.bias, self.value_bias]
        learned = tuple(parameter for part in biases if isinstance(part, nn.Module) for parameter in part.parameters())
        return ScoreForm(self.scale, self.scores.softcap, window, form, self.sinks, learned, values)

    def _bias_form(self) -> DistanceForm | QueryForm | GateSums | None:
        if implements(self.bias, HasQueryForm):
            return cast(HasQueryForm, self.bias).query_form()
        if implements(self.bias, HasGateSums):
            return cast(HasGateSums, self.bias).gate_sums()
        form = cast(HasForm, self.bias).form() if implements(self.bias, HasForm) else self.bias
        if not (form is None or isinstance(form, DistanceForm)):
            raise no_native_form(self.bias)
        return form

    def _value_form(self) -> ValueTable | None:
        form = None if self.value_bias is None else value_form_of(self.value_bias)
        if form is None and self.value_bias is not None:
            raise no_native_form(self.value_bias)
        return form

    def operations(self, tokens: int) -> int:
        """Of what makes the normaliser."""
        return 0 if self.normaliser is None else self.normaliser.operations(tokens)

    def position_parts(self, qk: nn.ModuleList) -> PositionParts:
        transforms: list[Any] = list(qk)
        return PositionParts(transforms, self.bias, self.value_bias)


def keys_on_reading(transforms: Iterable[Any], k_BGSd: Tensor, view: View) -> Tensor:
    """Keys that are kept as they come, transformed for where they stand; heads of a cache may each keep their own."""
    heads = 1 if view.selected is None else view.selected.heads
    if heads == 1:
        return chain(transforms, "key", k_BGSd, view.pos)
    share = k_BGSd.shape[1] // heads
    each = (chain(transforms, "key", k_BGSd, view.pos.every(heads, head)) for head in range(heads))
    return torch.cat([k[:, head * share : (head + 1) * share] for head, k in enumerate(each)], 1)


def _bias_by_head(bias: ScoreBias, inputs: BiasInputs, heads: int) -> Pointwise | Dense | None:
    """For a cache whose key/value heads keep keys of their own: each asks at its own positions."""

    def of_head(head: int) -> Pointwise | Dense | None:
        k = inputs.k.unflatten(1, (heads, -1))[:, head].repeat(1, heads, 1, 1)
        return bias.at(inputs._replace(k=k, k_pos=inputs.k_pos.every(heads, head)))

    first = of_head(0)
    if not isinstance(first, Dense):  # a function of places, which are the kernel's to give
        return first
    each = [first, *(value for head in range(1, heads) if isinstance(value := of_head(head), Dense))]

    def of_queries(cut: slice) -> Tensor:
        own = [value.of_queries(cut).unflatten(1, (heads, -1))[:, head] for head, value in enumerate(each)]
        return torch.cat(own, 1)

    return Dense(of_queries)


class NoBias:
    """No score bias."""

    def at(self, inputs: BiasInputs) -> None:
        return None

    def form(self) -> None:
        return None


def head_outputs(shape: Shape) -> ActivationColumns:
    """What each head gives to the output map, ``out``."""
    return ActivationColumns("out", 0, shape.heads * shape.value_dim, shape.heads, given=True)


def merge_heads(x_BHTd: Tensor) -> Tensor:
    """(B, H, T, d) to (B, T, H·d)."""
    return x_BHTd.transpose(1, 2).flatten(2)
