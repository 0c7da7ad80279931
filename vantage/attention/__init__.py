"""Attention modules. Each reads like its formula; position, cache and kernel are handed in."""

from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.attention.latent import Latent, LatentAttention
from vantage.attention.qk import LengthTemperature, QKNorm
from vantage.attention.recurrent import Additive, Dot, General, RecurrentAttention
from vantage.attention.scorer import NoBias

__all__ = [
    "Additive",
    "Dot",
    "General",
    "GroupedQuery",
    "GroupedQueryAttention",
    "Latent",
    "LatentAttention",
    "LengthTemperature",
    "NoBias",
    "QKNorm",
    "RecurrentAttention",
]
