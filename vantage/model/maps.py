"""What a model's parameters are for: which are maps inside layers, and which maps lie side by side in one weight.

q, k and v are one product here, and gate and up are another. Who treats maps one by one (Muon, LoRA) asks here
where one ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from vantage.model.packed import PackedLinear
from vantage.model.wide import WideLinear
from vantage.spec.attention import Attention, HasProjections, Pieces, attentions, position_parts

LINEAR = (nn.Linear, WideLinear, PackedLinear)
WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})  # names that torch.compile and checkpointing put in


class LinearWrapper(nn.Module):
    """What stands around a linear map and counts as that map."""

    def __init__(self, base: nn.Module):
        super().__init__()
        self.base = base


@dataclass(frozen=True)
class LinearMap:
    """A linear map of a model."""

    name: str  # of its module
    role: str  # "attention", "ffn", "router", "position", "head" or "other"
    pieces: Pieces  # () where it is a single map


def linear_maps(model: nn.Module) -> list[LinearMap]:
    """Every linear map, in the model's order."""
    inner = _position_parts(model)
    within = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Attention))
    maps: list[LinearMap] = []
    for name, module in model.named_modules():
        outer, _, last = name.rpartition(".")
        parent = model.get_submodule(outer)
        if isinstance(module, (*LINEAR, LinearWrapper)) and not isinstance(parent, LinearWrapper):
            maps.append(LinearMap(name, _role(name, parent, inner, within), _pieces(parent, last)))
    return maps


def size_of(linear: nn.Module) -> tuple[int, int]:
    """Outputs and inputs."""
    if isinstance(linear, LinearWrapper):
        return size_of(linear.base)
    if isinstance(linear, PackedLinear):
        return linear.weight.outputs, linear.weight.inputs
    assert isinstance(linear, (nn.Linear, WideLinear))
    return linear.weight.shape[0], linear.weight.shape[1]


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """For each parameter "vector", "embedding", "position", "head" or "matrix".

    A vector has at most one dimension: norms, biases, slopes. An embedding turns tokens, types or patches into
    vectors, and a tied head is one. What an encoding learns, tables mostly, is "position". All else is "matrix",
    stacks of matrices included.
    """
    inner = _position_parts(model)
    return {name: _kind(name, p.dim(), inner) for name, p in model.named_parameters()}


def rows_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """For each weight that holds several maps side by side, how many rows each has."""
    maps = {f"{m.name}.weight": tuple(rows for _, rows in m.pieces) for m in linear_maps(model) if m.pieces}
    return maps | dict(_gates(model))


def _kind(name: str, dims: int, inner: tuple[str, ...]) -> str:
    if dims < 2:
        return "vector"
    first = _first(name)
    if first == "embed":
        return "embedding"
    if first == "head":
        return "head"
    return "position" if name.startswith(inner) else "matrix"


def _role(name: str, parent: nn.Module, inner: tuple[str, ...], within: tuple[str, ...]) -> str:
    """``within``: the names that parts of an attention begin with, a gate's and an indexer's among them."""
    if _steps(name)[0] == "vision":
        return "other"  # "attention" and "ffn" mean those of the text model
    if isinstance(parent, Attention):
        return "attention"
    if name.startswith(inner):
        return "position"
    if name.startswith(within):
        return "attention"
    if _first(name) != "blocks":
        return "head" if _first(name) == "head" else "other"
    return "router" if "router" in name.split(".") else "ffn"


def _steps(name: str) -> list[str]:
    return [step for step in name.split(".") if step not in WRAPPERS]


def _first(name: str) -> str:
    """The part of the model that a name lies in, whether of its encoder, of its vision tower's or of itself."""
    steps = _steps(name)
    while steps[0] in ("vision", "encoder") and len(steps) > 1:
        steps = steps[1:]
    return steps[0]


def _pieces(parent: nn.Module, last: str) -> Pieces:
    return parent.projections().get(last, ()) if isinstance(parent, HasProjections) else ()


def _gates(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GRU and LSTM keep the maps of all gates in one weight."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            for own, p in module.named_parameters(prefix=name, recurse=False):
                if p.dim() == 2 and len(p) > module.hidden_size and not len(p) % module.hidden_size:
                    yield own, (module.hidden_size,) * (len(p) // module.hidden_size)


def _position_parts(model: nn.Module) -> tuple[str, ...]:
    """How the names begin of what acts for position inside an attention."""
    parts = [part for module in attentions(model) if (part := position_parts(module)) is not None]
    inner = {id(module) for part in parts for module in (*part.qk, part.bias, part.value_bias)}
    return tuple(f"{name}." for name, module in model.named_modules() if id(module) in inner)
