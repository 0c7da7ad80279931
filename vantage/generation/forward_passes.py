"""What the engine asks of its model: a token more for rows that decode, a chunk of a prompt, and a prompt's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import final

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.generation.images import features_of
from vantage.generation.request import Request
from vantage.generation.running_samples import RunningSample
from vantage.generation.sampling import Pick
from vantage.kernels.recurring import without_plans
from vantage.model import Model
from vantage.spec.images import ImageFeatures, ImageTokens
from vantage.spec.parts import EncoderOutput as Source
from vantage.spec.positions import Positions
from vantage.spec.sampling import PendingSteps, RowChoice

SCORED_TOKENS = 64  # tokens of a prompt whose logits are held at once


@final
class ForwardPasses:
    """``adapters``: models by name that share this one's weights and caches, each with an adapter on them.
    ``invariant``: the bits of a pass depend on nothing that ran before it."""

    def __init__(self, model: Model, adapters: Mapping[str, Model], *, invariant: bool = False):
        self._models: dict[str | None, Model] = {None: model, **adapters}
        self._invariant = invariant
        self._sources: dict[int, Source] = {}  # what the encoder made of the sources of requests that run
        self._features: dict[int, ImageFeatures] = {}  # and the vision tower of their images

    @property
    def adapters(self) -> list[str]:
        return [name for name in self._models if name is not None]

    def decode(self, samples: Sequence[RunningSample], cache: ModelCache) -> Tensor:
        """Logits (B, V) after the last token of each sample, all of one adapter."""
        model = self._model(samples[0].request)
        tokens = torch.tensor([[sample.tokens[-1]] for sample in samples], device=model.device)
        return _wide(model(tokens, positions=_onward(samples), cache=cache)[:, -1])

    def decode_ahead(
        self, samples: Sequence[RunningSample], steps: int, choices: Sequence[RowChoice], after: PendingSteps | None
    ) -> PendingSteps | None:
        """So many tokens for each sample, chosen by the device; ``None``: it cannot.

        ``after``: from those that are under way, which the host has not seen.
        """
        tokens = [sample.tokens[-1] for sample in samples] if after is None else after
        model = self._model(samples[0].request)
        return model.steps_ahead(tokens, [sample.held() for sample in samples], steps, choices)

    def runs_ahead(self, samples: Sequence[RunningSample]) -> bool:
        """Whether the device may choose tokens by itself."""
        model = self._model(samples[0].request)
        counted = all(sample.request.images is None for sample in samples)  # behind an image positions go on elsewhere
        # steps over processes have no native form
        return counted and model.parallel is None and model.whole_steps.runs_ahead(model)

    @property
    def asynchronous(self) -> bool:
        """Whether steps are under way while the host goes on."""
        return self._models[None].device.type == "cuda"

    def prefill(self, sample: RunningSample, end: int) -> Tensor | None:
        """Run a sample's tokens up to ``end``. The logits (V,) after the last of all, if that was among them."""
        with without_plans() if self._invariant else nullcontext():
            return self._prefill(sample, end)

    def _prefill(self, sample: RunningSample, end: int) -> Tensor | None:
        model, row, start = self._model(sample.request), sample.held(), sample.fed
        tokens = _on_device([sample.tokens[start:end]], model.device)
        placed, source = sample.request.images, self._source(sample, model)
        if placed is None:
            positions = Positions.arange(1, end - start, start, device=model.device)
        else:
            positions = placed.positions(start, end)
        images = self._images(sample.request, model, start, end)
        wanted, scored = end == len(sample.tokens), sample.request.prompt_logprobs is not None
        if tokens.shape[1] == 1 and (wanted or not scored):
            # as a decoding row goes: a token computed again gives the same bits
            logits = model(tokens, positions=positions, cache=row, source=source, images=images)
            return _wide(logits[0, -1]) if wanted else None
        hidden = model.hidden(tokens, positions=positions, cache=row, source=source, images=images)
        if scored:
            _score(model, sample.request, hidden[0], start)
        # only the last token goes through the head
        return _wide(model.head(hidden[:, -1:])[0, -1]) if wanted else None

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._sources.pop(request.id, None)
        self._features.pop(request.id, None)

    def _model(self, request: Request) -> Model:
        return self._models[request.adapter]

    def _source(self, sample: RunningSample, model: Model) -> Source | None:
        """What the encoder makes of the source, once for all samples; nothing once the row holds it."""
        request = sample.request
        if request.source is None or sample.held().has_memory:
            return None
        if request.id not in self._sources:
            self._sources[request.id] = model.encode(torch.tensor([list(request.source)], device=model.device))
        return self._sources[request.id]

    def _images(self, request: Request, model: Model, start: int, end: int) -> ImageTokens | None:
        """What stands at these tokens, where some of them are an image's. The tower runs once, when it is first wanted:
        an image that was found with a prefix need not be read."""
        if request.images is None or not request.images.any_in(start, end):
            return None
        if request.id not in self._features:
            self._features[request.id] = features_of(model, request.images.images)
        return request.images.tokens(self._features[request.id], start, end)


def _score(model: Model, request: Request, hidden_TD: Tensor, start: int) -> None:
    """Log-probabilities of the prompt's tokens that follow these hidden states, the first of which stands at ``start``.

    Those that are known are left: a request that was put back is computed again.
    """
    prompt, scores, top = request.tokens, request.prompt_picks, request.prompt_logprobs or 0
    begin, end = len(scores), min(start + len(hidden_TD) + 1, len(prompt))
    for low in range(begin, end, SCORED_TOKENS):
        high = min(low + SCORED_TOKENS, end)
        logits = _wide(model.head(hidden_TD[None, low - 1 - start : high - 1 - start])[0])
        highest = logits.amax(-1, keepdim=True)
        logprobs = logits - (highest + (logits - highest).exp().sum(-1, keepdim=True).log())
        following = torch.tensor(prompt[low:high], device=logits.device)
        chosen = logprobs.gather(-1, following[:, None])[:, 0].tolist()
        best = logprobs.topk(min(top, logprobs.shape[-1]))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in rows]
        scores += [Pick(*pick) for pick in zip(prompt[low:high], chosen, tops, strict=True)]


def _onward(samples: Sequence[RunningSample]) -> Positions:
    """Where each goes on, from the host's own numbers: every fact about them is known on any device."""
    fed = [sample.fed for sample in samples]
    ahead = [0 if sample.request.images is None else sample.request.images.ahead for sample in samples]
    if any(ahead):
        return Positions.onward(torch.tensor(fed), 1).ahead(torch.tensor(ahead))
    if len(set(fed)) == 1:
        return Positions.arange(len(fed), 1, fed[0])
    return Positions.onward(torch.tensor(fed), 1)


def _on_device(tokens: list[list[int]], device: torch.device) -> Tensor:
    """There when the device's work gets to it: the host does not wait for what is under way."""
    if device.type != "cuda":
        return torch.tensor(tokens, device=device)
    return torch.tensor(tokens, pin_memory=True).to(device, non_blocking=True)


def _wide(logits: Tensor) -> Tensor:
    """Probabilities are worked out in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
