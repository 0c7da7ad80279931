"""Encoders, of text and of images: equal to transformers on padded batches, and saved."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.cases import rows
from tests.parity.rows import bert, mpnet, roformer, vit
from vantage.errors import BadInput, CheckpointError

LENGTHS = (150, 97)  # past the last bucket of distances
TOKENS = torch.randint(3, VOCAB, (2, 40), generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=rows("encoder", "image"))
def made(request, tmp_path):
    return make(*request.param, tmp_path)


@pytest.fixture(params=rows("encoder"))
def made_for_text(request, tmp_path):
    return make(*request.param, tmp_path)


def make(case, option, folder):
    model = case.make(option)
    model.save_pretrained(folder / "theirs")
    return model, folder


def batch(model):
    """What both are given: theirs by their names, ours by ours; and where there is something to compare."""
    rng = torch.Generator().manual_seed(3)
    c = model.config
    if model.main_input_name == "pixel_values":
        size = c.image_size if isinstance(c.image_size, (list, tuple)) else (c.image_size, c.image_size)
        images = torch.randn(2, c.num_channels, *size, generator=rng)
        return {"pixel_values": images}, {"tokens": images}, ...
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randint(3, VOCAB, mask.shape, generator=rng).masked_fill(~mask, c.pad_token_id)
    theirs, ours = {"input_ids": tokens, "attention_mask": mask.long()}, {"tokens": tokens, "mask": mask}
    if "type_vocab_size" in c.to_dict():
        types = torch.randint(0, c.type_vocab_size, mask.shape, generator=rng)
        theirs["token_type_ids"], ours["types"] = types, types
    return theirs, ours, mask


@torch.no_grad()
def outputs(theirs, ours):
    """Theirs and ours: logits or hidden states, and what a pooler makes of these."""
    theirs_in, ours_in, real = batch(theirs)
    wanted = theirs(**theirs_in)
    hidden = ours.hidden(**ours_in)
    pairs = [(wanted["logits" if "logits" in wanted else "last_hidden_state"][real], ours(**ours_in)[real])]
    if wanted.get("pooler_output") is not None:
        pairs.append((wanted["pooler_output"], ours.pooler(hidden)))
    return pairs


def test_outputs_are_those_of_transformers(made):
    theirs, folder = made
    for want, got in outputs(theirs, vt.load(folder / "theirs")):
        assert float((got - want).abs().max() / want.abs().max()) < 1e-4
    for want, got in outputs(theirs.double(), vt.load(folder / "theirs", dtype=torch.float64)):
        assert float((got - want).abs().max() / want.abs().max()) < 1e-6


@torch.no_grad()
def test_saving_and_loading_again_changes_no_bit(made):
    theirs, folder = made
    ours = vt.load(folder / "theirs")
    vt.save(ours, folder / "ours")
    again = vt.load(folder / "ours")
    for (name, a), (_, b) in zip(ours.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    back = type(theirs).from_pretrained(folder / "ours").eval()
    for (name, a), (_, b) in zip(theirs.named_parameters(), back.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    for (want, got), (_, saved) in zip(outputs(theirs, ours), outputs(back, again), strict=True):
        assert torch.equal(saved, got)
        assert float((got - want).abs().max() / want.abs().max()) < 1e-4


@torch.no_grad()
def test_padding_changes_nothing(made_for_text):
    """A padded row is the row alone; and it may be padded on the left, for positions are counted from its tokens."""
    theirs, folder = made_for_text
    _, given, _ = batch(theirs)
    ours = vt.load(folder / "theirs", dtype=torch.float64)
    n = LENGTHS[1]
    alone = ours(**{key: value[1:, :n] for key, value in given.items()})
    torch.testing.assert_close(ours(**given)[1:, :n], alone, rtol=0, atol=1e-9)
    left = {key: value[1:].roll(-n, 1) for key, value in given.items()}
    torch.testing.assert_close(ours(**left)[:, -n:], alone, rtol=0, atol=1e-9)


def checkpoint(folder, case):
    """The folder of a case, its tensors and its model."""
    model = case.make("plain")
    model.save_pretrained(folder)
    return model, load_file(folder / "model.safetensors")


def stored(folder, tensors):
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return vt.load(folder)


@torch.no_grad()
def test_bert_in_the_spellings_that_are_about(tmp_path):
    """bert-base-uncased: TensorFlow's names for norms, a pooler beside the head, the tied weights stored again."""
    model, tensors = checkpoint(tmp_path, bert.MASKED)
    wanted = vt.load(tmp_path).hidden(TOKENS)
    older = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in tensors.items()
    }
    D = model.config.hidden_size
    older |= {
        "bert.pooler.dense.weight": torch.eye(D),
        "bert.pooler.dense.bias": torch.zeros(D),
        "bert.embeddings.position_ids": torch.arange(160)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.seq_relationship.weight": torch.randn(2, D),
        "cls.seq_relationship.bias": torch.randn(2),
    }
    ours = stored(tmp_path, older)
    assert torch.equal(ours.hidden(TOKENS), wanted)
    torch.testing.assert_close(ours.pooler(wanted), wanted[:, 0].tanh())
    # a base model, with the prefix and without; without a pooler too
    base = {n: t for n, t in tensors.items() if n.startswith("bert.")}
    for names in (base, {n.removeprefix("bert."): t for n, t in base.items()}):
        ours = stored(tmp_path, names)
        assert torch.equal(ours(TOKENS), wanted)
        with pytest.raises(BadInput, match="this model has no pooler: use mean_pool or first_token"):
            ours.pooler(wanted)


def test_a_head_that_only_the_config_names_is_not_made_up(tmp_path):
    """all-mpnet-base-v2 says MPNetForMaskedLM and holds no head."""
    _, tensors = checkpoint(tmp_path, mpnet.MASKED)
    wanted = vt.load(tmp_path).hidden(TOKENS)
    names = {n.removeprefix("mpnet."): t for n, t in tensors.items() if n.startswith("mpnet.")}
    ours = stored(tmp_path, names)
    assert ours.spec.head is None
    assert torch.equal(ours(TOKENS), wanted)


@pytest.mark.parametrize(
    ("case", "config", "says"),
    [
        (bert.MASKED, {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (bert.MASKED, {"add_cross_attention": True}, "add_cross_attention is True; wanted False"),
        (bert.MASKED, {"tie_word_embeddings": False}, "tie_word_embeddings is False; wanted True"),
        (mpnet.MASKED, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64; wanted 32"),
        (roformer.MASKED, {"rotary_value": True}, "rotary_value is True; wanted False"),
        (vit.CLASSIFIER, {"image_size": [16, 16, 16]}, "image_size is .* wanted a whole number from 1 up, or two"),
        (vit.CLASSIFIER, {"patch_size": 0}, "patch_size is 0; wanted a whole number"),
        (vit.CLASSIFIER, {"id2label": 3}, "id2label is 3; wanted a list or an object"),
        (vit.CLASSIFIER, {"use_mask_token": True}, "'use_mask_token' may change the model"),
    ],
)
def test_configs_that_are_refused(tmp_path, case, config, says):
    checkpoint(tmp_path, case)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises(CheckpointError, match=says):
        vt.load(tmp_path)
