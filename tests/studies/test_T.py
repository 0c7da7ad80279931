"""T1 to T4: what they find, that parameters count, and that a broken part is noticed."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest

import vantage as vt
from tests.studies.test_K import number, sound
from vantage.model import decoder, encoder_decoder
from vantage.position.rope import Rotation
from vantage.spec.masks import Everything, SameSegment
from vantage.studies import t01_encoder_decoder, t03_pretrain_adapt, t04_encoder_mask
from vantage.training import learners

# ---- T1


def test_T1_the_original_and_two_slips() -> None:
    found = sound(vt.studies.run("T1"), "erratum")
    assert number(found, "largest difference from torch").ours < 1e-12
    assert number(found, "most that a later target token").ours == 0.0
    assert number(found, "our encoding changes").ours == 0.0
    assert number(found, "the snippet's encoding changes").ours == pytest.approx(1.0)  # cos 0
    slip = number(found, "loss of a sure and right answer, from the snippet")
    assert slip.ours == pytest.approx(log(exp(1.0) + 12) - 1)  # a softmax of (1, 0, …, 0) over 13 tokens
    assert slip.agrees is False
    past, across, inside = found.result.figures[0].panels
    assert [[cell is None for cell in row] for row in past.values] == [[j > i for j in range(6)] for i in range(6)]
    assert not any(cell is None for heat in (across, inside) for row in heat.values for cell in row)


@pytest.mark.parametrize("values", [{"layers": 1, "source": 2, "target": 2}, {"layers": 3, "source": 9, "target": 4}])
def test_T1_other_sizes(values) -> None:
    found = sound(vt.studies.run("T1", **values), "erratum")
    past, across, _ = found.result.figures[0].panels
    assert len(past.values) == len(across.values) == values["target"]
    assert len(across.values[0]) == values["source"]


def test_T1_a_decoder_that_sees_ahead_is_noticed(monkeypatch) -> None:
    def without_mask(**options):
        spec = encoder_decoder(**options)
        return replace(spec, layers=tuple(replace(one, mask=Everything() & SameSegment()) for one in spec.layers))

    monkeypatch.setattr(t01_encoder_decoder, "encoder_decoder", without_mask)
    found = vt.studies.run("T1")
    assert found.verdict == "mixed"
    assert number(found, "most that a later target token").agrees is False
    assert number(found, "largest difference from torch").agrees is False


def test_T1_the_loss_is_that_of_training() -> None:
    assert t01_encoder_decoder.losses is learners.losses


# ---- T2


@pytest.mark.parametrize("kv_heads", ["1", "2", "8"])
def test_T2_the_block_from_its_parts(kv_heads: str) -> None:
    found = sound(vt.studies.run("T2", kv_heads=kv_heads, tokens=5), "agrees")
    assert number(found, "largest difference from the parts").ours < 1e-12
    assert number(found, "key/value heads kept").ours == f"{kv_heads} of 8"
    changes = [n for n in found.result.numbers if n.what.startswith("the output changes")]
    assert len(changes) == 3
    assert all(n.ours > 1e-3 for n in changes)
    sizes = dict(
        zip(found.result.figures[0].panels[1].labels, found.result.figures[0].panels[1].series[0][1], strict=True)
    )
    width, wide = 32, 4
    assert sizes["attention"] == width * (width + 2 * int(kv_heads) * wide) + width * width
    assert sizes["feed-forward"] == 3 * width * 64


def test_T2_queries_that_are_not_turned_are_noticed(monkeypatch) -> None:
    monkeypatch.setattr(Rotation, "query", lambda self, q, pos: q)
    found = vt.studies.run("T2")
    assert found.verdict == "mixed"
    assert number(found, "largest difference from the parts").agrees is False


# ---- T3


def test_T3_the_text_and_the_labels(tmp_path) -> None:
    t03_pretrain_adapt._write(tmp_path, 0, 10)
    few, test = ((tmp_path / f"{name}.tsv").read_text().splitlines() for name in ("few", "test"))
    words = {
        name: {word for row in rows for word in row.split("\t")[0].split()}
        for name, rows in (("few", few), ("test", test))
    }
    known = {*t03_pretrain_adapt.GOOD, *t03_pretrain_adapt.BAD}
    assert not words["few"] & words["test"] & known  # no label shows a word of the test
    assert [row.split("\t")[1] for row in few] == ["yes", "no"] * 5
    text = (tmp_path / "text.txt").read_text()
    assert "yes" not in text
    for line in text.splitlines()[:200]:
        said = set(line.replace(".", "").split())
        assert bool(said & set(t03_pretrain_adapt.GOOD)) is ("liked" in said)
        assert bool(said & set(t03_pretrain_adapt.BAD)) is ("hated" in said)
    t03_pretrain_adapt._write(tmp_path, 1, 10)
    assert (tmp_path / "text.txt").read_text() == text
    assert (tmp_path / "few.tsv").read_text().splitlines() != few


def test_T3_a_model_that_has_hardly_read_knows_nothing(tmp_path, monkeypatch) -> None:
    """It runs from end to end, and the verdict depends on what was learned."""
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path))
    monkeypatch.setattr(t03_pretrain_adapt, "SENTENCES", 300)
    monkeypatch.setattr(t03_pretrain_adapt, "TESTS", 20)
    monkeypatch.setattr(t03_pretrain_adapt, "FINE_STEPS", 3)
    moved = []
    found = vt.studies.run("T3", steps=20, seeds=1, progress=lambda share, doing: moved.append(share))
    assert found.verdict == "mixed"
    assert number(found, "right without any label").agrees is False
    assert number(found, "loss of the first step").ours == pytest.approx(log(256), abs=0.3)
    assert len(moved) > 20
    assert moved == sorted(moved)
    assert moved[-1] == 1.0
    assert len(found.result.figures[0].panels[1].lines[0].x) == 20


@pytest.mark.slow
def test_T3_reading_first_helps(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path))
    found = sound(vt.studies.run("T3"), "agrees")
    assert number(found, "right without any label").ours > 0.9
    assert number(found, "right after text and labels").ours > number(found, "right after labels alone").ours + 0.1


# ---- T4


@pytest.mark.parametrize("position", ["none", "rope", "alibi", "sinusoidal"])
def test_T4_the_same_block(position: str) -> None:
    found = sound(vt.studies.run("T4", position=position, tokens=6), "agrees")
    assert number(found, "parameters that one has").ours == 0
    assert number(found, "the encoder with a triangle").ours < 1e-12
    moved = found.result.figures[1].panels[0].series[0][1]
    assert len(moved) == 6
    assert moved[-1] < 1e-12
    assert min(moved[:-1]) > 1e-4
    dec, enc = found.result.figures[0].panels
    assert [[cell is None for cell in row] for row in dec.values] == [[j > i for j in range(6)] for i in range(6)]
    assert not any(cell is None for row in enc.values for cell in row)


def test_T4_an_encoder_that_keeps_the_triangle_is_noticed(monkeypatch) -> None:
    def masked(**options):
        return replace(decoder(**options), head=None)

    monkeypatch.setattr(t04_encoder_mask, "encoder", masked)
    found = vt.studies.run("T4")
    assert found.verdict == "mixed"
    assert number(found, "weight above the diagonal, encoder").agrees is False
