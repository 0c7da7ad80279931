"""What a family is, and how one is loaded and saved: three accounts that must all balance.

Every config key is read or known to be inert; every tensor of the checkpoint is used; every parameter of
the model is filled. What does not balance is named, before any weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, Same
from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import CheckpointError
from vantage.families.packing import Packing, dense, sound
from vantage.model import Model, empty_model, parameter_names
from vantage.model.packed import put
from vantage.model.wide import widen
from vantage.parallel import Divided
from vantage.spec.model import ModelSpec


@dataclass(frozen=True)
class Family:
    """A model family as data: from a config to a spec, and from a config and its spec to links."""

    name: str
    spec: Callable[[Config], ModelSpec]
    links: Callable[[Config, ModelSpec], list[Link]]
    # tensors that older checkpoints carry and that are computed here instead (buffers, rotary tables)
    ignored: tuple[str, ...] = ()
    # tables that are stored once more: (a tensor, another that it must equal). A tied head need not be named
    copied: tuple[tuple[str, str], ...] = ()
    # steps of tensor names that stay in float32 when the model is loaded in half precision (a router's bias) …
    wide: tuple[str, ...] = ()
    # … and those that do in float16 alone, whose largest number is 65,504
    wide_in_float16: tuple[str, ...] = ()
    # how names begin where the model is stored with its head; a base model is stored without (GPT-2, BLOOM)
    prefix: str = ""
    # how older checkpoints end a name, and how it ends now
    older: tuple[tuple[str, str], ...] = ()
    # the tensors as the links know them, where they are stored packed (GPT-OSS)
    unpacked: Callable[[Tensors], Tensors] = lambda tensors: tensors
    # the config under which a loaded model is saved: another one where only a part is loaded (Gemma 3's text model)
    saved_as: Callable[[dict[str, Any]], dict[str, Any]] = dict
    # the family that reads such a model back from a GGUF file: itself, or "llama" where it is a LLaMA by another name
    gguf: str | None = None

    def dtype_of(self, link: Link, dtype: torch.dtype) -> torch.dtype:
        """The dtype of what a link fills in a model of ``dtype``."""
        wide = {torch.bfloat16: self.wide, torch.float16: self.wide + self.wide_in_float16}.get(dtype, ())
        steps = {step for name in link.their_names for step in name.split(".")}
        return dtype if steps.isdisjoint(wide) else torch.float32


Copies = Sequence[tuple[str, str]]  # a tensor and another that it repeats


class Prefixed:
    """A checkpoint of a base model, with its tensors named as in one with a head."""

    def __init__(self, tensors: Tensors, prefix: str):
        self.tensors, self.prefix = tensors, prefix

    def names(self) -> list[str]:
        return [self.prefix + name for name in self.tensors.names()]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors.shape(name.removeprefix(self.prefix))

    def get(self, name: str) -> Tensor:
        return self.tensors.get(name.removeprefix(self.prefix))


def with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors under names that begin with the prefix, whichever way they are stored."""
    stored = any(name.startswith(prefix) for name in tensors.names())
    return tensors if stored else Prefixed(tensors, prefix)


def fill(
    model: Model,
    links: Sequence[Link],
    tensors: Tensors,
    dtype: torch.dtype,
    family: Family,
    copies: Copies,
    packing: Packing = dense,
    parallel: Divided | None = None,
) -> None:
    """Check the accounts, then put the checkpoint's tensors where they belong: all of them, or this process's share."""
    check_accounts(model, links, tensors, family, copies, parallel)
    put_links(model, links, tensors, dtype, family, packing, parameter_names(model), parallel)


def check_accounts(
    model: Model,
    links: Sequence[Link],
    tensors: Tensors,
    family: Family,
    copies: Copies,
    parallel: Divided | None = None,
) -> None:
    balance(model if parallel is None else empty_model(parallel.spec), links, tensors, family.ignored, copies)
    check_copies(tensors, copies)


def put_links(
    model: Model,
    links: Sequence[Link],
    tensors: Tensors,
    dtype: torch.dtype,
    family: Family,
    packing: Packing,
    aliases: Mapping[str, list[str]],
    parallel: Divided | None = None,
) -> None:
    """Put in what these links say. ``aliases``: of the model while it was empty."""
    for link in links:
        if parallel is not None and not any(map(parallel.has, link.our_names)):
            continue  # an expert of another process, which reads it
        if (packed := packing(link)) is not None:
            put(model, aliases[link.our_names[0]], packed)
            continue
        kept = family.dtype_of(link, dtype)
        values = _whole(link, tensors) if parallel is None else _share(link, tensors, parallel)
        for name, value in zip(link.our_names, values, strict=True):
            if name not in aliases:  # of experts in one tensor, one that another process has
                continue
            own = value.to(kept).contiguous()
            if parallel is not None and own.untyped_storage().nbytes() > own.nbytes:
                own = own.clone()  # rows of a tensor that would be held as long as they are
            parameter = nn.Parameter(own, requires_grad=True)
            for alias in aliases[name]:
                _put(model, alias, parameter)
        if kept != dtype:
            widen(model, link.our_names)


def _whole(link: Link, tensors: Tensors) -> list[Tensor]:
    return link.to_ours([sound(tensors.get(name), name) for name in link.their_names])


def _share(link: Link, tensors: Tensors, parallel: Divided) -> list[Tensor]:
    """What this process has of a link's parameters. Tensors are mapped, so where rows stay rows no others are read."""
    dim, slices = parallel.slices(link.our_names[0])
    if isinstance(link, Joined) and len(slices) == len(link.their) and link.dim == dim:
        mapped = zip(link.their, slices, strict=True)
        return [
            torch.cat([sound(tensors.get(name).narrow(dim, first, own), name) for name, (first, own) in mapped], dim)
        ]
    if isinstance(link, Same) and not link.changes:
        return [sound(parallel.take(link.our, tensors.get(link.their)), link.their)]
    return [parallel.take(name, value) for name, value in zip(link.our_names, _whole(link, tensors), strict=True)]


def check_copies(tensors: Tensors, copies: Copies) -> None:
    """Nothing is lost by leaving out what only repeats."""
    for copy, original in copies:
        a, b = tensors.get(copy), tensors.get(original)
        if a.dtype != b.dtype or not torch.equal(a, b):
            raise CheckpointError(
                f"{copy!r} differs from {original!r}, and in this model the two are one (tied): remove the wrong one, "
                "or set tie_word_embeddings to false if the model has both"
            )


def copies_of(family: Family, config: Config, spec: ModelSpec, tensors: Tensors) -> Copies:
    """The tensors there that only repeat another, and which: they must be bit-equal.

    A head that is tied may be stored all the same. Its name is that of the same model's head if it were not tied.
    """
    pairs = list(family.copied)
    if spec.head is not None and spec.head.tied:
        apart = replace(spec, head=replace(spec.head, tied=False))
        names = {link.our_names: link.their_names for link in family.links(config, apart)}
        table, head = names.get(("embed.tokens.weight",)), names.get(("head.linear.weight",))
        pairs += [] if table is None or head is None else zip(head, table, strict=True)
    stored = set(tensors.names())
    return [(copy, original) for copy, original in pairs if copy in stored and original in stored]


def balance(model: Model, links: Sequence[Link], tensors: Tensors, ignored: Sequence[str], copies: Copies) -> None:
    """Names and shapes on both sides, without reading any data."""
    ours = dict(model.named_parameters())  # without memory
    linked = [name for link in links for name in link.our_names]
    assert len(set(linked)) == len(linked), "a parameter is linked twice"
    if missing := sorted(set(ours) - set(linked)):
        raise CheckpointError(f"the parameter {missing[0]!r} has no link: the family's table is incomplete")
    stored, shapes = set(tensors.names()), expected(ours, links)
    if missing := sorted(set(shapes) - stored):
        raise CheckpointError(f"the checkpoint lacks {missing[0]!r}{_and_more(missing)}")
    known = {copy for copy, _ in copies} | {name for name in stored if any(part in name for part in ignored)}
    if extra := sorted(stored - set(shapes) - known):
        raise CheckpointError(f"the checkpoint holds {extra[0]!r}{_and_more(extra)}, which this model has no use for")
    for name, shape in shapes.items():
        if tensors.shape(name) != shape:
            raise CheckpointError(f"{name!r} has shape {tensors.shape(name)}, and the config asks for {shape}")


def expected(ours: Mapping[str, Tensor], links: Sequence[Link]) -> dict[str, tuple[int, ...]]:
    """The names and shapes that the checkpoint must hold: the links run backwards, on shapes alone."""
    meta = {name: p.detach().to("meta") for name, p in ours.items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for link in links:
        values = link.to_theirs([meta[name] for name in link.our_names])
        shapes |= {name: tuple(v.shape) for name, v in zip(link.their_names, values, strict=True)}
    return shapes


def export(model: Model, links: Sequence[Link]) -> dict[str, Tensor]:
    """The model's parameters under the checkpoint's names."""
    ours = {name: p.detach() for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for link in links:
        values = link.to_theirs([ours[name] for name in link.our_names])
        tensors |= dict(zip(link.their_names, values, strict=True))
    return tensors


def _put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, parameter)


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
