"""The studies of position: their verdicts, their numbers against others' arithmetic, and that they can fail."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from tests.compare.synthetic import experiment as synthetic
from tests.compare.synthetic import falls
from vantage.compare import jobs
from vantage.errors import BadInput
from vantage.figures import Bars, Heat, Lines
from vantage.model import feed_forward
from vantage.position import alibi, learned, rope, scaling, shifted
from vantage.spec.masks import Everything
from vantage.spec.positions import Positions
from vantage.studies import (
    p01_equivariance,
    p02_sinusoidal,
    p03_offset_rotation,
    p04_dot_products,
    p05_uniqueness,
    p06_learned_table,
    p07_relative,
    p08_rope,
    p10_alibi,
    p11_nope,
    p12_ordering,
    p13_pictures,
    p14_claims,
)
from vantage.studies.registry import find, tags
from vantage.studies.shared import findings
from vantage.studies.study import Result, silent

QUICK = {
    "P1": ("erratum", {}),
    "P2": ("erratum", {}),
    "P3": ("agrees", {}),
    "P4": ("erratum", {}),
    "P5": ("erratum", {"positions": 100_000}),
    "P6": ("agrees", {"length": 6}),
    "P7": ("agrees", {}),
    "P8": ("erratum", {}),
    "P9": ("agrees", {}),
    "P10": ("erratum", {}),
    "P11": ("agrees", {}),
    "P13": ("erratum", {}),
}
# another value of a parameter, for which some number must come out differently
OTHER = {
    "P1": {"seed": 1},
    "P2": {"base": 500.0},
    "P3": {"offset": 7},
    "P4": {"dim": 64},
    "P5": {"positions": 1000},
    "P6": {"length": 4},
    "P7": {"shift": 7},
    "P8": {"seed": 1},
    "P9": {"factor": 4.0},
    "P10": {"heads": 12},
    "P11": {"positions": 30},
    "P13": {"dim": 64},
}


def run(tag: str, **values) -> Result:
    study = find(tag)
    return study.run(study.values(values), silent)


@functools.cache
def default(tag: str) -> Result:
    return run(tag, **QUICK[tag][1])


def number(result: Result, begins: str):
    found = [n for n in result.numbers if n.what.startswith(begins)]
    assert len(found) == 1, [n.what for n in result.numbers]
    return found[0]


def wrong(result: Result) -> list[str]:
    return [n.what for n in result.numbers if n.agrees is False]


def cells(panel) -> list[float]:
    if isinstance(panel, Lines):
        return [v for line in panel.lines for v in (*line.x, *line.y, *(line.low or ()), *(line.high or ()))]
    if isinstance(panel, Bars):
        return [v for _, values in panel.series for v in values]
    assert isinstance(panel, Heat)
    return [v for row in panel.values for v in row if v is not None]


def check_figures(result: Result) -> None:
    assert result.figures
    assert len({figure.name for figure in result.figures}) == len(result.figures)
    for figure in result.figures:
        assert figure.caption
        for panel in figure.panels:
            assert len(cells(panel)) > 1
            assert all(math.isfinite(v) for v in cells(panel)), (figure.name, panel.title)


# ---- all of them


def test_there_are_sixteen():
    assert [tag for tag in tags() if tag[0] == "P"] == [f"P{i}" for i in range(1, 17)]


@pytest.mark.parametrize("tag", [f"P{i}" for i in range(1, 17)])
def test_a_study_says_what_it_is(tag):
    study = find(tag)
    assert len(study.explanation.split("\n\n")) == 2
    assert study.parameters
    assert study.trains == (tag in ("P12", "P14", "P15", "P16"))
    for parameter in study.parameters:
        assert parameter.read(parameter.default) == parameter.default
        if not parameter.choices:
            with pytest.raises(BadInput, match="between"):
                parameter.read(parameter.high + 1)


@pytest.mark.parametrize("tag", QUICK)
def test_the_verdict_the_numbers_and_the_figures(tag):
    result = default(tag)
    assert result.verdict == QUICK[tag][0], result.words
    assert result.numbers
    check_figures(result)
    assert bool(wrong(result)) == (result.verdict == "erratum")  # a slip of the document is shown as a number


@pytest.mark.parametrize("tag", QUICK)
def test_another_parameter_gives_other_numbers(tag):
    before, after = default(tag), run(tag, **{**QUICK[tag][1], **OTHER[tag]})
    assert [(n.what, n.ours) for n in before.numbers] != [(n.what, n.ours) for n in after.numbers]
    assert after.verdict == before.verdict


# ---- their numbers


def table(count: int, dim: int) -> np.ndarray:
    """The encoding by the documents' formula, in numpy."""
    t, i = np.arange(count)[:, None], np.arange(dim // 2)
    angle = t / 10000 ** (2 * i / dim)
    return np.stack((np.sin(angle), np.cos(angle)), -1).reshape(count, dim)


def test_P1_names_every_encoding_it_breaks_with():
    result = default("P1")
    bars = result.figures[1].panels[0]
    height = dict(zip(bars.labels, bars.series[0][1], strict=True))
    assert height.pop("no encoding") < 1e-12
    assert min(height.values()) > 1e-3
    assert {"rope", "alibi", "t5", "causal mask"} <= set(height)
    assert number(result, "invariant?").agrees is False


def test_P1_a_shuffle_is_neither_the_identity_nor_a_reversal():
    for count in (5, 6, 9):
        for seed in range(40):
            order = p01_equivariance.shuffled(count, seed)
            assert order.sort().values.tolist() == list(range(count))
            assert (order.diff().abs() > 1).any()


def test_P2_the_worked_vectors_and_the_exponent():
    result = default("P2")
    for (t, i), value in {(0, 1): 1.0, (1, 0): 0.84147, (1, 1): 0.54030, (1, 2): 0.00999983}.items():
        found = number(result, f"PE({t})[{i}]")
        assert found.ours == pytest.approx(value, abs=5e-6)
        assert found.agrees
    assert number(result, "PE(1)[3] with the exponent").ours == pytest.approx(math.cos(0.01), abs=1e-12)
    assert number(result, "PE(1)[3] with S2's").ours == pytest.approx(math.cos(10000**-0.75), abs=1e-12)
    assert number(result, "dropout").ours == pytest.approx(0.1, abs=0.01)


def test_P3_the_matrix_is_the_rotation_of_each_pair():
    angles = (5.0, 0.05)
    wanted = np.zeros((4, 4))
    for i, a in enumerate(angles):
        wanted[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]
    np.testing.assert_allclose(p03_offset_rotation.fitted(4, 5).numpy(), wanted, atol=1e-10)
    assert number(default("P3"), "the first block").ours == pytest.approx(5.0)


def test_P4_the_worked_products():
    rows = table(10, 4)
    result = default("P4")
    for (a, b), printed in {(0, 1): 1.54025, (5, 6): 1.54025, (0, 5): 1.28241}.items():
        found = number(result, f"PE({a})·PE({b}) at d = 4")
        assert found.ours == pytest.approx(rows[a] @ rows[b], abs=1e-12)
        assert found.document == printed
    assert number(result, "PE(0)·PE(6)").ours == pytest.approx(1.958, abs=5e-4)


def test_P5_finds_the_nearest_whatever_the_chunks():
    rows = table(3000, 4)
    off = np.linalg.norm(rows[1:] - rows[0], axis=1)
    records = [k + 1 for k in range(len(off)) if off[k] < (off[:k].min() if k else np.inf)]
    for chunk in (7, 1000, 1 << 18):
        found = p05_uniqueness.nearest(4, 2999, chunk=chunk)
        assert list(found.distances) == records
        np.testing.assert_allclose(found.apart, off[np.array(records) - 1], rtol=1e-9)


def test_P5_one_pair_comes_nearest_at_the_fractions_of_pi():
    found = p05_uniqueness.nearest(2, 1000).distances
    assert found[-1] == 710  # 355/113
    assert {6, 44} <= set(found)  # 22/7 among them
    assert default("P5").verdict == "erratum"


def test_P6_trained_rows_end_where_the_training_did():
    made = p06_learned_table.train_table(5, 60, silent)
    assert made.used == 12
    assert (made.moved[:12] > 0).all()
    assert (made.moved[12:] == 0).all()
    said = number(default("P6"), "a position past the table").ours
    assert "past the end of a learned table of 14 rows" in said


def test_P7_says_of_each_system_what_the_tables_say():
    result = default("P7")
    said = {n.what: n.ours for n in result.numbers if n.what in p07_relative.DOCUMENT}
    assert said["GPT-3"] == said["BERT"] == said["ViT"] == "learned absolute"
    assert said["Gopher"] == "learned relative"
    assert said["DeepSeek-V3"] == "decoupled RoPE"
    assert said["LLaMA-4"] == "iRoPE"
    assert said["Transformer"] == "sinusoidal"
    assert [name for name, kind in said.items() if kind == "RoPE"] == [
        *("PaLM", "LLaMA 1", "LLaMA 2", "LLaMA 3", "Grok-1", "Grok-2", "Qwen-3", "Gemma 3", "Mistral")
    ]
    assert number(result, "fire").ours > 1e-3
    assert number(result, "fire").agrees is None


def test_P7_stripes_are_in_the_relative_pictures_only():
    panels = {panel.title: panel.values for panel in default("P7").figures[0].panels}

    def spread(rows) -> float:
        return max(abs(rows[i + 1][j + 1] - rows[i][j]) for i in range(len(rows) - 1) for j in range(i + 1))

    assert spread(panels["rope"]) < 1e-12
    assert spread(panels["t5"]) < 1e-12
    assert spread(panels["learned"]) > 0.1


def test_P8_the_exhibit_fails_from_the_first_cached_step_on():
    lines = {line.name: line.y for line in default("P8").figures[0].panels[0].lines}
    for name in ("RoPE", "sinusoidal"):
        assert max(lines[name]) < 1e-12
        assert max(lines[f"{name} from 0"][: p08_rope.PROMPT]) < 1e-12
        assert min(lines[f"{name} from 0"][p08_rope.PROMPT :]) > 0.01


def test_P8_half_precision_holds_only_with_precise_angles():
    ours, theirs = default("P8").figures[1].panels
    for line in ours.lines:
        assert max(line.y) < 3 * min(line.y)  # flat over the position
    bfloat16 = next(line for line in theirs.lines if line.name == "bfloat16")
    assert bfloat16.y[-1] > 50 * bfloat16.y[0]


def test_P9_bands():
    freq = 10000.0 ** (-np.arange(0, 128, 2) / 128)
    result = default("P9")
    slow = int((freq * 4096 < 2 * math.pi).sum())
    assert number(result, "pairs that turn less than once").ours == slow
    assert number(result, "unscaled: pairs that meet").ours == slow
    assert number(result, "NTK: the slowest").ours == pytest.approx(1 / 8)
    assert number(result, "LLaMA-4: layers without position").ours == 12
    bars = result.figures[1].panels[0]
    assert [label for label, share in zip(bars.labels, bars.series[0][1], strict=True) if share == 0.0] == [
        "3 (none)",
        "7 (none)",
    ]


def test_P10_slopes():
    assert number(default("P10"), "8 heads: S3's").ours == 0.0
    assert number(default("P10"), "4 heads: S3's series").ours == pytest.approx(0.25)  # 1/4 where S3 has 1/2
    assert number(default("P10"), "what multiplies q·k").ours == pytest.approx(1 / math.sqrt(p10_alibi.HEAD_DIM))
    lines = {line.name: line.y for line in default("P10").figures[1].panels[0].lines}
    np.testing.assert_allclose(lines["paper, 16 heads"], 2.0 ** (-np.arange(1, 17) / 2))
    assert lines["S3, 16 heads"][-1] == 2.0**-16


def test_P11_the_head_counts():
    dots = default("P11").figures[0].panels[0].lines[0]
    np.testing.assert_allclose(dots.y, 1 / np.arange(1, 61), atol=1e-12)


def test_P13_the_pictures_are_those_of_S3():
    result = default("P13")
    figures = {figure.name: figure.panels[0] for figure in result.figures}
    np.testing.assert_allclose(figures["map"].values, table(100, 128)[:50, :64], atol=1e-12)
    waves = {line.name: line.y for line in figures["waves"].lines}
    assert list(waves) == [f"dim {w}" for w in (0, 1, 10, 20, 50)]
    np.testing.assert_allclose(waves["dim 20"], table(50, 128)[:, 20], atol=1e-12)
    assert p13_pictures.frequency(0, 128) == pytest.approx(p13_pictures.frequency(1, 128), abs=1e-10)
    assert p13_pictures.frequency(50, 128) == pytest.approx(10000 ** (-50 / 128), abs=1e-9)


# ---- they can fail: a real part is broken, and the verdict says so


def fails(tag: str, begins: str, **values) -> None:
    result = run(tag, **{**QUICK[tag][1], **values})
    assert result.verdict == "mixed"
    assert begins in result.words
    assert [what for what in wrong(result) if what.startswith(begins)]


def test_P1_fails_if_the_feed_forward_layer_knows_places(monkeypatch):
    real = feed_forward.PlainFeedForward.forward

    def placed(self, x, ctx=None):
        return real(self, x, ctx) + torch.arange(x.shape[1], dtype=x.dtype)[:, None]

    monkeypatch.setattr(feed_forward.PlainFeedForward, "forward", placed)
    fails("P1", "and feed-forward")


def test_P2_fails_with_another_base(monkeypatch):
    real = p02_sinusoidal.sinusoid
    monkeypatch.setattr(
        p02_sinusoidal, "sinusoid", lambda pos, dim, base=1000.0, layout="interleaved": real(pos, dim, base, layout)
    )
    fails("P2", "PE(1)[2]")


def test_P3_fails_without_a_rotation(monkeypatch):
    real = p03_offset_rotation.sinusoid
    monkeypatch.setattr(p03_offset_rotation, "sinusoid", lambda pos, dim: real(pos + (pos / 50).sin(), dim))
    fails("P3", "PE(t + 5)")


def test_P4_fails_if_products_depend_on_the_place(monkeypatch):
    real = p04_dot_products.sinusoid
    monkeypatch.setattr(p04_dot_products, "sinusoid", lambda pos, dim: real(pos, dim) * (1 + pos[:, None] / 1000))
    fails("P4", "PE(5)·PE(6)")


def test_P5_fails_if_positions_do_coincide(monkeypatch):
    real = p05_uniqueness.sinusoid
    monkeypatch.setattr(p05_uniqueness, "sinusoid", lambda pos, dim: real(pos % 500, dim))
    fails("P5", "nearest within")


def test_P6_fails_if_the_table_wraps_instead_of_refusing(monkeypatch):
    monkeypatch.setattr(
        learned.LearnedInput,
        "forward",
        lambda self, x, pos: x + self.table[pos.pos % len(self.table)].to(x.dtype),
    )
    fails("P6", "a position past the table", steps=100)


def test_P7_fails_if_rope_knows_where_it_is(monkeypatch):
    real = rope.Rotation.query

    def stretched(self, q, pos):
        return real(self, q, Positions.of(pos.pos * 2, order=pos.order))

    monkeypatch.setattr(rope.Rotation, "query", stretched)
    fails("P7", "rope")


def test_P7_fails_if_the_shifted_encoding_looks_ahead(monkeypatch):
    real = shifted.sinusoid_scores
    monkeypatch.setattr(shifted, "sinusoid_scores", lambda s, c, q, k, base, back: real(-s, c, q, k, base, back))
    fails("P7", "S0's shifted encoding")


def test_P8_fails_if_ours_starts_at_0_as_well(monkeypatch):
    real = rope.Rotation.turn
    monkeypatch.setattr(rope.Rotation, "turn", lambda self, x, pos: real(self, x, Positions.arange(*pos.shape)))
    fails("P8", "RoPE at its positions")


def test_P8_fails_if_the_exhibit_is_right_after_all(monkeypatch):
    monkeypatch.setattr(p08_rope._RotationFromZero, "turn", rope.Rotation.turn)
    fails("P8", "")
    assert "S3's RoPE from 0" in run("P8").words


@pytest.mark.parametrize(
    "values", [{"factor": 3.3}, {"factor": 1.5, "original": 257, "dim": 33}, {"factor": 63.97, "original": 16383}]
)
def test_P9_agrees_where_the_length_is_no_whole_number(values):
    result = run("P9", **values)
    assert result.verdict == "agrees", result.words


def test_P9_fails_if_a_rule_slows_the_wrong_end(monkeypatch):
    real = scaling.YaRN.frequencies

    def turned(self, dim, base, length, device=None):
        freq, factor = real(self, dim, base, length, device)
        plain = scaling.angles.frequencies(dim, base)
        return plain * (freq / plain).flip(0), factor

    monkeypatch.setattr(scaling.YaRN, "frequencies", turned)
    fails("P9", "YaRN: the fastest")


def test_P10_fails_with_the_documents_series(monkeypatch):
    monkeypatch.setattr(alibi, "alibi_slopes", lambda heads: tuple(2.0**-k for k in range(1, heads + 1)))
    monkeypatch.setattr(p10_alibi, "alibi_slopes", lambda heads, dtype: 0.5 ** torch.arange(1, heads + 1, dtype=dtype))
    result = run("P10")
    assert result.verdict == "mixed"
    assert "16 heads: S3's series" in result.words  # the slip does not show any more
    assert "16 heads: ratio" in result.words


def test_P11_fails_without_the_mask(monkeypatch):
    real = p11_nope.build_attention
    monkeypatch.setattr(p11_nope, "build_attention", lambda config, width, mask: real(config, width, Everything()))
    fails("P11", "output at position 2")


def test_P13_fails_if_a_cosine_has_its_own_frequency(monkeypatch):
    real = p13_pictures.sinusoid

    def sketched(pos, dim):
        made = real(pos, dim)
        made[:, 1] = (pos * 0.7).cos()
        return made

    monkeypatch.setattr(p13_pictures, "sinusoid", sketched)
    result = run("P13")
    assert result.verdict == "mixed"
    assert "dimensions 0 and 1" in result.words


def test_a_verdict_is_computed():
    good, bad = findings.judged("a", 1, True), findings.judged("b", 1, False)
    assert findings.conclude("fine", [good], []).verdict == "agrees"
    assert findings.conclude("fine", [good], [], [bad]).verdict == "erratum"
    assert findings.conclude("fine", [good, bad], []).verdict == "mixed"
    assert findings.conclude("fine", [good], [], [good]).verdict == "mixed"  # a slip that is none
    assert findings.checked("c", 1.0, 1.1, within=0.2).agrees
    assert not findings.checked("c", 1.0, 1.1, within=0.05).agrees


# ---- those that train


SWAPS = ("ascending", "swap 1", "swap 2")
COIN = {"none-bidirectional": lambda n: 0.5}
GOOD = {name: falls(30) for name in ("sinusoidal", "learned", "rope", "none")}


def ordered(monkeypatch, skills) -> Result:
    results = synthetic(skills, lengths=(10, 20, 40), groups=SWAPS)
    monkeypatch.setattr(p12_ordering, "run_comparison", lambda study, progress, workers: results)
    return run("P12")


def test_P12_agrees_where_the_encodings_learn_and_the_control_does_not(monkeypatch):
    result = ordered(monkeypatch, GOOD | COIN)
    assert result.verdict == "agrees", result.words
    assert number(result, "bidirectional attention").document == 0.5
    assert number(result, "rope: right within").interval[0] > 0.9
    check_figures(result)


def test_P12_fails_if_the_control_learns(monkeypatch):
    result = ordered(monkeypatch, GOOD | {"none-bidirectional": lambda n: 0.7})
    assert result.verdict == "mixed"
    assert "bidirectional attention" in result.words


def test_P12_fails_if_an_encoding_does_not_learn(monkeypatch):
    result = ordered(monkeypatch, GOOD | COIN | {"rope": lambda n: 0.5})
    assert result.verdict == "mixed"
    assert "rope: right within" in result.words


def test_P12_fails_if_the_task_leans_to_one_side(monkeypatch):
    real = p12_ordering.Sequences.example

    def leaning(self, index, length=None):
        """Every fourth example is drawn again if it does not ascend."""
        one = real(self, index, length)
        return real(self, index + 1, length) if index % 4 == 0 and one.group != "ascending" else one

    monkeypatch.setattr(p12_ordering.Sequences, "example", leaning)
    result = ordered(monkeypatch, GOOD | COIN)
    assert result.verdict == "mixed"
    assert "ascending, of the training examples" in result.words


def claimed(monkeypatch, skills, heads) -> Result:
    first = synthetic(skills, tasks=("copy-one",), lengths=(10, 15, 20))
    others = [
        one
        for name, skill in heads.items()
        for one in synthetic({"rope": skill}, tasks=("copy-one",), lengths=(10, 15, 20), attention=name)
    ]
    asked = []

    def run_comparison(study, progress, workers):
        asked.append(study)
        return first if len(asked) == 1 else others

    monkeypatch.setattr(p14_claims, "run_comparison", run_comparison)
    result = run("P14")
    assert [study.attention for study in asked] == [("multi-head",), ("multi-query", "grouped-query")]
    assert asked[0].shape == asked[1].shape
    return result


FLAT = {name: (lambda n: 0.95) for name in p14_claims.POSITIONS}


def test_P14_a_claim_gets_the_verdict_that_was_measured(monkeypatch):
    skills = FLAT | {"rope": lambda n: 0.95 if n <= 10 else 0.2, "sinusoidal": lambda n: 0.6}
    result = claimed(monkeypatch, skills, {"multi-query": lambda n: 0.5, "grouped-query": lambda n: 0.7})
    assert number(result, "Rotary").ours == "does not hold"
    assert number(result, "Rotary").agrees is False
    assert number(result, "Rotary").interval[1] < -0.1
    assert number(result, "ALiBi").ours == "holds"
    assert number(result, "ALiBi").agrees is True
    assert number(result, "Multi-query").ours == "holds"
    assert number(result, "Grouped-query").ours == "holds"
    assert result.verdict == "mixed"
    assert not [n.what for n in result.numbers if "shaw" in n.what]  # not trained, so not asked
    check_figures(result)


def test_P14_agrees_only_if_no_claim_is_refuted(monkeypatch):
    better = FLAT | {"sinusoidal": lambda n: 0.8}
    heads = {"multi-query": lambda n: 0.5, "grouped-query": lambda n: 0.7}
    result = claimed(monkeypatch, better, heads)
    assert {n.ours for n in result.numbers} == {"holds"}
    assert result.verdict == "agrees"
    worse = {name: (lambda n: 0.95 if n <= 10 else 0.1) for name in p14_claims.POSITIONS}
    result = claimed(monkeypatch, worse, heads)
    assert result.verdict == "mixed"
    assert "do not hold" in result.words


def test_P14_what_was_not_learned_decides_nothing(monkeypatch):
    nobody = {name: (lambda n: 0.1) for name in p14_claims.POSITIONS}
    result = claimed(monkeypatch, nobody, {"multi-query": lambda n: 0.1, "grouped-query": lambda n: 0.1})
    assert number(result, "Rotary").ours == "not measured"
    assert number(result, "Rotary").agrees is None
    assert result.verdict == "mixed"


def in_this_process(study, progress, workers):
    """The comparison's own jobs without its pool of processes, which takes long to start."""
    found = []
    for entry in study.entries():
        job = jobs.TrainingJob(study, *entry, seeds=tuple(range(study.seeds)), rate=study.rates[0])
        found += jobs.run(job, torch.device("cpu"))
    return found


@pytest.mark.sampled
@pytest.mark.parametrize(("tag", "module"), [("P12", p12_ordering), ("P14", p14_claims)])
def test_trained_for_a_moment(tag, module, monkeypatch):
    monkeypatch.setattr(module, "run_comparison", in_this_process)
    few = {"tasks": "one", "length": 4} if tag == "P14" else {"length": 5}
    result = run(tag, steps=20, seeds=1, width=16, **few)
    assert result.numbers
    check_figures(result)


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["P12", "P14"])
def test_trained_by_real_workers(tag):
    told = []
    study = find(tag)
    few = {"tasks": "one"} if tag == "P14" else {}
    values = study.values({"steps": 60, "seeds": 2, "width": 16, "length": 5, "workers": 2, **few})
    result = study.run(values, lambda share, doing: told.append((share, doing)))
    check_figures(result)
    assert told[-1] == (1.0, "done")
    assert len(told) > 5
    assert all(0 <= share <= 1 for share, _ in told)
