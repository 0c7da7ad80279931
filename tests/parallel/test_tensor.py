"""Tensor parallel: heads and columns over processes give what one process gives, forward and gradients, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vantage as vt
from tests.parallel.processes import in_processes
from tests.parallel.tensor_cells import FEEDS, decoded, gaps, loaded, paths_of_steps, spec_of
from vantage.conformance.factors import attentions, encodings
from vantage.errors import CheckpointError, Refused
from vantage.kernels.native import native
from vantage.model import empty_model
from vantage.parallel.parameter_cut import parameter_cuts
from vantage.parallel.tensor import divided
from vantage.spec.abilities import Divisible
from vantage.spec.parts import BiasInputs, Parts, Pointwise, Shape
from vantage.spec.positions import Place

TOLERANCE = 1e-10
# a block is chosen by all query heads of a key head, so those are not parted
UNDIVIDED = {2: {"nsa-sinks"}, 4: {"nsa", "nsa-sinks", "cross"}}  # the encoder of `cross` has two heads
# those that have a tensor parallel form
DIVISIBLE = [n for n, case in attentions().items() if isinstance(case.between or case.config, Divisible)]
QUICK = [
    ("alibi", "multi-query", "plain"),  # one key head for all; slopes that nobody learns; biases
    ("rope", "latent", "experts"),
    ("t5", "sinks", "gated"),
]
SEES_ALL_HEADS = ("dape",)  # encodings that no process could run with some of the heads
EVERY = [
    *((encoding, "grouped", "gated") for encoding in encodings() if encoding not in SEES_ALL_HEADS),
    *(("rope", attention, "plain") for attention in DIVISIBLE),
    *(("fire", "grouped", feed) for feed in FEEDS),
]


def equal(processes: int, cells: list[tuple[str, str, str]]) -> None:
    for found in in_processes(processes, gaps, cells, limit=600):
        wrong = [(cell, gap) for cell, gap in zip(cells, found, strict=True) if max(gap[:3]) > TOLERANCE or gap[3]]
        assert not wrong, wrong[:5]


@pytest.mark.sampled
def test_logits_gradients_and_their_norm_are_those_of_one_process() -> None:
    equal(2, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])  # with 4 there are fewer key heads than processes
def test_every_part_is_equal_over_processes(processes: int) -> None:
    equal(processes, [cell for cell in EVERY if cell[1] not in UNDIVIDED[processes]])
    for encoding in SEES_ALL_HEADS:
        with pytest.raises(Refused, match="sees the scores of all heads"):
            divided(spec_of((encoding, "grouped", "gated")), 0, processes)
    for attention in UNDIVIDED[processes] - {"cross"}:
        with pytest.raises(Refused, match="do not divide among"):
            divided(spec_of(("rope", attention, "plain")), 0, processes)


@pytest.mark.slow
def test_each_process_caches_its_own_heads() -> None:
    cells = [("rope", "grouped", "gated"), ("fox", "grouped", "gated"), ("alibi", "latent", "experts")]
    for worst in in_processes(2, decoded, [*cells, ("rope", "cross", "plain")]):
        assert max(worst) < TOLERANCE, worst


@pytest.mark.sampled
@pytest.mark.skipif(native() is None, reason="no C++ compiler here")
def test_steps_over_processes_run_by_modules_and_say_so() -> None:
    """An all-reduce has no native form."""
    for alone, over_processes, gap in in_processes(2, paths_of_steps):
        assert alone == {"native": 8}
        assert over_processes == {"modules": 8}
        assert gap < 1e-4


# ---- what a process has


def test_shares_are_a_half_and_together_the_whole() -> None:
    spec = spec_of(("rope", "grouped", "gated"))
    whole = empty_model(spec)
    cuts = parameter_cuts(whole, empty_model(divided(spec, 0, 2)))
    assert {cut.inside for name, cut in cuts.items() if cut.maps} == {True}
    for name, p in whole.named_parameters():
        cut, full = cuts[name], torch.arange(p.numel()).view(p.shape)
        again = torch.full_like(full, -1)
        for rank in range(2):
            cut.put(cut.take(full, rank, 2), again, rank, 2)
        assert torch.equal(again, full), name
    inner = [name for name, cut in cuts.items() if cut.inside]
    assert all(cuts[name].maps or name.endswith("bias") for name in inner)  # of an output map alone


def test_fewer_key_heads_than_processes_are_held_by_several() -> None:
    spec = vt.decoder(vocab=9, width=32, layers=1, heads=4, kv_heads=2)
    cuts = parameter_cuts(empty_model(spec), empty_model(divided(spec, 0, 4)))
    (q, k, v) = next(cut.maps for cut in cuts.values() if len(cut.maps) == 3)
    assert (q.shards, k.shards, v.shards) == (4, 2, 2)
    assert [k.start(rank, 4) - k.first for rank in range(4)] == [0, 0, 8, 8]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            lambda: vt.decoder(vocab=9, width=24, layers=1, heads=3),
            "3 heads over 3 key/value heads do not divide among 2 processes: use 1 or 3 of them",
        ),
        (lambda: vt.decoder(vocab=9, width=32, layers=1, heads=4, ffn=vt.FeedForward(9)), "a hidden layer of 9"),
        (
            lambda: spec_of(("none", "gated-delta", "gated")),
            r"layer 0: GatedDelta \(attention\) has no tensor parallel form: it does not say how it divides",
        ),
        (
            lambda: vt.decoder(vocab=9, width=32, layers=1, heads=4, attention="low-rank-query"),
            r"layer 0: LowRankQuery \(attention\) has no tensor parallel form: query heads of all processes are made "
            "of one small vector",
        ),
        (
            lambda: vt.decoder(vocab=9, width=32, layers=1, heads=4, attention="canon"),
            r"layer 0: Canon \(attention\) has no tensor parallel form: its convolutions run over a token's whole",
        ),
    ],
)
def test_what_does_not_divide_is_refused_by_name(spec, why: str) -> None:
    with pytest.raises(Refused, match=why):
        divided(spec(), 0, 2)


def test_an_attention_divides_or_is_refused_whichever_it_is() -> None:
    """None comes out of it with the heads of all processes."""
    for name, case in attentions().items():
        if case.between is not None:
            continue
        whole = spec_of(("none", name, "plain"))
        heads = whole.layers[0].attention.shape(whole.width).heads
        if name not in DIVISIBLE or name in UNDIVIDED[2]:
            with pytest.raises(Refused):
                divided(whole, 0, 2)
            continue
        share = divided(whole, 0, 2).layers[0].attention
        assert share.shape(whole.width).heads == heads // 2, name


@dataclass(frozen=True, eq=False)
class LaterHeadsLower(Pointwise):
    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -1.0 * h + 0.0 * (q.pos - k.pos)


class LaterHeads(nn.Module):
    def at(self, inputs: BiasInputs) -> Pointwise:
        return LaterHeadsLower()


@dataclass(frozen=True)
class LaterHeadsPosition:
    shared = True

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return LaterHeads()


def test_a_part_that_knows_heads_apart_and_does_not_say_so_is_refused() -> None:
    spec = vt.decoder(vocab=9, width=32, layers=1, heads=4, position=LaterHeadsPosition())
    with pytest.raises(Refused, match="LaterHeadsPosition has something for each head"):
        divided(spec, 0, 2)


# ---- files


def saved(folder: Path) -> Path:
    spec = vt.decoder(vocab=31, width=64, layers=2, heads=4, kv_heads=2, position="rope", tied=True)
    vt.save(vt.build(spec, seed=1), folder)
    return folder


@pytest.mark.sampled
def test_each_loads_its_share_and_all_of_them_save_a_normal_folder(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    for gap, mine, every in in_processes(2, loaded, str(source), str(tmp_path / "again")):
        assert gap < 1e-5
        table = 31 * 64 * 4
        assert mine - table < 0.51 * (every - table)  # norms are everybody's


def damaged_share(source: str) -> str:
    try:
        vt.load(source, tensor_parallel=True)
    except CheckpointError as e:
        return str(e)
    return ""


@pytest.mark.slow
def test_a_process_looks_at_no_other_share(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    file = source / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name, x in tensors.items() if name.endswith("down.weight"))
    tensors[name][:, -1] = float("nan")  # columns of the second process
    save_file(tensors, file, {"format": "pt"})
    first, second = in_processes(2, damaged_share, str(source))
    assert first == ""
    assert "NaN" in second
