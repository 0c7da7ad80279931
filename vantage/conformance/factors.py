"""What the conformance matrix is made of: the parts, by name, and the combinations that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vantage.attention import GroupedQuery, Latent, QKNorm
from vantage.conformance.covering import Cell
from vantage.model.norms import RMSNorm
from vantage.position import (
    T5,
    Alibi,
    CoPE,
    Fire,
    Kerple,
    Learned,
    NoPE,
    Rope,
    Shaw,
    Shifted,
    Sinusoidal,
    TransformerXL,
    XPos,
    scaling,
)
from vantage.spec.masks import Causal, Chunked, Everything, Mask, Prefix, SameSegment, Window
from vantage.spec.model import AttentionConfig, Scores
from vantage.spec.parts import Argmax, Buildable, Encoding, Softmax

# Small, but past every threshold: rows are longer than the window, the chunk, the prefix, the T5
# buckets' exact range, Shaw's clip and the length up to which frequencies stay as they are.
WIDTH, HEADS, HEAD_DIM, LAYERS, VOCAB = 32, 4, 8, 3, 19
LENGTH, ORIGINAL = 24, 6
REACH, PREFIX = 4, 3
FACTORS_PER_BAND = tuple(1.0 + 0.25 * i for i in range(HEAD_DIM // 2))

ENCODINGS: dict[str, Callable[[], Encoding]] = {
    "none": NoPE,
    "sinusoidal": Sinusoidal,
    "sinusoidal-halves": lambda: Sinusoidal(layout="halves"),
    "learned": lambda: Learned(max_length=64),
    "shifted": lambda: Shifted(anchor=3),
    "rope": Rope,
    "rope-adjacent": lambda: Rope(pairing="adjacent"),
    "rope-partial": lambda: Rope(share=0.5),
    "rope-linear": lambda: Rope(scaling=scaling.Linear(2.0)),
    "rope-ntk": lambda: Rope(scaling=scaling.DynamicNTK(2.0, original=ORIGINAL)),
    "rope-yarn": lambda: Rope(scaling=scaling.YaRN(4.0, original=ORIGINAL)),
    "rope-longrope": lambda: Rope(
        scaling=scaling.LongRope(
            FACTORS_PER_BAND, tuple(4.0 * f for f in FACTORS_PER_BAND), original=ORIGINAL, factor=4.0
        )
    ),
    "rope-llama3": lambda: Rope(scaling=scaling.Llama3(4.0, 1.0, 4.0, original=ORIGINAL)),
    "rope-proportional": lambda: Rope(scaling=scaling.Proportional(0.5)),
    "xpos": XPos,
    "alibi": Alibi,
    "t5": lambda: T5(buckets=8, max_distance=10),
    "shaw": lambda: Shaw(max_distance=4),
    "xl": TransformerXL,
    "kerple-log": lambda: Kerple("log"),
    "kerple-power": lambda: Kerple("power"),
    "fire": Fire,
    "cope": lambda: CoPE(max_positions=6),
}


@dataclass(frozen=True)
class Attention:
    """An attention kind: its config, what precedes the encoding on q and k, and whether it is also crossed."""

    config: AttentionConfig
    qk: tuple[Buildable, ...] = ()
    cross: bool = False


def _grouped(kv_heads: int = 2, **scores: object) -> GroupedQuery:
    return GroupedQuery(HEADS, kv_heads, scores=Scores(**scores))  # pyright: ignore[reportArgumentType] (named below)


ATTENTIONS: dict[str, Attention] = {
    "multi-head": Attention(_grouped(HEADS)),
    "multi-query": Attention(_grouped(1)),
    "grouped": Attention(_grouped()),
    "latent": Attention(Latent(HEADS, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=RMSNorm(), q_rank=16)),
    "cross": Attention(_grouped(), cross=True),
    "wide-values": Attention(GroupedQuery(HEADS, 2, value_dim=12)),
    "qk-norm": Attention(_grouped(), qk=(QKNorm(RMSNorm()),)),
    "softcap": Attention(_grouped(softcap=2.0)),
    "sinks": Attention(_grouped(sinks=True)),
    "temperature": Attention(_grouped(normalise=Softmax(0.5))),
    "hard": Attention(_grouped(normalise=Argmax())),
}

MASKS: dict[str, Mask] = {
    "causal": Causal() & SameSegment(),
    "window": Causal() & Window(REACH) & SameSegment(),
    "chunked": Causal() & Chunked(REACH) & SameSegment(),
    "prefix": (Causal() | Prefix(PREFIX)) & SameSegment(),
    "bidirectional": Everything() & SameSegment(),
}

CACHES = ("none", "contiguous", "fixed", "ring", "paged", "quantised")
KERNELS = ("reference", "sdpa", "flex")
SCENARIOS = ("full", "steps", "ragged", "left-padded", "right-padded", "packed", "randomised", "rollback", "fork")

FACTORS: dict[str, tuple[str, ...]] = {
    "encoding": tuple(ENCODINGS),
    "attention": tuple(ATTENTIONS),
    "mask": tuple(MASKS),
    "cache": CACHES,
    "kernel": KERNELS,
    "scenario": SCENARIOS,
}

NUMBER = {name: i for i, name in enumerate(FACTORS)}


@dataclass(frozen=True)
class Rule:
    """Cells with all of these values are refused, and the error must say ``because``.

    ``asked=False``: nothing refuses; there is nothing to run or to compare, for the reason given.
    """

    where: dict[str, tuple[str, ...]]
    because: str
    asked: bool = True

    def matches(self, chosen: Mapping[int, str]) -> bool:
        """Whether the values chosen so far (by the factor's number) already break this rule."""
        return all(chosen.get(NUMBER[factor], "") in values for factor, values in self.where.items())


STEPPED = ("steps", "ragged", "rollback", "fork")
CACHED = tuple(c for c in CACHES if c != "none")

RULES = (
    Rule({"cache": ("none",), "scenario": STEPPED}, "there is nothing to step through without a cache", asked=False),
    Rule(
        {"cache": ("quantised",), "attention": ("hard",)},
        "rounding may change which key scores highest, so there is nothing to compare",
        asked=False,
    ),
    Rule({"encoding": ("cope",), "mask": ("prefix", "bidirectional")}, "causal"),
    Rule({"cache": ("ring",), "mask": ("causal", "prefix", "bidirectional")}, "window"),
    Rule({"mask": ("bidirectional",), "cache": CACHED, "scenario": STEPPED}, "earlier ones should have seen them"),
    Rule({"kernel": ("sdpa",), "attention": ("softcap",)}, "sdpa has no softcap"),
    Rule({"kernel": ("sdpa",), "attention": ("sinks",)}, "sdpa has no sinks"),
    Rule({"kernel": ("sdpa",), "attention": ("hard",)}, "sdpa has no hard (argmax) attention"),
    Rule({"kernel": ("flex",), "attention": ("hard",)}, "flex has no hard (argmax) attention"),
    Rule({"kernel": ("sdpa", "flex"), "encoding": ("shaw",)}, "a value bias needs the weights"),
)


def rule_for(cell: Cell) -> Rule | None:
    return next((rule for rule in RULES if rule.matches(dict(enumerate(cell)))), None)


def allowed(chosen: Mapping[int, str]) -> bool:
    return not any(rule.matches(chosen) for rule in RULES)
