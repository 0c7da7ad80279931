"""A process comes by its share of a model without ever holding the whole, and its weights are those of one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parallel.processes import in_processes
from tests.parallel.share_cells import SEED, Held, deep, drawn, loaded, reason, resident, resumed

KINDS = ["t5", "untied", "experts", "latent", "encoder-decoder"]
SLACK = 4096  # bytes: biases and tables that stand beside a map while it is drawn or read


def check(found: tuple[Held, list[str]]) -> None:
    held, differing = found
    assert not differing
    assert held.peak <= held.share + held.largest + SLACK, held
    assert held.peak < 0.8 * held.whole, held  # so that a process with the whole model would fail


@pytest.mark.sampled
def test_a_drawn_share_is_that_of_one_process_and_all_that_is_held() -> None:
    for found in in_processes(2, drawn, ["t5", "experts"], 1, 2):
        for one in found:
            check(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "experts", "tensor", "kinds"),
    [
        (2, 1, 2, KINDS),
        (4, 1, 4, KINDS),  # fewer key heads than processes
        (4, 2, 2, ["experts"]),
        (4, 4, 1, ["experts"]),
        (4, 2, 1, ["experts"]),  # two have the same
    ],
)
def test_more_arrangements(processes: int, experts: int, tensor: int, kinds: list[str]) -> None:
    for found in in_processes(processes, drawn, kinds, experts, tensor):
        for one in found:
            check(one)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_share_is_read_alone(tmp_path: Path, kind: str) -> None:
    vt.save(vt.build(deep(kind), seed=SEED), tmp_path / "model")
    for found in in_processes(2, loaded, str(tmp_path / "model"), 1, 2):
        check(found)


@pytest.mark.slow
@pytest.mark.parametrize(("experts", "tensor"), [(2, 2), (4, 1)])
def test_experts_are_read_alone(tmp_path: Path, experts: int, tensor: int) -> None:
    vt.save(vt.build(deep("experts"), seed=SEED), tmp_path / "model")
    for found in in_processes(4, loaded, str(tmp_path / "model"), experts, tensor):
        check(found)


@pytest.mark.slow
@pytest.mark.parametrize(("experts", "tensor"), [(1, 2), (2, 1)])
def test_a_checkpoint_is_read_one_parameter_at_a_time(tmp_path: Path, experts: int, tensor: int) -> None:
    for held, differing in in_processes(2, resumed, str(tmp_path), experts, tensor):
        assert not differing
        assert held.peak <= held.largest + held.share + SLACK, held
        assert held.whole > 10 * held.peak, held


@pytest.mark.slow
def test_who_trains_looks_at_no_other_share(tmp_path: Path) -> None:
    vt.save(vt.build(deep("untied"), seed=SEED), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("down.weight"))
    tensors[name][:, -1] = float("nan")  # columns of the second process
    save_file(tensors, file, {"format": "pt"})
    first, second = in_processes(2, reason, str(tmp_path / "model"))
    assert first == ""
    assert "NaN" in second


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much a process has held")
def test_the_system_sees_no_whole_model_either() -> None:
    for grown, whole in in_processes(2, resident, False):  # the C library keeps some of what was freed below 32 MB
        assert grown < 0.95 * whole, (grown, whole)
    for grown, whole in in_processes(2, resident, True):  # as it would be without it, so that this can fail
        assert grown > whole, (grown, whole)
