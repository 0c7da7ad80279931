"""The tokens of an answer and their log-probabilities, as OpenAI's API has them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, final

from vantage.generation import Event, Pick
from vantage.serve.model_pool import LoadedModel
from vantage.serve.safe_tokenizer import TokenTexts

MIN_LOGPROB = -9999.0  # JSON has no infinity


@final
class ChoiceTokens:
    """The tokens of one choice, each held until its text is shown."""

    def __init__(self, loaded: LoadedModel):
        self._texts = loaded.texts
        self._picks: list[Pick] = []
        self.count = 0
        self.finish: str | None = None
        self.prompt: tuple[int, ...] = ()  # these two once the first token has come
        self.prompt_picks: list[Pick | None] = []
        self._cut = False  # the answer ended before a stop string, which some of its tokens are part of

    def push(self, event: Event) -> None:
        self.prompt, self.prompt_picks = event.request.tokens, event.request.prompt_picks
        if event.pick is not None:
            self.count += 1
            if event.ended_by != "stop token":  # such a token has no text
                self._picks.append(event.pick)
        self.finish, self._cut = event.finish, event.ended_by == "stop string"

    def take(self, shown: str) -> list[Pick]:
        """The tokens since the last time. At the end only as many as the text needs: a stop string is not shown."""
        picks, self._picks = self._picks, []
        if not self._cut:
            return picks
        kept, length = [], 0
        for pick in picks:
            if length >= len(shown):
                break
            kept.append(pick)
            length += len(self._texts.text(pick.token))
        return kept


def chat_logprobs(loaded: LoadedModel, picks: list[Pick]) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        texts = loaded.texts
        return {"token": texts.text(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": texts.bytes(token)}

    content = [
        {**one(pick.token, pick.logprob), "top_logprobs": [one(token, logprob) for token, logprob in pick.top]}
        for pick in picks
    ]
    return {"content": content, "refusal": None}


@final
class CompletionTokens:
    """The tokens of a completion as they come, each with where its text begins."""

    def __init__(self, texts: TokenTexts):
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be made of several tokens
        self._at = 0
        self._parts = _empty()

    def prompt(self, tokens: Sequence[int], picks: Sequence[Pick | None], hidden: frozenset[int]) -> dict[str, Any]:
        """``hidden``: tokens that stand for nothing in the text. The first has no log-probability."""
        return self._add(tokens, picks, hidden)

    def answer(self, picks: Sequence[Pick]) -> dict[str, Any]:
        return self._add([pick.token for pick in picks], picks, frozenset())

    def whole(self) -> dict[str, Any]:
        return self._parts

    def _add(self, tokens: Sequence[int], picks: Sequence[Pick | None], hidden: frozenset[int]) -> dict[str, Any]:
        part = _empty()
        for token, pick in zip(tokens, picks, strict=True):
            part["tokens"].append(self._texts.text(token))
            part["token_logprobs"].append(None if pick is None else max(pick.logprob, MIN_LOGPROB))
            part["top_logprobs"].append(None if pick is None else self._top(pick))
            part["text_offset"].append(self._at)
            if token not in hidden:
                self._at += len(self._decoder.decode(bytes(self._texts.bytes(token))))
        for name, values in part.items():
            self._parts[name] += values
        return part

    def _top(self, pick: Pick) -> dict[str, float]:
        """The best tokens and the chosen one, by text; of several with the same text, the best."""
        top: dict[str, float] = {}
        for token, logprob in (*pick.top, (pick.token, pick.logprob)):
            top.setdefault(self._texts.text(token), max(logprob, MIN_LOGPROB))
        return top


def _empty() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
