"""Where two ways of running the same tokens part: the first module, and in an attention the first thing that differs.

One trace is the measure (whole rows, each alone, without a cache), the other is the way that went wrong. Tokens are
matched by their row and their place in it, keys by the order that the cache says they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from vantage.conformance.fault import Fault
from vantage.conformance.kernel_faults import filled, formula, name_kernel_fault
from vantage.conformance.probe import gap
from vantage.conformance.trace import DOCUMENT, Attend, PassTrace
from vantage.conformance.wrong_keys import KeySearch, name_wrong_keys
from vantage.model import Model
from vantage.model.part_errors import described
from vantage.spec.attention import attentions, position_parts
from vantage.spec.masks import dense, visible
from vantage.spec.parts import materialise

Token = tuple[int, int]  # row, place in the row


@final
@dataclass(frozen=True, eq=False)
class Query:
    """One token's attention: what it asked, of which keys, and what came out."""

    attend: Attend
    b: int
    t: int
    offset: int  # a key's order less this is its place in the token's row
    place: int

    @property
    def q(self) -> Tensor:
        return self.attend.q[self.b, :, self.t]

    @property
    def out(self) -> Tensor:
        return self.attend.out[self.b, :, self.t]

    def held(self) -> list[tuple[int, int]]:
        """(place in the row, slot) of all keys that there are."""
        order = self.attend.view.pos.order[self.b].tolist()
        return [(o - self.offset, slot) for slot, o in enumerate(order) if o >= 0]

    def seen(self) -> list[tuple[int, int]]:
        """Those that the mask shows."""
        pair = self.attend.pair
        shown = dense(visible(self.attend.need.mask, pair), pair)
        shown = shown[min(self.b, len(shown) - 1), 0].expand(pair.q.shape[1], pair.k.shape[1])[self.t].tolist()
        return [(place, slot) for place, slot in self.held() if shown[slot]]

    def bias(self) -> Tensor | None:
        """(H, S)"""
        a = self.attend
        value = materialise(a.need.bias, a.pair, a.q.shape[1], torch.promote_types(a.q.dtype, torch.float32))
        if value is None:
            return None
        value = value[min(self.b, len(value) - 1)]
        return value.expand(a.q.shape[1], a.q.shape[2], a.view.k.shape[2])[:, self.t]


@final
@dataclass(frozen=True, eq=False)
class Runs:
    """The measure and the way that went wrong, of one model."""

    model: Model
    mode: str  # "cached steps"
    right: Sequence[PassTrace]
    wrong: Sequence[PassTrace]
    relative: float
    cached: bool
    taken_back: bool = False

    # ---- modules

    def explain(self) -> Fault | None:
        """The fault by name; ``None``: nothing inside differs."""
        right, wrong = _by_module(self.right), _by_module(self.wrong)
        for name in wrong:
            if name not in right or not self._begins_at(right[name], wrong[name]):
                continue
            module = self.model.get_submodule(name[0])
            if attentions(module) and (fault := self._attention(_layer_of(name[0]), module)) is not None:
                return fault
            return self._module(name[0], module, right[name], wrong[name])
        return None

    def first_module(self) -> str | None:
        """The first module that gives something else for the same input, in words."""
        right, wrong = _by_module(self.right), _by_module(self.wrong)
        for name in wrong:
            if name in right and self._begins_at(right[name], wrong[name]):
                module = self.model.get_submodule(name[0])
                return f"{name[0]}: {described(self.model, module) or type(module).__name__}"
        return None

    def _begins_at(self, right: _Calls, wrong: _Calls) -> bool:
        """Whether the same goes in and something else comes out."""
        return self._differ(right.outputs, wrong.outputs) and not self._differ(right.inputs, wrong.inputs)

    def _differ(self, right: dict[Token, Tensor], wrong: dict[Token, Tensor]) -> bool:
        tokens = right.keys() & wrong.keys()
        scale = max((float(right[t].nan_to_num().abs().max()) for t in tokens), default=0.0)
        return any(gap(right[t], wrong[t]) > self.relative * max(scale, 1e-6) for t in tokens)

    def _module(self, name: str, module: nn.Module, right: _Calls, wrong: _Calls) -> Fault:
        tokens = sorted(right.outputs.keys() & wrong.outputs.keys(), key=lambda t: t[::-1])
        errors = {t: gap(right.outputs[t], wrong.outputs[t]) for t in tokens}
        scale = max(float(right.outputs[t].nan_to_num().abs().max()) for t in tokens)
        (row, place), error = next((t, e) for t, e in errors.items() if e > self.relative * max(scale, 1e-6))
        who = described(self.model, module) or f"{type(module).__name__} ({name})"
        shows = f"given the same input, it is {error:.1e} off at {_in_words((row, place))}"
        return Fault(f"{who} computes something else", f"{name}, in {self.mode}", shows, "its forward()")

    # ---- attention

    def _attention(self, layer: int, module: Any) -> Fault | None:
        right, wrong = self._queries(self.right, layer), self._queries(self.wrong, layer)
        if not right or not wrong:
            return None
        scale = max(float(query.out.nan_to_num().abs().max()) for query in right.values())
        tokens = sorted(right.keys() & wrong.keys(), key=lambda t: t[::-1])
        differing = [t for t in tokens if gap(right[t].out, wrong[t].out) > self.relative * max(scale, 1e-6)]
        return self._ingredients(layer, differing, right, wrong) if differing else None

    def _ingredients(
        self, layer: int, differing: list[Token], right: dict[Token, Query], wrong: dict[Token, Query]
    ) -> Fault:
        token, last = differing[0], differing[-1]
        r, w = right[token], wrong[token]
        where = f"layer {layer}, {_in_words(token)}, in {self.mode}"
        keys = KeySearch(self.model, layer, where, {t: _key(q) for t, q in right.items()}, self._inputs(layer))
        for fault in (
            self._keys_held(r, w, where),
            self._keys_shown(layer, r, w, where),
            self._wrong_keys(keys, last, right[last], wrong[last]),
            self._query(keys, layer, token, r, w, where),
            self._bias(layer, r, w, where),
            self._scale(r, w, where),
        ):
            if fault is not None:
                return fault
        return name_kernel_fault(w.attend, where, self.relative)

    def _wrong_keys(self, keys: KeySearch, token: Token, r: Query, w: Query) -> Fault | None:
        fault = name_wrong_keys(keys, token, *self._pairs(r, w), self.cached, self.relative)
        if fault is None or not self.taken_back:
            return fault
        # without going back all was right: what is wrong now was left behind
        look = "crop(): what was taken back must be written again, and no longer be shown"
        return Fault("crop keeps entries that were taken back", fault.where, fault.shows, look)

    def _keys_held(self, r: Query, w: Query, where: str) -> Fault | None:
        """Entries that the cache has lost, or has twice."""
        wanted, held = sorted(place for place, _ in r.seen()), sorted(place for place, _ in w.held())
        lost = [place for place in wanted if place not in held]
        twice = sorted({place for place in held if held.count(place) > 1})
        reach = w.attend.need.mask.reach()
        if lost:
            shows = f"positions {_spans(wanted)} are to be seen and {_spans(held)} are there: {_spans(lost)} lost"
            if reach is not None and lost == [r.place - reach + 1]:
                name = "the cache overwrites the oldest entry of the window one token early"
                return Fault(
                    name, where, shows, f"its size: a window of {reach} keeps {reach} tokens, the new one included"
                )
            return Fault("the cache loses entries", where, shows, "where it puts new entries, and which it drops")
        if twice:
            shows = f"of positions {_spans(twice)} there are two entries"
            if self.taken_back:
                return Fault(
                    "crop keeps entries that were taken back", where, shows, "crop(): they must no longer be shown"
                )
            return Fault("the cache holds entries twice", where, shows, "where it puts new entries")
        return None

    def _keys_shown(self, layer: int, r: Query, w: Query, where: str) -> Fault | None:
        """The keys are there, and the mask shows others."""
        wanted, shown = sorted(place for place, _ in r.seen()), sorted(place for place, _ in w.seen())
        if wanted == shown:
            return None
        length = max((t.place for t in (r, w)), default=0) + 1
        foreign = [place for place in shown if not 0 <= place < max(length, max(wanted) + 1)]
        shows = f"it sees positions {_spans(shown)} where a full pass sees {_spans(wanted)}"
        if foreign:
            return Fault("documents of a row see each other", where, shows, "segment in the mask")
        slots = sorted(slot for slot, _ in enumerate(w.attend.view.pos.order[w.b].tolist()) if slot <= w.t)
        if [slot for _, slot in w.seen()] == slots:
            name = "the mask counts slots, not positions"
            return Fault(name, where, shows, "__call__() of the mask: compare q.order with k.order")
        return Fault("the mask shows other keys", where, shows, "__call__() and simplified() of the mask")

    def _query(self, keys: KeySearch, layer: int, token: Token, r: Query, w: Query, where: str) -> Fault | None:
        scale = float(r.q.abs().max())
        if (error := gap(r.q, w.q)) <= self.relative * max(scale, 1e-6):
            return None
        at = keys.place_of(token, w.q, "query", self.relative)
        shows = f"the query is {error:.1e} off"
        if at is not None:
            name = f"queries of {self.mode} are encoded at a wrong position"
            return Fault(
                name,
                where,
                f"{shows}; it is encoded at position {at}, not {token[1]}{_slot(at, w.t)}",
                "query() of the q/k transforms",
            )
        factor = float((w.q * r.q).sum() / (r.q * r.q).sum())
        if gap(factor * r.q, w.q) <= self.relative * max(scale, 1e-6):
            name = f"queries of {self.mode} are scaled by {factor:.3g}"
            return Fault(name, where, shows, "a scale that is applied twice, or on one path only")
        return Fault(f"queries of {self.mode} differ", where, shows, "query() of the q/k transforms")

    def _bias(self, layer: int, r: Query, w: Query, where: str) -> Fault | None:
        right, wrong = r.bias(), w.bias()
        if right is None or wrong is None:
            return None
        theirs = {place: right[:, slot] for place, slot in r.seen()}
        pairs = [(theirs[place], wrong[:, slot]) for place, slot in w.seen() if place in theirs]
        scale = max((float(a.abs().max()) for a, _ in pairs), default=0.0)
        error = max((gap(a, b) for a, b in pairs), default=0.0)
        if error <= self.relative * max(scale, 1e-6):
            return None
        by_slot = self._row_of_bias(r, w)
        look = "at(), and the function it returns: they must go by q.pos and k.pos, never by i or an arange"
        where = f"{where}: {self._bias_part(layer)}"
        if by_slot:
            shows = f"it is {error:.1e} off, and that of slot {w.t} of the call, where the token stands at {r.place}"
            return Fault("the score bias counts slots, not positions", where, shows, look)
        return Fault(f"the score bias of {self.mode} differs", where, f"it is {error:.1e} off", look)

    def _row_of_bias(self, r: Query, w: Query) -> bool:
        """Whether the bias is that of a plain row at the slots of this call."""
        a = r.attend
        value = materialise(a.need.bias, a.pair, a.q.shape[1], torch.promote_types(a.q.dtype, torch.float32))
        wrong = w.bias()
        if value is None or wrong is None:
            return False
        value = value[min(r.b, len(value) - 1)].expand(a.q.shape[1], a.q.shape[2], a.view.k.shape[2])
        n = min(value.shape[1], wrong.shape[1])
        if w.t >= value.shape[1]:
            return False
        return gap(value[:, w.t, :n], wrong[:, :n]) <= self.relative * max(float(value.nan_to_num().abs().max()), 1e-6)

    def _bias_part(self, layer: int) -> str:
        for attention in attentions(self.model.blocks[layer]):
            if (parts := position_parts(attention)) is not None:
                bias = parts.bias
                return (described(self.model, bias) or type(bias).__name__).removeprefix("the score bias ")
        return "the score bias"

    def _scale(self, r: Query, w: Query, where: str) -> Fault | None:
        ours, theirs = w.attend.need, r.attend.need
        if ours.scale != theirs.scale:
            shows = f"scores are multiplied by {ours.scale:.3g} where a full pass multiplies by {theirs.scale:.3g}"
            return Fault(f"the scale of {self.mode} is another one", where, shows, "scale in the attention's Need")
        if ours.softcap != theirs.softcap or ours.normalise != theirs.normalise:
            return Fault(
                f"{self.mode} ask for other scores", where, f"{ours} where a full pass asks {theirs}", "the Need"
            )
        return None

    # ---- inside

    def _queries(self, traces: Sequence[PassTrace], layer: int) -> dict[Token, Query]:
        queries = {}
        for trace in traces:
            attend = next((a for at, n, a in trace.attends if at == layer and n == 0), None)
            for b, t, token in [] if attend is None else trace.tokens():
                assert attend is not None
                order = int(attend.pair.q.order[b, t])
                queries[token] = Query(attend, b, t, order - token[1], token[1])
        return queries

    def _pairs(self, r: Query, w: Query) -> tuple[list[tuple[int, Tensor, Tensor]], list[tuple[int, Tensor, Tensor]]]:
        """(place, right, wrong) of every key that both see, and of every value."""
        slots = dict(r.seen())
        both = [(place, slots[place], slot) for place, slot in w.seen() if place in slots]
        k, v = r.attend.view, w.attend.view
        return (
            [(place, k.k[r.b, :, a], v.k[w.b, :, b]) for place, a, b in both],
            [(place, k.v[r.b, :, a], v.v[w.b, :, b]) for place, a, b in both],
        )

    def _inputs(self, layer: int) -> dict[Token, Tensor]:
        """What went into the layer's attention in a full pass."""
        attention = next(iter(attentions(self.model.blocks[layer])), None)
        return {
            token: call.inputs[b, t]
            for trace in self.right
            for call in trace.calls
            if call.module is attention and call.inputs is not None
            for b, t, token in trace.tokens()
        }


@final
@dataclass(eq=False)
class _Calls:
    """What went into a module and came out, by token."""

    inputs: dict[Token, Tensor]
    outputs: dict[Token, Tensor]


def _by_module(traces: Sequence[PassTrace]) -> dict[tuple[str, int], _Calls]:
    modules: dict[tuple[str, int], _Calls] = {}
    for trace in traces:
        times: dict[str, int] = {}
        for call in trace.calls:
            key = call.name, times.setdefault(call.name, 0)
            times[call.name] += 1
            calls = modules.setdefault(key, _Calls({}, {}))
            for b, t, token in trace.tokens():
                calls.outputs[token] = call.output[b, t]
                if call.inputs is not None:
                    calls.inputs[token] = call.inputs[b, t]
    return modules


def wrong_kernel(passes: Sequence[tuple[str, PassTrace]], relative: float) -> tuple[float, Fault | None]:
    """How far the kernels of these passes are from the formula, and the fault of the first that is too far."""
    worst = 0.0
    for mode, trace in passes:
        for layer, nth, attend in trace.attends:
            right = filled(attend, formula(attend))
            error = gap(filled(attend, attend.out), right) / max(float(right.abs().max()), 1e-6)
            if error > relative:
                others = [a for _, other in passes for at, n, a in other.attends if (at, n) == (layer, nth)]
                return error, name_kernel_fault(attend, f"layer {layer}, in {mode}", relative, others)
            worst = max(worst, error)
    return worst, None


def _key(query: Query) -> tuple[Tensor, Tensor]:
    """A token's own key and value in a full pass."""
    slot = dict(query.held())[query.place]
    return query.attend.view.k[query.b, :, slot], query.attend.view.v[query.b, :, slot]


def _layer_of(name: str) -> int:
    words = name.split(".")
    return int(words[1]) if words[0] == "blocks" and len(words) > 1 else 0


def _in_words(token: Token) -> str:
    begins, row = divmod(token[0], DOCUMENT)
    return f"token {token[1]} of row {row}" + (f", in its document from {begins} on" if begins else "")


def _slot(at: int, slot: int) -> str:
    return f" (its slot in the call is {slot})" if at == slot else ""


def _spans(places: Sequence[int]) -> str:
    """``0 to 3, 5``."""
    spans: list[list[int]] = []
    for place in sorted(set(places)):
        if spans and place == spans[-1][1] + 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in spans) or "none"
