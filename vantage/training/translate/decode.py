"""Translating: greedy or with a few beams, many sentences at a time, over the model's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.model import Model
from vantage.model.beam_search import Beams, BeamSearch, search
from vantage.training.text.vocabulary import pad_token
from vantage.training.translate.pairs import ends, sources_of


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
    texts: dict[int, str] = {}
    how = Beams(beams, length_penalty=length_penalty, early_stopping=True)
    training = model.training
    model.eval()
    try:
        for low in range(0, len(order), batch):
            picked = order[low : low + batch]
            most = max_tokens or 2 * len(rows[picked[-1]]) + 10
            source, mask = sources_of([rows[i] for i in picked], tokenizer)
            best = _best(model, tokenizer, how, most, source, mask)
            texts |= {i: tokenizer.decode(text) for i, text in zip(picked, best, strict=True)}
    finally:
        model.train(training)
    return [texts[i] for i in range(len(rows))]


def tokenizer_of(model: Model, tokenizer: Tokenizer | None) -> Tokenizer:
    tokenizer = model.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise BadInput("this model has no tokenizer: set model.tokenizer, or pass tokenizer=")
    return tokenizer


@torch.inference_mode()
def _best(
    model: Model, tokenizer: Tokenizer, beams: Beams, max_tokens: int, source: Tensor, mask: Tensor | None
) -> list[tuple[int, ...]]:
    """The best translation of each sentence, as tokens. Each has as many rows of the cache as it has running texts."""
    bos, eos = ends(tokenizer)
    never = sorted({bos, pad_token(tokenizer)} - {eos})
    device = model.device
    memory = model.encode(source.to(device), mask=None if mask is None else mask.to(device))
    cache = model.new_cache(len(source))

    def logprobs(newest: list[int]) -> Tensor:
        if newest:
            logits = model(torch.tensor([[token] for token in newest], device=device), cache=cache)
        else:
            logits = model(torch.full((len(source), 1), bos, device=device), source=memory, cache=cache)
        best = logits[:, -1].float().log_softmax(-1)
        best[:, never] = -torch.inf
        return best

    searches = [BeamSearch(beams, frozenset((eos,)), max_tokens) for _ in source]
    search(searches, logprobs, cache.reorder)
    return [one.finished[0].tokens for one in searches]
