"""``vt.check`` on broken models: each bug is caught by its name, and told apart from the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.conformance.subjects import (
    CACHED,
    COUNTED,
    DOCUMENTS,
    INSIDE,
    NAMES,
    VOCAB,
    Net,
    as_callable,
    attentions,
    failed,
    forgetting_positions,
    not_applicable,
    ours,
    with_windows,
)
from vantage.cache import ModelCache
from vantage.conformance.scenarios import sharpen
from vantage.kernels.reference import Reference
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions

# ---- three bugs, planted in our own model


@pytest.mark.parametrize("sides", ["key", "query", "query key"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["model", "callable"])
def test_a_cached_step_at_position_0_is_caught(sides: str, wrapped: bool):
    model = forgetting_positions(sides)
    if wrapped:
        report = vt.check(as_callable(model), vocab=VOCAB, new_cache=model.new_cache)
    else:
        report = vt.check(model)
    assert failed(report) == (CACHED if wrapped else CACHED | COUNTED), report
    assert "encoded at position 0" in report["cached-steps"].note
    assert wrapped or "layer 0, token 8 of row 0, in cached steps" in report["cached-steps"].note
    assert "see cached-steps" in report["cached-chunks"].note
    assert len(report.faults) == 1


@pytest.mark.parametrize(
    ("built", "says", "where"),
    [
        ((5, 5, 5), "one too wide", "layers 0 to 2"),
        ((4, 5, 4), "one too wide", "layer 1"),
        ((3, 3, 3), "one too narrow", "layers 0 to 2"),
        ((4, 4, 3), "one too narrow", "layer 2"),
    ],
)
def test_a_window_off_by_one_is_caught(built: tuple[int, ...], says: str, where: str):
    spec, declared = with_windows(*built), with_windows(4, 4, 4)
    model = sharpen(vt.build(spec))

    def new_cache(batch: int) -> ModelCache:
        model.spec = spec
        cache = model.new_cache(batch)
        model.spec = declared
        return cache

    model.spec = declared
    report = vt.check(model, new_cache=new_cache)
    assert failed(report) == {"attention-formula", "window-exact"}, report
    assert [fault.name for fault in report.faults] == [f"the window is {says}"]
    assert report.faults[0].where.startswith(where)
    row = report["window-exact"]
    assert (row.measured, row.tolerance) == (sum(built) - 3, 9)


@pytest.mark.parametrize(
    ("built", "says"),
    [
        ((5, 5, 5), "the window of every layer is one too wide"),
        ((4, 5, 4), "the window of one layer is one too wide"),
        ((3, 3, 3), "the window of every layer is one too narrow"),
    ],
)
def test_a_window_off_by_one_is_caught_from_outside(built: tuple[int, ...], says: str):
    model = sharpen(vt.build(with_windows(*built)))
    report = vt.check(as_callable(model), new_cache=model.new_cache, window=4, layers=3)
    assert failed(report) == {"window-exact"}, report
    assert report["window-exact"].note.startswith(f"window off by one: {says}")


def test_a_window_wider_than_its_cache_is_caught_twice():
    model = ours(window=4, layers=3)
    for attention in attentions(model):
        attention.scorer.mask = Causal() & Window(5) & SameSegment()
    report = vt.check(model)
    assert {"attention-formula", "window-exact", "cached-steps"} <= failed(report), report
    assert [fault.name for fault in report.faults] == ["the window is one too wide"]
    assert "declares" in report.faults[0].shows


class Leaky(Reference):
    """A kernel that takes padding for tokens at position 0."""

    name = "leaky"

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        keys = Positions.of(pair.k.pos.clamp_min(0), order=pair.k.order.clamp_min(0), segment=pair.k.segment)
        return super().__call__(q_BHTd, view, pair.q.against(keys), need)


@pytest.mark.parametrize("window", [None, 4])
def test_padding_that_leaks_is_caught(window: int | None):
    model = ours(window=window)
    model.kernel = Leaky()
    report = vt.check(model)
    assert failed(report) == {"attention-formula", "padding-left", "padding-right", "padding-cached"}, report
    assert [fault.name.split(",")[0] for fault in report.faults] == ["padding is attended"]


def test_positions_counted_from_the_padding_are_told_apart_from_a_leak():
    model = ours(position="learned", max_length=64)

    def counts_columns(tokens: Tensor, positions: Tensor, cache: None) -> Tensor:
        columns = torch.arange(tokens.shape[1]).expand(tokens.shape)
        return model(tokens, positions=torch.where(positions >= 0, columns, -1), cache=cache)

    report = vt.check(counts_columns, vocab=VOCAB)
    assert failed(report) == {"padding-left"}, report
    assert "counted from the padding" in report["padding-left"].note


# ---- callables


def test_a_callable_without_a_cache():
    report = vt.check(as_callable(ours()), vocab=VOCAB)
    assert report.ok, report
    assert not_applicable(report) == CACHED | COUNTED | INSIDE | DOCUMENTS | {"window-exact", "length-dependent-rope"}
    assert "pass new_cache=" in report["cached-steps"].note


def test_a_callable_with_everything():
    model = ours(window=4)
    report = vt.check(as_callable(model), vocab=VOCAB, new_cache=model.new_cache, window=4, layers=2, max_length=40)
    assert report.ok, report
    assert not_applicable(report) == COUNTED | INSIDE | DOCUMENTS | {"length-dependent-rope"}
    assert report["window-exact"].measured == 6


def test_somebody_elses_module():
    net = Net()
    report = vt.check(net, vocab=VOCAB, new_cache=net.new_cache)
    assert report.ok, report
    assert "list has no crop(to)" in report["rollback"].note
    assert "list has no fork()" in report["fork"].note


def test_a_cache_that_forgets_the_oldest_token_is_not_taken_for_a_wrong_position():
    net = Net(keep=10)
    row = vt.check(net, vocab=VOCAB, new_cache=net.new_cache)["cached-steps"]
    assert row.status == "failed"
    assert row.note.startswith("the cache loses, doubles or overwrites an entry")
    assert "right up to 11 tokens" in row.note
    assert "position 0" not in row.note


def test_a_cache_that_is_never_read_is_named():
    net = Net()

    def never(tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        return net(tokens, positions, None)

    forgetful = Net(keep=0)
    for model in (never, forgetful):
        row = vt.check(model, vocab=VOCAB, new_cache=net.new_cache)["cached-steps"]
        assert row.status == "failed"
        assert "sees nothing of what came before" in row.note


def test_dropout_left_on_is_caught_and_nothing_else_is_judged():
    net = Net()
    net.dropout = 0.1
    report = vt.check(net, vocab=VOCAB)
    assert failed(report) == {"repeatable"}
    assert report.faults[0].name == "random numbers are drawn"
    assert "dropout" in report.faults[0].look
    assert not_applicable(report) == set(NAMES) - {"repeatable"}


def test_a_missing_causal_mask_and_leaking_rows_are_caught():
    model = sharpen(vt.build(vt.encoder(vocab=VOCAB, width=32, layers=2, heads=4)))
    report = vt.check(as_callable(model), vocab=VOCAB)
    assert failed(report) == {"causal", "shorter-row"}, report
    assert [fault.name for fault in report.faults] == ["the causal mask is missing"]
    assert vt.check(as_callable(model), vocab=VOCAB, causal=False).ok

    decoder = ours()

    def centred(tokens: Tensor, positions: Tensor, cache: None) -> Tensor:
        logits = decoder(tokens, positions=positions)
        return logits - logits[:, :1].mean(0, keepdim=True)

    assert "rows-independent" in failed(vt.check(centred, vocab=VOCAB))


def test_what_a_model_raises_is_what_the_row_found():
    net = Net()

    def fixed(tokens: Tensor, positions: Tensor, cache: None) -> Tensor:
        if len(tokens) != 3:
            raise RuntimeError("batches of 3 only")
        return net(tokens, positions, cache)

    row = vt.check(fixed, vocab=VOCAB)["rows-independent"]
    assert row.status == "failed"
    assert row.note == "it raised RuntimeError: batches of 3 only"


def test_logits_that_are_not_finite():
    net = Net()
    report = vt.check(lambda tokens, positions, cache: net(tokens, positions, cache) / 0 * 0, vocab=VOCAB)
    assert failed(report) == {"repeatable"}
    assert "not a number" in report["repeatable"].note
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["rows"][0]["measured"] is None
