"""DeepSeek-V3.2: V3 whose queries attend to the keys that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import Latent, TopKIndexer
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.errors import CheckpointError
from vantage.families import deepseek_v2, llama_layout
from vantage.families.common import rope
from vantage.families.deepseek_v2 import OURS, THEIRS
from vantage.families.deepseek_v3 import router
from vantage.families.family import Family
from vantage.families.module_links import modules
from vantage.spec.model import ModelSpec

DENSE = 3  # layers without experts, where the config does not say
SPARSE = {"indexed_attention", "deepseek_sparse_attention"}  # the name now, and before


def spec(c: Config) -> ModelSpec:
    decoder, indexer = model(c, pairing="halves")
    return replace(decoder, layers=tuple(replace(layer, indexer=indexer) for layer in decoder.layers))


def model(c: Config, *, pairing: str) -> tuple[ModelSpec, TopKIndexer]:
    """The model without its indexers, and what those are. ``pairing`` is theirs: attention itself pairs neighbours."""
    c.must_be("rope_interleave", True)
    c.inert("mlp_bias")  # no layer reads it
    n, turn = llama_layout.count(c), rope(c, pairing="adjacent")
    for kind in c.names("layer_types", ()):
        if kind not in SPARSE:
            raise CheckpointError(f"config.json: layer_types holds {kind!r}; wanted 'indexed_attention'")
    decoder = deepseek_v2.model(c, turn, router(c), mlp_bias=False, experts_in=experts_in(c, n))
    attention = decoder.layers[0].attention
    assert isinstance(attention, Latent)
    if attention.q_rank is None:
        raise CheckpointError("config.json: q_lora_rank is null, and the indexer's queries are made of that form")
    width = c.whole("index_head_dim", 128, low=1)
    indexer = TopKIndexer(
        c.whole("index_topk", 2048, low=1),
        c.whole("index_n_heads", low=1),
        width,
        (replace(turn, pairing=pairing, share=attention.rope_dim / width),),
        attention.q_rank,
    )
    return decoder, indexer


def experts_in(c: Config, n: int) -> list[bool]:
    """Which layers have experts."""
    first = c.whole("first_k_dense_replace", DENSE)
    kinds = c.names("mlp_layer_types", tuple("sparse" if i >= first else "dense" for i in range(n)))
    if len(kinds) != n or not set(kinds) <= {"dense", "sparse"}:
        raise CheckpointError(f"config.json: mlp_layer_types is {kinds}; wanted 'dense' or 'sparse' for {n} layers")
    return [kind == "sparse" for kind in kinds]


def links(c: Config, spec: ModelSpec) -> list[Link]:
    own = [i for i, layer in enumerate(spec.layers) if isinstance(layer.indexer, TopKIndexer)]
    return [*deepseek_v2.links(c, spec), *each(own, indexer_links())]


def indexer_links() -> list[Link]:
    ours, theirs = f"{OURS}.0.sublayer.scorer.indexer", f"{THEIRS}.self_attn.indexer"
    maps = {f"{ours}.q": f"{theirs}.wq_b", f"{ours}.k": f"{theirs}.wk", f"{ours}.weights": f"{theirs}.weights_proj"}
    return [*modules(maps, bias=False), *modules({f"{ours}.k_norm": f"{theirs}.k_norm"})]


# layer 61 of the published checkpoint, behind the last (60), is the drafting layer
FAMILY = Family(
    "deepseek_v32",
    spec,
    links,
    ignored=("rotary_emb.inv_freq", "model.layers.61."),
    wide=("e_score_correction_bias",),
    wide_in_float16=("weights_proj",),
)
