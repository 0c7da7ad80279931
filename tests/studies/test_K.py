"""K1 to K6: what they find, that parameters count, and that a broken part is noticed."""

from __future__ import annotations

import json

import pytest
import torch

import vantage as vt
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.checkpoints.pull import place
from vantage.figures.tables import table
from vantage.generation import Conversation, Engine
from vantage.model import Model
from vantage.position.rope import Rotation
from vantage.studies import k01_projections, k04_cost, k06_chat
from vantage.studies.shared.models import CountingKernel, count_projections, greedy_tokens, sharp_model


def number(outcome, start: str):
    (found,) = [n for n in outcome.result.numbers if n.what.startswith(start)]
    return found


def sound(outcome, verdict: str):
    """As expected, with figures that hold data, and all of it fit for JSON."""
    assert outcome.verdict == verdict, outcome.result.words
    json.dumps(outcome.to_dict(), allow_nan=False)
    assert outcome.result.figures
    for figure in outcome.result.figures:
        assert figure.caption.endswith(".")
        for panel in table(figure):
            cells = [cell for row in panel.rows for cell in row[1:] if isinstance(cell, int | float)]
            assert cells
            assert all(torch.isfinite(torch.tensor(float(cell))) for cell in cells)
    return outcome


# ---- K1


def test_K1_counts() -> None:
    found = sound(vt.studies.run("K1", tokens=9), "erratum")
    assert number(found, "all keys of a layer").ours == 45
    assert number(found, "the same, with a cache").ours == 9
    assert number(found, "the key of the first input").ours == 9
    slip = number(found, "the key of y₁")
    assert (slip.ours, slip.document, slip.agrees) == (8, 9, False)
    slip = number(found, "keys needed to generate x₄")
    assert (slip.ours, slip.document, slip.agrees) == (3, 4, False)
    assert number(found, "attention output at x₃, first").ours == pytest.approx(8.5, abs=1e-6)
    each, growth = found.result.figures
    (_, plain), (_, kept) = each.panels[0].series
    assert list(plain) == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert set(kept) == {1}
    assert list(growth.panels[0].lines[0].y) == [n * (n + 1) // 2 for n in growth.panels[0].lines[0].x]


def test_K1_a_cache_that_is_not_used_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(k01_projections, "Engine", lambda model, cache, **more: Engine(model, cache=False, **more))
    found = vt.studies.run("K1", tokens=5)
    assert found.verdict == "mixed"
    assert number(found, "the same, with a cache").agrees is False


def test_counting_goes_away_with_its_block() -> None:
    model = sharp_model(vt.decoder(vocab=11, width=8, layers=2, heads=2))
    with count_projections(model) as counts:
        greedy_tokens(model, [3], 4, cached=False)
    assert [sum(layer.values()) for layer in counts] == [10, 10]
    greedy_tokens(model, [3], 4, cached=False)
    assert [sum(layer.values()) for layer in counts] == [10, 10]


# ---- K2


@pytest.mark.parametrize("kind", ["contiguous", "paged", "quantised"])
def test_K2_step_by_step(kind: str) -> None:
    found = sound(vt.studies.run("K2", kind=kind, steps=6), "agrees")
    assert number(found, "most tokens projected in a step").ours == 1
    assert number(found, "tokens projected in all").ours == 3 + 6 - 1
    error = number(found, "largest difference of a step's weights").ours
    assert (error < 1e-12) is (kind != "quantised")
    heat = found.result.figures[0].panels[0]
    for t, row in enumerate(heat.values):
        shown = [cell for cell in row if cell is not None]
        assert len(shown) == 3 + t
        assert sum(shown) == pytest.approx(1.0)


def test_K2_a_step_that_is_always_at_position_0_is_noticed(monkeypatch) -> None:
    """S3's slip (P8): a rotation that begins anew with every pass."""
    query = Rotation.query

    def from_0(self, q, pos):
        return query(self, q, vt.Positions.arange(*pos.shape) if q.shape[2] == 1 else pos)

    monkeypatch.setattr(Rotation, "query", from_0)
    found = vt.studies.run("K2")
    assert found.verdict == "mixed"
    assert number(found, "largest difference of a step's weights").agrees is False


# ---- K3


def test_K3_the_documents_numbers() -> None:
    found = sound(vt.studies.run("K3"), "agrees")
    keys = [number(found, f"k{i}, number {j}").ours for i in (1, 2, 3) for j in (1, 2)]
    values = [number(found, f"v{i}, number {j}").ours for i in (1, 2, 3) for j in (1, 2)]
    assert keys == [1.0, 4.0, 3.0, 10.0, 5.0, 16.0]
    assert values == [2.5, 0.5, 5.5, 0.5, 8.5, 0.5]
    assert number(found, "attention output at x3, first").ours == pytest.approx(8.5, abs=1e-6)


def test_K3_another_third_token() -> None:
    found = vt.studies.run("K3", first=0.1, second=0.2)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.1, 0.2]], dtype=torch.float64)
    k, v = x @ x.new_tensor([[1.0, 2.0], [0.0, 1.0]]), x @ x.new_tensor([[0.5, -0.5], [1.0, 0.5]])
    wanted = (x[2] @ k.T / 2**0.5).softmax(-1)
    (_, shown), (_, yours) = found.result.figures[1].panels[0].series
    assert yours == pytest.approx(wanted.tolist())
    assert shown != yours
    assert found.numbers["your third key"] == f"({k[2, 0]:.5g}, {k[2, 1]:.5g})"
    assert found.numbers["attention output at your third token"] == "({:.5g}, {:.5g})".format(*(wanted @ v).tolist())
    assert found.verdict == "agrees"  # the document's token is still looked at


# ---- K4


def test_K4_powers() -> None:
    found = sound(vt.studies.run("K4", tokens=32), "erratum")
    n = 32
    assert number(found, "key projections for 32 tokens, without").ours == n * (n + 1) // 2
    assert number(found, "key projections for 32 tokens, with ").ours == n
    assert number(found, "scores for 32 tokens, without").ours == n * (n + 1) * (2 * n + 1) // 6
    assert number(found, "scores for 32 tokens, with ").ours == n * (n + 1) // 2
    assert number(found, "scores without a cache grow").ours == pytest.approx(3, abs=0.2)
    slip = number(found, "all work with a cache")
    assert (slip.document, slip.agrees) == (1, False)
    assert slip.ours == pytest.approx(2, abs=0.2)


def test_K4_a_cache_that_is_none_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(Model, "new_cache", lambda self, *args, **options: None)
    found = vt.studies.run("K4", tokens=16)
    assert found.verdict == "mixed"
    assert number(found, "projections with a cache grow").ours == pytest.approx(2, abs=0.2)


def test_K4_the_kernel_is_put_back_and_counts_every_head() -> None:
    model = sharp_model(vt.decoder(vocab=11, width=8, layers=1, heads=2))
    before = model.kernel
    assert k04_cost._counted(model, 4, False) == (10, 2 * 30)
    assert model.kernel is before
    assert not isinstance(model.kernel, CountingKernel)


# ---- K5


def test_K5_bytes() -> None:
    found = sound(vt.studies.run("K5", context=1000, batch=3), "agrees")
    token = 2 * 32 * 32 * 128 * 2  # keys and values, layers, heads, width, bytes
    assert number(found, "KiB that one more token").ours * 1024 == token
    assert number(found, "MiB of 3 × 1,000").ours * 2**20 == 3 * 1000 * token
    assert number(found, "calculator against").ours == 0
    bars = found.result.figures[0].panels[1]
    assert bars.labels[0] == "MHA"
    assert bars.series[0][1][0] * 2**20 == 3 * 1000 * token


def test_K5_a_calculator_that_forgets_values_is_noticed(monkeypatch) -> None:
    real = ContiguousCache.bytes
    monkeypatch.setattr(ContiguousCache, "bytes", lambda *arguments: real(*arguments) // 2)
    found = vt.studies.run("K5")
    assert found.verdict == "mixed"
    assert number(found, "calculator against").ours > 0


# ---- K6


@pytest.mark.sampled
@pytest.mark.skipif(not place("smollm2").is_dir(), reason="smollm2 is not here: vantage pull smollm2")
def test_K6_turns(monkeypatch) -> None:
    found = vt.studies.run("K6", turns=3, answer=3)
    # times depend on who else is at work here, counts do not
    assert not [n.what for n in found.result.numbers if n.agrees is False and "seconds" not in n.what]
    assert found.verdict in ("agrees", "mixed")
    kept, anew = found.result.figures[0].panels[0].lines
    assert kept.y[0] == anew.y[0]  # the first turn has nothing to keep
    assert kept.y[2] < anew.y[1] < anew.y[2]
    assert number(found, "tokens of the last prompt").ours == anew.y[2]
    assert number(found, "answers that are the same").ours >= 2

    # a conversation that forgets is noticed: its later prompts are computed whole
    class Forgetful:
        def __init__(self, model, **options):
            self.make = lambda: Conversation(model, **options)
            self.messages = self.make().messages

        def ask(self, text):
            fresh = self.make()
            fresh.messages = list(self.messages)
            turn = fresh.ask(text)
            self.messages = fresh.messages
            return turn

    monkeypatch.setattr(k06_chat, "Conversation", Forgetful)
    found = vt.studies.run("K6", turns=3, answer=1)
    assert found.verdict == "mixed"
    assert number(found, "most tokens computed for a later prompt").agrees is False
