"""What decoder families in LLaMA's layout read alike: attention, feed-forward, windows by layer, experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.errors import CheckpointError
from vantage.families import llama
from vantage.families.common import ACTIVATIONS
from vantage.families.layer_parts import dense_feed_forward, experts_of
from vantage.model.feed_forward import FeedForward
from vantage.spec.masks import Causal, Mask, SameSegment, Window
from vantage.spec.model import Embedding, Head, Layer, ModelSpec, NormConfig, Scores

FULL, SLIDING = "full_attention", "sliding_attention"  # as ``layer_types`` says it


def attention(
    c: Config,
    *,
    bias: bool = False,
    out_bias: bool = False,
    head_dim: int | None = None,
    scores: Scores = Scores(),
) -> GroupedQuery:
    heads = c.whole("num_attention_heads", low=1)
    return GroupedQuery(
        heads,
        c.whole("num_key_value_heads", heads, low=1),
        c.whole("head_dim", head_dim, low=1),
        bias=bias,
        out_bias=out_bias,
        scores=replace(scores, dropout=c.number("attention_dropout", 0.0)),
    )


def feed_forward(c: Config, size: str = "intermediate_size", *, bias: bool = False) -> FeedForward:
    return FeedForward(c.whole(size, low=1), c.choice("hidden_act", ACTIVATIONS, "silu"), bias=bias)


def model(
    c: Config,
    layers: Sequence[Layer],
    norm: NormConfig,
    *,
    tied: bool = False,
    embedding: Embedding = Embedding(),
    softcap: float | None = None,
    scale: float = 1.0,
) -> ModelSpec:
    """The whole around the layers. ``tied`` is what the family does when its config is silent."""
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        tuple(layers),
        embedding=embedding,
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", tied), scale=scale, softcap=softcap),
        max_length=c.whole("max_position_embeddings", None, low=1),
    )


# ---- which layers see how far


def count(c: Config) -> int:
    return c.whole("num_hidden_layers", low=1)


def window(c: Config, *, used: bool = True, silent: int | None = None) -> int | None:
    """The width of sliding layers: ``silent`` where the key is missing, none where it is null.

    ``used``: a family may have a switch that says whether there is a window at all.
    """
    width = c.whole("sliding_window", None if c.says("sliding_window") else silent, low=1)
    return width if used else None


def layer_types(c: Config, silent: Sequence[str], known: Sequence[str] = (FULL, SLIDING)) -> tuple[str, ...]:
    """What each layer is, or ``silent`` where the config does not say."""
    kinds = c.names("layer_types", tuple(silent))
    for kind in kinds:
        if kind not in known:
            wanted = " or ".join(map(repr, known))
            raise CheckpointError(f"config.json: layer_types holds {kind!r}; wanted {wanted}")
    if len(kinds) != len(silent):
        raise CheckpointError(f"config.json: layer_types names {len(kinds)} layers, num_hidden_layers is {len(silent)}")
    return kinds


def masks(kinds: Sequence[str], width: int | None) -> tuple[Mask, ...]:
    """The mask of each layer."""
    if SLIDING in kinds and width is None:
        raise CheckpointError("config.json: a layer is 'sliding_attention' and no sliding_window is in use")
    return tuple(mask(width if kind == SLIDING else None) for kind in kinds)


def mask(width: int | None) -> Mask:
    return Causal() & SameSegment() if width is None else Causal() & Window(width) & SameSegment()


# ---- links


def qk_norm_links() -> list[Link]:
    """Norms of queries and keys, the first of the layer's q/k transforms."""
    ours, theirs = "blocks.{i}.steps.0.sublayer.qk.0", "model.layers.{i}.self_attn"
    return same({f"{ours}.{x}_norm.weight": f"{theirs}.{x}_norm.weight" for x in "qk"})


def feed_forward_links(layer: Layer) -> list[Link]:
    """A dense layer among others that have experts."""
    return llama.gated(dense_feed_forward(layer).hidden, "weight")


def expert_links(layer: Layer, theirs: str, names: tuple[str, str, str]) -> list[Link]:
    """A router and experts stored one by one; ``names`` are those of gate, up and down."""
    ffn = experts_of(layer)
    assert isinstance(ffn.expert, FeedForward)
    ours, hidden = "blocks.{i}.steps.1.sublayer", ffn.expert.hidden
    gate, up, down = (f"{theirs}.experts.{{e}}.{name}.weight" for name in names)
    expert = [
        Joined(f"{ours}.experts.{{e}}.gate_up.weight", (gate, up), (hidden, hidden)),
        *same({f"{ours}.experts.{{e}}.down.weight": down}),
    ]
    return [*same({f"{ours}.router.linear.weight": f"{theirs}.gate.weight"}), *each(ffn.count, expert, "e")]
