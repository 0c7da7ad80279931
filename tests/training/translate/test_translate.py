"""Translating, aligning and scoring, with a model that is trained here."""

import importlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.training.text.real import real
from vantage.errors import BadInput
from vantage.training.batch import IGNORE
from vantage.training.translate import (
    Alignment,
    Gold,
    JointBPE,
    PairData,
    align,
    alignment_error_rate,
    bleu,
    chrf,
    evaluate,
    read_gold,
    read_pairs,
    translate,
    words,
)

HAND = Path(__file__).parent / "alignments.json"
NAMES = {"red": "rouge", "blue": "bleu", "old": "vieux", "new": "neuf", "big": "grand", "wet": "moite"}
THINGS = {"cat": "chat", "dog": "chien", "car": "char", "hat": "chapeau"}


def little_language():
    """Adjectives follow their noun in the one and precede it in the other."""
    for a, b, thing in itertools.product(NAMES, NAMES, THINGS):
        yield f"a {a} {b} {thing}.", f"un {THINGS[thing]} {NAMES[a]} {NAMES[b]}."


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("little")
    pairs = list(little_language())
    for name, part in (("train", [p for i, p in enumerate(pairs) if i % 7]), ("valid", pairs[::7])):
        (folder / f"{name}.en").write_text("".join(x + "\n" for x, _ in part))
        (folder / f"{name}.fr").write_text("".join(y + "\n" for _, y in part))
    train, valid = ((folder / f"{name}.en", folder / f"{name}.fr") for name in ("train", "valid"))
    return PairData(*train, valid, vocabulary=JointBPE(400), together=32)


@pytest.fixture(scope="module")
def model(data):
    """A small model, trained for some seconds."""
    torch.manual_seed(0)
    spec = vt.encoder_decoder(vocab=data.vocab, width=64, layers=1, heads=4, wiring="pre", tied=True)
    model = vt.build(replace(spec, embedding=replace(spec.embedding, shared=True)), seed=0)
    model.tokenizer = data.tokenizer
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(220):
        batch = data.batch(range(step * 32, step * 32 + 32))
        logits = model(batch.tokens, source=model.encode(batch.source, mask=batch.source_mask))
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


@pytest.mark.sampled
@pytest.mark.parametrize("beams", [1, 3])
def test_it_translates_what_it_has_not_seen(model, data, beams):
    sources, wanted = zip(*data.valid, strict=True)
    got = translate(model, sources, beams=beams, batch=7)
    right = sum(a == b for a, b in zip(got, wanted, strict=True))
    assert right >= len(wanted) - 1


@pytest.mark.sampled
def test_greedy_is_the_argmax_one_by_one_without_a_cache(model, data):
    tokenizer = data.tokenizer
    sources = ["a red dog.", "a big big old car.", "dog", ""]
    for text, got in zip(sources, translate(model, sources, max_tokens=12), strict=True):
        x = torch.tensor([[*tokenizer.encode(text), tokenizer.eos]])
        y = [tokenizer.bos]
        with torch.no_grad():
            while len(y) < 13 and (len(y) == 1 or y[-1] != tokenizer.eos):
                logits = model(torch.tensor([y]), source=x)[0, -1]
                logits[[tokenizer.bos, tokenizer.backend.token_to_id("<pad>")]] = -torch.inf
                y.append(int(logits.argmax()))
        assert got == tokenizer.decode(y)


def test_beams_find_what_all_texts_tried_out_find(data):
    """On a vocabulary so small that every text can be scored."""
    tokenizer = data.tokenizer
    model = vt.build(vt.encoder_decoder(vocab=len(tokenizer), width=16, layers=1, heads=2), seed=1).eval().double()
    for p in model.parameters():
        p.data *= 2.0
    some = torch.tensor([tokenizer.eos, *tokenizer.encode("dog a . car")])
    keep = torch.full((len(tokenizer),), -torch.inf).double()
    keep[some] = 0
    with torch.no_grad():
        model.register_forward_hook(lambda module, args, out: out + keep)
        x = torch.tensor([[*tokenizer.encode("a wet hat."), tokenizer.eos]])
        scores = {}
        for n in (1, 2, 3):
            for body in itertools.product(some[1:].tolist(), repeat=n - 1):
                for last in some.tolist() if n == 3 else [tokenizer.eos]:
                    y = [*body, last]
                    rows = model(torch.tensor([[tokenizer.bos, *y[:-1]]]), source=x)[0].log_softmax(-1)
                    scores[tuple(y)] = float(rows[range(n), y].sum()) / n
    best = max(scores, key=scores.__getitem__)
    got = translate(model, ["a wet hat."], tokenizer=tokenizer, beams=40, max_tokens=3)
    assert got == [tokenizer.decode(best)]


def test_batches_and_order_do_not_matter(model, data):
    sources = [x for x, _ in data.valid]
    alone = [translate(model, [x], beams=2)[0] for x in sources[:5]]
    assert translate(model, sources[:5], beams=2) == alone
    assert translate(model, sources[:5][::-1], beams=2, batch=2) == alone[::-1]
    assert translate(model, []) == []


def test_a_saved_model_translates_as_before(model, data, tmp_path):
    vt.save(model, tmp_path / "model")
    loaded = vt.load(tmp_path / "model", dtype=torch.float32)
    sources = [x for x, _ in data.valid]
    assert translate(loaded, sources) == translate(model, sources)
    one, two = (align(m, data.valid[:2]) for m in (model, loaded))
    torch.testing.assert_close(one[1].weights, two[1].weights)


def test_the_mode_is_as_it_was(model):
    for training in (True, False):
        model.train(training)
        translate(model, ["a red dog."])
        align(model, [("a red dog.", "un chien rouge.")])
        assert model.training is training


def test_what_cannot_translate_is_refused(model, data):
    with pytest.raises(BadInput, match="has no encoder"):
        translate(vt.build(vt.decoder(vocab=9, width=8, layers=1, heads=1)), ["a"], tokenizer=data.tokenizer)
    with pytest.raises(BadInput, match="has no tokenizer"):
        translate(vt.build(vt.encoder_decoder(vocab=9, width=8, layers=1, heads=1)), ["a"])
    with pytest.raises(BadInput, match="at least 1 of each"):
        translate(model, ["a"], beams=0)


# ---- alignment


def by_hand(pair):
    """The one right alignment of the little language."""
    x = words(pair[0])
    return {(0, 0), (len(x) - 2, 1), *((i, i + 1) for i in range(1, len(x) - 2)), (len(x) - 1, len(x) - 1)}


def test_the_alignment_is_found_again(model, data):
    pairs = [pair for pair in data.valid if words(pair[0])[1] != words(pair[0])[2]]
    found = align(model, pairs, batch=5)
    gold = [Gold(5, 5, frozenset(by_hand(pair))) for pair in pairs]
    assert alignment_error_rate([one.links() for one in found], gold) < 0.35
    assert found[0].source == tuple(words(pairs[0][0]))


@pytest.mark.parametrize("when", ["read", "written"])
@pytest.mark.parametrize("layers", [None, 0, 1, (1,)])
def test_the_weights_shown_are_the_weights_used(data, when, layers):
    """Put together by hand from what each step of a one-row pass looked at."""
    model = vt.build(vt.encoder_decoder(vocab=data.vocab, width=16, layers=2, heads=2), seed=3).eval()
    for p in model.parameters():
        p.data *= 3.0
    tokenizer = data.tokenizer
    pairs = [("a wet hat.", "un chapeau moite."), ("a big big unwettable car, no?", "un xylophone.")]
    for pair, got in zip(pairs, align(model, pairs, tokenizer=tokenizer, layers=layers, when=when), strict=True):
        x, y = (tokenizer.backend.encode(text) for text in pair)
        seen = {}
        with torch.no_grad():
            model.hidden(
                torch.tensor([[tokenizer.bos, *y.ids]]),
                source=torch.tensor([[*x.ids, tokenizer.eos]]),
                watch=lambda site, index, view, need, done, seen=seen: seen.update({(site, index): done.weights}),
            )
        chosen = [0, 1] if layers is None else [layers] if isinstance(layers, int) else layers
        weights = sum(seen["cross", i][0].mean(0) for i in chosen) / len(chosen)
        weights = weights[1:] if when == "read" else weights[:-1]
        torch.testing.assert_close(got.weights.sum(1) + got.end, torch.ones(len(got.target)))
        decode = tokenizer.decode
        at = 0
        for t, word in enumerate(got.target):  # pieces of a word follow each other
            mine = []
            while "".join(decode([y.ids[i]]).strip() for i in mine) != word:
                mine.append(at)
                at += 1
            row = weights[mine].mean(0)
            torch.testing.assert_close(got.end[t], row[-1])
            place = 0
            for s, source in enumerate(got.source):
                theirs = []
                while "".join(decode([x.ids[i]]).strip() for i in theirs) != source:
                    theirs.append(place)
                    place += 1
                torch.testing.assert_close(got.weights[t, s], row[theirs].sum())


def test_the_table_can_be_read():
    one = Alignment(("i", "am"), ("je", "suis"), torch.tensor([[0.7, 0.2], [0.1, 0.8]]), torch.tensor([0.1, 0.1]))
    assert str(one).splitlines() == ["         i    am", "je    0.70  0.20", "suis  0.10  0.80"]
    assert one.links() == {(0, 0), (1, 1)}


def test_alignments_that_cannot_be_are_refused(model):
    with pytest.raises(BadInput, match=r"cross-attention is in the layers \[0\]"):
        align(model, [("a", "b")], layers=3)
    with pytest.raises(BadInput, match="'read' or 'written'"):
        align(model, [("a", "b")], when="now")


LINKS = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


@given(LINKS, LINKS, LINKS)
def test_the_error_rate_is_between_0_and_1(found, sure, possible):
    gold = Gold(5, 5, sure, possible)
    if not found and not sure:
        with pytest.raises(BadInput, match="no alignment has a link"):
            alignment_error_rate([found], [gold])
        return
    rate = alignment_error_rate([found], [gold])
    assert 0 <= rate <= 1
    assert (rate == 0) == (sure <= found <= sure | possible)


def test_the_error_rate_counts_all_pairs_together():
    gold = [Gold(3, 3, frozenset({(0, 0), (1, 1)}), frozenset({(2, 2)})), Gold(1, 1, frozenset({(0, 0)}))]
    found = [{(0, 0), (2, 2), (0, 1)}, set()]
    assert alignment_error_rate(found, gold) == pytest.approx(1 - (1 + 2) / (3 + 3))
    with pytest.raises(BadInput, match="2 alignments and 1 by hand"):
        alignment_error_rate(found, gold[:1])


# ---- by hand


def test_the_alignments_by_hand_belong_to_their_sentences():
    pairs = read_pairs(*(real(f"multi30k/test_2016_flickr.{side}.gz") for side in ("en", "fr")))
    gold = read_gold(HAND)
    assert sorted(gold) == list(range(50))
    for number, one in gold.items():
        assert (one.source, one.target) == tuple(len(words(text)) for text in pairs[number]), number + 1
        assert not one.sure & one.possible
        x, y = (words(text) for text in pairs[number])
        assert {(s, t) for s, t in one.sure if x[s] in ".," or y[t] in ".,"} == {
            (s, t) for s, t in one.sure if x[s] == y[t] in ".,"
        }
        assert len({t for _, t in one.sure | one.possible}) >= 0.9 * one.target


def test_names_and_numbers_are_aligned_with_themselves():
    """Words that are the same in both languages, and stand there once: nearly all are each other's translation."""
    pairs = read_pairs(*(real(f"multi30k/test_2016_flickr.{side}.gz") for side in ("en", "fr")))
    linked = total = 0
    for number, one in read_gold(HAND).items():
        x, y = (words(text) for text in pairs[number])
        for word in (set(x) & set(y)) - {"a", "on"}:
            if x.count(word) == y.count(word) == 1:
                total += 1
                linked += (x.index(word), y.index(word)) in one.sure
    assert total > 60
    assert linked == total


@pytest.mark.parametrize(
    "said",
    ["[]", "{}", '{"pairs": [{"line": 1}]}', '{"pairs": [{"line": 1, "source": 1, "target": 1, "sure": [[1, 0]]}]}'],
)
def test_a_file_without_alignments_is_refused(tmp_path, said):
    (tmp_path / "a.json").write_text(said)
    with pytest.raises(BadInput, match="holds no alignments"):
        read_gold(tmp_path / "a.json")


def test_no_text_is_kept_with_the_alignments():
    said = json.loads(HAND.read_text())
    for pair in said["pairs"]:
        assert set(pair) == {"line", "source", "target", "sure", "possible"}


# ---- scores


def test_scores_are_sacrebleus():
    sacrebleu = importlib.import_module("sacrebleu")
    said, right = ["The cat sat on the mat.", "A dog."], ["the cat sat on a mat.", "a dog ran."]
    assert bleu(said, right) == sacrebleu.corpus_bleu(said, [right], lowercase=True).score
    assert bleu(said, right, lower=False) < bleu(said, right)
    assert chrf(right, right) == pytest.approx(100)
    with pytest.raises(BadInput, match="2 translations and 1 references"):
        bleu(said, right[:1])


def test_everything_at_once(model, data):
    gold = {i: Gold(5, 5, frozenset(by_hand(pair))) for i, pair in enumerate(data.valid[:6])}
    scores = evaluate(model, data.valid, gold=gold, beams=2)
    assert scores.bleu > 95
    assert scores.chrf > 95
    assert scores.aer is not None
    assert len(scores.hypotheses) == len(data.valid)
    assert "case:lc" in scores.signature
    assert evaluate(model, data.valid[:3]).aer is None
    with pytest.raises(BadInput, match="they are of different texts"):
        evaluate(model, data.valid, gold={0: Gold(4, 5, frozenset())})
    with pytest.raises(BadInput, match="is of pair 99"):
        evaluate(model, data.valid, gold={99: Gold(4, 5, frozenset())})


def test_without_sacrebleu_the_extra_is_named(model, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(BadInput, match=r"pip install 'vantage\[translate\]'"):
        evaluate(model, data.valid)
