"""A tied head that is stored all the same: taken if it is the embedding, bit by bit; else refused by name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.cases import CASES
from tests.parity.rows import bert, gemma3, gpt2, gpt_neox, llama, marian, mpnet, t5
from vantage.errors import CheckpointError

TOKENS = torch.randint(3, VOCAB, (1, 9), generator=torch.Generator().manual_seed(2))


def case_of(rows, family):
    return next(case for case in rows.CASES if case.family == family)


# family, option, the copy, what it repeats
STORED = [
    (case_of(llama, "llama"), "tied", "lm_head.weight", "model.embed_tokens.weight"),
    (case_of(gemma3, "gemma3_text"), "plain", "lm_head.weight", "model.embed_tokens.weight"),
    (case_of(gpt2, "gpt2"), "plain", "lm_head.weight", "transformer.wte.weight"),
    (case_of(gpt_neox, "gpt_neox"), "tied", "embed_out.weight", "gpt_neox.embed_in.weight"),
    (case_of(bert, "bert"), "plain", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    (case_of(bert, "bert"), "plain", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    (case_of(mpnet, "mpnet"), "plain", "lm_head.decoder.weight", "mpnet.embeddings.word_embeddings.weight"),
    (case_of(marian, "marian"), "plain", "lm_head.weight", "model.shared.weight"),
    (case_of(marian, "marian"), "plain", "model.decoder.embed_tokens.weight", "model.shared.weight"),
    (case_of(marian, "marian"), "own-tables", "lm_head.weight", "model.decoder.embed_tokens.weight"),
    (case_of(t5, "t5"), "plain", "encoder.embed_tokens.weight", "shared.weight"),
]
IDS = [f"{case.family}-{copy}" for case, _, copy, _ in STORED]


@pytest.fixture(params=STORED, ids=IDS)
def checkpoint(request, tmp_path):
    case, option, copy, original = request.param
    case.make(option).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)

    def store(change):
        save_file({**tensors, copy: change(tensors[original].clone())}, file, {"format": "pt"})
        return tmp_path

    return store, copy, original


def test_an_equal_copy_is_taken(checkpoint):
    store, _, _ = checkpoint
    with_copy = vt.load(store(lambda t: t))
    assert all(p.isfinite().all() for p in with_copy.parameters())


def one_bit(t):
    t.view(-1)[-1] = torch.nextafter(t.view(-1)[-1], torch.tensor(torch.inf))
    return t


@pytest.mark.parametrize(
    "change", [one_bit, torch.Tensor.half, lambda t: t[:-1].contiguous()], ids=["one-bit", "dtype", "shape"]
)
def test_one_that_differs_is_refused(checkpoint, change):
    store, copy, original = checkpoint
    with pytest.raises(CheckpointError, match=f"{copy!r} differs from {original!r}"):
        vt.load(store(change))


@torch.no_grad()
def test_it_changes_no_logit(tmp_path):
    theirs = case_of(llama, "llama").make("tied")
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    without = vt.load(tmp_path)(TOKENS)
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    ours = vt.load(tmp_path)
    assert torch.equal(ours(TOKENS), without)
    assert ours.head.linear.weight is ours.embed.tokens.weight


def test_a_head_of_its_own_is_no_copy(tmp_path):
    """Not tied: two tensors, and both are used."""
    case_of(llama, "llama").make("plain").save_pretrained(tmp_path)
    ours = vt.load(tmp_path)
    assert not torch.equal(ours.head.linear.weight, ours.embed.tokens.weight)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if "tied" in c.options], ids=lambda c: c.family)
def test_in_every_family_that_can_be_tied(case, tmp_path):
    case.make("tied").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    names = ("model.embed_tokens.weight", "gpt_neox.embed_in.weight", "backbone.embeddings.weight")
    table = next(tensors[name] for name in names if name in tensors)
    head = "embed_out.weight" if "gpt_neox.embed_in.weight" in tensors else "lm_head.weight"
    save_file({**tensors, head: table.clone()}, file, {"format": "pt"})
    vt.load(tmp_path)
    save_file({**tensors, head: table + 1}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{head!r} differs from"):
        vt.load(tmp_path)
