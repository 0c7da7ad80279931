"""The model: embed, blocks, norm, head. Everything that can be exchanged was exchanged before it gets here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vantage.cache import ROUNDING, CacheKind, ModelCache, make_cache
from vantage.errors import BadInput, Refused
from vantage.kernels import chooser
from vantage.model.assemble import assemble_blocks, assemble_embedding, assemble_last_norm, check_buffers
from vantage.model.ends import Unembed
from vantage.model.layer_caches import LayerCaches, cache_plans
from vantage.model.lowered import NATIVE, WholeSteps
from vantage.model.packed import PackedWeight
from vantage.model.part_errors import name_failed_part
from vantage.model.pass_inputs import (
    check_images,
    check_mask,
    check_source,
    declared_length,
    for_rows,
    in_pieces,
    next_positions,
)
from vantage.model.placement import AllOnDevice, Placement
from vantage.model.pooling import NoPooler
from vantage.spec.images import ImageTokens
from vantage.spec.model import ModelKind, ModelSpec
from vantage.spec.parts import Attended, Cache, Context, EncoderOutput, Kernel, Need, View
from vantage.spec.positions import Positions
from vantage.spec.sampling import PendingSteps, RowChoice

Watch = Callable[[str, int, View, Need, Attended], None]


class Model(nn.Module):
    """A decoder, an encoder, or (with ``spec.encoder``) both."""

    def __init__(self, spec: ModelSpec, *, kernel: str | Kernel = "auto"):
        super().__init__()
        self.spec = spec
        self.tokenizer: Any = None
        self.image_processor: Any = None  # where there is a tower, what prepares images for it
        self.config: dict[str, Any] | None = None  # of the checkpoint it came from
        self.kernel = kernel
        self.placement: Placement = AllOnDevice()  # where layers lie that memory does not hold
        self.parallel: Any = None  # the ``TensorParallel`` that this is a share of, where other processes have the rest
        self._owner = object()  # caches remember whose keys they hold
        self.encoder = None if spec.encoder is None else Model(spec.encoder, kernel=kernel)
        self.vision = None if spec.vision is None else spec.vision.build(spec.width, kernel)
        shared: dict[Any, nn.Module] = {}
        self.embed = assemble_embedding(spec, shared)
        if self.encoder is not None and spec.embedding.shared:
            self.encoder.embed.tokens = self.embed.tokens
        self.blocks = assemble_blocks(spec, shared)
        self._kv_dtype: str | None = "auto"
        self.fast = False  # whether native code may compute a prompt sooner, and not to the bits of its steps
        self._layer_caches = LayerCaches(spec)
        self.norm = assemble_last_norm(spec)
        self.head = (
            nn.Identity() if spec.head is None else Unembed(spec.head, spec.vocab, spec.width, self.embed.tokens)
        )
        # for who wants one vector a row: model.pooler(model.hidden(tokens))
        self.pooler = NoPooler() if spec.pooler is None else spec.pooler.build(spec.width, spec.width)
        check_buffers(self)

    @property
    def kernel(self) -> str | Kernel:
        """Which kernel runs: "auto", a name, or an object. Can be set at any time."""
        return self._kernel

    @kernel.setter
    def kernel(self, kernel: str | Kernel) -> None:
        self._choose = chooser("auto" if kernel == NATIVE else kernel)
        self._kernel = kernel
        self.whole_steps = WholeSteps(kernel)

    @property
    def kv_dtype(self) -> str | None:
        """The precision that keys and values are read in, from a cache or without one: "float16", "int8" (with a scale
        for each token and head), or ``None`` for the model's own. Can be set at any time, for caches made from then on;
        "auto", as at first, is float16 with packed weights on a CPU."""
        if self._kv_dtype == "auto":
            packed = isinstance(self.embed.tokens.weight, PackedWeight) and self.device.type == "cpu"
            return "float16" if packed and self.causal else None
        return self._kv_dtype

    @kv_dtype.setter
    def kv_dtype(self, kv_dtype: str | None) -> None:
        if kv_dtype not in ("auto", None, *ROUNDING):
            known = ", ".join(f'"{name}"' for name in ROUNDING)
            raise BadInput(f'kv_dtype={kv_dtype!r}: give {known}, "auto", or None for the model\'s own')
        self._kv_dtype = kv_dtype

    # ---- what everybody asks of a model

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.embed.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes and caches in. Packed weights compute in float32 on a CPU, in bfloat16 on a GPU."""
        return self.embed.tokens.weight.dtype

    @property
    def kind(self) -> ModelKind:
        """ "decoder", "encoder" or "encoder-decoder"."""
        return self.spec.kind

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return self.spec.causal

    @property
    def generates(self) -> bool:
        """Whether it can go on from its own output."""
        return self.spec.generates

    @property
    def max_positions(self) -> int | None:
        """How many positions it has at all, where a table ends; ``None``: no end."""
        return self.spec.max_positions

    @property
    def context_length(self) -> int | None:
        """The longest text it was made for; ``None``: it does not say."""
        return self.spec.context_length

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Model:
        if self.placement.layers:
            raise Refused(
                "a model whose layers are kept off the device (max_memory) cannot be moved or cast: load it so"
            )
        return super()._apply(fn, recurse)

    # ---- running

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Positions | Tensor | None = None,
        cache: ModelCache | None = None,
        mask: Tensor | None = None,
        length: int | None = None,
        source: Tensor | EncoderOutput | None = None,
        types: Tensor | None = None,
        images: ImageTokens | None = None,
    ) -> Tensor:
        """Tokens (B, T) to logits (B, T, V); to hidden states (B, T, D) for a model without a head.

        ``mask`` is a padding mask (B, T) of these tokens, ``types`` their token types (none: all 0).
        ``source`` is what an encoder-decoder reads: tokens, or what ``encode`` returned; once a cache
        holds it, leave it out. A model of images takes those (B, C, H, W) in the place of tokens; ``images`` are those
        in a text, as ``model.vision`` gives them.
        """
        inputs: dict[str, Any] = {"positions": positions, "mask": mask, "length": length}
        inputs |= {"source": source, "types": types, "images": images}
        if cache is not None and torch.compiler.is_compiling():
            from vantage.model.compiled_step import compiled_logits

            return compiled_logits(self, tokens, cache, **inputs)
        plain = mask is None and source is None and types is None and images is None
        if cache is not None and tokens.shape[-1] == 1 and plain:
            step = self.step_on_gpu(tokens, positions, cache, length)
            if step is not None:
                return step
        hidden = self.hidden(tokens, cache=cache, **inputs)
        logits = self.whole_steps.logits(hidden)
        return self.head(hidden) if logits is None else logits

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Positions | Tensor | None = None,
        cache: ModelCache | None = None,
        mask: Tensor | None = None,
        length: int | None = None,
        source: Tensor | EncoderOutput | None = None,
        types: Tensor | None = None,
        images: ImageTokens | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """The last hidden states (B, T, D), normed, before the head."""
        arguments = (tokens, positions, cache, mask, length, source, types, images, watch)
        if torch.compiler.is_compiling():  # a compiler need not see what happens to errors
            return self._hidden(*arguments)
        try:
            return self._hidden(*arguments)
        except Exception as error:
            name_failed_part(self, error)
            raise

    def _hidden(
        self,
        tokens: Tensor,
        positions: Positions | Tensor | None,
        cache: ModelCache | None,
        mask: Tensor | None,
        length: int | None,
        source: Tensor | EncoderOutput | None,
        types: Tensor | None,
        images: ImageTokens | None,
        watch: Watch | None,
    ) -> Tensor:
        self.embed.tokens.check(tokens)
        pos = self.place(tokens, positions, cache, mask, length)
        memory = self.encode(source) if isinstance(source, Tensor) else source
        check_source(memory, cache, len(tokens), reads=self.encoder is not None)
        check_images(images, pos, reads=self.vision is not None)
        if cache is not None and cache.widest(pos) < pos.shape[1]:
            pieces = in_pieces(tokens, pos, cache, memory, types, images, watch)
            return torch.cat([self._hidden(*inputs) for inputs in pieces], 1)
        if cache is None and watch is None and self.whole_steps.prefers(self):
            cache = self._one_pass(pos)
        with contextlib.nullcontext() if cache is None else cache.step(pos):
            ctx = self.context(pos, cache, memory, watch, images)
            x = self.embed(tokens, pos, types)
            x = x if images is None else images.put(x)
            whole = cache if watch is None and (images is None or not images.features.deep) else None
            done = None if whole is None else self.whole_steps.hidden(self, x, pos, whole)
            if done is not None:
                return done
            with self.whole_steps.by_modules(asked=whole is not None):
                return self.run(x, ctx)

    def run(self, x_BTD: Tensor, ctx: Context, first: int = 0) -> Tensor:
        """From what goes into layer ``first`` to the last hidden states (B, T, D), normed."""
        for i, block in enumerate(self.blocks[first:] if first else self.blocks, first):
            x_BTD = self.placement.run(i, block, x_BTD, ctx)
            x_BTD = x_BTD if ctx.images is None else ctx.images.after(i, x_BTD)
        return self.norm(x_BTD)

    def hidden_from(
        self, x_BTD: Tensor, layer: int, *, positions: Positions | None = None, source: EncoderOutput | None = None
    ) -> Tensor:
        """The last hidden states (B, T, D), normed, from what goes into a layer; no cache, no earlier layer."""
        for i, later in enumerate(self.spec.layers[layer:], layer):
            if later.source is not None and later.source < layer:
                raise Refused(f"layer {i} reads the keys of layer {later.source}: begin there, or at the embeddings")
        pos = Positions.arange(*x_BTD.shape[:2], device=x_BTD.device) if positions is None else positions
        check_source(source, None, len(x_BTD), reads=self.encoder is not None)
        return self.run(x_BTD, self.context(pos, None, source), layer)

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> EncoderOutput:
        """Run the encoder. ``mask`` is a padding mask (B, S)."""
        if self.encoder is None:
            raise BadInput("this model has no encoder: leave source out")
        self.encoder.embed.tokens.check(source)
        pos = self.encoder.place(source, None, None, mask, None)
        return EncoderOutput(self.encoder.hidden(source, positions=pos), pos)

    def _one_pass(self, pos: Positions) -> ModelCache | None:
        """A cache for this pass alone, where whole steps are the way to run and would take it."""
        plain = pos.known.first is not None and self.causal
        return self.new_cache(pos.shape[0], capacity=pos.shape[1], length=pos.length) if plain else None

    def steps_ahead(
        self,
        tokens: Sequence[int] | PendingSteps,
        caches: Sequence[ModelCache],
        steps: int,
        choices: Sequence[RowChoice],
    ) -> PendingSteps | None:
        """So many tokens for each row, each from the one before, chosen on the device; ``.read()`` waits for them.

        On a GPU steps are under way when this returns; on a CPU they are done, without Python in between. Every row has
        a cache of its own, all over one pool. ``tokens``: the last one of every row, or what an earlier call for the
        same rows returned, to go on from there. The caches hold all of them but the last at once. ``None`` comes back,
        and nothing has changed, where these rows, their caches or this model cannot.
        """
        if not self.whole_steps.runs_ahead(self):
            return None
        for cache in caches:
            cache.belongs_to(self._owner)
        return self.whole_steps.steps_ahead(self, tokens, caches, steps, choices)

    def step_on_gpu(
        self, tokens: Tensor, positions: Positions | Tensor | None, cache: ModelCache, length: int | None
    ) -> Tensor | None:
        """The logits of a step that runs as a graph, where it does."""
        if tokens.device.type != "cuda" or not self.whole_steps.runs_on_gpu(self):
            return None
        self.embed.tokens.check(tokens)
        pos = self.place(tokens, positions, cache, None, length)
        return self.whole_steps.step_on_gpu(self, tokens, pos, cache)

    # ---- caches

    def new_cache(
        self,
        batch: int = 1,
        *,
        kind: str | CacheKind = "contiguous",
        capacity: int | None = None,
        length: int | None = None,
        block: int | None = None,
        draft: int | None = None,
    ) -> ModelCache:
        """An empty cache for ``batch`` rows: "contiguous", "ring", "paged", "static", "quantised", "kivi",
        "sinks", "heavy-hitters", "tova", "snapkv", an object such as ``vt.SinkCache(4, 256)``, or a kind of your own.

        ``capacity`` fixes its size in tokens (default: it grows). ``length`` declares how long the
        context may become, for RoPE rules that depend on it; it holds for the cache's life. ``draft``
        is how many tokens a ring must be able to take back, ``block`` the tokens in a block of a paged cache.
        """
        plans, cross = cache_plans(self.spec)
        return make_cache(
            plans,
            cross=cross,
            batch=batch,
            kind=kind,
            capacity=capacity,
            length=self.spec.original_length if length is None else length,
            owner=self._owner,
            device=self.device,
            dtype=self.dtype,
            block=block,
            draft=draft,
            kv_dtype=self.kv_dtype,
        )

    def take_caches_of(self, other: Model) -> None:
        """Caches of the other, which has the same spec, fit this one from now on."""
        self._owner = other._owner

    @torch.no_grad()
    def grow(self, cache: ModelCache, tokens: Tensor, *, length: int, mask: Tensor | None = None) -> ModelCache:
        """A new cache for a longer declared length, with ``tokens`` (all so far) computed again.

        Where frequencies depend on the length nothing of the old cache can be kept: deeper layers'
        keys were computed from what earlier layers made of the old frequencies. ``recomputed``
        counts the tokens this has cost.
        """
        grown = cache.fresh(cache.batch)
        grown.length = length
        self.hidden(tokens, cache=grown, mask=mask)
        grown.recomputed = cache.recomputed + int(tokens.numel() if mask is None else mask.sum())
        return grown

    # ---- the rest of the surface

    def summary(self) -> str:
        """The parts, and how many parameters there are."""
        from vantage.model.summary import summary

        return summary(self, self.spec)

    def context(
        self,
        pos: Positions,
        cache: ModelCache | None,
        memory: EncoderOutput | None = None,
        watch: Watch | None = None,
        images: ImageTokens | None = None,
    ) -> Context:
        """What every layer of a pass gets besides its input."""
        if cache is None:
            caches = self._layer_caches.without_cache(self.kv_dtype, self.dtype)
        else:
            caches = self._layer_caches.of(cache.layers, cache.cross)
        return Context(pos, self._choose, *caches, memory=memory, watch=watch, images=images)

    def placed_context(self, pos: Positions, caches: Sequence[Cache]) -> Context:
        """The same for a step that has been placed: one cache for each layer that keeps something."""
        return Context(pos, self._choose, *self._layer_caches.of(caches))

    def place(
        self,
        tokens: Tensor,
        positions: Positions | Tensor | None,
        cache: ModelCache | None,
        mask: Tensor | None,
        length: int | None,
    ) -> Positions:
        """Where these tokens stand, checked against everything that was said about them."""
        size = self.embed.tokens.size(tokens)
        check_mask(mask, positions, size)
        if cache is not None:
            cache.belongs_to(self._owner)
            length = declared_length(cache, size[0], length)
        if positions is None:
            positions = next_positions(size, tokens.device, cache, mask)
            if self.training and self.spec.sampler is not None and cache is None:
                positions = self.spec.sampler.draw(positions)
        return for_rows(positions, size).to(tokens.device).declare(length)
