"""Positions in the studio: figures that come out of the parts, tokens dragged, encodings swapped on a running model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.inspect.models import TEXT
from tests.serve.running import pulled
from tests.serve.studios import Running, running
from vantage.inspect import decompose
from vantage.position import ENCODINGS, alibi, alibi_slopes, sinusoid, t5_bucket
from vantage.serve.studio.encodings import choices

API = "/studio/api"
SHORT = "he told there that hello and the rest of it"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("positions")) as it:
        yield it


@pytest.fixture(scope="module")
def http(studio: Running) -> Iterator[httpx.Client]:
    with studio.http() as made:
        yield made


def shown(http: httpx.Client, encoding: str, **more: Any) -> dict[str, Any]:
    """The figures by name."""
    answer = http.post(f"{API}/positions/show", json={"encoding": encoding, **more})
    assert answer.status_code == 200, answer.text
    return {figure["name"]: figure for figure in answer.json()["figures"]}


def lines(figure: dict[str, Any], panel: int = 0) -> dict[str, list[float]]:
    return {line["name"]: line["y"] for line in figure["panels"][panel]["lines"]}


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = [one for key, one in value.items() if key != "marks"]
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield value


# ---- what is offered


def test_every_encoding_of_the_registry_is_offered(http: httpx.Client) -> None:
    found = {one["name"]: one for one in http.get(f"{API}/positions").json()["encodings"]}
    assert set(ENCODINGS) <= set(found)
    rules = {f"rope-{name}" for name in ("linear", "proportional", "ntk", "yarn", "longrope", "llama3")}
    assert rules | {"randomised"} == set(found) - set(ENCODINGS)
    assert all(one["title"] and one["about"] for one in found.values())
    assert [p["name"] for p in found["rope-yarn"]["parameters"]][:4] == ["base", "pairing", "share", "factor"]


@pytest.mark.parametrize("name", list(choices()))
def test_every_encoding_has_figures_that_are_finite(http: httpx.Client, name: str) -> None:
    found = shown(http, name, length=40, width=32, heads=4)
    assert "decay" in found
    assert len(found) >= 2
    for figure in found.values():
        assert figure["caption"]
        values = list(numbers(figure["panels"]))
        assert values
        assert all(math.isfinite(value) for value in values)


# ---- whether they are right


def test_pope_has_a_cosine_for_every_number(http: httpx.Client) -> None:
    waves = lines(shown(http, "pope", length=64, width=32, heads=4)["waves"])
    for c in (0, 2, 4, 7):
        assert waves[f"number {c}"] == pytest.approx([math.cos(d * 10_000 ** (-c / 8)) for d in range(64)], abs=1e-12)


def test_alibi_falls_in_a_straight_line(http: httpx.Client) -> None:
    found = shown(http, "alibi", length=64, width=32, heads=4)
    slopes = alibi_slopes(4)
    assert found["slopes"]["panels"][0]["series"][0][1] == list(slopes)
    for h, slope in enumerate(slopes):
        assert lines(found["bias"])[f"head {h}"] == [-slope * d for d in range(64)]
        decay = lines(found["decay"])[f"all ones, head {h}"]
        assert decay == pytest.approx([math.sqrt(8) - slope * d for d in range(64)], abs=1e-12)
    row = found["bias-map"]["panels"][0]["values"][5]
    assert row[:6] == pytest.approx([-slopes[0] * (5 - k) for k in range(6)])
    assert row[6:] == [None] * 58
    own = shown(http, "alibi", values={"slopes": "1, 2"}, heads=2, width=8, length=9)
    assert lines(own["bias"])["head 1"] == [-2.0 * d for d in range(9)]


def test_the_figures_come_out_of_the_part(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lines(shown(http, "alibi", length=16)["bias"])["head 0"]
    monkeypatch.setattr(alibi, "alibi_slopes", lambda heads: tuple(-1.0 for _ in range(heads)))
    assert lines(shown(http, "alibi", length=16)["bias"])["head 0"] == [float(d) for d in range(16)] != before


def test_sinusoids_are_added(http: httpx.Client) -> None:
    for layout in ("interleaved", "halves"):
        found = shown(http, "sinusoidal", values={"base": 100.0, "layout": layout}, length=24, width=16, heads=2)
        table = sinusoid(torch.arange(24), 16, 100.0, layout)
        heat = torch.tensor(found["added"]["panels"][0]["values"])
        torch.testing.assert_close(heat, table.float(), rtol=1e-3, atol=1e-4)
        alike = torch.tensor(found["similarity"]["panels"][0]["values"])
        assert alike[0, 0] == pytest.approx(1.0)
        mean = torch.stack([torch.cos(torch.arange(24) * 100.0 ** (-2 * k / 16)) for k in range(8)]).mean(0)
        torch.testing.assert_close(alike[0], mean.float(), rtol=0, atol=1e-3)


def test_rope_wavelengths_stand_against_the_context(http: httpx.Client) -> None:
    found = shown(http, "rope", values={"base": 500.0}, length=100, width=32, heads=2)
    panel = found["wavelengths"]["panels"][0]
    expected = [2 * math.pi * 500.0 ** (2 * k / 16) for k in range(8)]
    assert panel["lines"][0]["y"] == pytest.approx(expected)
    assert panel["marks"] == [["the context", 100.0]]
    slow = sum(length > 100 for length in expected)
    assert f"{slow} of 8 make less than one turn" in found["wavelengths"]["caption"]
    decay = lines(found["decay"])["all ones"]
    direct = [sum(2 * math.cos(d * 500.0 ** (-2 * k / 16)) for k in range(8)) / 4 for d in range(100)]
    assert decay == pytest.approx(direct, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "values", "fastest", "slowest"),
    [
        ("rope-linear", {"factor": 3.0}, 3.0, 3.0),
        ("rope-yarn", {"factor": 8.0, "original": 64, "beta_fast": 4.0}, 1.0, 8.0),
        ("rope-llama3", {"factor": 8.0, "original": 64}, 1.0, 8.0),
        ("rope-longrope", {"long": 5.0, "original": 64}, 1.0, 5.0),
        ("rope-proportional", {"turning": 0.5, "factor": 2.0}, 2.0, 2.0),
    ],
)
def test_what_a_scaling_does_to_each_band(
    http: httpx.Client, name: str, values: dict[str, Any], fastest: float, slowest: float
) -> None:
    found = shown(http, name, values=values, length=256, width=64, heads=2)
    slowed = lines(found["bands"])["slow-down"]
    assert slowed[0] == pytest.approx(fastest)
    assert slowed[-1] == pytest.approx(slowest)
    assert len(slowed) == (8 if name == "rope-proportional" else 16)
    both = lines(found["wavelengths"])
    after = [a / b for a, b in zip(both["after"], both["before"], strict=False)]
    assert after == pytest.approx(slowed)


def test_dynamic_ntk_looks_at_the_length(http: httpx.Client) -> None:
    within = shown(http, "rope-ntk", values={"original": 128}, length=128)
    beyond = shown(http, "rope-ntk", values={"original": 128}, length=512)
    assert set(lines(within["bands"])["slow-down"]) == {1.0}
    assert lines(beyond["bands"])["slow-down"][-1] > 2.0


def test_t5_has_buckets(http: httpx.Client) -> None:
    found = shown(http, "t5", values={"buckets": 16, "max_distance": 40}, length=64, heads=2, width=16)
    expected = t5_bucket(-torch.arange(64), bidirectional=False, buckets=16, max_distance=40).tolist()
    assert lines(found["buckets"])["bucket"] == expected
    bias = lines(found["bias"])["head 1"]
    for d, e in itertools.combinations(range(64), 2):
        assert (bias[d] == bias[e]) == (expected[d] == expected[e])
    both = shown(http, "t5", values={"bidirectional": "yes"}, length=32)["buckets"]["panels"][0]["lines"][0]
    assert both["x"][0] == -31
    assert both["x"][-1] == 31


def test_without_an_encoding_only_the_mask_speaks(http: httpx.Client) -> None:
    found = shown(http, "none", length=32)
    assert len(set(lines(found["decay"])["all ones"])) == 1
    weights = found["mask"]["panels"][0]["values"]
    assert weights[9][:10] == pytest.approx([0.1] * 10)
    assert weights[9][10:] == [None] * 14


def test_cope_counts_what_matters(http: httpx.Client) -> None:
    heat, over = shown(http, "cope", length=40, values={"max_positions": 32})["counted"]["panels"]
    assert all(
        row[i] is not None and row[i + 1 :] == [None] * (len(row) - i - 1) for i, row in enumerate(heat["values"])
    )
    counted, plain = over["lines"][0]["y"], over["lines"][1]["y"]
    assert all(0 < c <= min(p + 1, 31) for c, p in zip(counted, plain, strict=True))
    assert counted == sorted(counted)
    assert counted[-1] < plain[-1]


def test_randomised_positions_rise_below_their_limit(http: httpx.Client) -> None:
    drawn = lines(shown(http, "randomised", values={"high": 300, "inner": "alibi"}, length=50)["drawn"])
    for n in (1, 2, 3):
        row = drawn[f"draw {n}"]
        assert row == sorted(set(row))
        assert 0 <= row[0] <= row[-1] < 300
    assert drawn["draw 1"] != drawn["draw 2"]


def test_long_ones_are_thinned_out(http: httpx.Client) -> None:
    found = shown(http, "rope", length=4096, width=512, heads=4)
    assert all(len(row) <= 128 for row in found["turned"]["panels"][0]["values"])
    assert len(lines(found["decay"])["all ones"]) <= 512


# ---- dragging


def drag(http: httpx.Client, to: int, token: int = 2, layer: int = 0, query: int = 7, **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "text": SHORT, "layer": layer, "head": 1, "query": query, **more}
    answer = http.post(f"{API}/positions/drag", json={**body, "moved": {"token": token, "to": to}})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("layer", [0, 1])
def test_a_token_dragged_to_its_own_place_changes_nothing(http: httpx.Client, layer: int) -> None:
    found = drag(http, to=2, layer=layer)
    assert found["before"] == found["after"]
    assert found["scores_before"] == found["scores_after"]
    assert sum(found["before"]) == pytest.approx(1.0, abs=1e-5)
    model = chat_model()
    parts = decompose(model, SHORT, layer=layer, heads=1, queries=7)
    expected = parts.score[0, 0].tolist()
    seen = [value for value in found["scores_before"] if value is not None]
    assert seen == pytest.approx(expected[:8], abs=1e-4)
    assert found["scores_before"][8:] == [None] * (len(found["tokens"]) - 8)


def test_in_the_first_layer_only_the_dragged_key_moves(http: httpx.Client) -> None:
    found = drag(http, to=90)
    moved = [i for i in range(8) if abs(found["scores_before"][i] - found["scores_after"][i]) > 1e-6]
    assert moved == [2]
    turned = drag(http, to=90, token=7)  # the query itself: every other key is elsewhere to it
    assert sum(abs(a - b) > 1e-6 for a, b in zip(turned["before"], turned["after"], strict=True)) >= 7
    assert turned["scores_before"][7] == pytest.approx(turned["scores_after"][7], abs=1e-5)
    assert drag(http, to=90, layer=1)["scores_after"][:2] != found["scores_before"][:2]


# ---- swapping


def swap(http: httpx.Client, name: str, model: str = "tiny", text: str = TEXT, **values: Any) -> dict[str, Any]:
    body = {"model": model, "text": text, "position": {"name": name, "values": values}, "tokens": 6}
    answer = http.post(f"{API}/positions/swap", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_same_encoding_swapped_in_gives_the_same_bits(http: httpx.Client) -> None:
    own = http.get(f"{API}/positions/of/tiny").json()["position"]
    found = swap(http, own["name"], **own["values"])
    assert found["perplexity"]["before"] == found["perplexity"]["after"]
    assert found["text"]["before"] == found["text"]["after"]
    before, after = found["over_position"]["panels"][0]["lines"]
    assert before["y"] == after["y"]
    assert not found["untrained"]
    model = chat_model()
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    assert found["perplexity"]["before"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_another_encoding_changes_what_the_model_says(http: httpx.Client) -> None:
    found = swap(http, "alibi")
    assert found["perplexity"]["before"] != found["perplexity"]["after"]
    assert not found["untrained"]
    assert swap(http, "t5")["untrained"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    name = pulled("smollm2")
    with (
        running(tmp_path_factory.mktemp("real"), name, load=lambda served: vt.load(served.source, dtype="auto")) as it,
        it.http() as made,
    ):
        yield made


@pytest.mark.sampled
def test_on_a_real_model(real: httpx.Client) -> None:
    own = real.get(f"{API}/positions/of/smollm2").json()["position"]
    assert own == {"name": "rope", "values": {"base": 100000.0, "pairing": "halves", "share": 1.0}}
    same = swap(real, "rope", "smollm2", **own["values"])
    assert same["perplexity"]["before"] == same["perplexity"]["after"]
    other = swap(real, "none", "smollm2")
    assert other["perplexity"]["after"] > 2 * other["perplexity"]["before"]
    assert other["text"]["after"] != other["text"]["before"]
    body = {"model": "smollm2", "text": TEXT, "layer": 3, "head": 2, "query": 12, "moved": {"token": 4, "to": 400}}
    moved = real.post(f"{API}/positions/drag", json=body).json()
    assert moved["before"] != moved["after"]
    assert sum(moved["after"]) == pytest.approx(1.0, abs=1e-5)


# ---- what is refused

DRAG = {"model": "tiny", "text": SHORT, "layer": 0, "head": 0, "query": 3, "moved": {"token": 1, "to": 5}}
SWAP = {"model": "tiny", "text": TEXT, "position": {"name": "alibi"}, "tokens": 2}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("show", {}, 400, "encoding is missing, and must be given"),
        ("show", {"encoding": "rop"}, 400, "Did you mean 'rope'?"),
        ("show", {"encoding": "rope", "values": {"bas": 3}}, 400, "rope has no parameter 'bas': it has base, pairing"),
        ("show", {"encoding": "rope", "values": {"base": 1.0}}, 400, "base is 1.0; it must be between 2.0 and"),
        ("show", {"encoding": "rope", "values": {"base": "x"}}, 400, "base is 'x'; it must be a number"),
        ("show", {"encoding": "rope", "values": {"pairing": "odd"}}, 400, "it may be one of halves, adjacent"),
        ("show", {"encoding": "t5", "values": {"buckets": 8.5}}, 400, "buckets is 8.5; it must be a whole number"),
        ("show", {"encoding": "t5", "values": {"buckets": 7}}, 400, "use an even number"),
        ("show", {"encoding": "t5", "values": {"buckets": True}}, 400, "values.buckets"),
        ("show", {"encoding": "alibi", "values": {"slopes": "1, two"}}, 400, "write numbers, as in 0.5, 0.25"),
        ("show", {"encoding": "alibi", "values": {"slopes": "1"}}, 400, "1 ALiBi slopes for 4 heads"),
        (
            "show",
            {"encoding": "learned", "values": {"max_length": 8}, "length": 9},
            400,
            "past the end of a learned table",
        ),
        ("show", {"encoding": "rope", "width": 60, "heads": 7}, 400, "does not divide into 7 heads"),
        ("show", {"encoding": "rope", "width": 12, "heads": 4}, 400, "give an even number"),
        ("show", {"encoding": "rope", "length": 5000}, 400, "length is 5,000, and must be at most 4,096"),
        ("show", {"encoding": "rope", "width": 4096}, 400, "width is 4,096, and must be at most 512"),
        (
            "show",
            {"encoding": "rope", "length": "9"},
            400,
            "length is a text of 1 character, and must be a whole number",
        ),
        ("show", {"encoding": "rope", "more": 1}, 400, "more is not a field that is known here"),
        ("show", {"encoding": "randomised", "values": {"high": 16}, "length": 20}, 400, "raise high"),
        ("drag", DRAG | {"model": "large"}, 404, "there is no model 'large'"),
        ("drag", DRAG | {"layer": 2}, 400, "there is no layer 2: there are 2"),
        ("drag", DRAG | {"head": 4}, 400, "there is no head 4"),
        ("drag", DRAG | {"query": 400}, 400, "there is no query 400 in this text"),
        ("drag", DRAG | {"moved": {"token": 400, "to": 1}}, 400, "there is no token 400 in this text"),
        ("drag", DRAG | {"moved": {"token": 1, "to": -1}}, 400, "moved.to is -1, and must be at least 0"),
        ("drag", DRAG | {"text": ""}, 400, "text is empty, and must have at least 1 character"),
        ("drag", DRAG | {"text": "a b " * 2000}, 400, "the text has 6,001 tokens: give 1 to 1,024"),
        ("swap", SWAP | {"text": "too short"}, 400, "give 16 or more"),
        ("swap", SWAP | {"tokens": 1000}, 400, "tokens is 1,000, and must be at most 128"),
        ("swap", SWAP | {"position": {"name": "alib"}}, 400, "Did you mean 'alibi'?"),
        ("swap", SWAP | {"position": {"name": "xpos", "values": {"gamma": 0.0}}}, 400, "gamma is 0.0"),
        ("swap", SWAP | {"model": "large"}, 404, "there is no model 'large'"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = http.post(f"{API}/positions/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_nothing_is_shown_without_the_token(studio: Running) -> None:
    with studio.http(token=None) as http:
        assert http.get(f"{API}/positions").status_code == 403
        assert http.post(f"{API}/positions/show", json={"encoding": "rope"}).status_code == 403
    assert Path(studio.studio.folder).is_dir()
