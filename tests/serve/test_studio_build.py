"""Build in the studio: the code makes the spec, the counts are the model's own, the settings train it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import vantage as vt
from tests.serve.studios import Running, running
from vantage.checkpoints.spec_json import from_json
from vantage.position import ENCODINGS
from vantage.serve.studio.encodings import choices
from vantage.training.settings import read_settings, settings_of

API = "/studio/api"
SMALL = {"vocab": 50, "width": 32, "layers": 2, "heads": 4}
MLA = {"attention": "latent", "latent": {"kv_rank": 16, "rope_dim": 4}}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("build")) as it:
        yield it


@pytest.fixture(scope="module")
def http(studio: Running) -> Iterator[httpx.Client]:
    with studio.http() as made:
        yield made


def built(http: httpx.Client, **settings: Any) -> dict[str, Any]:
    answer = http.post(f"{API}/build", json={"settings": SMALL | settings})
    assert answer.status_code == 200, answer.text
    return answer.json()


def spec_of(found: dict[str, Any]) -> vt.ModelSpec:
    return from_json(found["spec_json"], most=256)


def made_by(code: str) -> dict[str, Any]:
    """What the code leaves behind, run as a user would run it."""
    names: dict[str, Any] = {}
    exec(compile(code, "built.py", "exec"), names)
    return names


KDA: dict[str, Any] = {"attention": "kimi-delta", "position": {"name": "none"}}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"output": "gate", "kv_sharing": 2},
    "indexed": {"indexer": "top-k"},
    "grouped": {"kv_heads": 2, "max_length": 128, "tied": True},
    "multi-query": {"attention": "multi-query", "ffn": "geglu", "wiring": "parallel"},
    "multi-head": {"attention": "multi-head", "norm": "layer", "ffn": "gelu", "wiring": "post"},
    "wide heads": {"head_width": 16, "bias": True, "softcap": 30.0, "sinks": True, "wiring": "sandwich"},
    "latent": MLA,
    "kimi-delta": {**KDA, "delta": {"rank": 3, "taps": 3}},
    "kimi-delta as it comes": {**KDA, "head_width": 16},
    "gated delta rule": {"attention": "gated-delta", "position": {"name": "none"}},
    "mamba": {"attention": "mamba-2", "position": {"name": "none"}},
    "lightning": {"attention": "lightning", "position": {"name": "none"}},
    "sparsemax": {"normaliser": "sparsemax", "kv_heads": 2},
    "off by one": {"normaliser": "off-by-one", "softcap": 20.0},
    "encoder, sigmoid": {"kind": "encoder", "normaliser": "sigmoid"},
    "window": {"window": 8, "hidden": 48},
    "pattern": {"window": 8, "full_every": 2, "layers": 4},
    "no position in some": {"full_every": 2, "full_position": "none", "layers": 4},
    "experts": {"experts": {"count": 4, "k": 2, "shared": True}, "hidden": 16},
    "yarn": {"position": {"name": "rope-yarn", "values": {"factor": 4.0, "original": 64, "beta_fast": 16.0}}},
    "longrope": {"position": {"name": "rope-longrope", "values": {"long": 3.0}}},
    "alibi": {"position": {"name": "alibi", "values": {"slopes": "0.5, 0.25, 0.1, 0.05"}}},
    "learned": {"position": {"name": "learned"}, "max_length": 96},
    "randomised": {"position": {"name": "randomised", "values": {"inner": "t5", "high": 512}}},
    "encoder": {"kind": "encoder", "position": {"name": "t5", "values": {"buckets": 16}}},
    "encoder, latent": {"kind": "encoder", **MLA},
    "both": {"kind": "encoder_decoder", "bias": True, "norm": "layer", "ffn": "relu", "wiring": "post"},
    "both, no biases": {"kind": "encoder_decoder", "position": {"name": "sinusoidal"}},
    "both, capped": {"kind": "encoder_decoder", "softcap": 30.0, "sinks": True, "head_width": 16, "window": 8},
    "both, shared": {"kind": "encoder_decoder", "shared": True, "tied": True, "dropout": 0.1},
    "dropout": {"dropout": 0.1, "bias": True},
    "bidirectional": {"bidirectional": True},
}
NOT_TRAINED = {
    "pattern": "no layer patterns",
    "no position in some": "no layer patterns",
}


@pytest.mark.parametrize("name", FORMS)
def test_code_counts_and_settings_are_those_of_the_spec(http: httpx.Client, name: str, tmp_path: Path) -> None:
    found = built(http, **FORMS[name])
    spec, left = spec_of(found), made_by(found["code"])
    assert left["spec"] == spec
    model = left["model"]
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert sum(one["count"] for one in found["parameters_by_part"]) == found["parameters"]
    assert len(found["layers"]) == len(spec.layers) + (len(spec.encoder.layers) if spec.encoder else 0)
    if spec.kind == "decoder":
        bytes_at = {one["context"]: one["bytes"] for one in found["cache_bytes"]}
        assert bytes_at[1024] == allocated(model)
    if name in NOT_TRAINED:
        assert found["toml"] is None
        assert found["command"] is None
        assert NOT_TRAINED[name] in found["why_not"]
        return
    assert found["why_not"] is None
    settings = settings_of(tomllib.loads(found["toml"]))
    section: Any = settings.model
    if spec.head is not None:
        assert section.spec(50) == spec
    file = tmp_path / found["command"].removeprefix("vantage train ")
    file.write_text(found["toml"])
    assert read_settings(file)[0] == settings


def allocated(model: vt.Model) -> int:
    """Bytes of a real cache for 1,024 tokens in bfloat16: a ring where some layer has a window, if that is smaller."""
    ways = []
    windowed = any(layer.mask.reach() is not None for layer in model.spec.layers)
    for kind in ("contiguous", "ring") if windowed else ("contiguous",):
        cache = model.bfloat16().new_cache(kind=kind, capacity=1024)
        with torch.inference_mode():
            for _ in range(3):  # states are made by passes, and a few of the last are held
                model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
        ways.append(sum(layer.bytes for layer in cache.layers))
    return min(ways)


def test_the_settings_train(http: httpx.Client, tmp_path: Path) -> None:
    found = built(http, task="copy", steps=2, kv_heads=2)
    said = tomllib.loads(found["toml"])
    said["data"] |= {"test_lengths": [3], "test_examples": 4, "lengths": [1, 4]}
    trained = vt.train(said, out=tmp_path / "run", device="cpu")
    assert trained.finished
    assert trained.step == 2
    assert replace(trained.model.spec, vocab=50) == spec_of(found)


@pytest.mark.parametrize("name", list(choices()))
def test_every_encoding_can_be_built_in(http: httpx.Client, name: str) -> None:
    found = built(http, position={"name": name}, max_length=96)
    assert made_by(found["code"])["spec"] == spec_of(found)
    assert found["toml"] is not None, found["why_not"]


def test_choices_are_what_can_be_asked_for(http: httpx.Client) -> None:
    found = http.get(f"{API}/build/choices").json()
    assert set(ENCODINGS) <= {one["name"] for one in found["positions"]}
    settings = found["defaults"]
    assert built(http, **settings)["parameters"] > 10**7
    for name, option in found["options"].items():
        for value in option["choices"]:
            built(http, **{name: value})
    assert set(found["options"]) <= set(settings)
    assert found["options"]["width"] == {
        "help": "width of the model",
        "low": 1,
        "high": 32_768,
        "choices": [],
        "kinds": ["decoder", "encoder", "encoder_decoder"],
    }
    assert found["options"]["tied"]["kinds"] == ["decoder", "encoder_decoder"]
    assert found["options"]["norm"]["choices"] == ["rms", "layer"]
    for kind in found["kinds"]:
        assert built(http, kind=kind)["layers"][0]["heads"] == 4


def test_the_diagram_says_what_differs(http: httpx.Client) -> None:
    layers = built(http, window=8, full_every=3, layers=6, full_position="none", kv_heads=1)["layers"]
    assert [one["window"] for one in layers] == [8, 8, None, 8, 8, None]
    assert [one["position"] for one in layers] == [["Rope"], ["Rope"], [], ["Rope"], ["Rope"], []]
    assert {one["kv_heads"] for one in layers} == {1}
    both = built(http, kind="encoder_decoder")["layers"]
    assert [(one["stack"], one["cross"]) for one in both] == [("encoder", False)] * 2 + [("decoder", True)] * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 30}, "width 30 does not divide into 4 heads"),
        ({"kv_heads": 3}, "4 heads over 3 key/value heads"),
        ({"width": 12}, "give an even number"),
        ({"kind": "cat"}, "settings.kind is 'cat', and must be 'decoder'"),
        ({"layers": 1000}, "settings.layers is 1,000, and must be at most 128"),
        ({"colour": "red"}, "settings.colour is not a field that is known here"),
        ({"attention": "latent"}, "latent attention needs its sizes"),
        ({"latent": {"kv_rank": 8, "rope_dim": 2}}, "latent attention needs its sizes"),
        ({**MLA, "latent": {"kv_rank": 8, "rope_dim": 3}}, "rope_dim even"),
        ({"attention": "multi-query", "kv_heads": 2}, "multi-query attention with 2 key/value heads"),
        ({"position": {"name": "rop"}}, "Did you mean 'rope'?"),
        ({"position": {"name": "rope", "values": {"base": -1.0}}}, "base is -1.0"),
        ({"position": {"name": "learned"}}, "needs max_length="),
        ({"position": {"name": "randomised", "values": {"seed": 1}}}, "leave seed out"),
        ({"position": {"name": "cope"}, "kind": "encoder"}, "CoPE counts back from the query"),
        ({"full_every": 2}, "give a window that they do not have"),
        ({"full_every": 2, "full_position": "none", "position": {"name": "sinusoidal"}}, "acts on the embeddings"),
        ({"full_every": 2, "window": 4, "kind": "encoder_decoder"}, "layer patterns are for a decoder or an encoder"),
        ({"experts": {"count": 2, "k": 3}}, "3 of 2 experts"),
        ({"kind": "encoder", "tied": True}, "an encoder has no option tied"),
        ({"kind": "encoder_decoder", "bidirectional": True}, "an encoder-decoder has no option bidirectional"),
        ({"kind": "encoder_decoder", **MLA}, "latent attention is self-attention only"),
        ({**KDA, "sinks": True}, "a delta rule has no scores"),
        ({"delta": {"rank": 3}}, "say attention kimi-delta"),
        ({"normaliser": "hardmax"}, "hardmax"),
        ({"dropout": 1.5}, "settings.dropout"),
        ({"softcap": 0}, "settings.softcap"),
        ({"task": "dance"}, "no task is called 'dance'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_words(http: httpx.Client, settings: dict[str, Any], words: str) -> None:
    answer = http.post(f"{API}/build", json={"settings": SMALL | settings})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_a_table_too_short_to_train_is_said(http: httpx.Client) -> None:
    found = built(http, position={"name": "learned"}, max_length=16)
    assert found["toml"] is None
    assert "raise max_length" in found["why_not"]
