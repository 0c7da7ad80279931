"""Each score before the softmax, split exactly into what the tokens say and what their positions say.

A score is scale · q·k, capped, plus a bias. The position part of q·k is what changes when every transform that knows
positions is put at rest (position 0): for RoPE, the turned product less the one that is not turned, band by band.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.inspect.decomposition import Decomposition, Term
from vantage.inspect.recording import PlacedTransform, RecordedPass, at_rest, bands_of, recording
from vantage.inspect.select import Numbers, choose_sites, labels, numbers, read_source, read_tokens
from vantage.inspect.sites import Site, sites_of
from vantage.inspect.tiles import cut_need, pick
from vantage.kernels.reference import masked_scores
from vantage.model import Model
from vantage.spec.abilities import Bands, HasBands, effect_of
from vantage.spec.attention import QueriesAndKeys
from vantage.spec.parts import BiasInputs, materialise
from vantage.spec.positions import Pair, Positions

CELLS = 2**26  # of all parts and bands together


@torch.inference_mode()
def decompose(
    model: Model,
    text: Any,
    *,
    layer: int,
    heads: Numbers = None,
    queries: Numbers = None,
    kind: str | None = None,
    source: Any = None,
    bands: bool = True,
    beyond: bool = False,
) -> Decomposition:
    """The scores of one layer on a text, in parts that add up to them.

    ``heads`` and ``queries`` choose by number; ``kind`` is "self", "cross" or "encoder". ``bands=False`` leaves out
    the parts by frequency band, which take the most memory.
    """
    tokens = read_tokens(model, text, beyond=beyond)
    if len(tokens) != 1 or tokens.dim() != 2:
        raise BadInput(f"tokens of shape {tuple(tokens.shape)}: scores are taken apart for one row of tokens")
    site = _one_site(model, kind, layer)
    read = read_source(model, source)
    with recording([site]) as passes, _unrounded(model):
        model.hidden(tokens, source=read)
    decomposition = split_scores(passes[site.name], heads, queries, bands=bands)
    own_labels = labels(model, tokens[0].tolist())
    of_keys = own_labels if read is None or site.kind == "self" else labels(model, read[0].tolist())
    of_queries = of_keys if site.kind == "encoder" else own_labels
    return decomposition.named([of_queries[r] for r in decomposition.queries], of_keys)


@contextlib.contextmanager
def _unrounded(model: Model) -> Iterator[None]:
    """Keys in the model's own precision: parts add up to what they were made of."""
    kv_dtype = model.kv_dtype
    model.kv_dtype = None
    try:
        yield
    finally:
        model.kv_dtype = kv_dtype


@torch.inference_mode()
def split_scores(
    recorded: RecordedPass, heads: Numbers = None, queries: Numbers = None, *, bands: bool = True
) -> Decomposition:
    """The same for a site that has been recorded: no pass is run."""
    rows = numbers(queries, recorded.call.q.shape[2], "query")
    chosen = numbers(heads, recorded.site.heads, "head", f" in {recorded.site.name} attention")
    return _Splitter(recorded, torch.tensor(chosen), tuple(rows), bands).split()


def _one_site(model: Model, kind: str | None, layer: int) -> Site:
    sites = sites_of(model)
    kind = kind or "self"
    if type(layer) is not int:
        raise BadInput(f"layer={layer!r}: give the number of one layer")
    return choose_sites(sites, kind, layer)[0]


class _Dots(NamedTuple):
    """q·k of some queries, whole and by band."""

    whole: Tensor  # (H', t, S)
    bands: Tensor | None  # (n, H', t, S)


@final
@dataclass(eq=False)
class _Splitter:
    recorded: RecordedPass
    heads: Tensor
    rows: tuple[int, ...]
    want_bands: bool

    def split(self) -> Decomposition:
        recorded, need = self.recorded, self.recorded.call.need
        q_pos, k_pos = recorded.call.pair.q, recorded.call.pair.k
        self.bands: Bands | None = bands_of(recorded, q_pos) if self.want_bands else None
        self._check(len(k_pos.order[0]))
        raw = recorded.queries_and_keys()
        rest_q, rest_k = at_rest(q_pos), at_rest(k_pos)
        transforms = recorded.transforms
        plan = [(module, rest_q, rest_k) for _, module in transforms]
        before = self.dots(raw, plan)
        terms = self.content(raw, before, rest_q, rest_k)
        content, turned = before.bands, None
        for at, (config, module) in enumerate(transforms):
            effect = effect_of(config)
            if not effect.positional:
                continue
            plan[at] = (module, q_pos, k_pos)
            after = self.dots(raw, plan)
            terms.append(Term(effect.name, "position", after.whole - before.whole))
            if after.bands is not None and before.bands is not None and isinstance(module, HasBands):
                turned = after.bands - before.bands
                content = before.bands
            before = after
        if need.softcap is not None:
            capped = need.softcap * torch.tanh(before.whole / need.softcap)
            terms.append(Term("softcap", "neither", capped - before.whole))
        terms += self.biases(raw)
        score = self.score()
        seen = score > float("-inf")
        frequency = None if self.bands is None or turned is None else self.bands.frequency
        kept_bands = (content, turned) if frequency is not None else (None, None)
        heads = tuple(self.heads.tolist())
        return Decomposition(
            recorded.site.kind, recorded.site.layer, heads, self.rows, score, seen, terms, frequency, *kept_bands
        )

    def _check(self, keys: int) -> None:
        each = 4 + (0 if self.bands is None else 2 * len(self.bands.frequency))
        cells = each * len(self.heads) * len(self.rows) * keys
        if cells > CELLS:
            raise Refused(
                f"{len(self.heads)} heads and {len(self.rows):,} queries over {keys:,} keys make {cells:,} numbers, "
                f"more than {CELLS:,}: choose fewer heads= or queries=, or bands=False"
            )

    # ---- products

    def dots(self, raw: QueriesAndKeys, plan: list[PlacedTransform]) -> _Dots:
        return self.product(*self.recorded.transformed(raw, plan))

    def product(self, q_BHTd: Tensor, k_BGSd: Tensor) -> _Dots:
        """scale · q·k for the chosen heads and queries of the first row."""
        H, G = q_BHTd.shape[1], k_BGSd.shape[1]
        wide = torch.promote_types(q_BHTd.dtype, torch.float32)
        q = (q_BHTd[:1, self.heads][:, :, list(self.rows)] * self.recorded.call.need.scale).to(wide)
        k = k_BGSd[:1, self.heads * G // H].to(wide)
        whole = (q @ k.transpose(-1, -2))[0]
        if self.bands is None:
            return _Dots(whole, None)
        members = [(self.bands.of == b).nonzero().flatten() for b in range(len(self.bands.frequency))]
        return _Dots(whole, torch.stack([(q[..., m] @ k[..., m].transpose(-1, -2))[0] for m in members]))

    def content(self, raw: QueriesAndKeys, all_at_rest: _Dots, rest_q: Positions, rest_k: Positions) -> list[Term]:
        """What tokens say, with what the projections' biases and the query's own bias say apart from it."""
        recorded = self.recorded
        plain = [(module, rest_q, rest_k) for config, module in recorded.transforms if not effect_of(config).own_term]
        without = all_at_rest if len(plain) == len(recorded.transforms) else self.dots(raw, plain)
        terms = self.projections(raw, without, plain)
        if without is not all_at_rest:
            names = ", ".join(effect_of(c).name for c, _ in recorded.transforms if effect_of(c).own_term)
            terms.append(Term(names, "content", all_at_rest.whole - without.whole))
        return terms

    def projections(self, raw: QueriesAndKeys, whole: _Dots, plan: list[PlacedTransform]) -> list[Term]:
        if not self.recorded.biased or not all(effect_of(c).linear for c, _ in self.recorded.transforms):
            return [Term("content", "content", whole.whole)]
        none = self.recorded.queries_and_keys(torch.zeros_like(self.recorded.x[:1]))
        bias = self.recorded.transformed(none, plan)
        free = self.recorded.transformed(QueriesAndKeys(raw.q[:1] - none.q, raw.k[:1] - none.k), plan)
        pairs = (("query · key", free, free), ("query bias · key", bias, free), ("query · key bias", free, bias))
        terms = [Term(name, "content", self.product(of_q.q, of_k.k).whole) for name, of_q, of_k in pairs]
        rest = whole.whole - sum(term.value for term in terms)
        return [*terms, Term("query bias · key bias", "content", rest)]

    # ---- biases

    def biases(self, raw: QueriesAndKeys) -> list[Term]:
        """What is added to the scores: first what does not ask the query, then what does."""
        recorded = self.recorded
        if recorded.call.need.bias is None:
            return []
        whole = self.dense_bias(recorded.call.need.bias, cut=True)
        q_pos = pick(recorded.call.pair.q, self.rows)
        some = raw.q[:, :, list(self.rows)]
        q = recorded.call.q[:, :, list(self.rows)]
        call, rows = recorded.call, list(self.rows)
        silent = recorded.bias.at(
            BiasInputs(
                torch.zeros_like(some),
                torch.zeros_like(q),
                call.view.k,
                q_pos,
                call.pair.k,
                call.need.scale,
                torch.zeros_like(recorded.x[:, rows]),
                call.view.streams,
                tuple(stream[:, :, rows] for stream in call.view.own),
                call.need.softcap,
            )
        )
        alone = torch.zeros_like(whole) if silent is None else self.dense_bias(silent, cut=False)
        name = type(recorded.site.config.bias).__name__
        terms = [Term(f"bias {name}", "position", alone)] if bool((alone != 0).any()) else []
        by_query = whole - alone
        return [*terms, Term(f"query × {name}", "position", by_query)] if bool((by_query != 0).any()) else terms

    def dense_bias(self, bias: Any, *, cut: bool) -> Tensor:
        call = self.recorded.call
        pair = Pair(pick(call.pair.q, self.rows), call.pair.k)
        wide = torch.promote_types(call.q.dtype, torch.float32)
        if cut:
            index = torch.tensor(self.rows)
            bias = cut_need(call.need, self.heads, index, slice(None)).bias
            value = materialise(bias, pair, len(self.heads), wide)
        else:
            value = materialise(bias, pair, call.q.shape[1], wide)
            value = None if value is None else value[:, self.heads]
        assert value is not None
        return value[0].expand(len(self.heads), len(self.rows), call.view.k.shape[2])

    def score(self) -> Tensor:
        """What the normaliser got, from what the kernel was given."""
        call = self.recorded.call
        H, G = call.q.shape[1], call.view.k.shape[1]
        wide = torch.promote_types(call.q.dtype, torch.float32)
        q = call.q[:1, self.heads][:, :, list(self.rows)].to(wide)
        k = call.view.k[:1, self.heads * G // H].to(wide)
        need = cut_need(call.need, self.heads, torch.tensor(self.rows), slice(None))
        return masked_scores(q, k, Pair(pick(call.pair.q, self.rows), call.pair.k), need)[0]
