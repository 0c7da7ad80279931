"""Cache and cost in the studio: the calculator says what inspect.cost says, and measuring counts what caches count."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import until
from tests.serve.running import pulled
from tests.serve.studios import Running, of, running, told
from vantage.inspect import cost
from vantage.model.norms import RMSNorm

API = "/studio/api"
SHAPE = {"layers": 3, "width": 64, "heads": 8, "kv_heads": 2, "head_width": 12, "window": 20, "dtype": "float32"}
CONTEXTS = [8, 32, 100]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("cost")) as it:
        yield it


@pytest.fixture(scope="module")
def http(studio: Running) -> Iterator[httpx.Client]:
    with studio.http() as made:
        yield made


def asked(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post(f"{API}/cost", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def spec(attention: Any, window: int | None = None) -> vt.ModelSpec:
    return vt.decoder(vocab=32000, width=64, layers=3, attention=attention, window=window, position="alibi")


KINDS = {
    "this shape": (spec(vt.GroupedQuery(8, 2, 12), 20), True),
    "MHA": (spec(vt.GroupedQuery(8, 8, 12)), False),
    "GQA (2)": (spec(vt.GroupedQuery(8, 2, 12)), False),
    "MQA": (spec(vt.GroupedQuery(8, 1, 12)), False),
    "MLA (48 + 6)": (spec(vt.Latent(8, 48, 12, 6, 12, norm=RMSNorm())), False),
    "MHA, window 20": (spec(vt.GroupedQuery(8, 8, 12), 20), True),
}


def test_every_kind_takes_what_inspect_says(http: httpx.Client) -> None:
    found = asked(http, shape=SHAPE, contexts=CONTEXTS, batch=2)
    assert [row["kind"] for row in found["table"]] == list(KINDS)
    for row, (made, ring) in zip(found["table"], KINDS.values(), strict=True):
        whole = [cost(made, context=n, batch=2, dtype="float32") for n in CONTEXTS]
        ways = [[one.cache for one in whole]]
        if ring:
            ways.append([cost(made, context=n, batch=2, dtype="float32", kind="ring").cache for n in CONTEXTS])
        assert row["bytes_at"] == [min(at) for at in zip(*ways, strict=True)]
        assert row["bytes_per_token"] == whole[0].cache_a_token
    own = [line for line in found["figures"][0]["panels"][0]["lines"] if line["look"] == "solid"]
    assert [line["name"] for line in own] == ["this shape"]
    assert own[0]["y"] == [size / 2**20 for size in found["table"][0]["bytes_at"]]
    batches = found["figures"][0]["panels"][1]["lines"][1]
    assert batches["y"] == [n * batches["y"][0] for n in batches["x"]]


@pytest.mark.parametrize("kind", ["MHA", "GQA (2)", "MQA", "MLA (48 + 6)"])
def test_the_bytes_are_those_that_a_cache_allocates(http: httpx.Client, kind: str) -> None:
    found = {row["kind"]: row for row in asked(http, shape=SHAPE, contexts=[48], batch=2)["table"]}
    made = vt.build(KINDS[kind][0]).eval()
    cache = made.new_cache(2, capacity=48)
    assert found[kind]["bytes_at"] == [sum(layer.store.bytes for layer in cache.layers)]


def test_operations_are_those_of_inspect(http: httpx.Client) -> None:
    found = asked(http, model="tiny", contexts=[64, 16], batch=3, dtype="float32")
    assert found["contexts"] == [16, 64]
    own = cost(chat_model(), context=64, batch=3, dtype="float32")
    whole, step = ({part.name: part.operations for part in one.parts} for one in own.passes)
    assert {one["part"]: one["flops"] for one in found["operations"]} == {k: v for k, v in whole.items() if v}
    assert {one["part"]: one["decode"] for one in found["operations"]} == {k: v for k, v in step.items() if v}
    assert found["parameters"] == sum(p.numel() for p in chat_model().parameters())
    assert found["table"][0]["kind"] == "as it is"
    assert found["table"][0]["bytes_at"][1] == own.cache


def test_measuring_counts_what_is_projected(studio: Running) -> None:
    events = studio.events("/cost/measure", {"model": "tiny", "tokens": 7})
    points, done = of(events, "point"), of(events, "done")[0]
    assert [point["n"] for point in points] == list(range(1, 8))
    first = points[0]["length"]
    for i, point in enumerate(points):
        assert point["length"] == first + i
        assert point["cached"]["projections"] == first + i  # each token once
        assert point["uncached"]["projections"] == sum(first + j for j in range(i + 1))  # each text anew
    assert all(a["cached"]["ms"] < b["cached"]["ms"] for a, b in itertools.pairwise(points))
    assert done["tokens"] == done["asked"] == done["same"] == 7
    counted, timed = done["figures"][0]["panels"]
    assert counted["lines"][1]["y"][-1] == points[-1]["uncached"]["projections"]
    assert timed["lines"][0]["y"][-1] == points[-1]["cached"]["ms"]


def test_it_stops_when_the_reader_leaves(studio: Running) -> None:
    body = {"model": "tiny", "tokens": 500}
    with studio.http() as http, http.stream("POST", f"{API}/cost/measure", json=body) as answer:
        events = told(answer)
        assert next(events)[0] == "point"
        assert studio.studio.thread("measure tiny").busy == 1
    until(lambda: studio.studio.thread("measure tiny").busy == 0)


@pytest.mark.sampled
def test_on_a_real_model(tmp_path: Any) -> None:
    name = pulled("smollm2")
    with running(tmp_path, name, load=lambda served: vt.load(served.source, dtype="auto")) as it:
        events = it.events("/cost/measure", {"model": name, "tokens": 6})
        with it.http() as http:
            table = asked(http, model=name, contexts=[1024, 8192])["table"]
    last, done = of(events, "point")[-1], of(events, "done")[0]
    assert last["uncached"]["projections"] > 3 * last["cached"]["projections"]
    assert done["same"] == 6
    assert "time" not in done["text"]
    assert table[0]["bytes_per_token"] == 30 * 3 * 2 * 64 * torch.bfloat16.itemsize
    assert table[1]["bytes_at"][0] == 3 * table[0]["bytes_at"][0]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("cost", {}, 400, "say a model or a shape"),
        ("cost", {"model": "tiny", "shape": SHAPE}, 400, "say a model or a shape"),
        ("cost", {"model": "large"}, 404, "there is no model 'large'"),
        ("cost", {"shape": SHAPE | {"layers": 0}}, 400, "shape.layers is 0, and must be at least 1"),
        (
            "cost",
            {"shape": SHAPE | {"heads": 7, "kv_heads": 7, "head_width": None}},
            400,
            "does not divide into 7 heads",
        ),
        ("cost", {"shape": SHAPE | {"kv_heads": 3}}, 400, "the second must divide the first"),
        ("cost", {"shape": SHAPE | {"dtype": "int8"}}, 400, "shape.dtype is 'int8', and must be 'float64', 'float32'"),
        ("cost", {"shape": SHAPE | {"colour": 1}}, 400, "shape.colour is not a field that is known here"),
        (
            "cost",
            {"shape": SHAPE, "contexts": []},
            400,
            "contexts is empty, and must have at least 1 entry",
        ),
        ("cost", {"shape": SHAPE, "contexts": [0]}, 400, "contexts.0 is 0, and must be at least 1"),
        ("cost", {"shape": SHAPE, "contexts": [2**25]}, 400, "contexts.0 is 33,554,432, and must be at most 16,777"),
        ("cost", {"shape": SHAPE, "batch": 1.5}, 400, "batch is 1.5, and must be a whole number"),
        (
            "cost/measure",
            {"model": "tiny", "tokens": 100_000},
            400,
            "tokens is 100,000, and must be at most 512",
        ),
        ("cost/measure", {"model": "tiny", "tokens": 0}, 400, "tokens is 0, and must be at least 1"),
        ("cost/measure", {"model": "large"}, 404, "there is no model 'large'"),
        ("cost/measure", {}, 400, "model is missing, and must be given"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = http.post(f"{API}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]
