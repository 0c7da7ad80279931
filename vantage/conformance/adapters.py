"""Our own models and those of transformers, asked the same way; a user's own callable is in ``callables.py``."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vantage.cache import ModelCache
from vantage.conformance.fault import layers_in_words
from vantage.conformance.subject import ModelFacts, NewCache, NotApplicable, Subject
from vantage.conformance.trace import Tracer, declared_length
from vantage.errors import BadInput, CacheError, Refused
from vantage.model import Model
from vantage.spec.masks import Causal, Everything, Mask, SameSegment, Window, conjuncts, windows
from vantage.spec.positions import Positions

MAX_COPIED_PARAMETERS = 20_000_000  # parameters of a model that may be copied
SOURCE = 5  # tokens of the source that an encoder-decoder reads

SEGMENTS = "positions with documents"  # how our own models are told of documents
RESTARTING = "position_ids that restart"
COLLATED = "seq_idx and cu_seq_lens"  # what transformers' DataCollatorWithFlattening gives

UNREAD = 64  # roundings by which two passes differ at most where nothing reads what differs between them

MAX_ROLLBACK = 16  # tokens that a row of a check may take back


class OwnModel(Subject):
    """A ``vantage.Model``. An encoder-decoder reads one fixed source."""

    def __init__(self, model: Model, new_cache: NewCache | None = None):
        spec = model.spec
        masks = [layer.mask for layer in spec.layers]
        windows = [_window(mask) for mask in masks]
        odd = next((str(m) for m, n in zip(masks, windows, strict=True) if m.reach() is not None and n is None), "")
        self.model, self._new_cache, self._masks = model, new_cache, masks
        self.facts = ModelFacts(
            name="vantage.Model",
            vocab=spec.vocab,
            device=model.device,
            limit=model.max_positions,
            declares=True,
            windows=tuple(windows) if any(m.reach() is not None for m in masks) else (),
            odd_window=odd,
            original=spec.original_length,
            places_apart=True,
        )
        self._tracer: Tracer | None = None
        self._first_row = 0
        self._source = None
        if spec.encoder is not None:
            self._source = torch.arange(SOURCE, device=model.device)[None] % spec.encoder.vocab

    def declared(self, length: int | None = None) -> int | None:
        return declared_length(self.model) if length is None else length

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        # read on the host, then moved: what the host knows of positions is kept
        where = None if positions is None else Positions.of(positions.cpu()).to(self.facts.device)
        return self._run(tokens, where, cache, length)

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        order = torch.arange(start, start + positions.shape[1]).expand(positions.shape)
        return self._run(tokens, Positions.of(positions.cpu(), order=order).to(self.facts.device), cache, None)

    def _run(self, tokens: Tensor, where: Positions | None, cache: ModelCache | None, length: int | None) -> Tensor:
        with (
            contextlib.nullcontext()
            if self._tracer is None or where is None
            else self._tracer.reading(where, self._first_row)
        ):
            return self._pass(tokens, where, cache, length)

    def _pass(self, tokens: Tensor, where: Positions | None, cache: ModelCache | None, length: int | None) -> Tensor:
        fresh = cache is None or not any(cache.tokens)
        source = self._source.expand(len(tokens), -1) if self._source is not None and fresh else None
        declared = self.declared(length) if cache is None else None
        return self.model(tokens, positions=where, cache=cache, length=declared, source=source)

    def packings(self) -> tuple[str, ...]:
        apart = [_reads_documents(mask) for mask in self._masks]
        if not all(apart):
            which = layers_in_words(i for i, yes in enumerate(apart) if not yes)
            raise NotApplicable(f"the mask of {which} does not read documents: they see each other by design")
        return (SEGMENTS,)

    def packed(self, tokens: Tensor, where: Positions, way: str = SEGMENTS) -> Tensor:
        try:
            return self._run(tokens, where.to(self.facts.device), None, None)
        except Refused as why:
            raise NotApplicable(str(why)) from why

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Tracer]:
        """Every pass in here is traced."""
        with Tracer.on(self.model) as tracer:
            self._tracer = tracer
            try:
                yield tracer
            finally:
                self._tracer, self._first_row = None, 0

    def row(self, b: int) -> None:
        """Traces from here on are of rows from the b-th on."""
        self._first_row = b

    def new_cache(self, batch: int, *, length: int | None = None) -> ModelCache:
        if self._new_cache is not None and length is None:
            return self._new_cache(batch)
        draft = MAX_ROLLBACK if self.model.spec.keeps_states else None
        return self.model.new_cache(batch, length=self.declared(length), draft=draft)

    def crop(self, cache: ModelCache, to: int) -> None:
        try:
            cache.crop(to)
        except CacheError as why:  # a ring without a draft: to refuse is right
            raise NotApplicable(f"this cache does not go back: {_first_line(why)}") from why

    def fork(self, cache: ModelCache) -> ModelCache:
        return cache.fork()

    def doubled(self) -> OwnModel | None:
        return OwnModel(copy.deepcopy(self.model).double()) if _is_small(self.model) else None

    def settled(self, start: int) -> bool:
        return all(mask.settled(start) for mask in self._masks)


@dataclass
class TransformersCache:
    """A transformers cache and the padding mask of all it has been given, which transformers wants each time."""

    held: Any
    mask: Tensor  # (B, tokens so far)


class TransformersModel(Subject):
    """A transformers causal language model."""

    def __init__(self, model: Any, new_cache: NewCache | None = None):
        name = type(model).__name__
        config = model.config.get_text_config(decoder=True)
        if model.config.is_encoder_decoder or not model.can_generate():
            raise BadInput(
                f"{name} is not a causal language model, the only kind of transformers model that check supports: "
                "wrap it in a callable (tokens, positions, cache) -> logits and pass vocab="
            )
        self.model, self._new_cache, self._config = model, new_cache, config
        takes = inspect.signature(model.forward).parameters
        self._cached, self._placed = "past_key_values" in takes, "position_ids" in takes
        self._open = any(taken.kind is taken.VAR_KEYWORD for taken in takes.values())
        settings = config.to_dict()
        limit, original = (
            settings.get("max_position_embeddings", settings.get("n_positions")),
            _original_length(settings),
        )
        self.facts = ModelFacts(
            name=name,
            vocab=config.vocab_size,
            device=model.device,
            limit=None if limit == original else limit,  # dynamic NTK goes on past it
            windows=_windows_of(settings, config.num_hidden_layers),
            original=original,
            places_apart=self._placed,
            reads_positions=self._placed,
        )

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        mask = torch.ones_like(tokens) if positions is None else (positions >= 0).to(tokens)
        if cache is not None:
            cache.mask = mask = torch.cat([cache.mask, mask], 1)
            arguments["past_key_values"] = cache.held
        if positions is not None and self._placed:
            arguments["position_ids"] = positions.clamp_min(0)
        return self.model(input_ids=tokens, attention_mask=mask, **arguments).logits

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        return self.run(tokens, positions, cache)  # its masks count places anyway

    def packings(self) -> tuple[str, ...]:
        ways = (RESTARTING,) * self._placed + (COLLATED,) * self._open
        if not ways:
            raise NotApplicable(
                f"{self.facts.name} takes neither position_ids nor other keywords: nothing marks documents"
            )
        return ways

    def packed(self, tokens: Tensor, where: Positions, way: str) -> Tensor:
        places = where.pos.to(tokens)
        rows = zip(tokens.split(1), places.split(1), strict=True)  # packed rows of transformers come one by one
        marked = torch.cat([self._packed_row(row, pos, way) for row, pos in rows])
        # a mask, even one of ones, says that rows are not packed (transformers' masking_utils)
        arguments = {"position_ids": places} if self._placed else {}
        unmarked = self.model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **arguments
        ).logits
        if (marked - unmarked).abs().max() <= UNREAD * torch.finfo(marked.dtype).eps * marked.abs().max():
            raise NotApplicable(f"it does not read {way} as documents")
        return marked

    def _packed_row(self, tokens: Tensor, pos: Tensor, way: str) -> Tensor:
        arguments: dict[str, Any] = {"position_ids": pos} if self._placed else {}
        if way == COLLATED:
            arguments |= _flattening(pos)
        try:
            return self.model(input_ids=tokens, use_cache=False, **arguments).logits
        except (NotImplementedError, ValueError) as why:  # how transformers says that it cannot
            raise NotApplicable(f"it refuses {way}: {_first_line(why)}") from why

    def new_cache(self, batch: int, *, length: int | None = None) -> TransformersCache:
        if not self._cached:
            raise NotApplicable(f"{self.facts.name} takes no past_key_values")
        if self._new_cache is None:
            held = sys.modules["transformers"].DynamicCache(config=self._config)
        else:
            held = self._new_cache(batch)
        return TransformersCache(held, torch.ones((batch, 0), dtype=torch.long, device=self.facts.device))

    def crop(self, cache: TransformersCache, to: int) -> None:
        gone = cache.mask.shape[1] - to
        try:
            cache.held.crop(-gone)
        except (NotImplementedError, RuntimeError, ValueError) as why:  # how transformers says that it cannot
            raise NotApplicable(f"this cache does not go back: {_first_line(why)}") from why
        cache.mask = cache.mask[:, :to]

    def fork(self, cache: TransformersCache) -> TransformersCache:
        return TransformersCache(copy.deepcopy(cache.held), cache.mask)

    def doubled(self) -> TransformersModel | None:
        return TransformersModel(copy.deepcopy(self.model).double()) if _is_small(self.model) else None

    def settled(self, start: int) -> bool:
        return True


def _reads_documents(mask: Mask) -> bool:
    """Whether it shows something else once tokens are of several documents."""
    documents = Positions.packed([[2, 2, 2]])
    one = Positions.of(documents.order)
    shown = [mask(*where.against(where).places()).expand(1, 1, 6, 6) for where in (one, documents)]
    return not torch.equal(*shown)


def _flattening(pos: Tensor) -> dict[str, Any]:
    """The keywords of transformers' DataCollatorWithFlattening for a row (1, T) whose documents begin at 0."""
    starts = (pos[0] == 0).nonzero()[:, 0]
    ends = torch.cat([starts, starts.new_tensor([pos.shape[1]])]).int()
    longest = int(ends.diff().max())
    return {
        "seq_idx": (pos == 0).cumsum(1).int() - 1,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _window(mask: Mask) -> int | None:
    """The window of a mask that is a plain window, causal or not."""
    plain = all(isinstance(term, Causal | Window | SameSegment | Everything) for term in conjuncts(mask))
    return min(windows(mask), default=None) if plain else None


def _windows_of(config: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    n, kinds = config.get("sliding_window"), config.get("layer_types")
    if n is None:
        return ()
    windows = (n,) * layers if kinds is None else tuple(n if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else ()


def _original_length(config: dict[str, Any]) -> int | None:
    """The length past which dynamic NTK or LongRoPE changes; layers may differ (nested parameters)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    every = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    lengths = []
    for rule in every:
        kind = rule.get("rope_type", rule.get("type"))
        if kind == "dynamic":  # it reads nothing else
            lengths.append(config["max_position_embeddings"])
        elif kind == "longrope":
            lengths.append(rule.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    return min(lengths, default=None)


def _is_small(model: nn.Module) -> bool:
    """Whether a copy in float64 is cheap, and possible: Apple's GPUs have none."""
    weights = list(model.parameters())
    return sum(p.numel() for p in weights) <= MAX_COPIED_PARAMETERS and all(p.device.type != "mps" for p in weights)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
