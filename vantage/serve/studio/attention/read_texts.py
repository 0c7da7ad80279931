"""A text that was read once, with the model's own encoding or another, and any head's weights from it on demand.

All weights of a long text would take gigabytes: 270 heads over 2,000 tokens are 4. What went into each attention takes
a thousandth of that a head, and one layer computed again from it is done in a moment, by the very modules that ran.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.inspect import Atlas, atlas
from vantage.inspect.recording import RecordedPass, reach
from vantage.inspect.reductions import AllWeights
from vantage.inspect.select import labels, read_source, read_tokens
from vantage.inspect.sites import Site, sites_of
from vantage.inspect.swap import is_position
from vantage.inspect.tiles import Tile, tiles
from vantage.model import Model
from vantage.serve.errors import ApiError, bad
from vantage.serve.studio.answers import EncodingInfo
from vantage.serve.studio.attention.answers import AttentionSite, site_kind
from vantage.serve.studio.progress_events import Report
from vantage.serve.studio.state import Studio
from vantage.serve.studio.swapped_models import EncodingRequest, encoding_info, swapped_model
from vantage.spec.parts import Context

TEXTS = 8
BYTES = 2**29  # of all of them
TOKENS = 4096  # a head's whole map is then 33 MB
MEASURED = 256  # tokens of a text that the atlas reads, twice over: more take long and change little
NEAR = 2  # layers whose queries and keys stay at hand
SIZE = 64  # cells of a small map, each way
Inputs = dict[tuple[str, int], tuple[Site, Tensor, Context]]  # by kind and layer


@final
@dataclass(eq=False)
class ReadText:
    """One text read by one model. All methods are for the thread of the model.

    ``position``: with which encoding. ``fresh``: weights that only this text's model has.
    """

    name: str
    model: Model
    ids: list[int]
    source: list[int] | None
    inputs: Inputs
    position: EncodingInfo
    asked: tuple[Any, ...] = ()  # what was to be read, and by which model: asked again, it is this one
    fresh: list[Tensor] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    _near: OrderedDict[tuple[str, int], RecordedPass] = field(default_factory=OrderedDict)
    _small: dict[tuple[str, int], bytes] = field(default_factory=dict)
    _atlas: Atlas | None = None

    @property
    def bytes(self) -> int:
        kept = [x for _, x, _ in self.inputs.values()]
        memory = {id(c.memory): c.memory.hidden for _, _, c in self.inputs.values() if c.memory is not None}
        return sum(x.nbytes for x in (*kept, *memory.values(), *self.fresh))

    def sites(self) -> list[AttentionSite]:
        return [AttentionSite(kind=site_kind(s.kind), layer=s.layer, heads=s.heads) for s, _, _ in self.inputs.values()]

    def words(self, kind: str) -> list[str]:
        """The tokens that are looked at in such an attention."""
        return labels(self.model, self.ids if kind == "self" or self.source is None else self.source)

    @torch.inference_mode()
    def met(self, kind: str, layer: int, head: int | None = None) -> RecordedPass:
        """A site as it ran: its module once more, over what went in, up to its kernel."""
        where = (kind, layer)
        if where not in self.inputs:
            kinds = ", ".join(dict.fromkeys(kind for kind, _ in self.inputs))
            raise bad(f"there is no {kind} attention in layer {layer}: this model has {kinds}", "layer")
        site, x, ctx = self.inputs[where]
        if head is not None and head >= site.heads:
            raise bad(f"there is no head {head}: {site.name} attention has {site.heads}, 0 to {site.heads - 1}", "head")
        if where not in self._near:
            self._near[where] = reach(site, x, ctx)
        self._near.move_to_end(where)
        while len(self._near) > NEAR:
            self._near.popitem(last=False)
        return self._near[where]

    @torch.inference_mode()
    def head(self, kind: str, layer: int, head: int, *, half: bool = False) -> np.ndarray:
        """(queries, keys) in 16 bits: 65535 is a weight of 1. ``half``: each way, of four weights the largest."""
        met = self.met(kind, layer, head)
        lines = torch.cat([line[0, 0] for line in _lines(met, [head])])
        lines = _halved(lines) if half else lines
        return lines.mul_(65535).round_().to(torch.uint16).cpu().numpy().astype("<u2", copy=False)

    @torch.inference_mode()
    def heads(self, kind: str, layer: int) -> bytes:
        """Every head in 64 × 64 cells of 8 bits, each the largest weight in it, on a scale of square roots."""
        if (kind, layer) not in self._small:
            met = self.met(kind, layer)
            narrow = [F.adaptive_max_pool2d(line[0], (line.shape[2], SIZE)) for line in _lines(met, None)]
            small = F.adaptive_max_pool2d(torch.cat(narrow, 1), (SIZE, SIZE))
            self._small[kind, layer] = (255 * small.sqrt()).round().to(torch.uint8).cpu().numpy().tobytes()
        return self._small[kind, layer]

    def without_bands(self, met: RecordedPass) -> str:
        """Why the position part of such scores is not told by wavelength."""
        if met.site.kind == "cross":
            return "No position acts in cross-attention: these scores are content alone."
        title, layer = self.position.title, met.site.config
        spec = self.model.spec if met.site.kind == "self" or self.model.encoder is None else self.model.encoder.spec
        if layer.bias is not None and is_position(layer.bias):
            return f"{title} turns no queries and keys, so there are no bands: position is what is added to the scores."
        if any(is_position(part) for part in layer.qk):
            return f"{title} has no bands: position is one part."
        if spec.embedding.inputs:
            return (
                f"{title} is added to the embeddings, so there are no bands: position has become part of the content, "
                "and a score cannot tell them apart."
            )
        return "No encoding acts in this layer: these scores are content only; order comes from the mask alone."

    def atlas(self, report: Report | None = None) -> Atlas:
        if self._atlas is None:
            progress = report and (lambda done, of: report(done / of, f"{done} of {of}"))
            self._atlas = atlas(self.model, self.ids, source=self.source, longest=MEASURED, progress=progress)
        return self._atlas


def _lines(met: RecordedPass, heads: list[int] | None) -> Iterator[Tensor]:
    """The weights of these heads, some queries at a time: (1, heads, queries, all keys)."""
    seen = met.call
    width = seen.view.k.shape[2]
    chosen = range(met.site.heads) if heads is None else heads
    row_tiles: Iterator[Tile] = tiles(seen, chosen, range(seen.q.shape[2]))
    for tile in row_tiles:
        yield AllWeights().of(tile, width)["weights"].float()


def _halved(weights: Tensor) -> Tensor:
    """Of each four weights the largest. A pooling of torch's takes four times as long."""
    even = F.pad(weights, (0, weights.shape[1] % 2, 0, weights.shape[0] % 2))
    wide = torch.maximum(even[::2], even[1::2])
    return torch.maximum(wide[:, ::2], wide[:, 1::2])


def asked_for(
    model: Model, ids: list[int], source: list[int] | None, position: EncodingRequest | None
) -> tuple[Any, ...]:
    """By which a text that was read is known again."""
    return (model, tuple(ids), source and tuple(source), position and position.model_dump_json())


def read_text(
    name: str,
    model: Model,
    ids: list[int],
    source: list[int] | None,
    position: EncodingRequest | None,
    report: Report | None = None,
) -> ReadText:
    """Read a text, with another encoding where one is named."""
    asked = asked_for(model, ids, source, position)
    if position is None:
        return ReadText(name, model, ids, source, read(model, ids, source, report), encoding_info(model), asked)
    check(model, ids, source)  # before a table of that many positions is made
    other = swapped_model(model, position, max(len(ids), len(source or ())))
    inputs = read(other.model, ids, source, report)
    info = encoding_info(model, position, other)
    return ReadText(name, other.model, ids, source, inputs, info, asked, other.fresh)


@torch.inference_mode()
def read(model: Model, ids: list[int], source: list[int] | None, report: Report | None = None) -> Inputs:
    """Run the model over a text once, and keep what went into each attention. It reports at each of them."""
    check(model, ids, source)
    tokens, read_from = read_tokens(model, ids), read_source(model, source)
    sites = sites_of(model)
    inputs: dict[int, tuple[Tensor, Context]] = {}

    def enter(module: nn.Module, args: tuple[Tensor, Context]) -> None:
        inputs[id(module)] = args
        if report is not None:
            report(len(inputs) / (len(sites) + 1), f"{len(inputs)} of {len(sites)} layers")

    handles = [site.module.register_forward_pre_hook(enter) for site in sites]
    try:
        model.hidden(tokens, source=read_from)
    finally:
        for handle in handles:
            handle.remove()
    return {(site.kind, site.layer): (site, *inputs[id(site.module)]) for site in sites}


def check(model: Model, ids: list[int], source: list[int] | None) -> None:
    """Before a pass is run: whether the text can be read, and what is kept of it be held."""
    if not ids:
        raise bad("the text is empty: write something", "text")
    parts = [("text", ids, model)]
    if source is not None and model.encoder is not None:
        parts.append(("source", source, model.encoder))
    for what, tokens, of in parts:
        context = of.context_length
        most = TOKENS if context is None else min(TOKENS, context)
        if len(tokens) > most:
            why = "the model's context" if most == context else "what the studio shows"
            raise bad(
                f"the {what} has {len(tokens):,} tokens, and {why} is {most:,}: shorten it",
                what,
                "context_length_exceeded",
            )
    width = model.spec.width * model.dtype.itemsize
    taken = len(sites_of(model)) * max(len(ids), len(source or ())) * width
    if taken > BYTES:
        raise bad(
            f"this text would take {taken / 2**20:,.0f} MiB to look at, more than {BYTES / 2**20:,.0f}: shorten it"
        )


@final
class ReadTexts:
    """The texts that were read, the least recently used given up first."""

    def __init__(self, studio: Studio):
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, ReadText] = OrderedDict()

    def put(self, text: ReadText) -> None:
        with self._lock:
            self._texts[text.id] = text
            while len(self._texts) > 1 and (
                len(self._texts) > TEXTS or sum(one.bytes for one in self._texts.values()) > BYTES
            ):
                self._texts.popitem(last=False)

    def find(self, asked: tuple[Any, ...]) -> ReadText | None:
        """One that was read before, by the same model with the same encoding: a page may have been loaded again."""
        with self._lock:
            read = next((text for text in self._texts.values() if text.asked == asked), None)
            if read is not None:
                self._texts.move_to_end(read.id)
            return read

    def get(self, id: str) -> ReadText:
        with self._lock:
            text = self._texts.get(id)
            if text is None:
                raise ApiError(
                    404,
                    "picture_not_found",
                    f"this text is not kept any more: the last {TEXTS} are. Read it again",
                    param="id",
                )
            self._texts.move_to_end(id)
            return text
