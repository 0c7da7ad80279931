"""The attention routes: maps, small maps, the atlas and scores, against ``vt.capture`` and its kin."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vantage as vt
from tests.generation.folder import chat_model, tokenizer
from tests.processes import PATIENCE, until
from tests.serve.running import pulled
from tests.serve.studios import of, running, told
from vantage.conformance.scenarios import sharpen
from vantage.families import load as load_model
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve.studio.attention import read_texts

TEXT = "the cat sat on a mat and said: 12 dogs, 3 birds? no! hello world " * 4
SOURCE = "user assistant system hello world"


def both_ways(kind: str):
    """An encoder, or an encoder-decoder, with the tiny model's vocabulary."""
    shape = {"vocab": len(tokenizer()), "width": 32, "layers": 2, "heads": 4}
    model = sharpen(vt.build(vt.encoder(**shape) if kind == "encoder" else vt.encoder_decoder(**shape)), 0).eval()
    model.tokenizer = tokenizer(None)
    model.config = {"model_type": "made", "decoder_start_token_id": 1}
    return model


MODELS = {"tiny": chat_model, "encoder": lambda: both_ways("encoder"), "both": lambda: both_ways("both")}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def studio(tmp_path_factory, models):
    with running(tmp_path_factory.mktemp("look"), *models, load=lambda served: models[served.name]) as it:
        yield it


def look(it, model: str = "tiny", text: str = TEXT, **more):
    with it.http() as http:
        answer = http.post("/studio/api/attention", json={"model": model, "text": text, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def get(it, path: str):
    with it.http() as http:
        return http.get(f"/studio/api/attention/{path}")


def head(it, id: str, kind: str, layer: int, n: int, more: str = "") -> np.ndarray:
    answer = get(it, f"{id}/head?kind={kind}&layer={layer}&head={n}{more}").raise_for_status()
    shape = int(answer.headers["x-queries"]), int(answer.headers["x-keys"])
    return np.frombuffer(answer.content, "<u2").reshape(shape) / 65535


def small(it, id: str, kind: str, layer: int) -> np.ndarray:
    answer = get(it, f"{id}/heads?kind={kind}&layer={layer}").raise_for_status()
    size = int(answer.headers["x-size"])
    return np.frombuffer(answer.content, np.uint8).reshape(int(answer.headers["x-heads"]), size, size)


def check_maps(it, seen, kept, sites) -> None:
    for kind, layer in sites:
        weights = kept.weights(layer, kind=kind).float()
        for n in range(len(weights)):
            np.testing.assert_allclose(
                head(it, seen["id"], kind, layer, n), weights[n].numpy(), atol=1e-5 + 0.5 / 65535
            )
        whole = torch.from_numpy(head(it, seen["id"], kind, layer, 0))
        half = head(it, seen["id"], kind, layer, 0, "&half=true")
        np.testing.assert_array_equal(half, F.max_pool2d(whole[None], 2, ceil_mode=True)[0].numpy())
        pooled = F.adaptive_max_pool2d(weights, (64, 64)).numpy()
        np.testing.assert_allclose(small(it, seen["id"], kind, layer), 255 * np.sqrt(pooled), atol=0.51)


@pytest.mark.parametrize("model", ["tiny", "encoder"])
def test_maps_are_what_capture_says(studio, models, model):
    seen = look(studio, model)
    kept = vt.capture(copy_sharing_weights(models[model]), TEXT)
    assert seen["tokens"] == kept.tokens()
    assert seen["length"] == len(seen["tokens"]) > 64
    assert seen["source_tokens"] is None
    assert seen["sites"] == [{"kind": "self", "layer": n, "heads": 4} for n in range(2)]
    check_maps(studio, seen, kept, kept.sites)


@pytest.mark.sampled
def test_encoder_decoders_show_all_three(studio, models):
    seen = look(studio, "both", "the cat sat", source=SOURCE)
    kept = vt.capture(copy_sharing_weights(models["both"]), "the cat sat", source=SOURCE)
    assert seen["source_tokens"] == kept.tokens("encoder")
    assert {(site["kind"], site["layer"]) for site in seen["sites"]} == set(kept.sites)
    assert {site["kind"] for site in seen["sites"]} == {"self", "cross", "encoder"}
    check_maps(studio, seen, kept, kept.sites)  # shorter than the small maps are wide
    told = get(studio, f"{seen['id']}/scores?kind=cross&layer=1&head=2&query=1").raise_for_status().json()
    assert told["keys"] == seen["source_tokens"]
    assert len(told["score"]) == len(told["keys"])
    with studio.http() as http:
        for body, said in (
            ({"model": "both", "text": "a"}, "reads a source"),
            ({"model": "tiny", "text": "a", "source": "b"}, "no encoder"),
        ):
            answer = http.post("/studio/api/attention", json=body)
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]


def test_the_atlas_is_the_librarys(studio, models):
    seen = look(studio)
    told = get(studio, f"{seen['id']}/atlas").raise_for_status().json()
    made = vt.inspect.atlas(copy_sharing_weights(models["tiny"]), TEXT)
    assert [(one["layer"], one["head"], one["label"]) for one in told["heads"]] == [
        (one.layer, one.head, one.kind) for one in made.heads
    ]
    for one, facts in zip(told["heads"], made.heads, strict=True):
        assert one["entropy"] == pytest.approx(facts.measures["entropy"])
        for name in ("previous", "first", "local", "positional", "induction"):
            assert one["shares"][name] == pytest.approx(facts.measures[name]), name


def test_scores_come_in_parts_that_add_up(studio, models):
    seen = look(studio)
    for query in (0, 7, seen["length"] - 1):
        told = get(studio, f"{seen['id']}/scores?layer=1&head=3&query={query}").raise_for_status().json()
        assert told["keys"] == seen["tokens"]
        there = [i for i, value in enumerate(told["score"]) if value is not None]
        assert there == list(range(query + 1))
        assert {part["of"] for part in told["parts"]} == {"content", "position"}
        assert sum(part["name"].startswith("rotation") for part in told["parts"]) == 4  # 4 bands in a head of 8
        total = np.sum([[part["values"][i] for i in there] for part in told["parts"]], 0)
        np.testing.assert_allclose(total, [told["score"][i] for i in there], atol=1e-4)
        weights = torch.softmax(torch.tensor(total), -1).numpy()
        np.testing.assert_allclose(weights, head(studio, seen["id"], "self", 1, 3)[query, : query + 1], atol=1e-4)


def test_what_is_not_there(studio):
    id = look(studio, text="hello")["id"]
    for path, status, said in (
        (f"{id}/head?layer=2&head=0", 400, "layer 2"),
        (f"{id}/head?layer=0&head=4", 400, "no head 4"),
        (f"{id}/head?layer=-1&head=0", 400, "layer"),
        (f"{id}/head?layer=0&head=0&kind=cross", 400, "cross"),
        (f"{id}/head?layer=0&head=0&kind=odd", 400, "kind"),
        (f"{id}/head?layer=0", 400, "head"),
        (f"{id}/scores?layer=0&head=0&query=99", 400, "no query 99"),
        ("0123456789abcdef/atlas", 404, "not kept any more"),
        ("x/atlas", 400, "id"),
    ):
        answer = get(studio, path)
        assert answer.status_code == status, path
        assert said in answer.json()["error"]["message"], path
    with studio.http() as http:
        for text, said in (("", "empty"), ("cat " * 4200, "context")):
            answer = http.post("/studio/api/attention", json={"model": "tiny", "text": text})
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]


def test_few_texts_are_kept_and_none_that_is_too_large(studio, monkeypatch):
    monkeypatch.setattr(read_texts, "TEXTS", 2)
    ids = [look(studio, text=text)["id"] for text in ("a", "b", "c")]
    assert [get(studio, f"{id}/head?layer=0&head=0").status_code for id in ids] == [404, 200, 200]
    monkeypatch.setattr(read_texts, "BYTES", 2 * 32 * 4 * 100)  # 100 tokens of 2 layers
    with studio.http() as http:
        answer = http.post("/studio/api/attention", json={"model": "tiny", "text": "cat " * 101})
    assert answer.status_code == 400
    assert "shorten it" in answer.json()["error"]["message"]
    kept = [look(studio, text="cat " * n)["id"] for n in (60, 61)]
    assert [get(studio, f"{id}/head?layer=0&head=0").status_code for id in kept] == [404, 200]


def test_a_text_that_was_read_is_not_read_again(studio):
    """A page that is loaded again asks for the same; another text or encoding is another one."""
    first = look(studio, text="the cat sat")
    again = look(studio, text="the cat sat")
    assert again["id"] == first["id"]
    assert first["ms"] > 0
    assert again["ms"] is None  # "read in 0.0 ms" would be no answer
    assert look(studio, text="the cat sat", position={"name": "alibi"})["id"] != first["id"]
    assert look(studio, text="the cat sa")["id"] != first["id"]


def test_the_page_answers_while_a_text_is_read(tmp_path):
    go, at = threading.Event(), threading.Event()

    def load(served):
        model = copy_sharing_weights(chat_model())
        model.blocks[1].register_forward_pre_hook(lambda module, args: (at.set(), go.wait(PATIENCE))[0])
        return model

    with running(tmp_path, load=load) as it:
        reader = threading.Thread(target=look, args=(it,))
        reader.start()
        try:
            assert at.wait(PATIENCE)
            with it.http() as http:
                assert http.get("/health").status_code == 200
                assert http.get("/studio/api/models").json()["models"][0]["loaded"]
        finally:
            go.set()
        reader.join(PATIENCE)
        until(lambda: it.studio.thread("look tiny").busy == 0)


def test_looking_does_not_disturb_the_server(studio):
    """The engine's model has no hooks, and shares its weights with the copy that is looked at."""
    look(studio)
    served = next(one.model for one in studio.studio.model_pool.loaded() if one.name == "tiny")
    seen = studio.studio._copies["tiny", "look"][1]
    assert seen is not served
    pairs = list(zip(served.parameters(), seen.parameters(), strict=True))
    assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert not set(map(id, served.modules())) & set(map(id, seen.modules()))


@pytest.mark.sampled
def test_with_smollm2(tmp_path):
    name = pulled("smollm2")
    text = "The cat sat on the mat. " * 12
    with running(tmp_path, name, load=lambda served: load_model(served.source, dtype="auto")) as it:
        seen = look(it, name, text)
        assert len(seen["sites"]) == 30
        model = copy_sharing_weights(it.studio.model_pool.loaded()[0].model)
        kept = vt.capture(model, text, layers=[0, 29], heads=[0, 8])
        for layer in (0, 29):
            for i, n in enumerate((0, 8)):
                np.testing.assert_allclose(
                    head(it, seen["id"], "self", layer, n), kept.weights(layer)[i].numpy(), atol=1e-3
                )
        told = get(it, f"{seen['id']}/scores?layer=29&head=8&query=40").raise_for_status().json()
        assert sum(part["name"].startswith("rotation") for part in told["parts"]) == 8


@pytest.mark.sampled
def test_reading_and_the_atlas_report_on_their_way(tmp_path: Path) -> None:
    with running(tmp_path) as studio:
        events = studio.events("/attention/events", {"model": "tiny", "text": "the cat sat on a mat"})
        found = of(events, "result")[0]
        assert [progress["doing"] for progress in of(events, "progress")] == [
            "starting",
            "1 of 2 layers",
            "2 of 2 layers",
        ]
        with studio.http() as http:
            body = {"model": "tiny", "text": "the cat sat on a mat"}
            again = http.post("/studio/api/attention", json=body).json()
            assert again["id"] == found["id"]  # kept by model, text and position
            with http.stream("GET", f"/studio/api/attention/{found['id']}/atlas/events") as answer:
                atlas = list(told(answer))
            assert of(atlas, "result")[0] == http.get(f"/studio/api/attention/{found['id']}/atlas").json()
        assert len(of(atlas, "progress")) > 1
        refused = studio.events("/attention/events", {"model": "tiny", "text": ""})
        assert "the text is empty" in of(refused, "error")[0]["message"]


@pytest.mark.sampled
def test_the_start_waits_for_nothing_that_only_training_needs() -> None:
    code = (
        "import sys\n"
        "from vantage.serve import ServedModel, ServerSettings\n"
        "from vantage.serve.studio import create_studio\n"
        "create_studio(ServerSettings((ServedModel('tiny', 'nowhere'),)))\n"
        "unwanted = ('torch.distributed.fsdp', 'torch.distributed.tensor', 'sympy', 'matplotlib', 'pandas')\n"
        "print([name for name in unwanted if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
