"""Caches of whole models in files: loaded by another process they go on bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cache.saving import forged
from tests.generation import zoo
from vantage.cache import ModelCache
from vantage.cache.saved import Fingerprint, fingerprint, read_cache, save_cache
from vantage.errors import CacheError, CheckpointError, VantageError
from vantage.model import Model
from vantage.spec.positions import Positions

ROWS = 3  # of unequal length
HISTORIES = ("plain", "ragged", "cropped", "empty")


def print_of(model: Model) -> Fingerprint:
    return fingerprint("tiny", repr(model.spec), model.state_dict().items())


@torch.no_grad()
def filled(model: Model, kind: str, history: str) -> ModelCache:
    """A cache with something behind it."""
    rows = 1 if history in ("plain", "empty") else ROWS
    cache = zoo.cache(model, kind, rows, length=64)
    if history == "empty":
        return cache
    source = None if model.encoder is None else model.encode(zoo.tokens(7, rows))
    if history == "ragged":
        lengths = [13, 21, 4]
        model(zoo.tokens(21, rows), positions=Positions.rows(lengths), cache=cache, source=source)
        return cache
    model(zoo.tokens(19, rows), cache=cache, source=source)
    model(zoo.tokens(4, rows, seed=1), cache=cache)
    if history == "cropped":
        cache.crop([21, 23, 19] if kind != "quantised" else 20)
        cache.reorder([2, 0, 1])
    return cache


@torch.no_grad()
def go_on(model: Model, cache: ModelCache) -> list[torch.Tensor]:
    """Logits of steps of several widths, with a step back."""
    source = None if model.encoder is None or cache.has_memory else model.encode(zoo.tokens(7, cache.batch))
    out = [model(zoo.tokens(3, cache.batch, seed=2), cache=cache, source=source)]
    out += [model(zoo.tokens(1, cache.batch, seed=s), cache=cache) for s in range(6)]
    cache.crop((cache.next_positions.order - 2).clamp_min(0).tolist())
    return [*out, model(zoo.tokens(5, cache.batch, seed=3), cache=cache)]


ALL = [(m, k, h) for m, k in zoo.CASES for h in HISTORIES]
CHILD = """
import sys, torch
from tests.cache import test_saved_processes as here
from tests.generation import zoo
models = {}
for kind, arrangement, history in here.ALL:
    model = models.setdefault(kind, zoo.model(kind, dtype=torch.float32))
    path = f"{sys.argv[1]}/{kind}-{arrangement}-{history}"
    saved = here.read_cache(path, like=model.new_cache(), fingerprint=here.print_of(model))
    assert saved.extra == {"words": [history]}, saved.extra
    torch.save([repr(saved.cache.holds()), *here.go_on(model, saved.cache)], path + ".logits")
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case saved here, and gone on with in another process."""
    folder = tmp_path_factory.mktemp("saved")
    models = {kind: zoo.model(kind, dtype=torch.float32) for kind in zoo.MODELS}
    for kind, arrangement, history in ALL:
        cache = filled(models[kind], arrangement, history)
        path = folder / f"{kind}-{arrangement}-{history}"
        save_cache(cache, path, fingerprint=print_of(models[kind]), extra={"words": [history]})
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "arrangement", "history"), ALL)
def test_another_process_goes_on_bit_for_bit(elsewhere: Path, kind: str, arrangement: str, history: str) -> None:
    model = zoo.model(kind, dtype=torch.float32)
    cache = filled(model, arrangement, history)
    held, *got = torch.load(elsewhere / f"{kind}-{arrangement}-{history}.logits")
    assert held.partition("\n")[2] == repr(cache.holds()).partition("\n")[2]  # the first line counts bytes allocated
    wanted = go_on(model, cache)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_shared_blocks_stay_shared(tmp_path: Path) -> None:
    model = zoo.model("plain")
    cache = filled(model, "paged", "plain")
    cache.reorder([0, 0])
    save_cache(cache, tmp_path / "c", fingerprint=print_of(model))
    again = read_cache(tmp_path / "c", like=model.new_cache()).cache
    assert [row.shared for row in again.holds().layers[0].rows] == [23, 23]
    assert again.holds().layers == cache.holds().layers
    again.free()
    with torch.no_grad():
        go_on(model, cache)  # the first one is untouched


def test_a_cache_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    model, other = zoo.model("plain"), zoo.model("plain", seed=1)
    save_cache(filled(model, "contiguous", "plain"), tmp_path / "c", fingerprint=print_of(model))
    with pytest.raises(CacheError, match=r"saved with tiny .*this model is tiny"):
        read_cache(tmp_path / "c", like=other.new_cache(), fingerprint=print_of(other))
    for changed in (zoo.model("window"), zoo.model("plain", dtype=torch.float32)):
        assert print_of(changed) != print_of(model)
    changed = zoo.model.__wrapped__("plain")
    assert print_of(changed) == print_of(model)
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1e-3
    with pytest.raises(CacheError, match="this model is"):
        read_cache(tmp_path / "c", like=changed.new_cache(), fingerprint=print_of(changed))


def test_without_a_model_it_can_be_looked_at_only(tmp_path: Path) -> None:
    model = zoo.model("window")
    cache = filled(model, "ring", "plain")
    save_cache(cache, tmp_path / "c", fingerprint=print_of(model))
    seen = read_cache(tmp_path / "c")
    assert seen.fingerprint == print_of(model)
    assert seen.cache.holds().layers == cache.holds().layers
    with pytest.raises(CacheError, match="another model"), torch.no_grad():
        model(zoo.tokens(1), cache=seen.cache)


@pytest.mark.parametrize("cut", [0, 7, 400, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    model = zoo.model("plain")
    save_cache(filled(model, "paged", "cropped"), tmp_path / "c", fingerprint=print_of(model))
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"saved cache"):
        read_cache(tmp_path / "c", like=model.new_cache())


def test_every_single_damaged_byte_is_refused(tmp_path: Path) -> None:
    model = zoo.model("window")
    save_cache(filled(model, "ring", "ragged"), tmp_path / "c", fingerprint=print_of(model))
    whole = (tmp_path / "c").read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 400)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x11
        if whole[at : at + 1] == b" ":  # the header is padded with blanks, which mean nothing
            continue
        (tmp_path / "c").write_bytes(damaged)
        with pytest.raises((CheckpointError, CacheError)):
            read_cache(tmp_path / "c", like=model.new_cache(), fingerprint=print_of(model))


FORGERIES = {
    "batch": lambda h, t: h["ledgers"][0].update(batch=2),
    "huge": lambda h, t: h["ledgers"][0].update(batch=2**30),
    "window": lambda h, t: h["ledgers"][0].update(window=0),
    "kind": lambda h, t: h["ledgers"][0].update(kind="tree"),
    "next": lambda h, t: h["ledgers"][0].update(next=10**9),
    "low": lambda h, t: h["ledgers"][0].update(low=-1),
    "no ledgers": lambda h, t: h.update(ledgers=[]),
    "no layers": lambda h, t: h.update(layers=[]),
    "layer": lambda h, t: h["layers"][0].update(ledger=7),
    "codec": lambda h, t: h["layers"][0]["codec"].update(sizes=[1, 1, 1]),
    "huge codec": lambda h, t: h["layers"][0]["codec"].update(sizes=[2**19, 2**19, 2**19]),
    "dtype": lambda h, t: h["layers"][0]["codec"].update(dtype="object"),
    "tensor": lambda h, t: t.pop("layers.1.0"),
    "shape": lambda h, t: t.update({"layers.1.0": t["layers.1.0"][:, :, :1].clone()}),
    "length": lambda h, t: h.update(length="long"),
    "text": lambda h, t: h["ledgers"][0].update(batch="1"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_ring_is_refused(tmp_path: Path, name: str) -> None:
    model = zoo.model("window")
    save_cache(filled(model, "ring", "plain"), tmp_path / "c", fingerprint=print_of(model))
    forged(tmp_path / "c", FORGERIES[name])
    with pytest.raises(VantageError):
        read_cache(tmp_path / "c", like=model.new_cache())


TABLES = {
    "order": lambda h, t: t["ledger.0.order"].add_(1),
    "floats": lambda h, t: t.update({"ledger.0.order": t["ledger.0.order"].double()}),
    "claim": lambda h, t: h["ledgers"][0]["known"].update(same_rows=True),
    "bounds": lambda h, t: h["ledgers"][0]["known"].update(order=[5, 6]),
    "first": lambda h, t: h["ledgers"][0]["known"].update(first=0),
    "counts": lambda h, t: h["ledgers"][0]["known"].update(counts=[1, 2, 3]),
    "filled": lambda h, t: h["ledgers"][0]["known"].update(empty=False),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
def test_forged_positions_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    model = zoo.model("window")
    save_cache(filled(model, kind, "ragged"), tmp_path / "c", fingerprint=print_of(model))
    if (kind, name) == ("contiguous", "order"):
        return  # a contiguous cache may begin anywhere
    forged(tmp_path / "c", TABLES[name])
    with pytest.raises(CheckpointError):
        read_cache(tmp_path / "c", like=model.new_cache())


def test_forged_blocks_are_refused(tmp_path: Path) -> None:
    model = zoo.model("plain")
    for rows in ([[[1, 2], 23, 0]], [[[1, 2, 3, 4, 5, 99], 23, 0]], [[[1, 2, 3, 4, 5, 5], 23, 0]], [[[], 0, 0]], [7]):
        save_cache(filled(model, "paged", "plain"), tmp_path / "c", fingerprint=print_of(model))
        forged(tmp_path / "c", lambda h, t, rows=rows: h["ledgers"][0].update(rows=rows))
        with pytest.raises(CheckpointError):
            read_cache(tmp_path / "c", like=model.new_cache())
