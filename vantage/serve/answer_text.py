"""From the tokens of one sample to its text and log-probabilities."""

from __future__ import annotations

from typing import Any, final

from vantage.generation import Pick, Stop, StopWatcher
from vantage.serve.engine_jobs import SampleEvent
from vantage.serve.model_pool import LoadedModel

LEAST = -9999.0  # JSON has no infinity


@final
class Voice:
    """Text that may be shown, and the tokens it was made of."""

    def __init__(self, loaded: LoadedModel, stop: Stop):
        self._texts, self._stop = loaded.texts, stop
        self._watcher = StopWatcher(loaded.safe_tokenizer.tokenizer, stop.strings)
        self._picks: list[Pick] = []
        self.tokens = 0
        self.finish: str | None = None

    def push(self, event: SampleEvent) -> str:
        """The text that became certain with this token."""
        text = ""
        if event.pick is not None:
            self.tokens += 1
            if event.pick.token not in self._stop.tokens:  # a token that ends an answer says nothing
                text = self._watcher.push(event.pick.token)
                self._picks.append(event.pick)
        if event.finish is not None:
            self.finish = event.finish
            text += self._watcher.flush()
        return text

    def picks(self, shown: str) -> list[Pick]:
        """The tokens since the last time. At the end only as many as the text needs: a stop string is not shown."""
        picks, self._picks = self._picks, []
        if self._watcher.stopped is None:
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
