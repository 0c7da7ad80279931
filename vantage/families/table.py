"""docs/families.md: what each system is, read off the spec that its family makes of a published config.

    python -m vantage.families.table > docs/families.md

The published sizes are in ``published.toml``. Nothing else in the table is typed by hand.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch

from vantage.checkpoints.config import Config
from vantage.families import family_of
from vantage.model.summary import brief, describe
from vantage.spec.attention import DescribesHeads
from vantage.spec.masks import Mask
from vantage.spec.model import AttentionConfig, CacheShape, Layer, ModelSpec, Parallel

HALF_BYTES = 2  # bytes of a number in float16 or bfloat16
HEAD = """\
# Families

What Vantage loads, and three systems whose weights were never published (GPT-3, Gopher, PaLM). This file is generated
from the families (`python -m vantage.families.table > docs/families.md`): each row is read off the `ModelSpec` that
the family makes of the published config of one size, listed below.

Where layers differ, their number stands in front. Heads are query / key-value heads times their width; masks also keep
documents apart. Cache bytes are those of one token in all layers, in float16 or bfloat16; what layers keep whatever the
length of a text is counted once. The test compares logits (an encoder's outputs) with transformers, or with the paper's
equations where transformers has no such model.

"""


@dataclass(frozen=True)
class System:
    """A published size of a system."""

    name: str
    size: str
    source: str
    test: str
    config: dict[str, Any]
    holds: tuple[str, ...] = field(default=())
    note: str = ""

    def spec(self) -> ModelSpec:
        """As ``load`` would read it: a key that the family does not know is refused."""
        config, family = Config(self.config, tensors=self.holds), family_of(self.config)
        spec = family.spec(config)
        family.links(config, spec)
        config.settle()
        return spec


def systems() -> list[System]:
    text = Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    return [System(**entry) for entry in tomllib.loads(text)["system"]]


# ---- the columns


def position(spec: ModelSpec) -> str:
    def of(layer: Layer) -> str:
        shape, parts = layer.attention.shape(spec.width), [*layer.qk, layer.bias, layer.value_bias]
        words = ", then ".join(describe(part) for part in parts if part is not None)
        decoupled = words and shape.rotary_dim < shape.key_dim
        return f"{words} (on {shape.rotary_dim} of {shape.key_dim} dimensions)" if decoupled else words

    inputs = [describe(part) for part in spec.embedding.inputs]
    layers = by_layer(spec, of)
    return "; ".join([*inputs, *([layers] if layers else [])]) or "none"


def attention(spec: ModelSpec) -> str:
    def of(layer: Layer) -> str:
        heads, *scores = _describe_heads(layer.attention, spec.width)
        beside = [*layer.output, *(() if layer.indexer is None else (layer.indexer,))]
        shared = [] if layer.source is None else ["keys of an earlier layer"]
        return ", ".join([heads, sees(layer.mask), *scores, *(describe(part) for part in beside), *shared])

    crossed = "; cross-attention" if any(layer.cross for layer in spec.layers) else ""
    return by_layer(spec, of) + crossed + ("" if spec.vision is None else f"; {tower(spec.vision.encoder)}")


def tower(spec: ModelSpec) -> str:
    """The vision tower of a model, in a few words."""
    return f"vision tower of {len(spec.layers)} layers: {position(spec)}, {attention(spec)}"


def _describe_heads(config: AttentionConfig, width: int) -> tuple[str, ...]:
    return config.describe(width) if isinstance(config, DescribesHeads) else (brief(config),)


def sees(mask: Mask) -> str:
    """The mask without what every mask has: documents are kept apart."""
    names = [name for name in repr(mask).replace("n=", "").replace("()", "").split(" & ") if name != "SameSegment"]
    return " & ".join(names) or "Everything"


def norm(spec: ModelSpec) -> str:
    def of(layer: Layer) -> str:
        name, wiring = type(layer.norm).__name__, layer.wiring
        if isinstance(wiring, Parallel):
            return f"{name}, {wiring.norms} before parts side by side"
        places = {"before": wiring.before, "after": wiring.after, "after the sum": wiring.outer}
        return f"{name} {' and '.join(place for place, used in places.items() if used)}"

    return by_layer(spec, of) + ("" if spec.altup is None else f"; {spec.altup.describe()}")


def feed_forward(spec: ModelSpec) -> str:
    return by_layer(spec, lambda layer: describe(layer.ffn))


def cache_bytes(spec: ModelSpec) -> str:
    """Of one token in all layers. Who lets tokens see later ones keeps nothing: there are no steps."""
    if not all(layer.mask.extendable for layer in spec.layers):
        return "none: every token sees all"
    sizes = [(bytes_kept(shape), mask.reach()) for shape, mask in spec.caches]
    total, limits = sum(size for size, _ in sizes), sorted({reach for _, reach in sizes if reach is not None})
    words = [f"{total:,}"]
    for limit in limits:
        part = sum(size for size, reach in sizes if reach == limit)
        words.append(f"{'all' if part == total else f'{part:,}'} of it for {limit:,} tokens at most")
    across = sum(bytes_kept(layer.cross.cache_shape(spec.width)) for layer in spec.layers if layer.cross is not None)
    state = sum(bytes_of_states(shape) for shape, _ in spec.caches)
    words += [f"and {across:,} for each source token"] if across else []
    return ", ".join([*words, *([f"and {state:,} once for each text"] if state else [])])


def bytes_kept(kept: CacheShape) -> int:
    beside = sum(s.heads * s.width * s.dtype(torch.float16).itemsize for s in kept.streams)
    return HALF_BYTES * kept.kv_heads * (kept.key_dim + (0 if kept.single else kept.value_dim)) + beside


def bytes_of_states(kept: CacheShape) -> int:
    return sum(prod(state.shape) * state.dtype(torch.float16).itemsize for state in kept.states)


def by_layer(spec: ModelSpec, of: Callable[[Layer], str]) -> str:
    """What all layers have in common, or how many have which."""
    counts = Counter(of(layer) for layer in spec.layers)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{n} × {words or 'no position'}" for words, n in counts.items())


# ---- the page


COLUMNS: dict[str, Callable[[ModelSpec], str]] = {
    "position": position,
    "attention": attention,
    "norm": norm,
    "feed-forward": feed_forward,
    "cache bytes a token": cache_bytes,
}


def page() -> str:
    published = systems()
    rows = [["system", *COLUMNS, "test"]]
    for system in published:
        spec = system.spec()
        cells = [column(spec) for column in COLUMNS.values()]
        rows.append([f"{system.name} ({system.size})", *cells, f"`{system.test}`"])
    sizes = [["system", "family", "the size is that of"]]
    for system in published:
        source = f"{system.source}. {system.note}" if system.note else system.source
        sizes.append([system.name, f"`{system.config['model_type']}`", source])
    return f"{HEAD}{grid(rows)}\n## Where the sizes are from\n\n{grid(sizes)}"


def grid(rows: Iterable[list[str]]) -> str:
    """A Markdown table; the first row is its head."""
    first, *rest = rows
    lines = [first, ["---"] * len(first), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
