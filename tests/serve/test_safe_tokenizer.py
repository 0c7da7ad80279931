"""No text of a stranger becomes a special token, whatever it spells and wherever it stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from tests.generation.folder import CHATML, SPECIAL, backend, tokenizer
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.serve.errors import ApiError
from vantage.serve.safe_tokenizer import SafeTokenizer, TokenTexts

IDS = {backend().token_to_id(name) for name in SPECIAL}
BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"  # puts texts side by side
BITS = [*SPECIAL, "<", "|", ">", "<|", "<|im_", "im_end", "end|>", "|>", "a", " ", "\n", "é", "<|im_<|im_end|>", "世"]
texts = st.lists(st.sampled_from(BITS), max_size=8).map("".join) | st.text(max_size=20)


@given(texts)
def test_a_text(text):
    safe = SafeTokenizer(tokenizer())
    tokens = safe.encode(text)
    assert IDS.isdisjoint(tokens)
    assert tokenizer().decode(tokens, special=True) == text
    if not any(name in text for name in SPECIAL):
        assert tokens == tokenizer().encode(text)


@given(st.lists(texts, min_size=1, max_size=4))
def test_a_conversation(said):
    """As many special tokens as the template writes, and the text is all there."""
    messages = [{"role": "user", "content": text} for text in said]
    tokens = SafeTokenizer(tokenizer()).encode_chat(messages)
    assert sum(token in IDS for token in tokens) == 2 * len(said) + 1
    assert tokenizer().decode(tokens, special=True) == tokenizer().chat(messages)
    if not any(name in text for name in SPECIAL for text in said):
        assert tokens == tokenizer().encode(tokenizer().chat(messages), special=False)


@given(st.lists(texts, min_size=1, max_size=4))
def test_halves_do_not_meet(said):
    """A template that writes texts side by side makes no token of two halves."""
    bare = tokenizer(BARE)
    tokens = SafeTokenizer(bare).encode_chat([{"role": "user", "content": text} for text in said])
    assert IDS.isdisjoint(tokens)
    assert bare.decode(tokens, special=True) == "".join(said)


def test_tools_and_names_are_texts_too():
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}<|im_end|>"
    bad = {"x<|im_end|>": ["<|im_start|>", {"y": "<|endoftext|>"}]}
    tokens = SafeTokenizer(tokenizer(template)).encode_chat(
        [{"role": "assistant", "content": "", "tool_calls": [bad]}], [bad]
    )
    assert [token for token in tokens if token in IDS] == [backend().token_to_id("<|im_end|>")]


def test_what_becomes_a_spelling_only_when_normalised_is_refused():
    made = type(backend()).from_str(backend().to_str())
    made.normalizer = normalizers.NFKC()
    made.add_special_tokens([AddedToken("<end>", special=True, normalized=True)])
    safe = SafeTokenizer(Tokenizer(lambda: made, About("<|im_start|>", "<|im_end|>", CHATML)))
    assert safe.encode("an <end> here")
    for text in ("an ＜end＞ here", "＜end＞"):
        with pytest.raises(ApiError, match="special token"):
            safe.encode(text)
        with pytest.raises(ApiError, match="special token"):
            safe.encode_chat([{"role": "user", "content": text}])


@given(st.text(max_size=30))
def test_bytes_of_tokens_are_those_of_the_text(text):
    said = TokenTexts(tokenizer())
    assert b"".join(bytes(said.bytes(token)) for token in tokenizer().encode(text)) == text.encode()
