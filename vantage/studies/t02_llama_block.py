"""T2: LLaMA's block, put together again from its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.cache import NoCache
from vantage.checkpoints.config import Config
from vantage.families import family_of
from vantage.figures import Bars, Figure
from vantage.functional import apply_rope
from vantage.inspect.cost import parameters
from vantage.kernels import chooser
from vantage.model import Model, decoder
from vantage.spec.model import POST, ModelSpec
from vantage.spec.parts import Context
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import conclude, held, judged
from vantage.studies.shared.models import max_difference, random_normal, sharp_model
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB, WIDTH, HEADS, HIDDEN = 11, 32, 8, 64
ROUNDING, MATTERS = 1e-10, 1e-3
# What a LLaMA checkpoint says of itself, at a size that runs at once.
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
}


def run(values: Values, progress: Progress) -> Result:
    tokens, kv_heads = int(values["tokens"]), int(values["kv_heads"])
    spec = family_of(CONFIG).spec(Config({**CONFIG, "num_key_value_heads": kv_heads}))
    model = sharp_model(spec)
    x, pos = random_normal(2, tokens, WIDTH), Positions.arange(2, tokens)
    out = _block(model, x, pos)
    progress(0.3, "from its parts")
    error = max_difference(out, _composed(model, x, pos, kv_heads))
    progress(0.6, "without one of its parts")
    (layer,) = spec.layers
    ours = decoder(vocab=VOCAB, width=WIDTH, layers=1, heads=HEADS, kv_heads=kv_heads, ffn=layer.ffn)
    changed = {
        name: max_difference(out, _block(_with_weights(model, other), x, pos)) for name, other in _others(spec).items()
    }
    sizes = parameters(model)
    whole = GroupedQuery(HEADS, HEADS).cache_shape(WIDTH)
    kept = layer.attention.cache_shape(WIDTH)
    numbers = [
        held("the family's layer is that of vt.decoder, field by field", layer == ours.layers[0]),
        judged("largest difference from the parts put together by hand", error, error < ROUNDING),
        *(judged(f"the output changes {name} by", by, by > MATTERS) for name, by in changed.items()),
        judged(
            "key/value heads kept, of as many as there are queries",
            f"{kept.kv_heads} of {whole.kv_heads}",
            kept.kv_heads == kv_heads,
        ),
    ]
    progress(1.0, "done")
    words = TEXT.conclusion(kv_heads=kv_heads, heads=HEADS)
    return conclude(words, numbers, _figures(changed, sizes))


@torch.no_grad()
def _block(model: Model, x: Tensor, pos: Positions) -> Tensor:
    return model.blocks[0](x, Context(pos, chooser("reference"), (NoCache(),)))


@torch.no_grad()
def _composed(model: Model, x: Tensor, pos: Positions, kv_heads: int) -> Tensor:
    """The same weights through torch's own norm, attention and activation; the rotation is ``vt.functional``'s."""
    block: Any = model.blocks[0]
    first, second = block.steps
    attention, ffn = first.sublayer, second.sublayer
    wide = WIDTH // HEADS
    normed = F.rms_norm(x, (WIDTH,), first.before.weight, 1e-6)
    parts = F.linear(normed, attention.qkv.weight).split([WIDTH, kv_heads * wide, kv_heads * wide], -1)
    q, k, v = (part.unflatten(-1, (-1, wide)).transpose(1, 2) for part in parts)
    q, k = (apply_rope(part, pos.pos) for part in (q, k))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    h = x + F.linear(seen.transpose(1, 2).flatten(2), attention.out.weight)
    gate, up = F.linear(F.rms_norm(h, (WIDTH,), second.before.weight, 1e-6), ffn.gate_up.weight).chunk(2, -1)
    return h + F.linear(F.silu(gate) * up, ffn.down.weight)


def _others(spec: ModelSpec) -> dict[str, ModelSpec]:
    """The same model but for one thing that needs no other weights."""
    (layer,) = spec.layers
    ffn: Any = layer.ffn
    return {
        "without RoPE": replace(spec, layers=(replace(layer, qk=()),)),
        "with norms after the sums": replace(spec, layers=(replace(layer, wiring=POST),)),
        "with GELU for SiLU": replace(spec, layers=(replace(layer, ffn=replace(ffn, activation="gelu")),)),
    }


def _with_weights(model: Model, spec: ModelSpec) -> Model:
    """Another model with these weights. A norm that moved keeps its own."""
    other = sharp_model(spec)
    state = {name.replace(".before.", ".outer."): value for name, value in model.state_dict().items()}
    known = other.state_dict()
    state = {**model.state_dict(), **state}
    other.load_state_dict({name: state[name] for name in known})
    return other


def _figures(changed: dict[str, float], sizes: dict[str, int]) -> list[Figure]:
    inner = {name: n for name, n in sizes.items() if name in ("attention", "feed-forward", "norms")}
    return [
        Figure(
            "parts",
            TEXT.caption("parts"),
            (
                Bars(
                    "Another part, the same weights",
                    "largest change",
                    tuple(changed),
                    (("change", list(changed.values())),),
                ),
                Bars("Parameters of the block", "number", tuple(inner), (("parameters", list(inner.values())),)),
            ),
        )
    ]


STUDY = TEXT.study(
    "T2",
    run,
    (
        TEXT.parameter("tokens", 12, 2, 64),
        TEXT.parameter("kv_heads", "2", choices=("1", "2", "4", "8")),
    ),
    seconds=1.0,
)
