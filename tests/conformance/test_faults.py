"""``vt.check`` names faults: each likely one is planted and named, and the right model beside it passes."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import vantage as vt
from tests.conformance.faulty import Broken, OffCache, OffKernel, OffNorm, OwnAttention, OwnMask
from tests.conformance.subjects import VOCAB, ours
from vantage.conformance import Report
from vantage.conformance.matrix import run_matrix
from vantage.parts import registry

Planted = tuple[Callable[[], Report], Callable[[], Report]]  # with the fault, and beside it without


@functools.cache  # the right model beside many faults is the same one
def checked(part: str, config: Any, options: tuple[tuple[str, Any], ...] = ()) -> Report:
    """The report of a model with this part."""
    settings = dict(options)
    if part == "kernel":
        model = ours(**settings)
        model.kernel = OffKernel(config)
        return vt.check(model)
    if part == "cache":
        model = ours(**settings)
        model.kernel = "reference"
        return vt.check(model, new_cache=lambda batch: model.new_cache(batch, kind=OffCache(config)))
    heads = {"heads": None} if part == "attention" else {}
    return vt.check(ours(**{part: config}, **heads, **settings))


def planted(part: str, wrong: Any, right: Any, **options: Any) -> Planted:
    chosen = tuple(options.items())
    return lambda: checked(part, wrong, chosen), lambda: checked(part, right, chosen)


def encoding(wrong: Broken, right: Broken) -> Planted:
    return planted("position", wrong, right)


def mask(wrong: OwnMask, right: OwnMask) -> Planted:
    return planted("mask", wrong, right)


def kernel(mistake: str, **options: Any) -> Planted:
    return planted("kernel", mistake, "", **options)


def attention(mistake: str) -> Planted:
    return planted("attention", OwnAttention(4, 2, mistake), OwnAttention(4, 2))


def cache(mistake: str, right: str = "", **options: Any) -> Planted:
    return planted("cache", mistake, right, **options)


def norm(mistake: str) -> Planted:
    return planted("norm", OffNorm(mistake), OffNorm())


@dataclass(frozen=True)
class Case:
    """A fault: how it is planted, how it must be named, and where."""

    planted: Planted
    name: str
    where: str = ""
    row: str = ""  # the first that fails


BOTH = "layers 0 and 1"
OWN: dict[str, Case] = {
    "a bias by the slot of the query": Case(
        encoding(Broken("step", "slot"), Broken("step")),
        "the score bias counts slots",
        f"{BOTH}: Step",
        "positions-not-slots",
    ),
    "a bias by the slots of keys": Case(
        encoding(Broken("dense", "slot"), Broken("dense")), "the score bias counts slots", BOTH, "positions-not-slots"
    ),
    "a mask by slots": Case(mask(OwnMask("slots"), OwnMask()), "the mask counts slots", f"{BOTH}: OwnMask"),
    "a rotation by slots": Case(
        encoding(Broken("rotation", "slot"), Broken("rotation")),
        "the rotation (q/k transform) of queries and keys counts slots",
        f"{BOTH}",
    ),
    "a table by slots": Case(
        encoding(Broken("table", "slot"), Broken("table")), "the position added to the embeddings counts slots"
    ),
    "a rotation one low once tokens are cached": Case(
        encoding(Broken("rotation", "one low once cached"), Broken("rotation")),
        "the rotation (q/k transform) of queries and keys reads positions one too low",
        BOTH,
    ),
    "a table one low once tokens are cached": Case(
        encoding(Broken("table", "one low once cached"), Broken("table")),
        "the position added to the embeddings reads positions one too low",
    ),
    "a rotation that reads order": Case(
        encoding(Broken("rotation", "order"), Broken("rotation")),
        "the rotation (q/k transform) of queries and keys reads order, not positions, which restart in a document",
        BOTH,
    ),
    "a table that reads order": Case(
        encoding(Broken("table", "order"), Broken("table")),
        "the position added to the embeddings reads order, not positions, which restart in a document",
    ),
    "a causal mask that shows the next token": Case(
        mask(OwnMask("sees the next"), OwnMask()), "the causal mask is off by one: a token sees later ones", BOTH
    ),
    "a causal mask that hides the token itself": Case(
        mask(OwnMask("not itself"), OwnMask()), "the causal mask is off by one: no token sees itself", BOTH
    ),
    "a window one too wide": Case(
        mask(OwnMask("one too wide", window=4), OwnMask(window=4)), "the window is one too wide", BOTH
    ),
    "a simplified mask that is another": Case(
        mask(OwnMask("simplified"), OwnMask()), "the mask's simplified() is another mask", BOTH
    ),
    "a mask that shows the first document to all": Case(
        mask(OwnMask("first document"), OwnMask()), "documents of a row see each other", "layer 0", "packed"
    ),
    "a kernel that scales twice": Case(kernel("scale twice"), "the scale is applied twice", "layer 0"),
    "a kernel that does not scale": Case(kernel("scale forgotten"), "the scale is forgotten", "layer 0"),
    "a kernel that takes heads by turns": Case(
        kernel("heads by turns", kv_heads=2), "heads are grouped wrongly: keys and values go round", "layer 0"
    ),
    "a kernel with softmax in bfloat16": Case(
        kernel("low softmax"), "the softmax is computed in low precision (bfloat16)", "layer 0"
    ),
    "a kernel that attends to padding": Case(kernel("padding"), "padding is attended", "in a batch padded on the left"),
    "a kernel with a window one too narrow": Case(
        kernel("window narrow", window=4), "the window is one too narrow", "layer 0"
    ),
    "a kernel that sees other documents": Case(
        kernel("documents"), "documents of a row see each other", "in a packed row"
    ),
    "a kernel that masks by slots": Case(kernel("slots"), "the mask counts slots", "layer 0"),
    "an attention that scales twice": Case(
        attention("scale twice"), "the scale is applied twice", "OwnAttentionModule"
    ),
    "an attention that does not scale": Case(
        attention("scale forgotten"), "the scale is forgotten", "OwnAttentionModule"
    ),
    "an attention that takes heads by turns": Case(
        attention("heads by turns"), "heads are grouped wrongly", "OwnAttentionModule"
    ),
    "keys rotated again when read": Case(
        attention("keys rotated twice"), "keys are rotated twice", "layer 0", "cached-steps"
    ),
    "a cache in bfloat16": Case(cache("bfloat16"), "keys are kept in a lower dtype", "layer 0", "cached-steps"),
    "a cache that loses entries": Case(cache("loses"), "the cache loses entries", "layer 0", "cached-steps"),
    "a cache that overwrites an entry": Case(
        cache("overwrites"), "the cache overwrites an entry", "layer 0", "cached-steps"
    ),
    "a cache that rows share": Case(cache("shared rows"), "rows share a cache", "layer 0", "cached-steps"),
    "a cache that counts one too many": Case(
        cache("counts one too many"), "the cache computes the next token's position wrongly", "", "cached-counting"
    ),
    "a ring one too small": Case(
        cache("ring", "right ring", window=4),
        "the cache overwrites the oldest entry of the window one token early",
        "layer 0",
        "cached-steps",
    ),
    "a crop that leaves what it took back": Case(
        cache("stale"), "crop keeps entries that were taken back", "layer 0", "rollback"
    ),
    "a norm over the batch": Case(norm("batch"), "rows of a batch depend on each other", "before", "rows-independent"),
    "noise": Case(norm("noise"), "random numbers are drawn", "before", "repeatable"),
    "a counter": Case(norm("state"), "something is kept between calls", "before", "repeatable"),
    "a norm that gives nan": Case(
        norm("nan"), "the norm OffNormModule gives what is not a number", "before", "repeatable"
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("fault", OWN)
def test_a_fault_in_a_part_is_named_and_the_right_part_beside_it_passes(fault: str):
    case = OWN[fault]
    report = case.planted[0]()
    assert not report.ok
    names = [found.name for found in report.faults]
    assert len(names) == 1, names
    found = report.faults[0]
    assert found.name.startswith(case.name), str(found)
    assert case.where in found.where, str(found)
    assert found.shows
    assert found.look
    assert not case.row or report.failures[0].name == case.row, report
    right = case.planted[1]()
    assert right.ok, right


# ---- models that nobody can look into


class Black(nn.Module):
    """A transformer that owes nothing to Vantage, with a mistake; its cache is a list, one entry a layer."""

    def __init__(self, mistake: str = ""):
        super().__init__()
        torch.manual_seed(1)
        self.mistake, self.calls = mistake, 0
        self.embed = nn.Embedding(VOCAB, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def new_cache(self, batch: int) -> BlackCache:
        return BlackCache(self.mistake)

    def forward(self, tokens: Tensor, positions: Tensor, cache: BlackCache | None) -> Tensor:
        self.calls += 1
        places = self.places(tokens, positions, cache)
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, -1)
            k = turned(k, places)
            if cache is not None:
                k, v, held = cache.add(i, k, v, positions)
            else:
                held = positions
            if self.mistake == "keys rotated twice" and cache is not None:
                k = turned(k, held)
            ahead = 1 if self.mistake == "sees the next" else 0
            seen = held[:, None] <= positions[..., None] + ahead
            if self.mistake != "padding":
                seen = seen & (held >= 0)[:, None]
            scores = (turned(q, places) @ k.transpose(1, 2)).masked_fill(~seen, -1e9)
            x = x + scores.softmax(-1) @ v
        if self.mistake == "neighbours":
            x = x + 0.1 * x.mean(0, keepdim=True)
        if self.mistake == "state":
            x = x * (1 + 0.01 * self.calls)
        if self.mistake == "random":
            x = x + random.random()
        return x @ self.embed.weight.T

    def places(self, tokens: Tensor, positions: Tensor, cache: BlackCache | None) -> Tensor:
        columns = torch.arange(tokens.shape[1]).expand(tokens.shape)
        stepping = cache is not None and bool(cache.held)
        if self.mistake == "columns" or (self.mistake == "slots" and stepping):
            return columns
        if stepping and self.mistake in ("one low", "one high"):
            return positions + (1 if self.mistake == "one high" else -1)
        return positions


class BlackCache:
    def __init__(self, mistake: str):
        self.mistake = mistake
        self.held: dict[int, tuple[Tensor, ...]] = {}

    def add(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        if self.mistake == "bfloat16":
            new = (new[0].bfloat16(), new[1].bfloat16(), new[2])
        if self.mistake == "shared rows":
            new = (new[0][:1].expand_as(new[0]), *new[1:])
        old = self.held.get(layer)
        if old is not None:
            if self.mistake == "loses":
                old = tuple(t[:, max(0, t.shape[1] - 10) :] for t in old)
            new = tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True))
        self.held[layer] = new
        return tuple(t.float() if t.is_floating_point() else t for t in new)

    def crop(self, to: int) -> None:
        for layer in self.held if self.mistake != "crop" else (0,):
            self.held[layer] = tuple(t[:, :to] for t in self.held[layer])

    def fork(self) -> BlackCache:
        other = BlackCache(self.mistake)
        other.held = self.held if self.mistake == "fork" else dict(self.held)
        return other


def turned(x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[..., None] * 10.0 ** -torch.arange(8) / 2
    pair = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


BLACK = {
    "slots": "a cached step is encoded at position 0",
    "one low": "a cached step is encoded one position off",
    "one high": "a cached step is encoded one position off",
    "columns": "a cached step is encoded at position 0",
    "keys rotated twice": "the cached path encodes keys at wrong positions: again when they are read",
    "bfloat16": "keys or values are kept in a lower dtype",
    "shared rows": "rows share a cache",
    "loses": "the cache loses, doubles or overwrites an entry",
    "crop": "crop keeps entries that were taken back",
    "fork": "two branches of one cache see each other",
    "padding": "padding is attended",
    "sees the next": "the causal mask is off by one",
    "neighbours": "rows of a batch depend on each other",
    "state": "something is kept between calls",
    "random": "the computation is not deterministic",
}


@pytest.mark.parametrize("mistake", BLACK)
def test_a_fault_in_somebody_elses_model_is_named(mistake: str):
    net = Black(mistake)
    report = vt.check(net, new_cache=net.new_cache)
    names = [fault.name for fault in report.faults]
    assert len(names) == 1, names
    assert names[0].startswith(BLACK[mistake]), report.faults[0]
    assert report.faults[0].shows


def test_somebody_elses_right_model_passes():
    net = Black()
    report = vt.check(net, new_cache=net.new_cache)
    assert report.ok, report
    assert report["rollback"].status == report["fork"].status == "ok"


# ---- f(tokens)


class Plain(nn.Module):
    """Logits of tokens, and nothing else; a token of 0 may be padding."""

    def __init__(self, mistake: str = "", pad: int | None = None):
        super().__init__()
        torch.manual_seed(2)
        self.embed, self.places = nn.Embedding(VOCAB, 16), nn.Embedding(64, 16)
        self.mix, self.mistake, self.pad, self.calls = nn.Linear(16, 48), mistake, pad, 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        columns = torch.arange(tokens.shape[1]).expand(tokens.shape)
        real = torch.ones_like(tokens, dtype=torch.bool) if self.pad is None else tokens != self.pad
        at = columns if self.mistake == "padding shifts" else (real.long().cumsum(1) - 1).clamp_min(0)
        x = self.embed(tokens) + self.places(at)
        q, k, v = self.mix(x).chunk(3, -1)
        seen = columns[:, None] <= columns[..., None] + (self.mistake == "sees the next")
        if self.mistake != "padding":
            seen = seen & real[:, None]
        x = x + (q @ k.transpose(1, 2)).masked_fill(~seen, -1e9).softmax(-1) @ v
        if self.mistake == "neighbours":
            x = x - 0.1 * x.mean(0, keepdim=True)
        if self.mistake == "length":
            x = x * tokens.shape[1] ** 0.5
        if self.mistake == "state":
            x = x * (1 + 0.01 * self.calls)
        return x @ self.embed.weight.T


def test_a_plain_function_of_tokens_is_checked():
    net = Plain()
    report = vt.check(lambda tokens: net(tokens))
    assert report.ok, report
    asked = {row.name for row in report.rows if row.status == "ok"}
    assert asked == {"repeatable", "causal", "rows-independent", "shorter-row", "padding-right"}
    assert "pass pad=" in report["padding-left"].note
    assert "takes no cache" in report["cached-steps"].note
    assert "positions cannot be given" in report["positions-honoured"].note


def test_a_plain_function_is_told_which_token_is_padding():
    report = vt.check(Plain(pad=0), pad=0)
    assert report.ok, report
    assert report["padding-left"].status == "ok"


PLAIN = {
    "sees the next": ("causal", "the causal mask is off by one", None),
    "neighbours": ("rows-independent", "rows of a batch depend on each other", None),
    "length": ("shorter-row", "the length of a row changes its beginning", None),
    "state": ("repeatable", "something is kept between calls", None),
    "padding": ("padding-left", "a padded row is not the row alone", 0),
    "padding shifts": ("padding-left", "a padded row is not the row alone", 0),
}


@pytest.mark.parametrize("mistake", PLAIN)
def test_a_fault_in_a_plain_function_is_named(mistake: str):
    row, name, pad = PLAIN[mistake]
    report = vt.check(Plain(mistake, pad), pad=pad)
    assert report.failures[0].name == row, report
    assert report.faults[0].name.startswith(name), report.faults[0]


def test_what_a_function_takes_is_read_off_its_signature():
    net = Plain()
    assert vt.check(lambda tokens, positions: net(tokens))["padding-left"].status == "failed"  # positions are ignored
    assert vt.check(lambda tokens, temperature=1.0: net(tokens)).ok
    assert vt.check(lambda *args: net(args[0]), vocab=VOCAB)["cached-steps"].note.startswith("no cache to check")
    with pytest.raises(ValueError, match="takes no arguments"):
        vt.check(lambda: None)
    with pytest.raises(ValueError, match="takes no cache"):
        vt.check(lambda tokens: net(tokens), new_cache=lambda rows: [])
    with pytest.raises(ValueError, match="does not say how many tokens"):
        vt.check(lambda tokens: (net(tokens), None))


# ---- the report


def test_the_report_begins_with_the_fault():
    report = OWN["a bias by the slot of the query"].planted[0]()
    lines = str(report).split("\n")
    assert lines[0].endswith("rows fail")
    assert lines[1].startswith("Fault: the score bias counts slots, not positions")
    assert any(line.startswith("  Look at") for line in lines)
    assert "the same fault: see positions-not-slots" in report["cached-steps"].note
    written = report.to_json()
    assert written["faults"][0]["name"] == report.faults[0].name  # type: ignore[index]


@pytest.mark.sampled
def test_the_matrix_names_the_fault_of_cells_that_fail():
    vt.register("position", "step-by-slot", Broken, default=lambda n: Broken("step", "slot"))
    try:
        report = run_matrix(strength=2, filter="step-by-slot/")
    finally:
        registry("position").unregister("step-by-slot")
    assert not report.ok
    assert [fault.name for fault in report.faults] == ["the score bias counts slots, not positions"]
    assert "'step-by-slot' (StepModule)" in report.faults[0].where
    console = Console(file=io.StringIO(), width=200)
    console.print(report.table())
    assert "Fault: the score bias counts slots" in console.file.getvalue()  # type: ignore[attr-defined]
