"""The links of a gated feed-forward layer, wherever in a block it stands."""

from __future__ import annotations

from vantage.checkpoints.links import Link
from vantage.families.tables import joined, modules
from vantage.model.feed_forward import FeedForward


def gated_links(our: str, theirs: str, ffn: object) -> list[Link]:
    """``our`` is the place inside the block's second part ("" for the part itself); gate and up are stored apart."""
    assert isinstance(ffn, FeedForward)
    ours, pair = f"blocks.{{i}}.steps.1.sublayer{our}", (f"{theirs}.gate_proj", f"{theirs}.up_proj")
    return [
        *joined(f"{ours}.gate_up", pair, (ffn.hidden, ffn.hidden), bias=ffn.bias),
        *modules({f"{ours}.down": f"{theirs}.down_proj"}, bias=ffn.bias),
    ]
