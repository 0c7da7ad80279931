"""AdamW and Muon: groups, torch's own results, orthogonality, and state by name to the bit."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
import transformers
from torch import nn

import vantage as vt
from tests.parity.cases import CASES
from vantage.checkpoints.config import Config
from vantage.errors import BadInput, Refused
from vantage.families import family_of
from vantage.model.lora import Lora, add_lora
from vantage.model.maps import parameter_kinds, rows_of
from vantage.training.optimise import OPTIMISERS, AdamW, Muon
from vantage.training.optimise.muon import orthogonal
from vantage.training.settings import settings_of

POSITIONS = ["none", "sinusoidal", "learned", "rope", "xpos", "alibi", "t5", "shaw", "xl", "kerple", "fire", "cope"]
TOKENS = torch.randint(0, 50, (3, 8), generator=torch.Generator().manual_seed(0))
CONFIGS = [AdamW(lr=0.01, weight_decay=0.2), Muon(lr=0.02, weight_decay=0.1, adamw=AdamW(lr=0.01))]

EMBEDDINGS_TOO = AdamW(weight_decay=0.3, decay_embeddings=True)


def model(position: str = "rope", **said) -> vt.Model:
    said = {"vocab": 50, "width": 32, "layers": 2, "heads": 2, "kv_heads": 1, "max_length": 16, **said}
    return vt.build(vt.decoder(position=position, **said))


def train(m: nn.Module, optimiser, steps: range) -> None:
    for step in steps:
        optimiser.zero_grad()
        out = m(TOKENS.roll(step, 1))
        (out - step).square().mean().backward()
        optimiser.step(1 / (1 + step))


# ---- groups


def check_groups(m: nn.Module) -> dict[str, str]:
    kinds = parameter_kinds(m)
    names = {p: name for name, p in m.named_parameters()}
    for config in (AdamW(weight_decay=0.3), EMBEDDINGS_TOO, Muon(weight_decay=0.3)):
        optimiser = config.build(m)
        owned = [names[p] for part in optimiser.parts for group in part.param_groups for p in group["params"]]
        assert sorted(owned) == sorted(names.values())
        decays = {
            names[p]
            for part in optimiser.parts
            for group in part.param_groups
            for p in group["params"]
            if group["weight_decay"]
        }
        wanted = (
            {"matrix", "head", "embedding"}
            if config == AdamW(weight_decay=0.3, decay_embeddings=True)
            else {
                "matrix",
                "head",
            }
        )
        assert decays == {name for name, kind in kinds.items() if kind in wanted}
        if isinstance(config, Muon):
            by_muon = {names[p] for p in optimiser.parts[0].state}
            assert by_muon == {name for name, kind in kinds.items() if kind == "matrix"}
    for name, rows in rows_of(m).items():
        assert sum(rows) == m.get_parameter(name).shape[-2]
    return kinds


@pytest.mark.parametrize("position", POSITIONS)
def test_every_parameter_is_in_one_group_for_every_encoding(position):
    m = model(position, layers=1)
    kinds = check_groups(m)
    assert kinds["embed.tokens.weight"] == "embedding"
    assert {kind for name, kind in kinds.items() if "scorer" in name} <= {"vector", "position"}
    assert {name for name, kind in kinds.items() if kind == "matrix"} == {
        f"blocks.0.steps.{step}.sublayer.{name}.weight"
        for step, name in ((0, "qkv"), (0, "out"), (1, "gate_up"), (1, "down"))
    }


@pytest.mark.parametrize("case", CASES, ids=[f"{case.family}-{case.model}" for case in CASES])
def test_every_parameter_is_in_one_group_for_every_family(case):
    values = getattr(transformers, case.config)(**case.base).to_dict()
    m = vt.build(family_of(values).spec(Config(values)))
    kinds = check_groups(m)
    for name, kind in kinds.items():
        assert (kind == "vector") == (m.get_parameter(name).dim() < 2)
        assert (kind == "embedding") == ("embed." in name and kind != "vector")


def test_recurrent_gates_are_maps_of_their_own():
    m = nn.GRU(6, 5)
    assert rows_of(m) == {"weight_ih_l0": (5, 5, 5), "weight_hh_l0": (5, 5, 5)}
    assert rows_of(nn.RNN(6, 5)) == {}


# ---- AdamW


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_is_torchs_to_the_bit(dtype):
    ours, theirs = model().to(dtype), model().to(dtype)
    config = AdamW(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    optimiser = config.build(ours)
    decays = [p for n, p in theirs.named_parameters() if p.dim() > 1 and n != "embed.tokens.weight"]
    others = [p for n, p in theirs.named_parameters() if p.dim() <= 1 or n == "embed.tokens.weight"]
    groups = [{"params": decays, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), eps=1e-6, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(reference, lambda step: 1 / (1 + step))
    train(ours, optimiser, range(4))
    for step in range(4):
        reference.zero_grad()
        (theirs(TOKENS.roll(step, 1)) - step).square().mean().backward()
        reference.step()
        schedule.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name
        state = {slot: optimiser.state_tensors()[f"{name}:{slot}"] for slot in ("step", "exp_avg", "exp_avg_sq")}
        assert set(reference.state[b]) == set(state)
        for slot, value in reference.state[b].items():
            assert torch.equal(state[slot], value)
            assert state[slot].dtype == value.dtype


# ---- Muon


@pytest.mark.parametrize("shape", [(24, 24), (8, 40), (40, 8), (3, 16, 10)])
def test_orthogonal_brings_singular_values_near_1_and_keeps_their_vectors(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = orthogonal(x if x.dim() == 3 else x[None]).reshape(shape)
    assert got.dtype == x.dtype
    for a, b in zip(got.reshape(-1, *shape[-2:]), x.reshape(-1, *shape[-2:]), strict=True):
        values = torch.linalg.svdvals(a)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
        u, s, vt_ = torch.linalg.svd(b, full_matrices=False)
        inner = u.mT @ a @ vt_.mT  # diagonal: an odd polynomial of the singular values
        # five rounds of the polynomial on the singular values themselves
        p = s / s.norm()
        for _ in range(5):
            p = 3.4445 * p - 4.7750 * p**3 + 2.0315 * p**5
        torch.testing.assert_close(inner, torch.diag(p), rtol=0, atol=1e-9)


def test_zeros_stay_zeros():
    assert torch.equal(orthogonal(torch.zeros(1, 4, 5)), torch.zeros(1, 4, 5))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_steps_follow_the_formula(nesterov, adjust):
    m = model("none", layers=1).double()
    name = "blocks.0.steps.0.sublayer.qkv.weight"
    p = m.get_parameter(name)
    optimiser = Muon(0.05, 0.9, nesterov, 0.1, adjust).build(m)
    w, momentum = p.detach().clone(), torch.zeros_like(p)
    for step in range(3):
        optimiser.zero_grad()
        m(TOKENS).square().sum().backward()
        momentum = 0.9 * momentum + 0.1 * p.grad
        direction = 0.9 * momentum + 0.1 * p.grad if nesterov else momentum
        update = []
        for rows in direction.split((32, 16, 16)):  # q, k, v: each by itself
            scale = math.sqrt(max(1, len(rows) / 32)) if adjust == "original" else 0.2 * math.sqrt(32)
            update.append(scale * orthogonal(rows[None])[0])
        rate = 0.05 / (step + 1)
        w = w * (1 - rate * 0.1) - rate * torch.cat(update)
        optimiser.step(1 / (step + 1))
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's own works in bfloat16, as ours does on a GPU alone")
def test_muon_is_torchs_on_a_gpu():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, 64, generator=random).cuda(), torch.randn(512, 32, generator=random).cuda()
    ours = nn.Linear(64, 32, bias=False).cuda()
    theirs, start = copy.deepcopy(ours), ours.weight.detach().clone()
    optimiser = Muon(0.02, weight_decay=0.1).build(ours)
    reference = torch.optim.Muon(theirs.parameters(), lr=0.02, weight_decay=0.1, momentum=0.95)
    for _ in range(3):
        for m, o in ((ours, optimiser), (theirs, reference)):
            o.zero_grad()
            (m(x) - y).square().sum().backward()  # of full rank: noise takes the place of what is missing otherwise
            o.step()
    a, b = ours.weight.detach(), theirs.weight.detach()
    assert float((a - b).norm() / (a - start).norm()) < 0.03


def test_muon_takes_stacks_and_refuses_more_by_name():
    class Stack(nn.Module):
        def __init__(self, *shape: int):
            super().__init__()
            self.up = nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(0)))

    m = Stack(3, 4, 6)
    optimiser = Muon(1.0, nesterov=False, momentum=0.0).build(m)
    before = m.up.detach().clone()
    m.up.square().sum().backward()
    optimiser.step()
    torch.testing.assert_close(before - m.up.detach(), orthogonal(2 * before))
    with pytest.raises(Refused, match="'up'"):
        Muon().build(Stack(2, 2, 2, 2))


# ---- state


@pytest.mark.parametrize("config", CONFIGS, ids=["adamw", "muon"])
@pytest.mark.parametrize("after", [0, 3])
def test_saved_loaded_and_continued_is_bit_equal(config, after):
    whole = model()
    optimiser = config.build(whole)
    train(whole, optimiser, range(after))
    kept = {name: t.clone() for name, t in optimiser.state_tensors().items()}
    resumed = copy.deepcopy(whole)
    train(whole, optimiser, range(after, 6))
    other = config.build(resumed)
    for name, value in other.state_tensors().items():  # as a checkpoint is read: into the tensors themselves
        value.copy_(kept[name])
    train(resumed, other, range(after, 6))
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    for name, value in optimiser.state_tensors().items():
        assert torch.equal(value, other.state_tensors()[name]), name


@pytest.mark.parametrize("config", CONFIGS, ids=["adamw", "muon"])
def test_frozen_parameters_have_no_state_and_do_not_move(config):
    m = model()
    names = add_lora(m, Lora(2))
    frozen = {name: p.detach().clone() for name, p in m.named_parameters() if not p.requires_grad}
    optimiser = config.build(m)
    train(m, optimiser, range(2))
    assert {name.rpartition(":")[0] for name in optimiser.state_tensors()} == {
        name for name, p in m.named_parameters() if p.requires_grad
    }
    owned = [p for part in optimiser.parts for group in part.param_groups for p in group["params"]]
    assert len(owned) == 2 * len(names)
    assert all(torch.equal(m.get_parameter(name), p) for name, p in frozen.items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamW(lr=-1),
        lambda: AdamW(lr=float("nan")),
        lambda: AdamW(betas=(0.9, 1.0)),
        lambda: AdamW(eps=0),
        lambda: AdamW(weight_decay=-0.1),
        lambda: Muon(momentum=1.0),
        lambda: Muon(adjust="some"),
        lambda: Muon(lr=-1),
        lambda: AdamW().build(nn.Linear(2, 2).requires_grad_(False)),
        lambda: Muon().build(nn.ReLU()),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(BadInput):
        make()


def test_an_optimiser_of_ones_own_stands_in_settings():
    @dataclass(frozen=True)
    class Halving:
        lr: float = 0.1

        def build(self, model):
            return AdamW(lr=self.lr / 2).build(model)

    vt.register("optimiser", "halving", Halving)
    try:
        settings = settings_of(
            {
                "model": {"is": "decoder", "width": 16, "layers": 1, "heads": 2},
                "data": {"is": "task", "task": "copy"},
                "optimiser": {"is": "halving", "lr": 0.3},
            }
        )
        assert settings.optimiser == Halving(0.3)
    finally:
        OPTIMISERS.unregister("halving")
