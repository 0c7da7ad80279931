"""``vantage inspect cost --mesh`` says what is counted when two or four processes run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.parallel import mesh_step
from tests.parallel.mesh_cells import BATCH, CONTEXT, counted
from tests.parallel.mesh_step import mesh_spec, one_step
from tests.parallel.processes import in_processes
from tests.parallel.tensor_cells import spec_of
from vantage.errors import BadInput
from vantage.inspect.mesh_cost import mesh_cost
from vantage.inspect.step_time import H200, DeviceRates, table, training_time
from vantage.model import empty_model
from vantage.parallel.tensor import divided
from vantage.spec.mesh import MeshShape

ROOT = Path(__file__).parents[2]
CELLS = [("rope", "grouped", "gated"), ("t5", "latent", "experts"), ("fox", "multi-query", "plain")]


def check(cell: tuple[str, str, str], tensor: int, context: int) -> None:
    cost = mesh_cost(spec_of(cell), MeshShape(tensor, context), context=CONTEXT, batch=BATCH, dtype=torch.float64)
    for prefill, step, off, gradients in in_processes(tensor * context, counted, cell, tensor, context):
        for name, measured in (("prefill", prefill), ("training step", step)):
            assert sum(cost.sent[name].values()) == sum(measured.values()), (name, cost.sent, measured)
        assert off < 1e-10
        assert gradients < 1e-10


@pytest.mark.sampled
def test_bytes_of_two_processes_are_those_that_were_counted() -> None:
    check(CELLS[0], 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids="/".join)
@pytest.mark.parametrize(("tensor", "context"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_bytes_of_a_mesh_are_those_that_were_counted(cell: tuple[str, str, str], tensor: int, context: int) -> None:
    check(cell, tensor, context)


# data, experts, context, tensor
MESHES = [
    ("rope/grouped/gated", (2, 1, 1, 1)),
    ("rope/grouped/gated", (1, 1, 2, 1)),
    ("even", (1, 2, 1, 1)),
    ("t5/latent/experts", (2, 1, 1, 2)),
    ("rope/grouped/plain", (1, 1, 2, 2)),
    ("rope/multi-query/plain", (2, 1, 1, 2)),  # both have the key head, and biases that nobody else has
    ("fox/grouped/gated", (2, 1, 2, 1)),
    ("even", (2, 2, 1, 1)),
    ("even", (1, 2, 2, 1)),
    ("even", (1, 2, 1, 2)),
]


def check_step(name: str, mesh: tuple[int, int, int, int]) -> None:
    data, experts, context, tensor = mesh
    shape = MeshShape(tensor, context, data, experts)
    cost = mesh_cost(mesh_spec(name), shape, context=mesh_step.CONTEXT, batch=mesh_step.ROWS, dtype=torch.float64)
    answers = in_processes(shape.devices, one_step, name, *mesh)
    said = sum(cost.sent["training step"].values())
    assert said == sum(answers[0]["sent"].values()), (cost.sent, answers[0]["sent"])
    for answer in answers:
        # the bias of an output map is added by one of those who share heads, and what has no gradient is not sent
        assert sum(answer["sent"].values()) <= said
        if (
            name != "even" or context == 1
        ):  # a router in turn goes by a token's place in its process: here for bytes alone
            assert max(answer["logits"], answer["gradients"], answer["norm"]) < 1e-10, answer
    assert cost.memory["weights"] == answers[0]["weights"]


@pytest.mark.sampled
def test_a_step_of_two_processes_with_rows_of_their_own_sends_what_was_said() -> None:
    check_step(*MESHES[0])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), MESHES[1:])
def test_a_step_over_a_mesh_is_that_of_one_process_and_sends_what_was_said(
    name: str, mesh: tuple[int, int, int, int]
) -> None:
    check_step(name, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["top", "first alone"])
def test_uneven_loads_in_a_step_over_experts_and_tokens(kind: str) -> None:
    for answer in in_processes(4, one_step, kind, 1, 2, 2, 1, "zigzag"):
        assert max(answer["logits"], answer["gradients"], answer["norm"]) < 1e-10, answer


@pytest.mark.slow
def test_states_go_from_process_to_process_under_fsdp() -> None:
    for answer in in_processes(4, one_step, "none/gated-delta/gated", 2, 1, 2, 1):
        assert max(answer["logits"], answer["gradients"]) < 1e-10, answer


def test_memory_is_that_of_a_share() -> None:
    spec = spec_of(("rope", "grouped", "gated"))
    cost = mesh_cost(spec, MeshShape(tensor=2), context=64, dtype="float32")
    own = empty_model(divided(spec, 0, 2))
    assert cost.memory["weights"] == sum(p.numel() * 4 for p in own.parameters())
    whole = mesh_cost(spec, MeshShape(), context=64, dtype="float32")
    assert cost.memory["cache of the whole context"] * 2 == whole.memory["cache of the whole context"]
    assert not any(whole.sent.values())


def test_a_mesh_is_read_from_words() -> None:
    assert MeshShape.read("tensor=4,context=2") == MeshShape(4, 2)
    assert MeshShape.read("data=2,tensor=2,experts=4").devices == 16
    for wrong in ("4", "tensor=0", "tensor=2,tensor=2", "pipeline=2"):
        with pytest.raises(BadInput, match="tensor=2,context=4"):
            MeshShape.read(wrong)


@pytest.mark.sampled
def test_the_table_of_predictions_is_what_the_model_of_step_time_gives() -> None:
    spec = vt.decoder(
        vocab=128256, width=4096, layers=32, heads=32, kv_heads=8, ffn=vt.FeedForward(14336), position="rope"
    )
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for row in table(spec, context=32768):
        assert row in page
    published = [(8, 1, 2, 8192), (8, 1, 1, 32768), (4, 2, 1, 65536), (2, 4, 1, 131072), (1, 8, 1, 262144)]
    for data, context, rows, tokens in published:  # those beside torchtitan's figures
        time = training_time(spec, MeshShape(context=context, data=data), H200, context=tokens, batch=rows)
        low, high = (rows * tokens / context / seconds for seconds in (time.exposed, time.hidden))
        assert f"{low:,.0f} to {high:,.0f} |" in page


def test_predictions_follow_the_bytes_and_the_rates() -> None:
    spec = spec_of(("rope", "grouped", "gated"))
    rates = DeviceRates("slow link", 1e12, 1e12, 1.0, 0.0)
    alone = training_time(spec, MeshShape(), rates, context=64)
    both = training_time(spec, MeshShape(2), rates, context=64)
    assert alone.sending == 0
    assert both.sending == sum(mesh_cost(spec, MeshShape(2), context=64).sent["training step"].values())
    assert alone.computing / 2 < both.computing < alone.computing  # the head is not divided
    assert both.exposed == both.sending + both.computing > both.hidden
