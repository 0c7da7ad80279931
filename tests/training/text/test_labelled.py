"""Labelled texts."""

import gzip
import json

import pytest
import torch

import vantage as vt
from vantage.errors import BadInput
from vantage.training.text import Bytes, LabelledData, read_labelled

ROWS = [("good film", "pos"), ("bad", "neg"), ("so\tso", "mid"), ("very good indeed", "pos"), ("awful film", "neg")]


@pytest.fixture
def tsv(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(f"{text}\t{label}" for text, label in ROWS * 8) + "\n")
    return path


def test_tsv_jsonl_and_gz_say_the_same(tsv, tmp_path):
    other = tmp_path / "a.jsonl.gz"
    other.write_bytes(gzip.compress("\n".join(json.dumps({"text": t, "label": n}) for t, n in ROWS * 8).encode()))
    a, b = read_labelled(tsv), read_labelled(other)
    assert [(one.text, one.label) for one in a] == [(one.text, one.label) for one in b] == ROWS * 8


def test_batches_hold_texts_and_their_labels(tsv):
    data = LabelledData(tsv, Bytes().build(), tsv, length=20)
    assert data.labels == ("mid", "neg", "pos")
    batch = data.batch(range(data.epoch))
    assert batch.targets.shape == (40,)
    assert batch.positions is not None
    found = []
    for row in range(40):
        ids = batch.tokens[row, batch.positions.filled[row]].tolist()
        found.append((data.tokenizer.decode(ids), data.labels[int(batch.targets[row])]))
        assert batch.groups[row] == found[-1][1]
    assert sorted(found) == sorted(ROWS * 8)
    assert found != ROWS * 8
    held = data.held_out()["valid"]
    assert [len(one.targets) for one in held] == [32, 8]
    assert [data.labels[int(i)] for i in held[0].targets] == [label for _, label in ROWS * 8][:32]


def test_a_batch_depends_on_its_numbers_alone(tsv):
    one, two = (LabelledData(tsv, Bytes().build(), 0.2, length=20, seed=4) for _ in range(2))
    one.batch(range(99))
    a, b = one.batch([3, 77, 3]), two.batch([3, 77, 3])
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.targets, b.targets)
    assert one.epoch == 32
    assert sum(len(batch.targets) for batch in one.held_out()["valid"]) == 8


def test_padding_does_not_matter(tsv):
    data = LabelledData(tsv, Bytes().build(), 0.2, length=20)
    model = vt.build(vt.encoder(vocab=data.vocab, width=16, layers=2, heads=2)).eval().double()
    batch = data.batch(range(6))
    assert batch.positions is not None
    with torch.no_grad():
        whole = model(batch.tokens, positions=batch.positions)
        for row in range(6):
            here = batch.positions.filled[row]
            torch.testing.assert_close(whole[row, here], model(batch.tokens[row, here][None])[0])


def test_a_long_text_is_refused_or_cut(tsv):
    with pytest.raises(BadInput, match=r"a\.tsv, line \d+: \d+ tokens, more than length=5"):
        LabelledData(tsv, Bytes().build(), length=5)
    assert LabelledData(tsv, Bytes().build(), length=5, cut=True).batch(range(9)).tokens.shape[1] == 5


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.tsv", "good\tpos\nno label\n", "line 2: expected a text, a tab and a label"),
        ("a.tsv", "good\tpos\nbad\tpos\n", "at least two"),
        ("a.csv", "good,pos\n", "come in .tsv files"),
        ("a.jsonl", '{"text": "good", "label": true}\n', "line 1: expected"),
        ("a.jsonl", '{"txt": "good", "label": "pos"}\n', r"got the keys \['label', 'txt'\]"),
        ("a.tsv", "good\tpos\n", "too few"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=said):
        LabelledData(tmp_path / name, Bytes().build(), length=20)


def test_a_label_that_training_lacks_is_refused(tsv, tmp_path):
    (tmp_path / "v.tsv").write_text("fine\tok\n")
    with pytest.raises(BadInput, match=r"v\.tsv, line 1: the label 'ok' is not in training, which has \['mid'"):
        LabelledData(tsv, Bytes().build(), tmp_path / "v.tsv", length=20)
