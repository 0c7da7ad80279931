"""Attention with another encoding than the model's own, against ``vt.swap`` and models that were built with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vantage as vt
from tests.serve.running import pulled
from tests.serve.studios import running
from tests.serve.test_studio_attention import MODELS, SOURCE, TEXT, check_maps, get, head, look
from vantage.families import load as load_model
from vantage.model.shared_copy import copy_sharing_weights
from vantage.position import Alibi, NoPE, Rope, Sinusoidal, alibi_slopes
from vantage.serve.studio.encodings import choices

SHORT = "the cat sat on a mat"
DIRECT = {
    "alibi": ({}, Alibi()),
    "rope": ({"base": 500.0}, Rope(base=500.0)),
    "sinusoidal": ({}, Sinusoidal()),
    "none": ({}, NoPE()),
}


@pytest.fixture(scope="module")
def models():
    return {name: make() for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def studio(tmp_path_factory, models):
    with running(tmp_path_factory.mktemp("encodings"), *models, load=lambda served: models[served.name]) as it:
        yield it


def position(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "values": values}


def scores(it, seen: dict[str, Any], query: int, kind: str = "self") -> dict[str, Any]:
    path = f"{seen['id']}/scores?kind={kind}&layer=1&head=3&query={query}"
    return get(it, path).raise_for_status().json()


@pytest.mark.sampled
@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("model", MODELS)
def test_maps_are_those_of_the_swapped_model(studio, models, model, name):
    values, encoding = DIRECT[name]
    source = {"source": SOURCE} if model == "both" else {}
    seen = look(studio, model, SHORT, position=position(name, **values), **source)
    kept = vt.capture(vt.swap(copy_sharing_weights(models[model]), encoding), SHORT, **source)
    check_maps(studio, seen, kept, kept.sites)
    said = seen["position"]
    assert (said["name"], said["values"], said["swapped"], said["untrained"]) == (name, values, True, False)
    assert said["title"] == choices()[name].title


def test_and_those_of_a_model_built_with_it(studio, models):
    tiny = models["tiny"]
    layers = tuple(replace(layer, qk=(), bias=Alibi()) for layer in tiny.spec.layers)
    built = vt.build(replace(tiny.spec, layers=layers)).eval()
    built.load_state_dict(tiny.state_dict())
    built.tokenizer = tiny.tokenizer
    kept = vt.capture(built, TEXT)
    check_maps(studio, look(studio, position=position("alibi")), kept, kept.sites)


def test_its_own_encoding_is_named_and_undisturbed(studio, models):
    own = look(studio)
    assert own["position"]["name"] == "rope"
    assert own["position"]["title"] == "RoPE"
    assert not own["position"]["swapped"]
    before = head(studio, own["id"], "self", 1, 2)
    other = look(studio, position=position("alibi"))
    assert not other["position"]["same"]
    assert np.abs(head(studio, other["id"], "self", 1, 2) - before).max() > 0.01
    again = look(studio, position={"name": "rope", "values": own["position"]["values"]})
    assert again["position"]["same"]
    for seen in (again, look(studio)):
        np.testing.assert_array_equal(head(studio, seen["id"], "self", 1, 2), before)
    assert look(studio, "encoder")["position"]["swapped"] is False


def test_weights_that_nobody_trained_are_said_and_always_the_same(studio):
    seen = [look(studio, position=position("t5")) for _ in range(2)]
    assert all(one["position"]["untrained"] for one in seen)
    first, second = (head(studio, one["id"], "self", 0, 1) for one in seen)
    np.testing.assert_array_equal(first, second)


def test_the_atlas_is_of_that_encoding(studio, models):
    seen = look(studio, position=position("alibi"))
    told = get(studio, f"{seen['id']}/atlas").raise_for_status().json()
    made = vt.inspect.atlas(vt.swap(copy_sharing_weights(models["tiny"]), "alibi"), TEXT)
    assert [(one["layer"], one["head"], one["label"]) for one in told["heads"]] == [
        (one.layer, one.head, one.kind) for one in made.heads
    ]
    assert [one["entropy"] for one in told["heads"]] == pytest.approx([one.measures["entropy"] for one in made.heads])


def test_scores_are_in_the_parts_of_that_encoding(studio):
    seen = look(studio, position=position("alibi"))
    told = scores(studio, seen, 9)
    assert [(part["name"], part["of"]) for part in told["parts"]] == [
        ("content", "content"),
        ("bias Alibi", "position"),
    ]
    slope = alibi_slopes(4)[3]
    assert told["parts"][1]["values"][:10] == pytest.approx([-slope * (9 - key) for key in range(10)], abs=1e-5)
    total = np.sum([part["values"][:10] for part in told["parts"]], 0)
    np.testing.assert_allclose(total, told["score"][:10], atol=1e-4)
    assert told["note"].startswith("ALiBi turns no queries and keys, so there are no bands")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "No encoding acts in this layer"),
        ("sinusoidal", "Sinusoidal is added to the embeddings"),
        ("xpos", None),
    ],
)
def test_why_there_are_no_bands(studio, name, words):
    told = scores(studio, look(studio, text=SHORT, position=position(name)), 4)
    bands = [part for part in told["parts"] if "wavelength" in part["name"]]
    if words is None:
        assert bands
        assert told["note"] is None
    else:
        assert not bands
        assert [part["name"] for part in told["parts"]] == ["content"]
        assert words in told["note"]


def test_no_position_acts_across(studio):
    seen = look(studio, "both", SHORT, source=SOURCE, position=position("alibi"))
    assert "cross-attention" in scores(studio, seen, 1, "cross")["note"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("model", "name"),
    [("tiny", name) for name in choices()] + [("both", name) for name in ("learned", "t5", "shaw", "xl", "fire")],
)
def test_every_encoding_can_be_looked_at(studio, model, name):
    seen = look(studio, model, SHORT, position=position(name), **({"source": SOURCE} if model == "both" else {}))
    for kind in dict.fromkeys(site["kind"] for site in seen["sites"]):
        weights = head(studio, seen["id"], kind, 1, 0)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
        told = scores(studio, seen, 2, kind)
        there = [i for i, value in enumerate(told["score"]) if value is not None]
        total = np.sum([[part["values"][i] for i in there] for part in told["parts"]], 0)
        np.testing.assert_allclose(total, [told["score"][i] for i in there], atol=1e-3)


def test_what_a_model_refuses_is_said(studio):
    with studio.http() as http:
        body = {"model": "encoder", "text": SHORT, "position": position("cope")}
        answer = http.post("/studio/api/attention", json=body)
    assert answer.status_code == 400
    assert "CoPE counts back from the query and so needs causal attention" in answer.json()["error"]["message"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"name": "alib"}, "Did you mean 'alibi'?"),
        ({"name": "rope", "values": {"bas": 3}}, "rope has no parameter 'bas': it has base, pairing"),
        ({"name": "rope", "values": {"base": 1.0}}, "base is 1.0; it must be between 2.0 and"),
        ({"name": "alibi", "values": {"slopes": "1"}}, "1 ALiBi slopes for 4 heads"),
        ({"name": "learned", "values": {"max_length": 8}}, "8"),
        ({"name": ""}, "position.name is empty, and must have at least 1 character"),
        ({"name": "rope", "more": 1}, "position.more is not a field that is known here"),
        ("alibi", "position"),
    ],
)
def test_bad_encodings_are_refused_as_on_the_positions_page(studio, said, words):
    with studio.http() as http:
        answer = http.post("/studio/api/attention", json={"model": "tiny", "text": TEXT, "position": said})
        assert answer.status_code == 400, answer.text
        message = answer.json()["error"]["message"]
        assert words in message
        if isinstance(said, dict) and said["name"] not in ("", "learned"):  # a table that ends is met at another place
            body = {"model": "tiny", "text": TEXT, "position": said, "tokens": 2}
            assert http.post("/studio/api/positions/swap", json=body).json()["error"]["message"] == message


@pytest.mark.sampled
def test_smollm2_under_alibi(tmp_path):
    name = pulled("smollm2")
    text = "When Mary and John went to the store, John gave a drink to Mary."
    with running(tmp_path, name, load=lambda served: load_model(served.source, dtype="auto")) as it:
        own, seen = look(it, name, text), look(it, name, text, position=position("alibi"))
        model = copy_sharing_weights(it.studio.model_pool.loaded()[0].model)
        other = vt.capture(vt.swap(model, "alibi"), text, layers=[0, 29], heads=[0, 8])
        plain = vt.capture(model, text, layers=[0, 29], heads=[0, 8])
        for shown, kept in ((seen, other), (own, plain)):
            for layer in (0, 29):
                for i, n in enumerate((0, 8)):
                    weights = kept.weights(layer)[i].numpy()
                    np.testing.assert_allclose(head(it, shown["id"], "self", layer, n), weights, atol=1e-3)
        assert np.abs(other.weights(29).numpy() - plain.weights(29).numpy()).max() > 0.1
        told = get(it, f"{seen['id']}/scores?layer=29&head=8&query=12").raise_for_status().json()
        assert [part["name"] for part in told["parts"]] == ["content", "bias Alibi"]
        assert "no bands" in told["note"]
