"""Links that many tables are made of: linear maps and norms by module, and attention's joined projections."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.checkpoints.links import Joined, Link, same
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


def kinds(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)
