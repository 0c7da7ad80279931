"""Translating: greedy or with a few beams, many sentences at a time, over the model's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.model import Model
from vantage.training.text.vocabulary import pad_token
from vantage.training.translate.pairs import ends, sources_of


class _Text(NamedTuple):
    tokens: tuple[int, ...]
    logprob: float  # summed


_Running = dict[int, list[_Text]]  # by the number of the sentence
_Finished = dict[int, list[tuple[float, _Text]]]


def translate(
    model: Model,
    sources: Sequence[str],
    *,
    tokenizer: Tokenizer | None = None,
    beams: int = 1,
    length_penalty: float = 1.0,
    max_tokens: int | None = None,
    batch: int = 64,
) -> list[str]:
    """The translations of these sentences, greedy or by beams; those rank by log-probability over length ** penalty.
    One ends at the end token, or after ``max_tokens`` (unless told: 10 more than twice its batch's longest source)."""
    tokenizer = tokenizer_of(model, tokenizer)
    if model.encoder is None:
        raise BadInput("this model has no encoder, so it cannot translate: give an encoder-decoder")
    if beams < 1 or batch < 1 or (max_tokens is not None and max_tokens < 1):
        raise BadInput(f"beams={beams}, batch={batch}, max_tokens={max_tokens}: give at least 1 of each")
    rows = [tokenizer.encode(text, special=False) for text in sources]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, str] = {}
    training = model.training
    model.eval()
    try:
        for low in range(0, len(order), batch):
            picked = order[low : low + batch]
            most = max_tokens or 2 * len(rows[picked[-1]]) + 10
            search = _Search(model, tokenizer, beams, length_penalty, most)
            best = search.run(*sources_of([rows[i] for i in picked], tokenizer))
            found |= {i: tokenizer.decode(text) for i, text in zip(picked, best, strict=True)}
    finally:
        model.train(training)
    return [found[i] for i in range(len(rows))]


def tokenizer_of(model: Model, tokenizer: Tokenizer | None) -> Tokenizer:
    tokenizer = model.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise BadInput("this model has no tokenizer: set model.tokenizer, or pass tokenizer=")
    return tokenizer


class _Search:
    """Beam search over a batch: each sentence has as many rows of the cache as it has running texts."""

    def __init__(self, model: Model, tokenizer: Tokenizer, beams: int, penalty: float, most: int):
        self.model, self.beams, self.penalty, self.most = model, beams, penalty, most
        self.bos, self.eos = ends(tokenizer)
        self.never = sorted({self.bos, pad_token(tokenizer)} - {self.eos})

    @torch.inference_mode()
    def run(self, source: Tensor, mask: Tensor | None) -> list[tuple[int, ...]]:
        device = self.model.device
        memory = self.model.encode(source.to(device), mask=None if mask is None else mask.to(device))
        cache = self.model.new_cache(len(source))
        running = {sentence: [_Text((), 0.0)] for sentence in range(len(source))}
        finished: _Finished = {sentence: [] for sentence in running}
        logits = self.model(torch.full((len(source), 1), self.bos, device=device), source=memory, cache=cache)
        while True:
            going = self._step(running, finished, logits[:, -1], cache)
            if not going:
                return [max(texts)[1].tokens for texts in finished.values()]
            running = going
            new = [text.tokens[-1:] for texts in running.values() for text in texts]
            logits = self.model(torch.tensor(new, device=device), cache=cache)

    def _step(self, running: _Running, finished: _Finished, logits_RV: Tensor, cache: ModelCache) -> _Running:
        """One token more for every text; those that go on. The cache keeps their rows and no others."""
        logprobs = logits_RV.float().log_softmax(-1)
        logprobs[:, self.never] = -torch.inf
        best = logprobs.topk(min(2 * self.beams, logprobs.shape[1] - len(self.never)))  # no more can win in one row
        values, tokens = best.values.tolist(), best.indices.tolist()
        going, keep, row = dict[int, list[_Text]](), list[int](), 0
        for sentence, texts in running.items():
            options = [
                (text.logprob + value, token, row + i)
                for i, text in enumerate(texts)
                for value, token in zip(values[row + i], tokens[row + i], strict=True)
            ]
            kept: list[tuple[_Text, int]] = []
            for rank, (logprob, token, at) in enumerate(sorted(options, reverse=True)[: 2 * self.beams]):
                text = _Text((*texts[at - row].tokens, token), logprob)
                if token == self.eos or len(text.tokens) == self.most:
                    if rank < self.beams:
                        finished[sentence].append((logprob / len(text.tokens) ** self.penalty, text))
                elif len(kept) < self.beams:
                    kept.append((text, at))
            if kept and len(finished[sentence]) < self.beams:
                going[sentence] = [text for text, _ in kept]
                keep += [at for _, at in kept]
            row += len(texts)
        if keep and keep != list(range(row)):
            cache.reorder(keep)
        return going
