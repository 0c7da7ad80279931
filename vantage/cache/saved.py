"""A cache as a file: keys, values and their positions in safetensors, and whose they are.

Nothing in such a file is code, and nothing of it is used before it was checked: the digest tells a
damaged file, the fingerprint one of another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vantage.cache.codecs import ROUNDING, Codec, StreamShape, dump_streams, read_streams
from vantage.cache.dump import MAX_NUMBER, DumpReader, LedgerDump, damaged, whole_number
from vantage.cache.kinds import codec_classes, ledger_classes
from vantage.cache.layer_cache import LayerCache
from vantage.cache.ledger import Ledger
from vantage.cache.model_cache import ModelCache
from vantage.cache.states import StateRows
from vantage.cache.stores import Store
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.files import replacing

FORMAT = "vantage-cache-1"
SAMPLES = 64  # of each weight that a fingerprint reads
LONGEST = 2**26  # characters of a header: far more than a million tokens of conversation


@final
@dataclass(frozen=True)
class Fingerprint:
    """Which model made the keys: its name for people, its digest for programs."""

    model: str
    digest: str

    def __str__(self) -> str:
        return f"{self.model} ({self.digest[:12]})"


def fingerprint(model: str, described: str, weights: Iterable[tuple[str, Tensor]]) -> Fingerprint:
    """Over a description (the spec) and samples of every weight, evenly spread: cheap, and other for other weights."""
    digest = hashlib.sha256(described.encode())
    for name, weight in sorted(weights, key=lambda pair: pair[0]):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        flat = weight.detach().flatten()
        if flat.numel():
            where = torch.linspace(0, flat.numel() - 1, min(SAMPLES, flat.numel()), dtype=torch.float64)
            digest.update(_bytes(flat[where.long().to(flat.device)]))
    return Fingerprint(model, digest.hexdigest())


# ---- writing


def save_cache(
    cache: ModelCache, path: str | Path, *, fingerprint: Fingerprint, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a cache, whole or not at all. ``extra``: what JSON can hold, kept beside it (a conversation's words)."""
    ledgers = (*cache.ledgers, *cache.cross_ledgers)
    _check_readable(cache)
    number = {id(ledger): i for i, ledger in enumerate(ledgers)}
    dumps = [ledger.dump() for ledger in ledgers]
    tensors = {f"ledger.{i}.{name}": t for i, dump in enumerate(dumps) for name, t in dump.tables.items()}
    layers = {"layers": cache.layers, "cross": cache.cross}
    for kind, caches in layers.items():
        for i, layer in enumerate(caches):
            streams = layer.store.dump(layer.ledger.kept_places)
            tensors |= {f"{kind}.{i}.{s}": stream for s, stream in enumerate(streams)}
            if layer.own_states is not None:
                tensors |= {f"{kind}.{i}.state.{s}": t for s, t in enumerate(layer.own_states.dump())}
    header = {
        "ledgers": [dump.numbers for dump in dumps],
        **{
            kind: [
                {
                    "ledger": number[id(c.ledger)],
                    "codec": c.store.codec.dump(),
                    "streams": dump_streams(c.store.streams),
                    "states": None if c.own_states is None else c.own_states.describe(),
                }
                for c in caches
            ]
            for kind, caches in layers.items()
        },
        "length": cache.length,
        "recomputed": cache.recomputed,
        "ahead": None if cache.ahead is None else cache.ahead.tolist(),
        "fingerprint": asdict(fingerprint),
        "extra": dict(extra or {}),
    }
    text = json.dumps(header)
    metadata = {"format": FORMAT, "header": text, "digest": _digest(text, tensors.__getitem__, tensors)}
    try:
        with replacing(path) as part:
            save_file(tensors, part, metadata)
    except (OSError, SafetensorError) as e:
        raise BadInput(f"cannot write {path}: {e}") from e


def _check_readable(cache: ModelCache) -> None:
    """Whether all of it will be known to whoever reads it: parts of a kind that is registered."""
    ledgers, codecs = ledger_classes(), codec_classes()
    parts = [(ledger, ledgers.get(ledger.kind)) for ledger in (*cache.ledgers, *cache.cross_ledgers)]
    stored = [layer.store.codec for layer in (*cache.layers, *cache.cross)]
    for part, known in (*parts, *((codec, codecs.get(codec.kind)) for codec in stored)):
        if type(part) is not known:
            raise BadInput(
                f"a cache with {type(part).__name__} cannot be saved: no kind of cache that is registered has it, so "
                "nobody could read the file (vantage.register)"
            )


# ---- reading


@final
@dataclass(frozen=True, eq=False)
class Saved:
    """What a file holds."""

    cache: ModelCache
    fingerprint: Fingerprint
    extra: dict[str, Any]


def read_cache(path: str | Path, *, like: ModelCache | None = None, fingerprint: Fingerprint | None = None) -> Saved:
    """The cache in a file. ``like``: an empty cache of the model that goes on with it, ``fingerprint``: that model's.

    Without them the cache belongs to no model and can only be looked at.
    """
    device = torch.device("cpu") if like is None else like.ledgers[0].device
    try:
        with safe_open(Path(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                damaged(f"its format is {str(metadata.get('format'))[:40]!r}, not {FORMAT!r}")
            text = metadata.get("header", "")
            header = _parsed(text)
            whose = _fingerprint_of(header)
            if fingerprint is not None and fingerprint != whose:
                raise CacheError(
                    f"{path} was saved with {whose} and this model is {fingerprint}: "
                    "its keys mean nothing here. Load the model it was saved with"
                )
            names = set(file.keys())
            if metadata.get("digest") != _digest(text, file.get_tensor, names):
                damaged("its contents do not agree with its digest")
            cache = _rebuilt(header, file.get_tensor, names, device, like)
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"cannot read {path} as a saved cache: {e}") from e
    return Saved(cache, whose, header["extra"])


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        damaged(f"its header has {len(text):,} characters")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as e:
        damaged(f"its header is not JSON: {e}")
    wanted = {"ledgers": list, "layers": list, "cross": list, "fingerprint": dict, "extra": dict, "recomputed": int}
    for name, kind in wanted.items():
        if not isinstance(header, dict) or not isinstance(header.get(name), kind):
            damaged(f"its header has no {name!r}")
    if header.get("length") is not None and not isinstance(header["length"], int):
        damaged("its length is no number")
    if not header["layers"]:
        damaged("it has no layers")
    return header


def _fingerprint_of(header: Mapping[str, Any]) -> Fingerprint:
    model, digest = (header["fingerprint"].get(name) for name in ("model", "digest"))
    if not isinstance(model, str) or not isinstance(digest, str):
        damaged("it does not say which model it is of")
    return Fingerprint(model, digest)


def _rebuilt(
    header: Mapping[str, Any],
    tensor: Callable[[str], Tensor],
    names: set[str],
    device: torch.device,
    like: ModelCache | None,
) -> ModelCache:
    ledgers = []
    for i, numbers in enumerate(header["ledgers"]):
        start = f"ledger.{i}."
        tables = {name.removeprefix(start): tensor(name) for name in names if name.startswith(start)}
        ledgers.append(_ledger(LedgerDump(numbers if isinstance(numbers, dict) else {}, tables), device))
    if len({ledger.batch for ledger in ledgers}) > 1:
        damaged("its layers hold different numbers of rows")
    caches: dict[str, list[LayerCache]] = {"layers": [], "cross": []}
    wanted = {} if like is None else {"layers": like.layers, "cross": like.cross}
    for kind, layers in caches.items():
        if kind in wanted and len(wanted[kind]) != len(header[kind]):
            damaged(f"it has {len(header[kind])} {kind}, the model {len(wanted[kind])}")
        for i, saved in enumerate(header[kind]):
            number, codec, streams = _layer(saved, len(ledgers))
            if (
                kind in wanted and codec.exact != wanted[kind][i].store.codec.exact
            ):  # rounding is the cache's own affair
                damaged(f"{kind} {i} keeps {codec}, the model {wanted[kind][i].store.codec}")
            if kind in wanted and streams != wanted[kind][i].store.streams:
                damaged(f"{kind} {i} keeps the streams {streams}, the model {wanted[kind][i].store.streams}")
            for s, shape in enumerate((*codec.streams(), *streams)):  # before memory is taken for what a file says
                kept = _stream(tensor, f"{kind}.{i}.{s}", names)
                if (*kept.shape[-3:-2], *kept.shape[-1:]) != (shape.heads or codec.kv_heads, shape.width):
                    damaged(f"{kind} {i} keeps {tuple(kept.shape)} where {codec} is written")
            try:
                store = Store(codec, ledgers[number], streams)
            except BadInput as e:
                damaged(f"{kind} {i}: {e}")
            except RuntimeError as e:  # torch's own: more than there is memory for
                damaged(f"{kind} {i} does not fit into memory: {e}")
            entries = [_stream(tensor, f"{kind}.{i}.{s}", names) for s in range(len(store.tensors))]
            store.load(entries, ledgers[number].kept_places)
            states = _states(saved, f"{kind}.{i}.state.", tensor, names, ledgers[number])
            theirs = wanted[kind][i].own_states if kind in wanted else states
            if (None if states is None else states.shapes) != (None if theirs is None else theirs.shapes):
                damaged(f"{kind} {i} keeps other states than the model")
            layers.append(LayerCache(ledgers[number], store, states))
    masks, owner = (like.masks, like.owner) if like is not None else ((), None)
    cache = ModelCache(caches["layers"], caches["cross"], masks=masks, owner=owner, length=header["length"])
    cache.recomputed = header["recomputed"]
    if (ahead := header.get("ahead")) is not None:  # of files since positions have axes
        rows = DumpReader(LedgerDump({"ahead": ahead}, {})).list("ahead", cache.batch)
        cache.ahead = torch.tensor([whole_number(n, "ahead", -MAX_NUMBER) for n in rows], device=device)
    return cache


def _ledger(dump: LedgerDump, device: torch.device) -> Ledger:
    saved, classes = DumpReader(dump), ledger_classes()
    kind = saved.text("kind")
    if kind not in classes:
        damaged(f"it holds a ledger of kind {kind!r}, which is not known here")
    try:
        return classes[kind].from_dump(saved, device)
    except BadInput as e:
        damaged(str(e))


def _layer(saved: Any, ledgers: int) -> tuple[int, Codec, tuple[StreamShape, ...]]:
    number = saved.get("ledger") if isinstance(saved, dict) else None
    if not isinstance(number, int) or not 0 <= number < ledgers:
        damaged("a layer has no ledger")
    return number, _codec(saved.get("codec")), read_streams(saved.get("streams", []))


def _states(
    saved: Any, start: str, tensor: Callable[[str], Tensor], names: set[str], ledger: Ledger
) -> StateRows | None:
    """The states of a layer that has some; their tensors have names that begin so."""
    described = saved.get("states")
    if described is None:
        return None
    if not isinstance(described, dict):
        damaged("a layer does not describe its states")
    states = StateRows.from_description(described, ledger.batch, ledger.device)
    states.load([_stream(tensor, f"{start}{i}", names) for i in range(states.tensor_count)])
    return states


def _codec(saved: Any) -> Codec:
    fields, classes = saved if isinstance(saved, dict) else {}, codec_classes()
    kind = str(fields.get("kind"))
    if kind not in classes:
        damaged(f"a layer keeps {str(saved)[:80]!r}")
    try:
        rounds = next((codec for codec in ROUNDING.values() if fields.get(codec.mark)), None)
        return (rounds or classes[kind]).from_dump(fields)
    except BadInput as e:
        damaged(str(e))


def _stream(tensor: Callable[[str], Tensor], name: str, names: set[str]) -> Tensor:
    return tensor(name) if name in names else damaged(f"it has no tensor {name!r}")


# ---- digests


def _digest(header: str, tensor: Callable[[str], Tensor], names: Iterable[str]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(names):
        t = tensor(name)
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(_bytes(t))
    return digest.hexdigest()


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b""
