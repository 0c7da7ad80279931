"""The tokens of an answer and their log-probabilities, as OpenAI's API has them."""

from __future__ import annotations

from typing import Any, final

from vantage.generation import Event, Pick
from vantage.serve.model_pool import LoadedModel

LEAST = -9999.0  # JSON has no infinity


@final
class ChoiceTokens:
    """The tokens of one choice, each held until its text is shown."""

    def __init__(self, loaded: LoadedModel):
        self._texts = loaded.texts
        self._picks: list[Pick] = []
        self.count = 0
        self.finish: str | None = None
        self._cut = False  # the answer ended before a stop string, which some of its tokens are part of

    def push(self, event: Event) -> None:
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
        return {"token": texts.text(token), "logprob": max(logprob, LEAST), "bytes": texts.bytes(token)}

    content = [
        {**one(pick.token, pick.logprob), "top_logprobs": [one(token, logprob) for token, logprob in pick.top]}
        for pick in picks
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(loaded: LoadedModel, picks: list[Pick], offset: int) -> dict[str, Any]:
    """``offset``: where in the text the first of these tokens begins."""
    tokens = [loaded.texts.text(pick.token) for pick in picks]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [max(pick.logprob, LEAST) for pick in picks],
        "top_logprobs": [{loaded.texts.text(t): max(lp, LEAST) for t, lp in pick.top} for pick in picks],
        "text_offset": offsets,
    }
