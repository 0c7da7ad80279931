"""On SmolLM2: packed weights, native steps, generation under an intervention, and a tuned lens that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.inspect.models import TEXT, published
from vantage.inspect import capturing
from vantage.interventions import attribute, fit_lens, knock_out, logit_lens

ROOT = Path(__file__).parents[2]
FRANCE = "The capital of France is"


@pytest.mark.sampled
def test_packed_weights_are_traced_without_changing_a_bit() -> None:
    of = published("smollm2", dtype="auto")
    tokens = torch.tensor([of.tokenizer.encode(FRANCE)])
    with torch.inference_mode(), capturing(of, layers=0):  # module by module, as in a trace
        plain = of(tokens)
    seen = vt.trace(of, tokens, read=["layers.*.residual_after", "layers.*.heads", "layers.*.neurons", "logits"])
    assert torch.equal(seen.logits, plain)
    assert attribute(of, FRANCE, target=" Paris").error < 0.05  # products with packed weights are rounded


def test_the_lens_ends_at_paris() -> None:
    lens = logit_lens(published("smollm2", dtype="auto"), FRANCE, target=" Paris", positions=-1)
    assert lens.guesses[-1][0][0] == " Paris"
    assert lens.rank is not None
    assert lens.rank[-1, 0] == 0
    assert lens.rank[5, 0] > 50


def test_an_answer_that_may_not_see_a_word_is_another() -> None:
    of = published("smollm2", dtype="auto")
    assert str(vt.generate(of, FRANCE, max_tokens=2)).startswith(" Paris")
    france = of.tokenizer.encode(FRANCE).index(of.tokenizer.encode(" France")[0])
    hidden = knock_out(of, [(query, france) for query in range(france + 1, 12)])
    with vt.tracing(of, edits=hidden) as seen:
        blind = str(vt.generate(of, FRANCE, max_tokens=2))
    assert "Paris" not in blind
    assert len(seen.switched) == 30
    assert str(vt.generate(of, FRANCE, max_tokens=2)).startswith(" Paris")  # nothing stays behind


@pytest.mark.slow
def test_a_tuned_lens_is_nearer_on_a_text_that_it_was_not_fitted_on() -> None:
    of = published("smollm2")
    book = of.tokenizer.encode((ROOT / "docs" / "core.md").read_text() + (ROOT / "README.md").read_text())[:4096]
    fitted = fit_lens(of, [book[i : i + 256] for i in range(0, len(book), 256)])
    plain, tuned = (logit_lens(of, TEXT, tuned=lens).divergence[:, 1:].mean(1) for lens in (None, fitted))
    for after in (5, 10, 15, 20):
        assert tuned[after] < 0.8 * plain[after]
