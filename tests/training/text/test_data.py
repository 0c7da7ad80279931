"""Windows of text: each once an epoch, the same for the same number, and right."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.training.text.real import real
from vantage.errors import BadInput
from vantage.training.batch import IGNORE, Batch, Data
from vantage.training.text import BPE, END, MASK, Bytes, Characters, Masked, TextData, prepare
from vantage.training.text.windows import pack


def same(a: Batch, b: Batch) -> bool:
    equal = torch.equal(a.tokens, b.tokens) and torch.equal(a.targets, b.targets)
    if a.positions is None or b.positions is None:
        return equal and a.positions is b.positions
    return equal and torch.equal(a.positions.pos, b.positions.pos)


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """A text in which every byte says where it stands, for the first 250."""
    folder = tmp_path_factory.mktemp("count")
    (folder / "a.bin").write_bytes(bytes(range(250)))
    return prepare(folder / "a.bin", Bytes(), folder / "made", shard=64)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdef"), int(n))) for n in rng.integers(0, 40, 60)]
    (folder / "a.txt").write_text("\n%\n".join(texts))
    return prepare(folder / "a.txt", Bytes((END, MASK)), folder / "made", separator="%")


# ---- plain windows


def test_targets_are_the_tokens_that_follow(counting):
    batch = TextData(counting, 0.2, length=9).batch(range(8))
    assert batch.tokens.shape == batch.targets.shape == (8, 9)
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(9))
    assert batch.positions is None


@given(st.integers(2, 49), st.integers(0, 2**64), st.integers(0, 3))
def test_every_window_comes_once_an_epoch(counting, length, seed, epoch):
    data = TextData(counting, 0.2, length=length, seed=seed)
    batch = data.batch(range(epoch * data.epoch, (epoch + 1) * data.epoch))
    starts = sorted(batch.tokens[:, 0].tolist())
    assert np.diff(starts).tolist() == [length] * (data.epoch - 1)
    assert 0 <= starts[0] < length
    assert int(batch.targets.max()) < 200  # the rest is held out
    assert data.epoch >= 200 // length - 1


def test_epochs_differ_in_order_and_in_where_they_start(counting):
    data = TextData(counting, 0.2, length=9)
    epochs = [data.batch(range(i * data.epoch, (i + 1) * data.epoch)).tokens[:, 0] for i in range(20)]
    assert len({int(starts.min()) for starts in epochs}) > 5
    assert len({tuple((starts - starts.min()).tolist()) for starts in epochs}) == 20


def test_a_batch_depends_on_its_numbers_alone(counting, documents):
    for make in (lambda: TextData(counting, 0.2, length=9), lambda: TextData(documents, 0.2, length=16, packed=True)):
        one, two = make(), make()
        numbers = [5, 1000, 3, 70, 5]
        whole = one.batch(numbers)
        one.batch(range(500))
        assert same(one.batch(numbers), whole)
        assert same(two.batch(numbers), whole)
        for row, number in enumerate(numbers):
            assert torch.equal(two.batch([number]).tokens[0], whole.tokens[row])


def test_the_seed_matters(counting):
    a, b = (TextData(counting, 0.2, length=9, seed=seed).batch(range(20)) for seed in (0, 1))
    assert not same(a, b)


def test_held_out_is_the_tail_at_every_length(counting):
    held = TextData(counting, 0.2, length=9, lengths=(24, 3), eval_batch=2).held_out()
    assert list(held) == ["valid", "valid, 24 tokens", "valid, 3 tokens"]
    for batches, length, count in zip(held.values(), (9, 24, 3), (5, 2, 16), strict=True):
        rows = torch.cat([batch.tokens for batch in batches])
        assert rows[:, 0].tolist() == [200 + i * length for i in range(count)]
        assert rows.shape[1] == length
        assert {len(batch.tokens) for batch in batches[:-1]} <= {2}
    assert same(held["valid"][-1], held["valid"][len(held["valid"]) - 1])
    with pytest.raises(IndexError):
        held["valid"][99]


def test_most_windows_are_spread_over_the_text(counting):
    (batch,) = TextData(counting, 0.4, length=9, most=3).held_out()["valid"]
    assert batch.tokens[:, 0].tolist() == [150, 150 + 27, 150 + 63]  # windows 0, 3 and 7 of 11


def test_validation_text_of_its_own(counting, documents, tmp_path):
    (tmp_path / "v").write_bytes(bytes(range(50, 100)))
    valid = prepare(tmp_path / "v", counting.tokenizer, tmp_path / "made")
    data = TextData(counting, valid, length=10)
    assert data.held_out()["valid"][0].tokens[:, 0].tolist() == [50, 60, 70, 80]
    assert data.epoch == 24
    with pytest.raises(BadInput, match="different vocabularies, of 256 and 258"):
        TextData(counting, documents, length=10)


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("has no window of 200", {"length": 200}),
        ("has no window of 60", {"length": 10, "lengths": (60,)}),
        ("between 0 and 1", {"length": 10, "valid": 1.5}),
        ("at least 1 of each", {"length": 0}),
        ("at least 1 of each", {"length": 10, "most": 0}),
        ("evaluation batch", {"length": 10, "eval_batch": 0}),
    ],
)
def test_what_cannot_be_is_refused(counting, said, given):
    with pytest.raises(BadInput, match=said):
        TextData(counting, **({"valid": 0.2} | given)).held_out()


# ---- packed documents


def test_packed_documents_are_whole_and_all_there(documents):
    length = 16
    data = TextData(documents, 0.2, length=length, packed=True)
    cut = int(len(documents) * 0.8)
    edges = [min(int(e), cut) for e in documents.documents]
    wanted = [
        tuple(documents.read(low, min(length, end - 1 - low) + 1).tolist())
        for start, end in itertools.pairwise(edges)
        for low in range(start, end - 1, length)
    ]
    batch = data.batch(range(data.epoch))
    assert batch.positions is not None
    got = []
    for tokens, targets, pos, segment in zip(
        batch.tokens, batch.targets, batch.positions.pos, batch.positions.segment, strict=True
    ):
        filled = pos >= 0
        assert (targets[~filled] == IGNORE).all()
        for first in segment[filled].unique().tolist():
            here = (segment == first) & filled
            assert pos[here].tolist() == list(range(int(here.sum())))
            assert tokens[here][1:].tolist() == targets[here][:-1].tolist()
            got.append((*tokens[here].tolist(), int(targets[here][-1])))
    assert sorted(got) == sorted(wanted)
    assert batch.target_count / batch.targets.numel() > 0.95


@given(st.lists(st.integers(1, 20), min_size=1, max_size=80))
def test_packing_fills_rows(counts):
    chunks = sorted(enumerate(counts), key=lambda chunk: -chunk[1])
    rows = pack(chunks, 20)
    assert sorted(chunk for row in rows for chunk in row) == sorted(chunks)
    sums = [sum(count for _, count in row) for row in rows]
    assert max(sums) <= 20
    assert sum(sorted(sums)[:2]) > 20 or len(rows) == 1  # no two rows could have been one


def test_a_packed_row_is_its_documents_alone(documents):
    """What a model says of a document does not depend on its neighbours in the row."""
    data = TextData(documents, 0.2, length=48, packed=True)
    batch = data.batch(range(6))
    model = vt.build(vt.decoder(vocab=data.vocab, width=16, layers=2, heads=2)).eval().double()
    assert batch.positions is not None
    with torch.no_grad():
        whole = model(batch.tokens, positions=batch.positions)
        for row in range(6):
            segment = batch.positions.segment[row]
            for first in segment[segment >= 0].unique().tolist():
                here = segment == first
                torch.testing.assert_close(whole[row, here], model(batch.tokens[row, here][None])[0])


def test_held_out_packed(documents):
    data = TextData(documents, 0.3, length=16, packed=True, lengths=(40,), eval_batch=3)
    held = data.held_out()
    asked = {name: sum(batch.target_count for batch in batches) for name, batches in held.items()}
    cut = int(len(documents) * 0.7)
    whole = sum(max(0, int(b) - max(int(a), cut) - 1) for a, b in itertools.pairwise(documents.documents))
    assert asked == {"valid": whole, "valid, 40 tokens": whole}
    assert held["valid, 40 tokens"][0].tokens.shape[1] == 40


# ---- masked tokens


def test_masked_tokens_are_hidden_as_bert_hides_them(documents):
    data = Masked(TextData(documents, 0.2, length=64, packed=True), seed=3)
    plain = TextData(documents, 0.2, length=64, packed=True)
    mask = data.tokenizer.backend.token_to_id(MASK)
    shown = hidden = changed = places = 0
    for step in range(60):
        numbers = range(step * 8, step * 8 + 8)
        batch, clean = data.batch(numbers), plain.batch(numbers)
        assert clean.positions is not None
        may = clean.positions.filled & (clean.tokens < 256)
        asked = batch.targets != IGNORE
        assert (may | ~asked).all()
        assert torch.equal(batch.targets[asked], clean.tokens[asked])
        assert torch.equal(batch.tokens[~asked], clean.tokens[~asked])
        assert asked.sum(1).tolist() == [max(1, round(0.15 * int(n))) for n in may.sum(1)]
        places += int(asked.sum())
        hidden += int((batch.tokens[asked] == mask).sum())
        shown += int((batch.tokens[asked] == clean.tokens[asked]).sum())
        changed += int((batch.tokens[asked] < 256).sum())
    assert abs(hidden / places - 0.8) < 0.03
    assert abs(shown / places - 0.1) < 0.02
    assert hidden + changed == places  # no special token but the mask is ever shown


def test_masked_batches_are_pure_and_held_out_ones_fixed(documents):
    make = lambda: Masked(TextData(documents, 0.3, length=16, eval_batch=3), seed=3)  # noqa: E731
    one, two = make(), make()
    assert same(one.batch([7, 90, 7]), two.batch([7, 90, 7]))
    assert torch.equal(one.batch([7, 90]).tokens[1], one.batch([90]).tokens[0])
    assert not torch.equal(one.batch([0]).tokens, Masked(TextData(documents, 0.3, length=16), seed=4).batch([0]).tokens)
    for a, b in zip(one.held_out()["valid"], two.held_out()["valid"], strict=True):
        assert same(a, b)
    first, second = one.held_out()["valid"][:2]
    assert not torch.equal(first.targets != IGNORE, second.targets != IGNORE)
    assert (one.vocab, one.epoch) == (258, one._text.epoch)


def test_masking_needs_a_mask(counting):
    with pytest.raises(BadInput, match="no mask token"):
        Masked(TextData(counting, 0.2, length=9))


# ---- the real thing


def test_shakespeare_is_cut_as_in_nanogpt(tmp_path):
    shards = prepare(real("tinyshakespeare.txt"), Characters(), tmp_path)
    data: Data = TextData(shards, 0.1, length=256)
    assert data.vocab == 65
    assert len(shards) == 1_115_394
    valid = torch.cat([batch.tokens for batch in data.held_out()["valid"]])
    assert valid.numel() == (1_115_394 - 1_003_854 - 1) // 256 * 256
    text = real("tinyshakespeare.txt").read_text()
    assert shards.tokenizer.decode(valid.flatten().tolist()) == text[1_003_854:][: valid.numel()]


def test_a_bpe_of_real_text_in_documents(tmp_path):
    path = real("wikitext2-valid.txt")
    shards = prepare(path, BPE(1024), tmp_path, separator="")
    data = TextData(shards, 0.1, length=128, packed=True)
    batch = data.batch(range(data.epoch))
    assert batch.target_count / batch.targets.numel() > 0.97
    ids = shards.read(0, int(shards.documents[1])).tolist()
    assert shards.tokenizer.decode(ids) in path.read_text()
