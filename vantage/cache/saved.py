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

from vantage.cache.layer_cache import LayerCache
from vantage.cache.model_cache import ModelCache
from vantage.cache.saved_states import bad, places_of, put, restored, written
from vantage.cache.stores import Codec, Int8, Plain, Single, Store
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
    number = {id(ledger): i for i, ledger in enumerate(ledgers)}
    kept = [written(ledger) for ledger in ledgers]
    tensors = {f"ledger.{i}.{name}": t for i, of in enumerate(kept) for name, t in of.tables.items()}
    layers = {"layers": cache.layers, "cross": cache.cross}
    for kind, caches in layers.items():
        for i, layer in enumerate(caches):
            layer.store.settle()
            places = kept[number[id(layer.ledger)]].places
            for s, buffer in enumerate(layer.store.tensors):
                tensors[f"{kind}.{i}.{s}"] = _cut(buffer, places)
    header = {
        "ledgers": [of.numbers for of in kept],
        **{
            kind: [{"ledger": number[id(c.ledger)], "codec": _codec(c.store.codec)} for c in caches]
            for kind, caches in layers.items()
        },
        "length": cache.length,
        "recomputed": cache.recomputed,
        "fingerprint": asdict(fingerprint),
        "extra": dict(extra or {}),
    }
    text = json.dumps(header)
    said = {"format": FORMAT, "header": text, "digest": _digest(text, tensors.__getitem__, tensors)}
    try:
        with replacing(path) as part:
            save_file(tensors, part, said)
    except (OSError, SafetensorError) as e:
        raise BadInput(f"cannot write {path}: {e}") from e


def _cut(buffer: Tensor, places: Tensor | int) -> Tensor:
    if isinstance(places, int):
        return buffer.narrow(2, 0, places).contiguous().cpu()
    return buffer.index_select(-2, places.to(buffer.device)).cpu()


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
            said = file.metadata() or {}
            if said.get("format") != FORMAT:
                bad(f"its format is {str(said.get('format'))[:40]!r}, not {FORMAT!r}")
            text = said.get("header", "")
            header = _parsed(text)
            whose = _fingerprint_of(header)
            if fingerprint is not None and fingerprint != whose:
                raise CacheError(
                    f"{path} was saved with {whose} and this model is {fingerprint}: "
                    "its keys mean nothing here. Load the model it was saved with"
                )
            names = set(file.keys())
            if said.get("digest") != _digest(text, file.get_tensor, names):
                bad("its contents do not agree with its digest")
            cache = _rebuilt(header, file.get_tensor, names, device, like)
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"cannot read {path} as a saved cache: {e}") from e
    return Saved(cache, whose, header["extra"])


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        bad(f"its header has {len(text):,} characters")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as e:
        bad(f"its header is not JSON: {e}")
    wanted = {"ledgers": list, "layers": list, "cross": list, "fingerprint": dict, "extra": dict, "recomputed": int}
    for name, kind in wanted.items():
        if not isinstance(header, dict) or not isinstance(header.get(name), kind):
            bad(f"its header has no {name!r}")
    if header.get("length") is not None and not isinstance(header["length"], int):
        bad("its length is no number")
    if not header["layers"]:
        bad("it has no layers")
    return header


def _fingerprint_of(header: Mapping[str, Any]) -> Fingerprint:
    model, digest = (header["fingerprint"].get(name) for name in ("model", "digest"))
    if not isinstance(model, str) or not isinstance(digest, str):
        bad("it does not say which model it is of")
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
        ledgers.append(restored(numbers if isinstance(numbers, dict) else {}, tables, device))
    if len({ledger.batch for ledger in ledgers}) > 1:
        bad("its layers hold different numbers of rows")
    made: dict[str, list[LayerCache]] = {}
    for kind in ("layers", "cross"):
        wanted = None if like is None else like.layers if kind == "layers" else like.cross
        if wanted is not None and len(wanted) != len(header[kind]):
            bad(f"it has {len(header[kind])} {kind}, the model {len(wanted)}")
        made[kind] = []
        for i, saved in enumerate(header[kind]):
            number, codec = _layer(saved, len(ledgers))
            if wanted is not None and not _agree(codec, wanted[i].store.codec):
                bad(f"{kind} {i} keeps {codec}, the model {wanted[i].store.codec}")
            try:
                store = Store(codec, ledgers[number])
            except RuntimeError as e:  # torch's own: more than there is memory for
                bad(f"{kind} {i} does not fit into memory: {e}")
            keep = places_of(ledgers[number])
            streams = [_stream(tensor, f"{kind}.{i}.{s}", names) for s in range(len(store.tensors))]
            _check_streams(store, streams, keep)
            put(store, ledgers[number], streams, keep)
            made[kind].append(LayerCache(ledgers[number], store))
    masks, owner = (like.masks, like.owner) if like is not None else ((), None)
    cache = ModelCache(made["layers"], made["cross"], masks=masks, owner=owner, length=header["length"])
    cache.recomputed = header["recomputed"]
    return cache


def _layer(saved: Any, ledgers: int) -> tuple[int, Codec]:
    number = saved.get("ledger") if isinstance(saved, dict) else None
    if not isinstance(number, int) or not 0 <= number < ledgers:
        bad("a layer has no ledger")
    return number, _to_codec(saved.get("codec"))


def _stream(tensor: Callable[[str], Tensor], name: str, names: set[str]) -> Tensor:
    return tensor(name) if name in names else bad(f"it has no tensor {name!r}")


def _check_streams(store: Store, streams: list[Tensor], places: Tensor | int) -> None:
    n = places if isinstance(places, int) else len(places)
    for buffer, stream in zip(store.tensors, streams, strict=True):
        wanted = (*buffer.shape[:-2], n, buffer.shape[-1])
        if tuple(stream.shape) != wanted or stream.dtype != buffer.dtype:
            bad(f"a tensor of {tuple(stream.shape)} in {stream.dtype} stands for {wanted} in {buffer.dtype}")


# ---- codecs and digests

_CODECS: dict[str, type[Plain] | type[Single]] = {"plain": Plain, "single": Single}
_DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


def _codec(codec: Codec) -> dict[str, Any]:
    quantised, plain = isinstance(codec, Int8), codec.of if isinstance(codec, Int8) else codec
    for name, kind in _CODECS.items():
        if isinstance(plain, kind):
            sizes = [plain.kv_heads, plain.key_dim, plain.value_dim]
            return {"kind": name, "sizes": sizes, "dtype": str(plain.dtype).removeprefix("torch."), "int8": quantised}
    raise BadInput(f"keys kept as {codec} cannot be saved")


def _to_codec(saved: Any) -> Codec:
    fields = saved if isinstance(saved, dict) else {}
    sizes, kind = fields.get("sizes"), _CODECS.get(str(fields.get("kind")))
    dtype = _DTYPES.get(str(fields.get("dtype")))
    if kind is None or dtype is None or not isinstance(sizes, list) or len(sizes) != 3:
        bad(f"a layer keeps {str(saved)[:80]!r}")
    if not all(isinstance(n, int) and 0 < n < 2**20 for n in sizes):
        bad(f"a layer keeps heads of {str(sizes)[:80]}")
    try:
        plain = kind(sizes[0], sizes[1], sizes[2], dtype)
    except BadInput as e:
        bad(str(e))
    return Int8(plain) if fields.get("int8") else plain


def _agree(saved: Codec, wanted: Codec) -> bool:
    """Whether a model that keeps its keys as ``wanted`` can read these: whether in 8 bits is the cache's own affair."""
    return (saved.of if isinstance(saved, Int8) else saved) == (wanted.of if isinstance(wanted, Int8) else wanted)


def _digest(header: str, tensor: Callable[[str], Tensor], names: Iterable[str]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(names):
        t = tensor(name)
        digest.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        digest.update(_bytes(t))
    return digest.hexdigest()


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b""
