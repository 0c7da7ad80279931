"""A model as a GGUF file that llama.cpp loads, its weights quantised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.gguf_metadata import attention_of, frequency_divisors, metadata_from
from vantage.checkpoints.gguf_mixes import MIXES, TensorLocation, check_gguf, type_of
from vantage.checkpoints.gguf_names import ARCHITECTURES, GGUFTensors
from vantage.checkpoints.gguf_tokens import copied, tokens_metadata
from vantage.checkpoints.gguf_write import write_gguf
from vantage.errors import BadInput
from vantage.families.built import FAMILY as BUILT
from vantage.families.family import Family, export
from vantage.families.registry import FAMILIES, families, family_of
from vantage.model import Model
from vantage.model.lora import adapted
from vantage.model.packed import packed_weights
from vantage.spec.model import ModelSpec

ARCHITECTURE_NAMES = {"gemma3_text": "gemma3"}  # of families whose architecture has another name in GGUF
LEFT_OUT = ("pooler.",)  # of BERT: llama.cpp has no place for it either


def save_gguf(
    model: Model,
    path: str | Path,
    type: str = "Q4_K_M",
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a model as a GGUF file, which ``load`` and llama.cpp read.

        vt.save_gguf(model, "model.gguf", "Q4_K_M")

    ``type`` names a mix as llama.cpp does: Q4_K_M is Q4_K with Q6_K where errors cost most. Matrices whose rows are no
    multiple of 256 get the next type with blocks of 32. The tokenizer and the general metadata of a model that came
    from a GGUF file are copied. ``progress`` is called with the weights that are done, and how many there are.
    """
    check_gguf(path, type, overwrite=overwrite)
    if packed_weights(model):
        raise BadInput("this model's weights are packed already: load it with dtype=torch.float32 to write it")
    if adapted(model):
        raise BadInput("this model has adapters: vantage.model.lora.merge(model) makes them part of its weights")
    family = _reading_family(model)
    arch = ARCHITECTURE_NAMES.get(family.name, family.name)
    metadata = {"general.architecture": arch, **_general(model, arch), "general.file_type": MIXES[type].number}
    metadata |= {"general.quantization_version": 2, **metadata_from(arch, model.spec)}
    metadata |= tokens_metadata(model.tokenizer, model.spec.vocab)
    tensors = _tensors(model, arch, family, metadata)
    types = {name: _type(name, tensors, type, model.spec) for name in tensors}

    def check(reader: GGUFTensors) -> None:
        read = family_of(reader.config).spec(Config(reader.config, tensors=list(reader.names())))
        if difference := _difference(_settled(model.spec, model.spec), _settled(read, model.spec)):
            raise BadInput(f"the GGUF architecture {arch!r} has no place for this model: {difference}")

    write_gguf(Path(path).expanduser(), metadata, tensors, types, check, progress)


def _reading_family(model: Model) -> Family:
    """The family that will read the file, whose names and order of weights it is written in."""
    own = BUILT if model.config is None else family_of(model.config)
    if own.gguf is None:
        known = ", ".join(
            sorted(f.name for f in (*families().values(), *FAMILIES.from_outside()) if f.gguf and f != BUILT)
        )
        raise BadInput(
            f"the family {own.name!r} cannot be written as GGUF; these can: {known}, and models built like LLaMA. "
            "A family of your own names the one that reads its files back: Family(…, gguf='llama')"
        )
    return FAMILIES[own.gguf]


def _general(model: Model, arch: str) -> dict[str, Any]:
    """The name, the licence and whatever else the file said that the model came from."""
    origin = None if model.tokenizer is None else model.tokenizer.gguf
    if origin is None or origin.metadata.get("general.architecture") != arch:
        return {}
    ours = ("general.architecture", "general.file_type", "general.quantization_version", "general.alignment")
    return {key: value for key, value in copied(origin, "general.").items() if key not in ours}


def _tensors(model: Model, arch: str, family: Family, metadata: dict[str, Any]) -> dict[str, Tensor]:
    """By the file's names, as llama.cpp wants them."""
    about = Config({key.removeprefix(f"{arch}."): value for key, value in metadata.items()})
    divisors = frequency_divisors(model.spec)
    tensors: dict[str, Tensor] = {} if divisors is None else {"rope_freqs.weight": divisors}
    try:
        config = model.config if model.config is not None and family_of(model.config) is family else {}
        links = family.links(Config(config), model.spec)
        exported = export(model, links)
    except (AssertionError, KeyError, AttributeError) as e:
        raise BadInput(f"the GGUF architecture {arch!r} has no place for this model's parts: {e!r}") from e
    for name, tensor in exported.items():
        plain = name.removeprefix(family.prefix) if ARCHITECTURES[arch].stored_name(name) is None else name
        stored = ARCHITECTURES[arch].stored_name(plain)
        if stored is None:
            if plain.startswith(LEFT_OUT):
                continue
            raise BadInput(f"the GGUF architecture {arch!r} has no place for the tensor {name!r}")
        rewriting = ARCHITECTURES[arch].rewriting(stored)
        tensors[stored] = tensor if rewriting is None else rewriting.redo(tensor, about)
    return tensors


def _type(name: str, tensors: dict[str, Tensor], mix: str, spec: ModelSpec) -> str:
    attention = attention_of(spec.layers[0])
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    place = TensorLocation(layer, len(spec.layers), attention.heads // (attention.kv_heads or attention.heads))
    return type_of(name, tuple(tensors[name].shape), MIXES[mix], place, tied="output.weight" not in tensors)


# ---- whether a reader gets the model back


def _settled(spec: ModelSpec, like: ModelSpec) -> ModelSpec:
    """With what follows from other numbers filled in, and without what acts in training alone."""
    layers = []
    for layer in spec.layers:
        attention = layer.attention
        if isinstance(attention, GroupedQuery):
            shape = attention.shape(spec.width)
            scale = attention.scores.scale if attention.scores.scale is not None else shape.key_dim**-0.5
            scores = dataclasses.replace(attention.scores, scale=round(scale, 12), dropout=0.0)
            attention = dataclasses.replace(
                attention, kv_heads=shape.kv_heads, head_dim=shape.key_dim, value_dim=shape.value_dim, scores=scores
            )
        layers.append(dataclasses.replace(layer, attention=attention, dropout=0.0))
    return dataclasses.replace(
        spec,
        layers=tuple(layers),
        embedding=dataclasses.replace(spec.embedding, dropout=0.0),
        max_length=like.max_length,
        pooler=None,
    )


def _difference(ours: Any, theirs: Any, where: str = "") -> str:
    """Where two specs first differ; nothing where they do not."""
    if ours == theirs:
        return ""
    if dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
        for field in dataclasses.fields(ours):
            values = getattr(ours, field.name), getattr(theirs, field.name)
            if difference := _difference(*values, f"{where}.{field.name}"):
                return difference
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if difference := _difference(a, b, f"{where}[{i}]"):
                return difference
    return f"{where.removeprefix('.')} is {ours!r}, and a reader would take {theirs!r}"
