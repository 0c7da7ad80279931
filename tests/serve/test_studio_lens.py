"""The lens page's API: it answers what the library measures, refuses in words, and ends when its reader leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import until
from tests.serve.studios import Running, of, running
from vantage.interventions import ablate, ablation, attribute, logit_lens, patch
from vantage.serve.studio.lens import guesses

TEXT, OTHER = "the cat sat on a mat", "the cat said on a mat"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("lens"), load=lambda served: chat_model(layers=3)) as it:
        yield it


def result(studio: Running, path: str, **body: Any) -> dict[str, Any]:
    events = studio.events(f"/lens{path}", {"model": "tiny", **body})
    assert of(events, "error") == []
    shares = [progress["share"] for progress in of(events, "progress")]
    assert len(shares) > 1
    assert shares == sorted(shares)
    return of(events, "result")[0]


def test_guesses_are_the_librarys(studio: Running) -> None:
    found = result(studio, "", text=TEXT, target=" mat")
    lens = logit_lens(chat_model(layers=3), TEXT, target=" mat", top=10)
    assert found["stages"] == ["embedding", "0", "1", "2"]
    assert found["guesses"] == [[list(words) for words in row] for row in lens.guesses]
    torch.testing.assert_close(torch.tensor(found["probabilities"]), lens.probabilities)
    torch.testing.assert_close(torch.tensor(found["target"]), lens.target)
    assert found["rank"] == lens.rank.tolist()


def test_a_vector_is_the_sum_of_what_parts_added(studio: Running) -> None:
    model = chat_model(layers=3)
    found = result(studio, "/vector", text=TEXT, position=2, target=" mat")
    seen = vt.trace(model, TEXT, read=["layers.1.attention", "layers.1.residual_mid", "layers.2.residual_after"])
    assert [(step["layer"], step["part"]) for step in found["steps"][:3]] == [
        (None, "embedding"), (0, "attention"), (0, "feed-forward"),
    ]  # fmt: skip
    assert found["steps"][3]["size"] == pytest.approx(float(seen["layers.1.attention"][0, 2].norm()), rel=1e-5)
    assert found["steps"][3]["length"] == pytest.approx(float(seen["layers.1.residual_mid"][0, 2].norm()), rel=1e-5)
    assert found["steps"][-1]["length"] == pytest.approx(float(seen["layers.2.residual_after"][0, 2].norm()), rel=1e-5)
    whole = attribute(model, TEXT, target=" mat", position=2)
    assert found["logit"] == pytest.approx(whole.logit)
    constant = sum(part.value for part in whole.parts if part.kind == "constant")
    assert sum(step["adds"] for step in found["steps"]) + constant == pytest.approx(whole.logit, abs=1e-4)
    lens = logit_lens(model, TEXT, top=1)
    assert found["steps"][2]["guess"] == lens.guesses[1][2][0]  # after the first block


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_the_answer_without_a_head(studio: Running, how: str) -> None:
    model = chat_model(layers=3)
    found = result(studio, "/ablate", text=TEXT, part="head", layer=1, head=3, how=how, tokens=5)
    edits = ablation(model, "layers.1.heads", how=how, heads=3, reference=None if how == "zero" else [TEXT])
    with vt.tracing(model, edits=edits):
        text = vt.generate(model, TEXT, max_tokens=5).text
        after = vt.trace(model, TEXT).logits[0, -1].softmax(-1)
    assert found["before"] == vt.generate(model, TEXT, max_tokens=5).text
    assert found["after"] == text
    before = vt.trace(model, TEXT).logits[0, -1].softmax(-1)
    assert found["moved"] == pytest.approx(float((before - after).abs().sum()) / 2, abs=1e-6)
    assert max(one["before"] for one in found["candidates"]) == pytest.approx(float(before.max()))
    assert max(one["after"] for one in found["candidates"]) == pytest.approx(float(after.max()))


def test_maps_are_the_librarys(studio: Running) -> None:
    model = chat_model(layers=3)
    found = result(studio, "/ablate/heads", text=TEXT, target=" mat")
    effects = ablate(model, TEXT, target=" mat").effects
    torch.testing.assert_close(torch.tensor(found["figure"]["panels"][0]["values"]), effects, atol=1e-5, rtol=1e-4)
    found = result(studio, "/patch", clean=TEXT, corrupted=OTHER, activation="attention", target=" mat", against=" on")
    sweep = patch(model, TEXT, OTHER, activation="attention", target=" mat", against=" on")
    torch.testing.assert_close(
        torch.tensor(found["figure"]["panels"][0]["values"]), sweep.effects, atol=1e-4, rtol=1e-3
    )
    assert (found["goal"], found["before"]) == pytest.approx((sweep.goal, sweep.before), abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("", {"text": "the " * 200}, "give 1 to 128"),
        ("", {"text": TEXT, "target": " mat on"}, "give one"),
        ("/vector", {"text": TEXT, "position": 99}, "no token 99"),
        ("/ablate", {"text": TEXT, "part": "head", "layer": 9}, "no layer 9"),
        ("/ablate", {"text": TEXT, "part": "head", "layer": 0, "head": 4}, "no head 4"),
        ("/patch", {"clean": TEXT, "corrupted": TEXT}, "both texts give the same"),
        ("/patch", {"clean": TEXT, "corrupted": f"{TEXT} on"}, "exchange words"),
    ],
)  # fmt: skip
def test_refusals_are_sentences(studio: Running, path: str, body: dict[str, Any], words: str) -> None:
    events = studio.events(f"/lens{path}", {"model": "tiny", **body})
    assert words in of(events, "error")[0]["message"]


def test_a_reader_that_leaves_ends_the_work(studio: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = threading.Event()
    reports = []

    def long(*args: Any, progress: Any, **options: Any) -> Any:
        for n in range(1000):
            reports.append(n)
            progress(n, 1000)
            begun.set()
            time.sleep(0.02)
        raise AssertionError("nobody stopped it")

    monkeypatch.setattr(guesses, "logit_lens", long)
    with studio.http() as http, http.stream("POST", "/studio/api/lens", json={"model": "tiny", "text": TEXT}) as answer:
        assert answer.status_code == 200
        assert begun.wait(20)
    until(lambda: studio.studio.thread("look tiny").busy == 0)
    assert len(reports) < 1000
