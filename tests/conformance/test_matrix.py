"""The conformance matrix.

In `make test` every part with every kernel and every cache, and some of the other pairs, drawn by a seed; in
`make test-all` every pair and every triple.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.sampling import draw, holding, marks
from vantage.conformance.covering import combinations, cover, reachable
from vantage.conformance.factors import NUMBER, allowed_by, encodings, factors, rules
from vantage.conformance.matrix import TOLERANCE, refused_combinations, run_matrix, try_refusal
from vantage.conformance.scenarios import run_cell
from vantage.errors import BadInput
from vantage.position.rope import Rotation
from vantage.spec.masks import Filled, Window
from vantage.spec.positions import Positions

REFUSED = Path(__file__).with_name("refused.txt")
FACTORS, allowed = factors(), allowed_by(rules())
PAIRS = cover(FACTORS, 2, allowed)
CORE = {NUMBER["kernel"], NUMBER["cache"]}  # whatever else there is, every part is run with each of these
ALWAYS = holding(PAIRS, lambda pair: any(number in CORE for number, _ in pair))
DRAWN = draw(PAIRS, ALWAYS, 60)


@pytest.mark.parametrize("cell", [pytest.param(c, id="/".join(c), marks=marks(c in DRAWN)) for c in PAIRS])
def test_every_pair_of_parts_equals_the_reference(cell):
    assert run_cell(cell) <= TOLERANCE[torch.float64]


@functools.cache
def triples():
    return cover(FACTORS, 3, allowed)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", encodings())
def test_every_triple_of_parts_equals_the_reference(encoding):
    cells = [cell for cell in triples() if cell[0] == encoding]
    errors = {"/".join(cell): run_cell(cell) for cell in cells}
    assert {name: e for name, e in errors.items() if not e <= TOLERANCE[torch.float64]} == {}


def whole_numbers_decide(cell):
    """Hard attention and fewer bits turn a rounding into a jump, so float32 is not to be compared with float64."""
    return cell[NUMBER["attention"]] == "hard" or cell[NUMBER["cache"]] in ("quantised", "low-bit", "half", "kivi")


@pytest.mark.slow
@pytest.mark.parametrize("cell", [c for c in PAIRS if not whole_numbers_decide(c)], ids="/".join)
def test_float32_stays_near_the_float64_reference(cell):
    assert run_cell(cell, torch.float32) <= TOLERANCE[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        ("rope", "grouped", "causal", "none", "flex-compiled", "full"),
        ("alibi", "softcap", "window", "contiguous", "flex-compiled", "full"),
        ("t5", "temperature", "causal", "none", "flex-compiled", "packed"),
    ],
    ids="/".join,
)
def test_compiled_flex_in_a_few_cells(cell):
    assert run_cell(cell, torch.float32) <= TOLERANCE[torch.float32]


# ---- the array itself


@pytest.mark.parametrize("strength", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_cells_cover_every_combination_that_can_occur(strength):
    cells = PAIRS if strength == 2 else triples()
    covered = {c for cell in cells for c in combinations(cell, strength)}
    assert covered == set(reachable(FACTORS, strength, allowed))
    assert all(allowed(dict(enumerate(cell))) for cell in cells)
    together = Counter(tuple(number for number, _ in pair) for pair in reachable(FACTORS, 2, allowed))
    largest = max(together.values())
    assert len(cells) >= largest  # fewer could not hold every pair


@pytest.mark.sampled
def test_reachable_leaves_out_only_what_a_rule_forbids():
    found = set(reachable(FACTORS, 2, allowed))
    everything = {
        ((i, a), (j, b))
        for (i, x), (j, y) in itertools.combinations(enumerate(FACTORS.values()), 2)
        for a in x
        for b in y
    }
    for combination in everything - found:
        fixed = dict(combination)
        free = [[fixed[i]] if i in fixed else values for i, values in enumerate(FACTORS.values())]
        assert not any(allowed(dict(enumerate(cell))) for cell in itertools.product(*free))


# ---- what is refused


def test_what_is_refused_is_the_committed_list():
    said = [try_refusal(rule, cell) for rule, cell in refused_combinations()]
    assert [r.name for r in said if not r.ok] == []
    assert "".join(f"{r.name}: {r.message}\n" for r in said) == REFUSED.read_text()


@pytest.mark.parametrize("encoding", encodings())
def test_no_encoding_is_refused_by_every_cached_kernel(encoding):
    chosen = {NUMBER["encoding"]: encoding, NUMBER["cache"]: "contiguous", NUMBER["scenario"]: "steps"}
    assert any(allowed({**chosen, NUMBER["kernel"]: kernel}) for kernel in FACTORS["kernel"])


# ---- the matrix can fail


def test_a_key_at_position_zero_in_cached_steps_is_caught(monkeypatch):
    right = Rotation.key

    def wrong(self, k, pos):
        if pos.shape[1] == 1:
            pos = Positions.of(torch.zeros_like(pos.pos), order=pos.order)
        return right(self, k, pos)

    monkeypatch.setattr(Rotation, "key", wrong)
    assert run_cell(("rope", "grouped", "causal", "contiguous", "sdpa", "steps")) > 1e-3
    assert run_cell(("rope", "grouped", "causal", "contiguous", "sdpa", "full")) <= TOLERANCE[torch.float64]


def test_a_window_off_by_one_in_the_ring_is_caught(monkeypatch):
    monkeypatch.setattr(Window, "reach", lambda self: self.n - 1)
    assert run_cell(("none", "grouped", "window", "ring", "reference", "ragged")) > 1e-3


def test_padding_that_leaks_is_caught(monkeypatch):
    monkeypatch.setattr(Filled, "__call__", lambda self, q, k: torch.ones_like(q.order + k.order, dtype=torch.bool))
    assert run_cell(("rope", "grouped", "bidirectional", "none", "sdpa", "right-padded")) > 1e-3


@pytest.mark.sampled
def test_a_report_counts_and_says_what_failed(monkeypatch):
    good = run_matrix(strength=1, filter="alibi")
    assert good.ok
    assert good.to_json()["ok"]
    console = Console(file=io.StringIO(), width=80)
    console.print(good.table())
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(any(line.split()[1:2] == [kind] for line in shown) for kind in factors()["cache"])  # none is cut off
    monkeypatch.setattr(Window, "reach", lambda self: self.n - 1)
    bad = run_matrix(strength=2, filter="/window/ring/reference/r")
    assert not bad.ok
    assert "off by" in bad.failures[0].note
    assert not bad.to_json()["ok"]


@pytest.mark.sampled
def test_bad_input_is_refused():
    with pytest.raises(BadInput, match="strength=4"):
        run_matrix(strength=4)
    with pytest.raises(BadInput, match="no cell's name contains 'nosuch'"):
        run_matrix(filter="nosuch")
