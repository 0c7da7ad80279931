"""Experts whole on one process each, with heads and columns over all of them: what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parallel.expert_cells import KINDS, with_experts
from tests.parallel.processes import in_processes
from tests.parallel.whole_expert_cells import damaged, gaps, loaded, model_of
from vantage.errors import BadInput, Refused
from vantage.model.experts import Experts, TopK
from vantage.parallel.tensor import divided

TOLERANCE = 1e-10
EVERY = [*KINDS, "uneven"]


def equal(processes: int, kinds: list[str]) -> None:
    answers = in_processes(processes, gaps, kinds)
    for found in answers:
        for kind, (*off, _) in zip(kinds, found, strict=True):
            assert max(off) < TOLERANCE, (kind, off)
    for i, kind in enumerate(kinds):
        held = [name for found in answers for name in found[i][4]]
        assert len(held) == len(set(held)), kind  # nobody has what another has
        assert set(held) == {name for name, _ in model_of(kind).named_parameters() if ".experts." in name}
        assert all(found[i][4] for found in answers)  # and everybody has some


@pytest.mark.sampled
def test_logits_gradients_and_steps_are_those_of_one_process() -> None:
    equal(2, ["top", "uneven"])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_kind_of_experts_is_equal(processes: int) -> None:
    equal(processes, EVERY)


def test_what_has_no_experts_or_too_few_is_refused() -> None:
    with pytest.raises(Refused, match="no layer of this model has experts"):
        divided(vt.decoder(vocab=9, width=16, layers=1, heads=2), 0, 2, whole_experts=True)
    few = Experts(vt.FeedForward(16), 2, TopK(1))
    spec = vt.decoder(vocab=9, width=16, layers=1, heads=4, ffn=few)
    with pytest.raises(Refused, match="layer 0: 2 experts are fewer than 4 processes: divide them by columns"):
        divided(spec, 0, 4, whole_experts=True)


def test_alone_there_are_no_processes_for_them_to_lie_on(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tensor_parallel=True as well"):
        vt.load(saved(tmp_path / "model"), whole_experts=True)


def test_by_columns_stays_what_it_was() -> None:
    own = divided(with_experts("top"), 0, 2)
    assert isinstance(own.layers[1].ffn, Experts)
    assert own.layers[1].ffn.count == 4


# ---- files


def saved(folder: Path) -> Path:
    experts = Experts(vt.FeedForward(32), 4, TopK(2), shared=vt.FeedForward(16))
    spec = vt.decoder(vocab=31, width=32, layers=2, heads=4, kv_heads=2, ffn=experts)
    vt.save(vt.build(spec, seed=1), folder)
    return folder


@pytest.mark.sampled
def test_each_loads_its_experts_generates_and_all_save_a_normal_folder(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    for gap, mine, every, same in in_processes(2, loaded, str(source), str(tmp_path / "again")):
        assert gap < 1e-5
        assert mine * 2 == every
        assert same


@pytest.mark.slow
def test_a_process_reads_no_expert_of_another(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    file = source / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if ".experts.3." in name)
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, file, {"format": "pt"})
    first, second = in_processes(2, damaged, str(source))
    assert first == ""
    assert "NaN" in second


@pytest.mark.slow
def test_experts_that_lie_in_one_tensor_are_loaded_as_well(tmp_path: Path) -> None:
    from tests.parity.rows.gpt_oss import CASES  # which imports transformers

    CASES[0].make("plain").save_pretrained(tmp_path / "theirs")
    vt.save(vt.load(tmp_path / "theirs"), tmp_path / "model")
    found = in_processes(2, loaded, str(tmp_path / "model"), str(tmp_path / "again"))
    assert all(gap < 1e-4 and same for gap, _, _, same in found)
    (_, first, every, _), (_, second, _, _) = found
    assert first + second == every
    assert first < second  # two experts and three
