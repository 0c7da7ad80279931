"""Published weights: equal to transformers, from the same files. They are pulled once and kept."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import vantage as vt
from tests.checkpoints.test_tokenizer import CORPUS
from vantage.checkpoints.pull import PullError, place

STORY = "Once upon a time, there was a"
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


# Of the tokens that SmolLM2's own tokenizer.json (SHA-256 7d27c493…, not in the GGUF) gives for the corpus.
ORIGINAL = "c3073900157a39f1dee78f384803144e7e5cb8d3d9fbd586ad682dd02abd3f37"


def pulled(name):
    try:
        return vt.pull(name)
    except PullError as e:
        pytest.skip(f"{name} cannot be pulled here: {e}")


def from_gguf(path, cls, config):
    """transformers' own reading of a GGUF file, without the package that it wants for `from_pretrained`."""
    with torch.device("meta"):
        model = cls(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model = model.to_empty(device="cpu")
    left = model.load_state_dict(read["tensors"], strict=False)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers were without memory
    assert left.missing_keys == ["lm_head.weight"], "only the tied head"
    assert not left.unexpected_keys
    return model.eval()


def far(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def greedy(model, ids, count):
    """Through our cache."""
    cache, step, out = model.new_cache(1, length=len(ids) + count), torch.tensor([ids]), list(ids)
    for _ in range(count):
        step = model(step, cache=cache)[:, -1:].argmax(-1)
        out.append(int(step))
    return torch.tensor([out])


@torch.no_grad()
def same_logits_and_64_tokens(ours, theirs, ids):
    got = greedy(ours, ids, 64)
    wanted = theirs(got).logits  # one pass without a cache says what every step should have chosen
    assert torch.equal(wanted[:, len(ids) - 1 : -1].argmax(-1), got[:, len(ids) :])
    assert far(ours(got), wanted) < 1e-4
    return got


@pytest.mark.sampled
@torch.no_grad()
def test_smollm2_from_gguf():
    path = pulled("smollm2")
    # said here, because reading it from the file takes transformers as long as everything else in this test
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    ours, theirs = vt.load("smollm2"), from_gguf(path, transformers.LlamaForCausalLM, config)
    tokens = json.dumps([ours.tokenizer.encode(text) for text in CORPUS])
    assert hashlib.sha256(tokens.encode()).hexdigest() == ORIGINAL
    text = ours.tokenizer.chat(CHAT)
    got = same_logits_and_64_tokens(ours, theirs, ours.tokenizer.encode(text, special=False))
    assert "Paris" in ours.tokenizer.decode(got[0])


@pytest.mark.slow  # transformers takes long to set the vocabulary up
@pytest.mark.filterwarnings("ignore")
def test_smollm2s_tokenizer():
    """But for digits: SmolLM's own tokenizer.json cuts them apart, and transformers' reading of the file does not."""
    path = pulled("smollm2")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = vt.load(path).tokenizer
    for text in CORPUS:
        if not any(c.isnumeric() for c in text):
            assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text), special=True) == text
    assert ours.chat(CHAT) == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert len(ours.encode("2024")) == 4


def embed(model, ids, mask):
    """The mean of the hidden states, of length 1: sentence-transformers' recipe for these models."""
    hidden = model(ids, mask=mask) if isinstance(model, vt.Model) else model(ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1)


@torch.no_grad()
def same_embeddings(name, cls):
    path = pulled(name)
    ours = vt.load(name)
    theirs = cls.from_pretrained(path).eval()
    texts = ["A man is eating food.", "Somebody eats a meal, slowly and with great care.", "The sky is blue."]
    rows = [ours.tokenizer.encode(text) for text in texts]
    pad = transformers.AutoConfig.from_pretrained(path).pad_token_id
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    their_rows = transformers.AutoTokenizer.from_pretrained(path)(texts)["input_ids"]
    assert rows == their_rows
    got, wanted = embed(ours, ids, mask), embed(theirs, ids, mask)
    assert far(got, wanted) < 1e-4
    likeness = got @ got.T
    assert likeness[0, 1] > likeness[0, 2]


def test_minilm():
    same_embeddings("minilm", transformers.BertModel)


@pytest.mark.slow  # 400 MB
def test_mpnet():
    same_embeddings("mpnet", transformers.MPNetModel)


@pytest.mark.slow
@torch.no_grad()
def test_gemma3_from_gguf():
    """Only where somebody has accepted its terms and pulled it."""
    if not place("gemma3-270m").is_dir():
        pytest.skip("read its terms and run `vantage pull gemma3-270m --accept-terms` first")
    path = pulled("gemma3-270m")
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    ours, theirs = vt.load("gemma3-270m"), from_gguf(path, transformers.Gemma3ForCausalLM, config)
    ids = ours.tokenizer.encode(STORY)
    assert ids[0] == ours.tokenizer.bos == 2
    same_logits_and_64_tokens(ours, theirs, ids)
    logits = ours(torch.tensor([ids]))
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], torch.tensor(ids[1:]))
    assert float(loss) == pytest.approx(1.84, abs=0.05)
