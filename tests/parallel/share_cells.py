"""What a process holds while it comes by its share of a model: drawn, from a folder, and from a checkpoint of a run."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import vantage as vt
from tests.kernels.peak_memory import PeakMemory
from vantage.errors import CheckpointError
from vantage.families import load_share
from vantage.model import Model, build, empty_model
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.parallel import ModelShare
from vantage.spec.model import ModelSpec
from vantage.training.checkpoint import read_shares, write
from vantage.training.distributed import World, mesh_of
from vantage.training.learners import TokenLearner
from vantage.training.mesh_shares import MeshShares, share_of
from vantage.training.sections import ParallelSettings

SEED = 11
EXPERTS = Experts(FeedForward(48), 4, TopK(2), shared=FeedForward(32))


class Held(NamedTuple):
    """In bytes, of one process: the most that it held at a time, its share, the largest parameter, the whole model."""

    peak: int
    share: int
    largest: int
    whole: int


def deep(kind: str) -> ModelSpec:
    """Many small layers, so that no parameter is a large part of the model."""
    common: dict[str, Any] = {"vocab": 24, "width": 64, "layers": 8, "heads": 4, "max_length": 32}
    if kind == "latent":
        latent = vt.Latent(heads=4, nope_dim=16, rope_dim=8, value_dim=16, kv_rank=24, q_rank=32, norm=vt.RMSNorm())
        return vt.decoder(**{**common, "heads": None}, attention=latent, position="rope")
    if kind == "encoder-decoder":
        return vt.encoder_decoder(**common, position="t5", tied=True, shared=True)
    spec = vt.decoder(
        **common, kv_heads=2, position="t5" if kind == "t5" else "alibi", tied=kind != "untied", bias=True
    )
    if kind == "experts":
        return replace(spec, layers=tuple(replace(layer, ffn=EXPERTS) for layer in spec.layers))
    return spec


def world_of(experts: int, tensor: int) -> World:
    """All processes as a mesh; those that neither share experts nor heads have rows of their own."""
    parallel = ParallelSettings(tensor=tensor, experts=experts)
    rows = parallel.rows(dist.get_world_size())
    return World(dist.get_rank(), rows, 0, tensor, 1, experts, mesh_of("cpu", rows, parallel))


def drawn(kinds: list[str], experts: int, tensor: int) -> list[tuple[Held, list[str]]]:
    """What is held while a share is drawn, and which of its parameters are not those of one process, to the bit."""
    world, found = world_of(experts, tensor), []
    for kind in kinds:
        share = share_of(deep(kind), world)
        with PeakMemory() as memory:
            model = share.drawn(SEED)
        found.append((_held(memory, model, share.spec), _differing(model, share)))
    return found


def loaded(source: str, experts: int, tensor: int) -> tuple[Held, list[str]]:
    """The same of a share that is read from a folder of ``deep`` weights."""
    world, shares = world_of(experts, tensor), []

    def divide(spec: ModelSpec) -> ModelShare:
        shares.append(share_of(spec, world))
        return shares[0]

    with PeakMemory() as memory:
        model = load_share(source, divide)
    return _held(memory, model, shares[0].spec), _differing(model, shares[0])


def resumed(folder: str, experts: int, tensor: int) -> tuple[Held, list[str]]:
    """Write a checkpoint of all processes, and read it again: what is held beside the weights while reading (what is
    mapped counts as if it were in memory), and which are not what was written. ``share``: of the largest parameter."""
    world = world_of(experts, tensor)
    share = share_of(deep("experts"), world)
    learner = TokenLearner(share.drawn(SEED))
    shares = MeshShares(learner, share, world)
    weights = {f"model.{name}": p.detach() for name, p in learner.named_parameters()}
    write(Path(folder), 1, shares.whole(weights), {}, world)
    wanted = {name: x.clone() for name, x in weights.items()}
    for x in weights.values():
        x.zero_()
    with PeakMemory() as memory:
        read_shares(Path(folder), 1, weights, shares)
    differing = [name for name, x in weights.items() if not torch.equal(x, wanted[name])]
    stored = [prod(shares.stored_shape(name, x)) * x.element_size() for name, x in weights.items()]
    return Held(memory.peak, max(x.nbytes for x in weights.values()), max(stored), sum(stored)), differing


def reason(source: str) -> str:
    """Why a share is not loaded."""
    try:
        load_share(source, lambda spec: share_of(spec, world_of(1, dist.get_world_size())))
    except CheckpointError as e:
        return str(e)
    return ""


def resident(whole_first: bool) -> tuple[int, int]:
    """By how many bytes this process grew at most while its half of a model was drawn, and the whole model's bytes."""
    spec = vt.decoder(vocab=64, width=1024, layers=4, heads=8, position="rope")
    share = share_of(spec, world_of(1, 2))
    vt.build(vt.decoder(vocab=9, width=16, layers=1, heads=2))  # so that torch has loaded what a draw needs
    nbytes = sum(p.nbytes for p in empty_model(spec).parameters())
    before = _most()
    model = share.cut(build(spec, seed=SEED)) if whole_first else share.drawn(SEED)
    grown = _most() - before
    assert sum(p.nbytes for p in model.parameters()) < 0.51 * nbytes
    return grown, nbytes


def _most() -> int:
    """The most bytes that this process has held so far (getrusage would count those of who started it)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _held(memory: PeakMemory, model: Model, spec: ModelSpec) -> Held:
    whole = [p.nbytes for p in build(spec).parameters()]
    return Held(memory.peak, sum(p.nbytes for p in model.parameters()), max(whole), sum(whole))


def _differing(model: Model, share: ModelShare) -> list[str]:
    wanted: dict[str, Tensor] = dict(share.cut(build(share.spec, seed=SEED)).named_parameters())
    found = dict(model.named_parameters())
    assert found.keys() == wanted.keys()
    return [name for name, p in wanted.items() if not torch.equal(p, found[name])]
