"""Links that many families share: linear maps and norms by module, attention's joined projections, gated layers."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.checkpoints.links import Joined, Link, same
from vantage.model.feed_forward import FeedForward
from vantage.spec.parts import Shape


def modules(names: dict[str, str], *, bias: bool = True) -> list[Link]:
    """Linear maps or norms, ours to theirs: the weight of each, and its bias."""
    return same({f"{our}.{kind}": f"{their}.{kind}" for kind in kinds(bias) for our, their in names.items()})


def joined(our: str, their: Sequence[str], sizes: Sequence[int], *, bias: bool = True) -> list[Link]:
    """One linear map of ours that is several of theirs."""
    return [Joined(f"{our}.{kind}", tuple(f"{name}.{kind}" for name in their), tuple(sizes)) for kind in kinds(bias)]


def self_attention(
    our: str, q: str, k: str, v: str, out: str, shape: Shape, *, bias: bool = True, out_bias: bool | None = None
) -> list[Link]:
    """``bias`` is that of q, k and v, and of the output map unless ``out_bias`` says otherwise."""
    sizes = (shape.heads * shape.key_dim, shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim)
    last = modules({f"{our}.out": out}, bias=bias if out_bias is None else out_bias)
    return [*joined(f"{our}.qkv", (q, k, v), sizes, bias=bias), *last]


def cross_attention(our: str, q: str, k: str, v: str, out: str, shape: Shape, *, bias: bool = True) -> list[Link]:
    """The same for attention to an encoder's output: k and v are one map."""
    sizes = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim)
    return [*joined(f"{our}.kv", (k, v), sizes, bias=bias), *modules({f"{our}.q": q, f"{our}.out": out}, bias=bias)]


def gated_links(our: str, theirs: str, ffn: object) -> list[Link]:
    """``our`` is the place inside the block's second part ("" for the part itself); gate and up are stored apart."""
    assert isinstance(ffn, FeedForward)
    ours, pair = f"blocks.{{i}}.steps.1.sublayer{our}", (f"{theirs}.gate_proj", f"{theirs}.up_proj")
    return [
        *joined(f"{ours}.gate_up", pair, (ffn.hidden, ffn.hidden), bias=ffn.bias),
        *modules({f"{ours}.down": f"{theirs}.down_proj"}, bias=ffn.bias),
    ]


def in_language_model(name: str) -> str:
    """A tensor of a text model by the name it has in a model that reads images as well."""
    return f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name


def kinds(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)
