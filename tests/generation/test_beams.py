"""Beam search: the texts and scores of transformers, and what must be so of any search."""

from __future__ import annotations

import copy
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.generation import zoo
from tests.generation.folder import chat_model, tokenizer
from tests.parity.case import VOCAB
from tests.parity.rows.llama import CASES as LLAMA
from tests.parity.rows.marian import MARIAN
from tests.parity.rows.t5 import FULL as T5
from vantage.errors import BadInput
from vantage.generation import Beams, beam_search
from vantage.generation.prompts import end_tokens
from vantage.model import Model

CASES = {"llama": LLAMA[0], "t5": T5, "marian": MARIAN}
GRID = list(itertools.product((2, 3, 5), (-1.0, 0.0, 1.0, 2.5), (True, False, "never"), (0, 1, 8)))
SEARCHES = random.Random(0).sample(GRID, 24)
MOST = 9


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Model]]:
    made = {}
    for name, case in CASES.items():
        folder: Path = tmp_path_factory.mktemp(name)
        theirs = case.make("plain").double()
        theirs.save_pretrained(folder)
        made[name] = (theirs, vt.load(folder, dtype=torch.float64))
    return made


@torch.no_grad()
def theirs_of(model: Any, prompt: torch.Tensor, beams: Beams, ends: list[int]) -> tuple[list[list[int]], list[float]]:
    """Their texts, cut behind the first end, and their scores."""
    # what a checkpoint says of generation does not matter here
    kept = type(model.generation_config)(pad_token_id=0, decoder_start_token_id=0, use_cache=True)
    kept.num_beams, kept.num_return_sequences = beams.beams, beams.n_best
    kept.length_penalty, kept.early_stopping = beams.length_penalty, beams.early_stopping
    kept.max_new_tokens, kept.eos_token_id = MOST, ends or None
    kept.output_scores = kept.return_dict_in_generate = True
    out = model.generate(prompt, generation_config=kept, attention_mask=torch.ones_like(prompt))
    front = 1 if model.config.is_encoder_decoder else prompt.shape[1]
    rows = []
    for row in out.sequences[:, front:].tolist():
        end = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        rows.append(row[: end + 1])
    return rows, out.sequences_scores.tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("part", range(3))
def test_texts_and_scores_are_those_of_transformers(pairs: Any, name: str, part: int) -> None:
    theirs, ours = pairs[name]
    finished = set()
    for i, (n, penalty, early, ends) in enumerate(SEARCHES[part::3]):
        beams = Beams(n, min(n, 3), penalty, early)
        prompt = torch.randint(3, VOCAB, (1, 6), generator=torch.Generator().manual_seed(i))
        said, source = (prompt[0].tolist(), None) if ours.encoder is None else ([0], prompt)
        stop = torch.randint(3, VOCAB, (ends,), generator=torch.Generator().manual_seed(i + 50)).tolist()
        if ends:  # one that will come
            found = beam_search(ours, said, max_tokens=MOST, beams=beams, source=source, ends=False)
            stop[0] = found.best[0].tokens[2 + i % 5]
        wanted, scores = theirs_of(theirs, prompt, beams, stop)
        got = beam_search(ours, said, max_tokens=MOST, beams=beams, stop=stop, source=source, ends=False)
        assert [list(one.tokens) for one in got.best] == wanted
        assert [one.score for one in got.best] == pytest.approx(
            scores, rel=1e-6, abs=2e-5
        )  # theirs are summed in float32
        finished |= {one.finish_reason for one in got.best}
    assert finished == {"stop", "length"}


@pytest.mark.parametrize(("name", "kind"), zoo.EVERY)
def test_every_cache_finds_the_same(name: str, kind: str) -> None:
    """And each log-probability is that of a whole pass over the text."""
    model = zoo.model(name)
    prompt = zoo.tokens(12)[0].tolist()
    source = None if model.encoder is None else zoo.tokens(5, seed=7)
    beams = Beams(4, 3, 1.0, "never")
    got = beam_search(model, prompt, max_tokens=12, beams=beams, stop=[1, 2], kind=kind, source=source)
    if kind != "quantised":
        wanted = beam_search(model, prompt, max_tokens=12, beams=beams, stop=[1, 2], source=source)
        assert [one.tokens for one in got.best] == [one.tokens for one in wanted.best]
    length = 32 if name == "ntk" else None
    for one in got.best:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *one.tokens]]), source=source, length=length)[0]
        said = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(one.tokens)[:, None]).sum()
        assert one.logprob == pytest.approx(float(said), abs=0.3 if kind == "quantised" else 1e-9)
        assert one.score == pytest.approx(one.logprob / len(one.tokens))
    assert [one.score for one in got.best] == sorted((one.score for one in got.best), reverse=True)
    assert got.computed <= len(prompt) + 4 * 11
    assert got.calls <= 12


def test_enough_beams_find_the_best_text_there_is() -> None:
    model = vt.build(vt.decoder(vocab=5, width=8, layers=1, heads=2), seed=3).double().eval()
    got = beam_search(model, [1, 2], max_tokens=3, beams=Beams(125, 5, 0.0))
    every = {}
    with torch.no_grad():
        for text in itertools.product(range(5), repeat=3):
            logprobs = model(torch.tensor([[1, 2, *text]]))[0].log_softmax(-1)
            every[text] = sum(float(logprobs[1 + i, token]) for i, token in enumerate(text))
    best = sorted(every, key=lambda text: -every[text])[:5]
    assert [one.tokens for one in got.best] == best


def test_one_beam_is_greedy() -> None:
    model = zoo.model("plain")
    got = beam_search(model, [1, 2, 3], max_tokens=6, beams=Beams(1))
    text = [1, 2, 3]
    with torch.no_grad():
        for _ in range(6):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    assert list(got.best[0].tokens) == text[3:]
    assert got.best[0].finish_reason == "length"


@pytest.mark.parametrize(
    "wrong", [{"beams": 0}, {"beams": 2, "n_best": 3}, {"early_stopping": "soon"}, {"length_penalty": float("nan")}]
)
def test_a_bad_search_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Beams(**wrong)


def test_bad_input_is_refused() -> None:
    model = zoo.model("plain")
    with pytest.raises(BadInput, match="not at strings"):
        beam_search(model, [1], max_tokens=3, stop="x")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="give a text, tokens"):
        beam_search(model, [], max_tokens=3)
    with pytest.raises(BadInput, match="empty prompt"):
        beam_search(chat_model(), "", max_tokens=3)
    with pytest.raises(BadInput, match="beams='4': give a number"):
        beam_search(model, [1], beams="4")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="max_tokens=0"):
        beam_search(model, [1], max_tokens=0)
    with pytest.raises(BadInput, match="no tokenizer"):
        beam_search(model, "hello")


def test_texts_tokens_and_tensors_are_taken_as_generate_takes_them() -> None:
    model, text = chat_model(), "the cat sat on a mat"
    tokens = tokenizer().encode(text)
    got = beam_search(model, text, max_tokens=6, beams=3, ends=False)
    assert got.prompt == tuple(tokens)
    assert got.text == str(got) == tokenizer().decode(got.tokens)
    for same in (tokens, torch.tensor(tokens), tuple(tokens)):
        assert beam_search(model, same, max_tokens=6, beams=3, ends=False).tokens == got.tokens
    several = beam_search(model, [text, "a"], max_tokens=6, beams=3, ends=False)
    assert several[0].tokens == got.tokens
    assert len(several) == 2
    messages = [{"role": "user", "content": text}]
    chat = beam_search(model, text, max_tokens=3, beams=2, chat=True)
    assert chat.prompt == beam_search(model, messages, max_tokens=3, beams=2).prompt != got.prompt
    assert beam_search(model, text, max_tokens=6, beams=1, ends=False).tokens == (
        vt.generate(model, text, max_tokens=6, ends=False).tokens
    )


def test_an_answer_ends_with_the_models_own_end_which_has_no_text() -> None:
    model = copy.deepcopy(chat_model())
    free = beam_search(model, "the cat", max_tokens=8, beams=1, ends=False).tokens
    model.config = {**(model.config or {}), "eos_token_id": free[5]}  # one that will come
    got = beam_search(model, "the cat", max_tokens=8, beams=1)
    assert got.finish_reason == "stop"
    assert got.tokens == free[: len(got.tokens)]
    assert got.tokens[-1] in end_tokens(model)
    assert got.text == tokenizer().decode(got.tokens[:-1])


def test_an_encoder_decoder_reads_the_prompt_and_begins_by_itself() -> None:
    model = zoo.model("encoder-decoder")
    wanted = beam_search(model, [1], max_tokens=6, source=torch.tensor([[5, 6, 7]]))
    got = beam_search(model, [5, 6, 7], max_tokens=6, start=1)
    assert got.tokens == wanted.tokens
    assert got.prompt == (5, 6, 7)
    with pytest.raises(BadInput, match="decoder_start_token_id"):
        beam_search(model, [5, 6, 7], max_tokens=6)
