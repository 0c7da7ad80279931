"""``echo`` in /v1/completions: the prompt before the answer, and with ``logprobs`` the model's own scores of it."""

from __future__ import annotations

import openai
import pytest
import torch

from tests.generation.folder import chat_model
from tests.serve.running import serving, tiny

TEXTS = ("the cat sat on", "hello world 世界 é!", "a")


@torch.inference_mode()
def plain(tokens: list[int]) -> torch.Tensor:
    return torch.log_softmax(chat_model()(torch.tensor([tokens]))[0].double(), -1)


def check(choice, tokens: list[int], top: int) -> None:
    """The prompt's part of an answer's log-probabilities."""
    got, wanted = choice.logprobs, plain(tokens)
    assert got.token_logprobs[0] is None
    assert got.top_logprobs[0] is None
    for i, token in enumerate(tokens[1:]):
        assert got.token_logprobs[i + 1] == pytest.approx(float(wanted[i, token]), abs=1e-4)
        assert top <= len(got.top_logprobs[i + 1]) + 1 <= top + 2
        if not top:
            assert list(got.top_logprobs[i + 1].values()) == [got.token_logprobs[i + 1]]
            continue
        assert max(got.top_logprobs[i + 1].values()) == pytest.approx(float(wanted[i].max()), abs=1e-4)
        greedy = int(wanted[i].argmax()) == token
        assert (got.token_logprobs[i + 1] == max(got.top_logprobs[i + 1].values())) == greedy


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_prompts_are_scored_as_the_model_scores_them(small, max_tokens):
    client, tokenizer = small.client(), chat_model().tokenizer
    options = {"model": "tiny", "max_tokens": max_tokens, "temperature": 0, "logprobs": 2, "echo": True}
    whole = client.completions.create(prompt=list(TEXTS), **options)
    plainly = client.completions.create(prompt=list(TEXTS), **{**options, "max_tokens": max_tokens or 1, "echo": False})
    for text, choice, answer in zip(TEXTS, whole.choices, plainly.choices, strict=True):
        tokens = tokenizer.encode(text)
        check(choice, tokens, 2)
        assert choice.text == text + (answer.text if max_tokens else "")
        assert len(choice.logprobs.tokens) == len(tokens) + max_tokens
        assert choice.finish_reason == "length"
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            if "\ufffd" not in token:  # half a character begins where the character does
                assert choice.text[offset:].startswith(token)
    assert whole.usage.completion_tokens == max_tokens * len(TEXTS)
    assert whole.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in TEXTS)


def test_tokens_samples_and_streams(small):
    client, tokenizer = small.client(), chat_model().tokenizer
    rows = [tokenizer.encode(text) for text in TEXTS]
    options = {"model": "tiny", "max_tokens": 3, "temperature": 0.7, "seed": 4, "logprobs": 1, "echo": True, "n": 2}
    whole = client.completions.create(prompt=rows, **options)
    assert [choice.text.startswith(TEXTS[i // 2]) for i, choice in enumerate(whole.choices)] == [True] * 6
    for i, choice in enumerate(whole.choices):
        check(choice, rows[i // 2], 1)
    said = {i: ["", []] for i in range(6)}
    for chunk in client.completions.create(prompt=rows, stream=True, **options):
        (choice,) = chunk.choices
        said[choice.index][0] += choice.text
        said[choice.index][1] += choice.logprobs.token_logprobs if choice.logprobs else []
    for i, choice in enumerate(whole.choices):
        assert said[i][0] == choice.text
        assert said[i][1] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)


def test_echo_alone_and_what_is_refused(small):
    client = small.client()
    got = client.completions.create(model="tiny", prompt="the cat", max_tokens=2, temperature=0, echo=True)
    without = client.completions.create(model="tiny", prompt="the cat", max_tokens=2, temperature=0)
    assert got.choices[0].text == "the cat" + without.choices[0].text
    assert got.choices[0].logprobs is None
    nothing = client.completions.create(model="tiny", prompt="the cat", max_tokens=0, echo=True)
    assert nothing.choices[0].text == "the cat"
    with pytest.raises(openai.BadRequestError, match="echo: true") as caught:
        client.completions.create(model="tiny", prompt="the cat", max_tokens=0)
    assert caught.value.param == "max_tokens"


@pytest.mark.sampled
def test_a_prompt_as_long_as_the_context_can_be_scored(folder):
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "32") as server:
        tokens = [5 + i for i in range(32)]
        options = {"model": "tiny", "logprobs": 0, "echo": True}
        got = server.client().completions.create(prompt=tokens, max_tokens=0, **options)
        check(got.choices[0], tokens, 0)
        with pytest.raises(openai.BadRequestError, match="context"):
            server.client().completions.create(prompt=tokens, max_tokens=1, **options)
