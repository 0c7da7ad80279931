"""Rows, tokens, heads and experts over one mesh of processes: the losses of one, and each other's checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vantage as vt
from tests.parallel.share_cells import EXPERTS
from tests.training.runs import in_torchrun, losses, on_cpu, task, tiny
from tests.training.test_distributed import alike, same_model
from vantage.errors import BadInput, Refused, VantageError
from vantage.model.lora import Lora
from vantage.training.checkpoint import steps
from vantage.training.distributed import World
from vantage.training.mesh_shares import divided_learner, share_of
from vantage.training.models import DataFacts, Loaded
from vantage.training.run import check_processes
from vantage.training.sections import ParallelSettings
from vantage.training.settings import settings_of
from vantage.training.text import Bytes

DENSE = {"model": {"heads": 4, "kv_heads": 2, "position": "t5", "tied": True}, "save": {"every": 2, "keep": 9}}
MIXED = {
    "model": {
        "position": "rope",
        "ffn": {
            "is": "experts",
            "expert": {"is": "feed_forward", "hidden": 12},
            "count": 4,
            "router": {"is": "top_k", "k": 2},
            "shared": {"is": "feed_forward", "hidden": 8},
        },
    },
    "average": {"decay": 0.8},
    "save": {"every": 2, "keep": 9},
}
# What is trained, over how many processes, in which arrangement.
TWO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (DENSE, {"context": 2}),
    (MIXED, {"experts": 2}),
]
MORE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (DENSE, {"tensor": 2}),
    (DENSE | {"loop": {"accumulate": 2}}, {"context": 2, "cut": "zigzag", "exchange": "ring"}),
    ({"model": {"is": "encoder_decoder", "width": 16, "layers": 2, "heads": 2}}, {"context": 2}),
    ({"model": {"is": "encoder", "width": 16, "layers": 1, "heads": 2}, "data": {"task": "parity"}}, {"context": 2}),
    ({"optimiser": {"is": "muon", "lr": 0.02}}, {"context": 2}),
    (MIXED, {"tensor": 2}),
    (DENSE | {"loop": {"recompute": True}}, {"context": 2, "cut": "zigzag"}),
]
FOUR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (DENSE, {"tensor": 2}),
    (DENSE, {"context": 2, "tensor": 2}),
    (DENSE, {"context": 2, "cut": "zigzag"}),
    (DENSE | {"model": DENSE["model"] | {"kv_heads": 1}}, {"tensor": 2}),  # both have the key head
    (MIXED, {"experts": 2}),
    (MIXED | {"loop": {"recompute": True}}, {"experts": 2, "tensor": 2}),
    (MIXED, {"experts": 2, "context": 2}),
    (MIXED, {"experts": 4}),
]


def compare(tmp_path: Path, processes: int, cases: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Each over processes and in one; begun over processes and ended in one; and the other way round."""
    tasks = []
    for i, (kind, parallel) in enumerate(cases):
        alone, shared = tiny(**kind), tiny(**kind, parallel=parallel)
        on_cpu(tmp_path / f"{i} one", alone)
        on_cpu(tmp_path / f"{i} from one", alone, stop=4)
        tasks += [
            task(tmp_path / f"{i} mesh", shared),
            task(tmp_path / f"{i} from mesh", shared, stop=4),
            task(tmp_path / f"{i} from one", shared, resume=True),
        ]
    in_torchrun(tmp_path, processes, tasks)
    for i, (kind, _) in enumerate(cases):
        assert 0 < steps(tmp_path / f"{i} from mesh" / "checkpoints")[-1] < 6
        on_cpu(tmp_path / f"{i} from mesh", tiny(**kind), resume=True)
        for other in ("mesh", "from mesh", "from one"):
            alike(tmp_path / f"{i} one", tmp_path / f"{i} {other}")
            same_model(tmp_path / f"{i} one", tmp_path / f"{i} {other}")


@pytest.mark.sampled
def test_two_processes_share_tokens_or_experts_and_give_the_losses_of_one(tmp_path: Path) -> None:
    compare(tmp_path, 2, TWO)


@pytest.mark.slow
def test_more_arrangements_of_two_processes(tmp_path: Path) -> None:
    compare(tmp_path, 2, MORE)


@pytest.mark.slow
def test_arrangements_of_four_processes(tmp_path: Path) -> None:
    compare(tmp_path, 4, FOUR)


@pytest.mark.slow
def test_half_precision_over_two_processes(tmp_path: Path) -> None:
    cases = {"context": DENSE, "experts": MIXED, "tensor": DENSE}
    half = {axis: kind | {"loop": {"precision": "bfloat16"}} for axis, kind in cases.items()}
    for axis, kind in half.items():
        on_cpu(tmp_path / f"{axis} one", tiny(**kind))
    tasks = [task(tmp_path / f"{axis} two", tiny(**kind, parallel={axis: 2})) for axis, kind in half.items()]
    in_torchrun(tmp_path, 2, tasks)
    for axis in half:
        assert losses(tmp_path / f"{axis} two") == pytest.approx(losses(tmp_path / f"{axis} one"), abs=2e-3), axis


@pytest.mark.slow
def test_a_run_goes_from_arrangement_to_arrangement(tmp_path: Path) -> None:
    """Four processes, then two in another arrangement, then one."""
    folder = tmp_path / "moved"
    on_cpu(tmp_path / "one", tiny(**MIXED))
    in_torchrun(tmp_path, 4, [task(folder, tiny(**MIXED, parallel={"experts": 2, "tensor": 2}), stop=2)])
    in_torchrun(tmp_path, 2, [task(folder, tiny(**MIXED, parallel={"context": 2}), resume=True, stop=4)])
    checkpoint = vt.load(folder / "checkpoints" / f"step-{steps(folder / 'checkpoints')[-1]:08d}")
    assert sum(p.numel() for p in checkpoint.parameters()) == sum(
        p.numel() for p in vt.load(tmp_path / "one" / "model").parameters()
    )
    on_cpu(folder, tiny(**MIXED), resume=True)
    alike(tmp_path / "one", folder)
    same_model(tmp_path / "one", folder)


def tuned(source: Path, text: Path) -> dict[str, Any]:
    """A run that goes on from a model."""
    return {
        "model": {"is": "loaded", "source": str(source)},
        "data": {"is": "text", "files": str(text), "length": 12},
        "save": {"every": 2, "keep": 9},
    }


@pytest.mark.slow
def test_a_loaded_model_is_trained_over_processes_as_in_one(tmp_path: Path) -> None:
    """From a folder (tied; both have the one key head) and from the checkpoint of a run, with rows and tokens apart."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    spec = vt.decoder(vocab=256, width=16, layers=2, heads=4, kv_heads=1, tied=True, max_length=32)
    model = vt.build(spec, seed=4)
    model.tokenizer = Bytes().build()
    vt.save(model, tmp_path / "folder")
    mixture = vt.build(replace(spec, layers=tuple(replace(layer, ffn=EXPERTS) for layer in spec.layers)), seed=5)
    mixture.tokenizer = Bytes().build()
    vt.save(mixture, tmp_path / "mixture")
    on_cpu(tmp_path / "begun", tiny(**tuned(tmp_path / "folder", text)), stop=2)
    begun = tmp_path / "begun" / "checkpoints"
    checkpoint = begun / f"step-{steps(begun)[-1]:08d}"
    (tmp_path / "two").mkdir()
    compare(tmp_path / "two", 2, [(tuned(source, text), {"tensor": 2}) for source in (tmp_path / "folder", checkpoint)])
    (tmp_path / "four").mkdir()
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (tuned(tmp_path / "folder", text), {"tensor": 2}),
        (tuned(tmp_path / "folder", text), {"tensor": 2, "context": 2}),
        (tuned(tmp_path / "folder", text), {"tensor": 4}),
        (tuned(tmp_path / "mixture", text), {"tensor": 2, "experts": 2}),
    ]
    compare(tmp_path / "four", 4, cases)


# ---- what is said


def test_an_arrangement_needs_processes_that_it_divides(tmp_path: Path) -> None:
    assert ParallelSettings(2, 3).rows(12) == 2
    assert ParallelSettings(1, 1, 2).rows(4) == 4  # those that share experts have rows of their own
    with pytest.raises(
        BadInput, match=r"tensor=2, context=2 needs 4 processes, or a multiple of that, and there are 6"
    ):
        ParallelSettings(2, 2).rows(6)
    with pytest.raises(BadInput, match=r"needs 2 processes.*and there is 1: start with torchrun --nproc-per-node 2"):
        on_cpu(tmp_path, tiny(parallel={"tensor": 2}))
    with pytest.raises(BadInput, match=r"parallel.context=0: give at least 1"):
        settings_of(tiny(parallel={"context": 0}))


@pytest.mark.parametrize(
    ("settings", "world", "why"),
    [
        ({"loop": {"compile": True}}, World(0, 1, tensor=2), "loop.compile is not for"),
        ({"loop": {"recompute": True}, "parallel": {"exchange": "ring"}}, World(0, 1, context=2), "use 'gather'"),
        ({"loop": {"accumulate": "auto"}}, World(0, 1, context=2), "is for one process"),
        ({"loop": {"batch": 9}}, World(0, 2, experts=2), "9 does not divide among 2 processes"),
    ],
)
def test_what_a_mesh_cannot_do_is_refused(settings: dict[str, Any], world: World, why: str) -> None:
    with pytest.raises(VantageError, match=why):
        check_processes(settings_of(tiny(**settings)), world)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"optimiser": {"is": "muon"}}, "optimiser that treats every number by itself"),
        ({"model": {"is": "recurrent", "width": 16}}, "for transformers that are trained whole"),
    ],
)
def test_what_cannot_be_cut_is_refused(settings: dict[str, Any], why: str) -> None:
    said = settings_of(tiny(**settings))
    with pytest.raises(Refused, match=why):
        divided_learner(said, DataFacts(9, 0), World(0, 1, tensor=2))


@pytest.mark.parametrize("section", [Loaded("x", lora=Lora(2)), Loaded("x", adapter="y")])
def test_an_adapter_is_refused_before_anything_is_read(section: Loaded) -> None:
    with pytest.raises(Refused, match="for transformers that are trained whole"):
        section.build_model(DataFacts(9, 0), lambda spec: share_of(spec, World()))


def test_the_arrangement_is_no_other_run() -> None:
    assert settings_of(tiny(parallel={"tensor": 2})).fingerprint() == settings_of(tiny()).fingerprint()
