"""LoRA adapters as files: adapter_config.json and adapter_model.safetensors, as the peft library writes and reads them.

Where a linear map of ours is one or several of a checkpoint's, an adapter goes by the checkpoint's names, so that
peft puts it on the transformers model and the other way round. What has no such name (a model that was built here,
experts that a checkpoint stacks in one tensor) goes by our own names in the same layout, which only Vantage reads.
A checkpoint's map that holds q, k and v in one has one adapter there: our three become one of three times the rank,
which computes the same, and stays one when it is read again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vantage.checkpoints.config import Config
from vantage.checkpoints.folder import write_tensors
from vantage.checkpoints.links import Change, Joined, Link, Rows, Same, Transpose
from vantage.errors import BadInput, CheckpointError
from vantage.families import built, family_of
from vantage.families.adapter_files import CONFIG, START, WEIGHTS, AdapterFile, plain_number, read_adapter
from vantage.files import replacing, write_text
from vantage.model import Model
from vantage.model.lora import HAS_SOME, LoraLinear, LoraPart, adapted, check_bases, place_of, put_lora, spans_of
from vantage.model.maps import LINEAR, linear_maps, size_of
from vantage.model.packed import PackedLinear
from vantage.model.shared_copy import copy_sharing_weights

BASE = "vantage_base"  # in the safetensors file's metadata: some of the weights that the adapter was made on
SAMPLES = 16  # of each weight
NEAR, NEAR_PACKED = 0.02, 0.25  # bfloat16 moves weights by 0.002 of their size, 4 bits by 0.1, other weights by 1


@dataclass(frozen=True)
class MapRows:
    """Where an adapter's rows lie in a linear map of ours, and their order there."""

    ours: str
    part: str
    start: int
    stop: int
    order: Change | None = None  # None: the same
    transposed: bool = False  # the checkpoint has the weight the other way round; A and B are as ever


def save_adapter(model: Model, folder: str | Path, *, base: str | None = None) -> list[str]:
    """Write the model's adapters. ``base`` is the name or path of the model below, for those who look it up.

    Returns the names that are our own and that peft will not know: none for the maps of most families.
    """
    adapters = adapted(model)
    if not adapters:
        raise BadInput("this model has no adapters: add_lora(model, Lora(...)) puts them there")
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    if (where / WEIGHTS).exists():
        raise BadInput(f"{where} already holds an adapter: choose another folder, or remove it")
    theirs, own = _their_places(model), _own_places(model)
    covered = {place.ours for place in theirs.values()}
    used = theirs | {name: place for name, place in own.items() if place.ours not in covered}
    written = {name: pair for name, place in used.items() if (pair := _gather(adapters, place)) is not None}
    tensors = {}
    for name, pair in written.items():
        tensors |= {f"{START}{name}.lora_A.weight": pair.a, f"{START}{name}.lora_B.weight": pair.b}
    config = _config(written, used, adapters, base)
    metadata = {"format": "pt", BASE: json.dumps(_samples(model, adapters))}
    with replacing(where / WEIGHTS) as part:
        write_tensors(tensors, part, metadata)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    write_text(where / CONFIG, text)
    return [name for name in written if name not in theirs]


def load_adapter(model: Model, folder: str | Path) -> list[str]:
    """Put the adapter of a folder on a model that has none, ready to run, to train on or to ``merge``.

    What does not fit is refused by name, and the model is as it was. Returns the names of the adapted maps.
    """
    if adapted(model):
        raise BadInput(HAS_SOME)
    stored = read_adapter(Path(folder))
    places = _own_places(model) | _their_places(model)
    parts_by_map: dict[str, dict[str, LoraPart]] = {}
    for name in stored.modules:
        place = next((places[n] for n in _spelled(model, name) if n in places), None)
        if place is None:
            raise CheckpointError(
                f"the adapter is for {name!r}, which is no linear map of this model that an adapter can be put on: "
                "is it for another model?"
            )
        parts_by_map.setdefault(place.ours, {})[place.part] = _part(model, stored, name, place)
    check_bases(model, list(parts_by_map))
    for ours, parts in parts_by_map.items():
        if "" in parts and len(parts) > 1:
            raise CheckpointError(f"the adapter has one for all of {ours!r} and others for its parts: keep one kind")
    if BASE in stored.metadata:
        _check_base(model, stored.metadata[BASE])
    put_lora(model, parts_by_map)
    return [f"{ours}.{part}" if part else ours for ours, parts in parts_by_map.items() for part in parts]


def with_adapter(model: Model, folder: str | Path) -> Model:
    """A model with the adapter of a folder that shares every weight with this one, and whose caches fit both.

    Several adapters so take the memory of one model. The weights they share are frozen.
    """
    adapted_model = copy_sharing_weights(model)
    load_adapter(adapted_model, folder)
    adapted_model.take_caches_of(model)
    return adapted_model


# ---- which rows of ours a name means


def _own_places(model: Model) -> dict[str, MapRows]:
    """Every linear map, and its pieces, by our names."""
    places: dict[str, MapRows] = {}
    for m in linear_maps(model):
        places[m.name] = MapRows(m.name, "", 0, size_of(_base(model, m.name))[0])
        places |= {f"{m.name}.{piece}": MapRows(m.name, piece, *span) for piece, span in spans_of(m).items()}
    if adapters := adapted(model):  # whole where the adapter is whole, in pieces where it is
        places = {n: p for n, p in places.items() if p.ours not in adapters or p.part in adapters[p.ours].names}
    return places


def _their_places(model: Model) -> dict[str, MapRows]:
    """The linear maps of the checkpoint that are rows of ours, by its names."""
    if model.config is None or model.config.get("model_type") == built.NAME:
        return {}
    family, places = family_of(model.config), dict[str, MapRows]()
    pieces = {m.name: {span: piece for piece, span in spans_of(m).items()} for m in linear_maps(model)}
    for link in family.links(Config(model.config), model.spec):
        ours = link.our_names[0].removesuffix(".weight")
        if len(link.our_names) == 1 and ours in pieces and link.our_names[0].endswith(".weight"):
            places |= _of_link(link, ours, size_of(_base(model, ours))[0], pieces[ours])
    # without its head a model is its own base, and modules go by shorter names
    start = family.prefix if model.spec.head is None else ""
    return {name.removeprefix(start): place for name, place in places.items()}


def _of_link(link: Link, ours: str, outputs: int, pieces: Mapping[tuple[int, int], str]) -> dict[str, MapRows]:
    if isinstance(link, Joined) and link.dim == 0 and all(isinstance(change, Rows) for change in link.changes):
        places, at = dict[str, MapRows](), 0
        orders = [change for change in link.changes if isinstance(change, Rows)] or [None] * len(link.their)
        for name, rows, order in zip(link.their, link.sizes, orders, strict=True):
            span = (at, at + rows)
            module = name.removesuffix(".weight")
            places[module] = MapRows(ours, pieces.get(span, module.rpartition(".")[2]), *span, order)
            at += rows
        return places
    if isinstance(link, Same) and all(isinstance(change, (Transpose, Rows)) for change in link.changes):
        turns = sum(isinstance(change, Transpose) for change in link.changes)
        orders = [change for change in link.changes if isinstance(change, Rows)]
        if len(orders) <= 1 and turns <= 1 and not (orders and turns):
            order = orders[0] if orders else None
            return {link.their.removesuffix(".weight"): MapRows(ours, "", 0, outputs, order, turns == 1)}
    return {}


def _base(model: Model, name: str) -> nn.Module:
    module = model.get_submodule(name)
    return module.base if isinstance(module, LoraLinear) else module


def _spelled(model: Model, name: str) -> list[str]:
    """A module's name as it is, and as it is where the model has or has not a head."""
    prefix = "" if model.config is None else family_of(model.config).prefix
    return [name, prefix + name, name.removeprefix(prefix)]


# ---- from our parts to the file's, and back


@dataclass(frozen=True)
class LowRankPair:
    """The two matrices of one adapter in a file."""

    a: Tensor
    b: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.a)


def _gather(adapters: Mapping[str, LoraLinear], place: MapRows) -> LowRankPair | None:
    """The parts that reach into these rows, as one."""
    if place.ours not in adapters:
        return None
    inside = [
        p for p in adapters[place.ours].named_parts().values() if p.start < place.stop and p.rows.stop > place.start
    ]
    if not inside:
        return None
    a = torch.cat([part.a.detach() for part in inside])
    b = a.new_zeros(place.stop - place.start, len(a))
    scale, at = inside[0].scale, 0
    for part in inside:
        low, high = max(part.start, place.start), min(part.rows.stop, place.stop)
        rows = part.b.detach()[low - part.start : high - part.start]
        b[low - place.start : high - place.start, at : at + part.rank] = (
            rows if part.scale == scale else rows * (part.scale / scale)
        )
        at += part.rank
    alpha = inside[0].alpha if len(inside) == 1 else scale * len(a)
    b = b if place.order is None else place.order.theirs(b)
    return LowRankPair(a.cpu().contiguous(), b.cpu().contiguous(), alpha)


def _part(model: Model, stored: AdapterFile, name: str, place: MapRows) -> LoraPart:
    """One adapter of the file, checked against the map it is for."""
    base = model.get_submodule(place.ours)
    a, b, alpha = stored.pair(name)
    inputs, rows = size_of(base)[1], place.stop - place.start
    if a.shape[1] != inputs or b.shape[0] != rows:
        raise CheckpointError(
            f"the adapter of {name!r} maps {a.shape[1]} numbers to {b.shape[0]}, and this model's map {inputs} to "
            f"{rows}: is it for another model?"
        )
    dtype, device = place_of(base)
    b = b if place.order is None else place.order.ours(b)
    return LoraPart(a.to(device, dtype), b.to(device, dtype), alpha, stored.dropout, place.start)


def _config(
    written: Mapping[str, LowRankPair],
    used: Mapping[str, MapRows],
    adapters: Mapping[str, LoraLinear],
    base: str | None,
) -> dict[str, Any]:
    """What peft needs to build the same adapters."""
    rank, alpha = Counter((pair.rank, pair.alpha) for pair in written.values()).most_common(1)[0][0]
    parts = [part for module in adapters.values() for part in module.named_parts().values()]
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": plain_number(alpha),
        "rank_pattern": {name: pair.rank for name, pair in written.items() if pair.rank != rank},
        "alpha_pattern": {name: plain_number(pair.alpha) for name, pair in written.items() if pair.alpha != alpha},
        "lora_dropout": max(part.dropout.p for part in parts),
        "target_modules": _targets(written, used),
        "fan_in_fan_out": any(used[name].transposed for name in written),
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "task_type": None,
    }


def _targets(written: Iterable[str], known: Iterable[str]) -> list[str]:
    """Last names where all maps of that name are adapted, whole names otherwise."""
    last = {name: name.rpartition(".")[2] for name in known}
    all_here, adapted_here = Counter(last.values()), Counter(last[name] for name in written)
    return sorted({last[n] if adapted_here[last[n]] == all_here[last[n]] else n for n in written})


# ---- the model below


def _samples(model: Model, names: Iterable[str]) -> dict[str, list[float]]:
    """Some weights of each of these maps."""
    return {name: _some(_base(model, name)).tolist() for name in names}


def _some(base: nn.Module) -> Tensor:
    assert isinstance(base, LINEAR)
    weight = base.weight.unpack(torch.float32) if isinstance(base, PackedLinear) else base.weight.detach()
    flat = weight.reshape(-1)
    at = torch.arange(SAMPLES, device=flat.device) * max(1, len(flat) - 1) // max(1, SAMPLES - 1)
    return flat[at].to("cpu", torch.float32)


def _check_base(model: Model, text: str) -> None:
    """Refuse an adapter that was made on other weights: it would run and give nonsense."""
    try:
        samples = {str(name): [float(x) for x in values] for name, values in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{WEIGHTS}: what it says of its model cannot be read: {e}") from e
    maps = {m.name for m in linear_maps(model)}
    if lost := sorted(set(samples) - maps):
        raise CheckpointError(f"the adapter was made on a model with {lost[0]!r}, which this one has not")
    own = {name: _some(model.get_submodule(name)) for name in samples}
    if any(len(values) != SAMPLES for values in samples.values()) or not samples:
        raise CheckpointError(f"{WEIGHTS}: what it says of its model is cut off")
    expected = torch.tensor([x for values in samples.values() for x in values])
    off = float((torch.cat([*own.values()]) - expected).norm() / expected.norm().clamp_min(1e-20))
    packed = any(isinstance(model.get_submodule(name), PackedLinear) for name in samples)
    if not off <= (NEAR_PACKED if packed else NEAR):
        raise CheckpointError(
            f"the adapter was made on another model: this one's weights differ by {off:.0%} of their size; "
            "load the model that it was trained on"
        )
