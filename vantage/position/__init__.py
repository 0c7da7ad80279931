"""Position encodings, one file each. ``encoding`` turns what a user wrote into one."""

from __future__ import annotations

from vantage.errors import BadInput
from vantage.position import scaling
from vantage.position.alibi import Alibi, alibi_bias, alibi_slopes
from vantage.position.axial import AxialRope
from vantage.position.cope import CoPE
from vantage.position.dape import DAPE
from vantage.position.dual_chunk import DualChunk
from vantage.position.fire import Fire
from vantage.position.fope import FoPE
from vantage.position.forgetting import Forgetting
from vantage.position.kerple import Kerple
from vantage.position.learned import Learned
from vantage.position.learned_grid import LearnedGrid
from vantage.position.lerope import LeRope
from vantage.position.mrope import MultiAxisRope
from vantage.position.none import NoPE
from vantage.position.path_attention import PaTH
from vantage.position.pope import PoPE
from vantage.position.randomised import Randomised
from vantage.position.relative_bank import RelativeBank
from vantage.position.rope import Rope, permutation, ropes_among
from vantage.position.selective_rope import SelectiveRope
from vantage.position.self_extend import SelfExtend
from vantage.position.shaw import Shaw
from vantage.position.shifted import Shifted
from vantage.position.sinusoidal import Sinusoidal, sinusoid
from vantage.position.ssmax import LogTemperature, SSMax
from vantage.position.t5 import T5, t5_bucket
from vantage.position.xl import TransformerXL
from vantage.position.xpos import XPos
from vantage.spec.parts import Buildable, Encoding
from vantage.spec.registry import Entry, Registry, entries_of, is_frozen

__all__ = [
    "DAPE",
    "ENCODINGS",
    "INPUT_PARTS",
    "SAMPLERS",
    "SCORE_PARTS",
    "T5",
    "Alibi",
    "AxialRope",
    "CoPE",
    "DualChunk",
    "Fire",
    "FoPE",
    "Forgetting",
    "Kerple",
    "LeRope",
    "Learned",
    "LearnedGrid",
    "LogTemperature",
    "MultiAxisRope",
    "NoPE",
    "PaTH",
    "PoPE",
    "Randomised",
    "RelativeBank",
    "Rope",
    "SSMax",
    "SelectiveRope",
    "SelfExtend",
    "Shaw",
    "Shifted",
    "Sinusoidal",
    "TransformerXL",
    "XPos",
    "alibi_bias",
    "alibi_slopes",
    "components",
    "encoding",
    "permutation",
    "ropes_among",
    "scaling",
    "sinusoid",
    "t5_bucket",
]

LONG = 64  # a max_length for encodings of which only the parts are looked at


def components(entry: Entry[Encoding]) -> dict[str, tuple[type, ...]]:
    """Which classes stand in a spec for this encoding, by the place where they act."""
    if entry.components is not None:
        return dict(entry.components)
    parts = entry.make(LONG).parts(causal=True)
    single = {"bias": parts.bias, "value_bias": parts.value_bias, "sampler": parts.sampler}
    places = {"inputs": parts.inputs, "qk": parts.qk} | {
        place: () if part is None else (part,) for place, part in single.items()
    }
    return {place: tuple(type(part) for part in acting) for place, acting in places.items() if acting}


def _check(entry: Entry[Encoding]) -> None:
    """What an encoding from outside is made of must be able to stand in a spec, and to be built."""
    for place, classes in components(entry).items():
        for part in classes:
            needs = ("draw",) if place == "sampler" else ("build", "shared")
            missing = [name for name in needs if name not in dir(part)]
            if missing:
                raise BadInput(f"{part.__name__}, the {place} of {entry.name!r}, has no {' and no '.join(missing)}")
            if not is_frozen(part):
                raise BadInput(f"{part.__name__}, the {place} of {entry.name!r}, is no frozen dataclass")


ENCODINGS: Registry[Encoding] = Registry(
    "position encoding",
    entries_of(
        "vantage.position",
        "none",
        "sinusoidal",
        "learned",
        "shifted",
        "rope",
        "mrope",
        "axial",
        "xpos",
        "alibi",
        "t5",
        "shaw",
        "xl",
        "kerple",
        "fire",
        "cope",
        "forgetting",
        "path_attention",
        "relative_bank",
        "ssmax",
        "lerope",
        "fope",
        "self_extend",
        "dual_chunk",
        "dape",
        "pope",
        "selective_rope",
    ),
    needs=("parts",),
    check=_check,
)
SAMPLERS: Registry[Encoding] = Registry(
    "sampler of positions", entries_of("vantage.position", "randomised"), needs=("parts", "draw")
)
# Score biases that belong to a model whatever its encoding is.
SCORE_PARTS: Registry[Buildable] = Registry(
    "part of the scores", entries_of("vantage.position", "late_temperature"), needs=("build", "shared")
)

# What is added to the embeddings of patches alone.
INPUT_PARTS: Registry[Buildable] = Registry(
    "part of the input", entries_of("vantage.position", "learned_grid"), needs=("build", "shared")
)


def encoding(position: str | Encoding, *, max_length: int | None = None) -> Encoding:
    """An encoding by name or as an object. ``max_length`` is the model's; only a learned table needs it."""
    if isinstance(position, str):
        return ENCODINGS[position].make(max_length)
    if isinstance(position, type) or not isinstance(position, Encoding):
        hint = f": write {position.__name__}(...)" if isinstance(position, type) else ""
        raise BadInput(f"position={position!r} is neither a name nor an encoding object{hint}")
    return position
