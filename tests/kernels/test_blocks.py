"""Blocks of queries, and chosen keys: equal to the reference, with gradients, in memory that grows with the keys."""

import gc
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import vantage as vt
from tests.kernels.helpers import F64, calls, normal
from tests.kernels.peak_memory import growth
from tests.sampling import examples
from vantage.inspect.kernels import kernel_choices
from vantage.kernels import blocks, chooser, chosen, kernel_named, select
from vantage.kernels.blocks import QueryBlocks
from vantage.kernels.chosen import ChosenKeysKernel
from vantage.model import Model
from vantage.spec import query_blocks
from vantage.spec.chosen import ChosenKeys, near_columns
from vantage.spec.masks import Causal, SameSegment, Window
from vantage.spec.model import ModelSpec, Scores
from vantage.spec.normalisers import Entmax15, OffByOne, Sigmoid, Sparsemax, StickBreaking
from vantage.spec.parts import Dense, Need, View
from vantage.spec.positions import EMPTY, Positions

REFERENCE = kernel_named("reference")
HEADS = 2


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


# ---- the reference again


@given(calls(), st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
def test_blocks_are_the_reference(c, queries):
    wanted, got = c.run(REFERENCE, lse=True), c.run(QueryBlocks(queries), lse=True)
    close(got.out, wanted.out)
    close(got.lse, wanted.lse)


@given(calls(), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=examples(100), deadline=None)
def test_chosen_keys_are_a_bias_to_the_reference(c, queries, keep):
    if c.need.temperature is None:
        return
    (B, H, T), S = c.q.shape[:3], c.view.k.shape[2]
    columns = normal(B, T, S, seed=9).argsort(-1)[..., :keep]
    columns = torch.where(normal(*columns.shape, seed=10) > 1, EMPTY, columns)  # some are none
    bias = ChosenKeys(columns, c.need.bias).bias(c.pos.against(c.view.pos), H, F64)
    wanted, got = (c.run(kernel, lse=True, bias=bias) for kernel in (REFERENCE, ChosenKeysKernel(queries)))
    close(got.out, wanted.out)
    close(got.lse, wanted.lse)


def test_dropout_in_a_block_is_the_same_on_the_way_back():
    """What is worked out once more is what was given: with gradients of v alone, their sum is that of the output."""
    q, k = normal(1, 2, 9, 4, seed=1), normal(1, 2, 9, 4, seed=2)
    v = normal(1, 2, 9, 3, seed=3).requires_grad_()
    pos = Positions.arange(1, 9)
    need = Need(Causal(), 0.5, dropout=0.4)
    torch.manual_seed(0)
    out = QueryBlocks(2)(q, View(k, v, pos), pos.against(pos), need).out
    (grad,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((grad * v).sum(), out.sum())  # the output is linear in v, weights as they were drawn


def test_near_columns_by_hand():
    """Keys of the orders 3, empty, 0, 1, 5: less than 3 before 3, itself among them, are 3 and 1."""
    keys = torch.tensor([[3, EMPTY, 0, 1, 5]])
    got = near_columns(torch.tensor([[3, 0, EMPTY, 9]]), keys, 3)
    assert [sorted(row) for row in got[0].tolist()] == [[-1, 0, 3], [-1, -1, 2], [-1, -1, -1], [-1, -1, -1]]
    both_ways = near_columns(torch.tensor([[3]]), keys, 3, 2)
    assert sorted(both_ways[0, 0].tolist()) == [-1, -1, 0, 3, 4]


# ---- whole models


def spec(position: object = "rope", window: int | None = None, **layer: object) -> ModelSpec:
    s = vt.decoder(
        vocab=16, width=32, layers=1, heads=HEADS, kv_heads=1, position=position, max_length=1 << 14, window=window
    )
    return replace(s, layers=tuple(replace(each, **layer) for each in s.layers))


def normalised(normaliser: object) -> ModelSpec:
    return spec(attention=vt.GroupedQuery(HEADS, 1, scores=Scores(normalise=normaliser)))


SPARSE = {
    "dsa": lambda: spec(indexer=vt.TopKIndexer(16, 2, 16)),
    "hca": lambda: spec(attention=vt.HeavilyCompressed(HEADS, ratio=16, near=16)),
    "csa": lambda: spec(attention=vt.CompressedSparse(HEADS, near=16, choice=vt.EntryChooser(8, 2, 16))),
    "nsa": lambda: spec(attention=vt.NativeSparse(HEADS, 1, near=16, blocks=vt.BlockChooser(16, 4))),
}
PARTS = SPARSE | {
    "window with sinks": lambda: spec(window=16, attention=vt.GroupedQuery(HEADS, 1, scores=Scores(sinks=True))),
    "self-extend": lambda: spec(vt.SelfExtend(2, 64)),
    "dual-chunk": lambda: spec("dual-chunk"),
    "fox": lambda: spec("fox"),
    "path": lambda: spec("path"),
    "stick-breaking": lambda: normalised(StickBreaking()),
    "sparsemax": lambda: normalised(Sparsemax()),
    "entmax": lambda: normalised(Entmax15()),
    "sigmoid": lambda: normalised(Sigmoid()),
    "cope": lambda: spec("cope"),
    "fire": lambda: spec("fire"),
    "shaw": lambda: spec("shaw"),
    "transformer-xl": lambda: spec("xl"),
    "alibi": lambda: spec("alibi"),
    "rope": spec,
    "dropout": lambda: vt.decoder(vocab=16, width=32, layers=1, heads=HEADS, dropout=0.1),
    "latent": lambda: spec(attention=vt.Latent(HEADS, 8, nope_dim=8, rope_dim=8, value_dim=8, norm=vt.RMSNorm())),
    "relative bank": lambda: spec("bank"),
    "dape": lambda: spec("dape"),
    "pope": lambda: spec("pope"),
    "selective-rope": lambda: spec("selective-rope"),
    "off by one": lambda: normalised(OffByOne()),
    "gate": lambda: spec(output=(vt.OutputGate(),)),
    "exclusive": lambda: spec(output=(vt.Exclusive(),)),
    "shared keys": lambda: vt.decoder(vocab=16, width=32, layers=2, heads=HEADS, position="alibi", kv_sharing=2),
    "moba": lambda: spec(attention=vt.MoBA(HEADS, 1, size=16)),
    "differential": lambda: spec(attention=vt.Differential(HEADS)),
    "value residual": lambda: spec(attention=vt.ValueResidual(HEADS)),
    "low-rank queries": lambda: spec(attention=vt.LowRankQuery(HEADS)),
    "canon": lambda: spec(attention=vt.Canon(HEADS)),
    "gated delta rule": lambda: spec("none", attention=vt.GatedDelta(HEADS)),
    "kda": lambda: spec("none", attention=vt.KimiDelta(HEADS)),
    "mamba-2": lambda: spec("none", attention=vt.Mamba2(HEADS, state_dim=16)),
    "lightning": lambda: spec("none", attention=vt.Lightning(HEADS)),
}


def places(kind: str) -> Positions:
    return {
        "run": lambda: Positions.arange(2, 30),
        "padded": lambda: Positions.rows([30, 17], width=30, pad="left"),
        "packed": lambda: Positions.packed([[13, 17], [5, 20]], width=30),
    }[kind]()


def run(model: Model, at: Positions, kernel: object) -> tuple[Tensor, list[Tensor | None]]:
    model._choose = chooser(kernel)
    tokens = torch.arange(60).view(2, 30) * 7 % 16
    out = model(tokens, positions=at)
    out = torch.where(at.filled[..., None], out, 0)
    weights = normal(*out.shape, seed=4)
    return out.detach(), list(torch.autograd.grad((out * weights).sum(), list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize("part", SPARSE)
@pytest.mark.parametrize("kind", ["run", "padded", "packed"])
def test_a_model_and_its_gradients_are_those_of_the_reference(part, kind):
    s = SPARSE[part]()
    (layer,) = s.layers
    small = {
        "dsa": lambda: replace(layer, indexer=vt.TopKIndexer(5, 2, 16)),
        "hca": lambda: replace(layer, attention=vt.HeavilyCompressed(HEADS, ratio=3, near=4)),
        "csa": lambda: replace(
            layer, attention=vt.CompressedSparse(HEADS, ratio=2, near=4, choice=vt.EntryChooser(3, 2, 16))
        ),
        "nsa": lambda: replace(layer, attention=vt.NativeSparse(HEADS, 1, near=4, blocks=vt.BlockChooser(3, 4))),
    }[part]()
    model = vt.build(replace(s, layers=(small,))).double()
    wanted, right = run(model, places(kind), REFERENCE)
    kernels = [QueryBlocks(4), *([ChosenKeysKernel(4)] if part in ("dsa", "csa") else [])]
    for kernel in kernels:
        got, grads = run(model, places(kind), kernel)
        close(got, wanted)
        for a, b in zip(grads, right, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                close(a, b)


@torch.no_grad()
@pytest.mark.parametrize("part", SPARSE)
def test_pieces_behind_a_cache_are_one_pass(part):
    """Chunks as large as they are in a long prompt: each in blocks, over keys that came before."""
    model = vt.build(SPARSE[part]()).double().eval()
    tokens = torch.arange(200)[None] * 7 % 16
    model._choose = chooser(REFERENCE)
    wanted = model(tokens)
    kernel = ChosenKeysKernel(16) if part in ("dsa", "csa") else QueryBlocks(16)
    few = chooser(QueryBlocks(16))  # in the first piece there are fewer keys than are to be chosen
    model._choose = lambda need, q, view: kernel if kernel.refuses(need, q, view) is None else few(need, q, view)
    cache = model.new_cache(1, kind="paged")
    pieces = [model(tokens[:, low:high], cache=cache) for low, high in itertools.pairwise((0, 70, 71, 150, 200))]
    close(torch.cat(pieces, 1), wanted)


# ---- memory


@pytest.mark.sampled
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("part", PARTS)
def test_twice_the_length_takes_no_more_than_twice_the_memory(part, train, monkeypatch):
    """Sizes from which blocks run are made small, so that a test can go there."""
    monkeypatch.setitem(query_blocks.CELLS, "cpu", 2**17)
    for module in (select, chosen):
        monkeypatch.setattr(module, "CHEAP_MASK_SIZE", 2**12)
    model = vt.build(PARTS[part]()).train(train)

    def once(length: int) -> Tensor:
        with torch.set_grad_enabled(train):
            out = model(torch.arange(length)[None] % 16)
            if train:
                out.square().mean().backward()
        model.zero_grad(set_to_none=True)
        return out.detach()

    once(16)  # what is made once and kept
    assert growth(once, 256) < 2.05


@pytest.mark.parametrize("part", PARTS)
def test_no_tensor_waits_for_the_garbage_collector(part):
    """Masks of all blocks together are as large as N x N: they go when the pass is over."""
    model = vt.build(PARTS[part]())
    tokens = torch.arange(64)[None] % 16
    with torch.no_grad():
        model(tokens)
        gc.disable()
        gc.freeze()  # what other tests left is neither looked through nor counted
        try:
            model(tokens)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            waiting = [tuple(x.shape) for x in gc.garbage if type(x) is Tensor]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()
    assert not waiting


def test_the_reference_takes_four_times():
    """So the measure above sees what it is there to see."""
    model = vt.build(PARTS["sparsemax"](), kernel="reference")
    with torch.no_grad():
        assert growth(lambda n: model(torch.arange(n)[None] % 16), 256) > 3


@pytest.mark.parametrize("part", SPARSE)
def test_what_runs_them_is_said(part):
    (choice,) = kernel_choices(vt.build(SPARSE[part]()), context=32_768, device="cpu")
    assert choice.kernel == ("chosen" if part in ("dsa", "csa") else "blocks")


# ---- which keys a block reads


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(3), Window(3), SameSegment()])
def test_a_block_reads_what_its_queries_see(mask):
    keys = Positions.arange(1, 20)
    for first, n in ((0, 4), (7, 5), (16, 4)):
        queries = Positions.arange(1, n, first)
        seen = mask(*(queries.against(keys).places()))[0, 0].any(0).nonzero().flatten().tolist()
        cut = blocks.seen_keys(Need(mask, 1.0), queries, keys)
        assert isinstance(cut, slice)
        assert (cut.start, cut.stop) == (seen[0], seen[-1] + 1)
    outside = blocks.seen_keys(Need(Causal() & Window(3), 1.0), Positions.arange(1, 2, 40), keys)
    assert outside == slice(0, 1)


def test_a_query_that_sees_nothing_has_a_gradient_of_0():
    """As where none of the keys that were chosen for it is seen: its scores are -inf by a bias, not by a mask."""
    q, k, v = (normal(1, 1, 3, 4, seed=seed).requires_grad_() for seed in (1, 2, 3))
    pos, hidden = Positions.arange(1, 3), torch.zeros(1, 1, 3, 3, dtype=F64)
    hidden[:, :, 0] = float("-inf")
    for kernel in (REFERENCE, QueryBlocks(1)):
        need = Need(Causal(), 1.0, softcap=3.0, bias=Dense(hidden))
        out = kernel(q, View(k, v, pos), pos.against(pos), need).out
        grads = torch.autograd.grad((1e3 * out).sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][0, 0, 0] == 0).all()


def test_what_the_chosen_kernel_refuses():
    q, k = normal(1, 2, 9, 4, seed=1), normal(1, 1, 9, 4, seed=2)
    pos, kernel = Positions.arange(1, 9), ChosenKeysKernel()
    view, plain = View(k, k, pos), Need(Causal(), 0.5)
    assert "sparse attention" in (kernel.refuses(plain, q, view) or "")
    need = replace(plain, bias=ChosenKeys(torch.zeros(1, 9, 1, dtype=torch.long), None).bias(pos.against(pos), 2, F64))
    assert kernel.refuses(need, q, view) is None
    for asked, words in (
        ({"weights": True}, "hand back weights"),
        ({"normalise": Sigmoid()}, "softmax alone, not Sigmoid"),
        ({"dropout": 0.1}, "no dropout"),
        ({"value_bias": object()}, "a value bias needs the weights"),
    ):
        assert words in (kernel.refuses(replace(need, **asked), q, view) or "")
    assert kernel.yields(need, q, view)  # few pairs
