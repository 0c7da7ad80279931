"""GLM-5: DeepSeek-V3.2's layers, where some attend to the keys that an earlier layer's indexer has chosen."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import SharedIndexer
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families.deepseek_v32 import links, model
from vantage.families.family import Family
from vantage.spec.model import ModelSpec

FULL, SHARED = "full", "shared"


def spec(c: Config) -> ModelSpec:
    decoder, indexer = model(c, pairing="adjacent")
    layers, last = [], None
    for i, (layer, kind) in enumerate(zip(decoder.layers, kinds(c, len(decoder.layers)), strict=True)):
        last = i if kind == FULL else last
        if last is None:
            raise CheckpointError("config.json: the first layer has no indexer, and no earlier one to follow")
        layers.append(replace(layer, indexer=indexer if kind == FULL else SharedIndexer(last)))
    return replace(decoder, layers=tuple(layers))


def kinds(c: Config, n: int) -> tuple[str, ...]:
    """Which layers choose for themselves: as listed, by a pattern of letters, or every so many."""
    every, before = max(c.whole("index_topk_freq", 1), 1), c.whole("index_skip_topk_offset", 2)
    types = tuple(FULL if max(i - before + 1, 0) % every == 0 else SHARED for i in range(n))
    if "index_topk_pattern" in c:
        letters: dict[str, str] = {"F": FULL, "S": SHARED}
        types = tuple(letters.get(letter, letter) for letter in map(str, c.plain("index_topk_pattern")))
    types = c.names("indexer_types", types)
    if len(types) != n or not set(types) <= {FULL, SHARED}:
        raise CheckpointError(f"config.json: the indexers are {types}; wanted 'full' or 'shared' for {n} layers")
    return types


# layer 78 of the published checkpoint, behind the last (77), is the drafting layer
FAMILY = Family(
    "glm_moe_dsa",
    spec,
    links,
    ignored=("rotary_emb.inv_freq", "model.layers.78."),
    wide=("e_score_correction_bias",),
    wide_in_float16=("weights_proj",),
)
