"""How many operations each part of a pass takes (A16), from the spec alone.

Operations of matrix products are counted, two for a multiply and an add, as torch's FlopCounter counts them with the
reference kernel: every query against every key it is given, hidden or not. Norms, activations and softmax are not
products and not counted. ``tests/inspect/test_cost.py`` holds every formula to that counter, exactly.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vantage.model import Model
from vantage.model.altup import StreamsEnd
from vantage.model.pooling import First, Pooler
from vantage.spec.abilities import MultipliesMatrices
from vantage.spec.attention import CountsOperations, MakesKeys, attentions
from vantage.spec.model import Layer
from vantage.spec.operations import AttentionWork, PassSize, linear_operations
from vantage.spec.parts import Shape

PARTS = ("embedding", "projections", "scores", "position", "weighted sum", "output", "feed-forward", "head")


def attention(module: Any, layer: Layer, shape: Shape, size: PassSize, keys: int) -> dict[str, int]:
    """One attention over so many keys: projections, scores, weighted sum, output, and what position multiplies."""
    counts = isinstance(module, CountsOperations)
    width = module.score_width(size.queries, keys) if counts else shape.key_dim
    work = AttentionWork(shape, size, _given(module, size.queries, keys), width)
    parts = module.operations(work) if counts else {}
    if not module.crosses:
        acting = (part for part in (layer.bias, layer.value_bias, *layer.qk) if part is not None)
        if indexing := _multiplied(layer.indexer, work):
            parts["scores"] = parts.get("scores", 0) + indexing
        parts["position"] = sum(_multiplied(part, work) for part in acting)
    return parts


def _multiplied(part: object, work: AttentionWork) -> int:
    """What a part of a layer multiplies; none where it does not say."""
    return part.operations(work) if isinstance(part, MultipliesMatrices) else 0


def _given(module: Any, queries: int, keys: int) -> int:
    """Keys of the kernel, of those that are kept."""
    return module.keys_given(queries, keys) if isinstance(module, MakesKeys) else keys


def head(model: Model, size: PassSize) -> int:
    config = model.spec.head
    if config is None:
        return 0
    module: Any = model.head
    one_a_row = isinstance(config.transform, (First, Pooler))
    tokens = size.batch if one_a_row else size.tokens
    linears = sum(linear_operations(m, tokens) for m in (module.linear, *_linears(module.transform)))
    return linears + (model.norm.operations(tokens) if isinstance(model.norm, StreamsEnd) else 0)


def embedding(model: Model, size: PassSize) -> int:
    embed: Any = model.embed
    total = linear_operations(embed.project, size.tokens)
    total += 0 if embed.streams is None else embed.streams.operations(size.tokens)
    if model.spec.embedding.source is not None:  # patches: a convolution, all but the class token
        total += 2 * embed.tokens.weight.numel() * size.batch * (size.queries - 1)
    return total


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def uncounted(block: nn.Module, layer: Layer) -> list[str]:
    """Parts of a layer that do not say what they multiply, or that are not ours."""
    parts = [layer.bias, layer.value_bias, layer.indexer, *layer.qk]
    silent = [p for p in parts if p is not None and not isinstance(p, MultipliesMatrices)]
    odd = [p for p in silent if not type(p).__module__.startswith("vantage.")]
    return [type(p).__name__ for p in [*odd, *(m for m in attentions(block) if not isinstance(m, CountsOperations))]]
