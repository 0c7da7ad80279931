"""The papers' set-ups: experiments that can be made, and what they leave out in words that are true."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vantage as vt
from vantage.compare.experiment import Experiment, experiment_of
from vantage.compare.names import SCALES
from vantage.compare.paper_setups import paper_fields, setup_of
from vantage.compare.published import paper
from vantage.compare.setups import reductions
from vantage.errors import BadInput

PAPERS = ("alibi", "length-generalization", "randomized")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("".join(chr(97 + i * i % 23) + " " * (i % 5 == 0) for i in range(200_000)))
    return str(path)


def experiment_for(name, scale, text=()):
    return experiment_of(paper_fields(name, scale, text), name)


def made(name, scale, book):
    if (name, scale) == ("alibi", "paper-like"):  # with bytes: its own vocabulary takes long to make
        said = {**setup_of(name)[1].scales[scale], "vocabulary": "bytes"}
        return experiment_of({**said, "tasks": ["text"], "text": [book], "published": ["alibi"]}, scale)
    return experiment_for(name, scale, (book,) if name == "alibi" else ())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PAPERS)
def test_every_scale_is_an_experiment_that_answers_the_papers_rows(name, scale, book):
    experiment = made(name, scale, book)
    assert experiment.published == (paper(name).name,)
    assert paper(name).source in reductions(experiment)[0] or scale == "paper-like"
    assert max(experiment.test_lengths) > experiment.train_length


def test_scales_grow():
    sizes = [
        experiment_for("length-generalization", scale).trainings()
        * experiment_for("length-generalization", scale).steps
        for scale in SCALES
    ]
    assert sizes == sorted(sizes)


def test_what_is_reduced_is_worked_out():
    said = reductions(experiment_for("length-generalization", "tiny"))
    assert "width 64 (theirs: 768)" in said[0]
    assert "steps 600 (theirs: 40,000)" in said[0]
    assert "batch" not in said[0]  # the same
    assert any("SCAN, mixed, is left out" in sentence for sentence in said)
    like = experiment_for("length-generalization", "paper-like")
    assert not any("another size" in sentence for sentence in reductions(like))
    assert reductions(Experiment()) == []


@pytest.mark.parametrize(
    ("name", "scale", "text", "said"),
    [
        ("alibbi", "tiny", (), "'alibi'"),
        ("randomized", "smal", (), "'small'"),
        ("alibi", "tiny", (), "--text"),
        ("randomized", "tiny", ("a.txt",), "leave --text out"),
        ("context-extension", "tiny", (), "--extend"),
        ("alibi", "tiny", ("nowhere.txt",), "no file"),
    ],
)
def test_bad_choices_are_refused(name, scale, text, said):
    with pytest.raises(BadInput, match=said):
        experiment_for(name, scale, text)


def test_a_normaliser_competes_as_multi_head_attention_with_it():
    from vantage.compare.entries import ModelShape, attentions, section
    from vantage.compare.names import check_names

    assert {"off-by-one", "sparsemax", "entmax", "sigmoid", "stick-breaking"} <= set(attentions())
    assert not {"softmax", "argmax"} & set(attentions())
    assert section("rope", "entmax", ModelShape(), 40).attention == vt.GroupedQuery(
        4, scores=vt.Scores(normalise=vt.Entmax15())
    )
    check_names(attentions=["entmax"])


def test_parts_around_attention_compete_as_multi_head_attention_with_them():
    """A gate, an indexer, and keys shared by two layers each; what keeps something per token cannot act in the last."""
    from vantage.compare.entries import ModelShape, attentions, goes_with, section
    from vantage.compare.names import NAMES_EXPLAINED, check_names

    names = ("gate", "top-k", "shared-keys")
    assert set(names) <= set(attentions())
    assert "shared" not in attentions()  # an indexer that needs another layer's
    check_names(attentions=names)
    assert "shared-keys" in NAMES_EXPLAINED
    specs = {name: section("rope", name, ModelShape(16, 4, 2), 40).spec(9) for name in ("multi-head", *names)}
    layers = {name: spec.layers for name, spec in specs.items()}
    assert all(layer.output == (vt.OutputGate(),) for layer in layers["gate"])
    assert all(layer.indexer == vt.TopKIndexer(keep=8, heads=4, head_dim=16) for layer in layers["top-k"])
    assert [layer.source for layer in layers["shared-keys"]] == [None, 0, None, 2]
    for name in names:  # nothing else differs
        plain = tuple(replace(layer, output=(), indexer=None, source=None) for layer in layers[name])
        assert plain == layers["multi-head"]
    assert [goes_with("fox", name) for name in names] == [True, True, False]
    small = Experiment(tasks=("copy",), positions=("fox", "rope"), attention=("multi-head", *names), seeds=1)
    left_out = {(p, a) for p in ("fox", "rope") for a in ("multi-head", *names)} - {e[1:] for e in small.entries()}
    assert left_out == {("fox", "shared-keys")}


def test_layers_with_a_state_compete_without_a_position():
    """They have no scores, so they are left out where an encoding is; with encodings alone nothing of them is left."""
    from vantage.compare.entries import attentions
    from vantage.compare.equal import parameters

    states = ("gated-delta", "kimi-delta", "mamba-2", "gated-convolution", "lightning")
    assert set(states) <= set(attentions())
    small = Experiment(tasks=("copy",), positions=("none", "rope"), attention=("multi-head", *states), seeds=1)
    wanted = {("none", "multi-head"), ("rope", "multi-head"), *(("none", name) for name in states)}
    assert {(position, attention) for _, position, attention in small.entries()} == wanted
    with pytest.raises(BadInput, match="none of these positions can act in lightning: add none to the positions"):
        Experiment(tasks=("copy",), positions=("rope", "none-bidirectional"), attention=("multi-head", "lightning"))
    equal = Experiment(tasks=("copy",), positions=("none", "rope"), attention=("multi-head", "lightning"), seeds=1,
                       equal="parameters")  # fmt: skip
    counts = {parameters(equal.section(*entry), equal.vocab("copy")) for entry in equal.entries()}
    assert max(counts) - min(counts) < 0.005 * max(counts)
