"""The parts of a layer as what a family's own ``spec`` has made them, for its table of weights."""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.model.experts import Experts
from vantage.model.feed_forward import FeedForward
from vantage.spec.model import Layer


def grouped_query(layer: Layer) -> GroupedQuery:
    assert isinstance(layer.attention, GroupedQuery), layer.attention
    return layer.attention


def dense_feed_forward(layer: Layer) -> FeedForward:
    assert isinstance(layer.ffn, FeedForward), layer.ffn
    return layer.ffn


def experts_of(layer: Layer) -> Experts:
    assert isinstance(layer.ffn, Experts), layer.ffn
    return layer.ffn
