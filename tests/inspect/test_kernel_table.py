"""The tables of kernels in docs/core.md are what kernels and the lowering say now."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vantage as vt
from tools import kernel_table
from tools.kernel_table import AS_BESIDE, BESIDE, PAGE, Part
from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS
from vantage.inspect.kernels import kernel_choices
from vantage.kernels.fused import Fused
from vantage.kernels.native import native
from vantage.kernels.recurring import without_plans
from vantage.kernels.tiles import Tiles
from vantage.position import ENCODINGS
from vantage.spec.native import CannotLower
from vantage.spec.normalisers import NORMALISERS

TEXT = PAGE.read_text(encoding="utf-8")
SPARSE = "top-k"
needs_native = pytest.mark.skipif(native() is None, reason="no C++ compiler here")


def part(title: str) -> Part:
    return next(one for one in kernel_table.parts() if one.title == title)


@pytest.mark.sampled
@needs_native
def test_the_page_has_the_tables_of_now() -> None:
    assert kernel_table.written(TEXT) == TEXT, "run `python -m tools.kernel_table`"


def test_every_part_stands_in_both_tables() -> None:
    registries = (ENCODINGS, ATTENTIONS, OUTPUT_PARTS, INDEXERS, NORMALISERS)
    titles = [entry.title for registry in registries for entry in registry.entries()]
    generated = TEXT.partition(kernel_table.BEGIN)[2].partition(kernel_table.END)[0]
    rows = [line.split("|")[1] for line in generated.splitlines() if line.startswith("|")]
    for title in titles:
        assert sum(title in row.strip().split(", ") for row in rows) == 2, f"{title}: `python -m tools.kernel_table`"


@needs_native
def test_a_kernel_that_refuses_more_changes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = ENCODINGS["rope"].title
    before = kernel_table.passes(part(rope).spec("rope"))
    assert before[0] == "`tiles`"
    assert before[2].startswith("`fused`")
    monkeypatch.setattr(Tiles, "refuses", lambda *_: "not today")
    monkeypatch.setattr(Fused, "refuses", lambda *_: "not today")
    after = kernel_table.passes(part(rope).spec("rope"))
    assert "tiles" not in after[0]
    assert "fused" not in after[2]


@needs_native
def test_a_part_that_loses_its_native_form_changes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = part(ENCODINGS["rope"].title).spec("rope")
    assert kernel_table.steps(spec) == ("lowered", "lowered", "lowered")

    def refuse(*_: object, **__: object) -> None:
        raise CannotLower("not today")

    for name in ("lower", "lower_for_gpu"):
        monkeypatch.setattr(f"vantage.model.lowered.choice.{name}", refuse)
    assert kernel_table.steps(spec) == ("modules", "graph of modules", "modules")


def test_a_part_is_as_the_encoding_beside_it_only_if_it_is_with_each() -> None:
    """What asks only the encoding, what decides by itself, and what agrees with one encoding alone."""

    def answer(spec: vt.ModelSpec) -> tuple[str, ...]:
        gated = any(layer.output for layer in spec.layers)
        shared = any(layer.source is not None for layer in spec.layers)
        bias = type(spec.layers[0].bias).__name__
        return ("b",) if shared or (gated and bias == "Alibi") else ("a",)

    answers = kernel_table.answers(answer)
    assert answers[OUTPUT_PARTS["gate"].title] == ("a",)
    assert answers["keys shared across layers"] == ("b",)
    assert answers[INDEXERS[SPARSE].title] == (AS_BESIDE,)


def test_without_a_gpu_it_is_asked_as_if_there_were_one() -> None:
    model = vt.build(vt.decoder(vocab=16, width=128, layers=1, heads=2, position="t5"))
    with kernel_table._triton_is_there():
        (choice,) = kernel_choices(model, context=16_384, device="cuda", dtype=torch.bfloat16, supposed=True)
    assert choice.kernel == "fused"
    assert "tiles" not in choice.others  # which is for a CPU
    (choice,) = kernel_choices(model, context=16_384, device="cpu", train=True, supposed=True)
    assert choice.kernel == "blocks"
    assert choice.others["tiles"] == "the tiles kernel has no backward pass"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_real_gpu_takes_what_is_supposed_of_one(train: bool) -> None:
    """Whatever it has installed, as far as the first pass goes."""
    for one in kernel_table.parts():
        if one.encoding is None and not dict(kernel_table._asked_beside(one, lambda spec: (), BESIDE)):
            continue  # a state, and no kernel
        model = vt.build(one.spec(one.encoding or BESIDE[0]))
        asked: dict[str, Any] = {"context": 8_192, "device": "cuda", "dtype": torch.bfloat16, "train": train}
        with without_plans():  # which other parts with the same shape would have asked for
            supposed, real = (kernel_choices(model, **asked, supposed=supposed) for supposed in (True, False))
        assert [one.kernel for one in supposed] == [one.kernel for one in real], one.title
