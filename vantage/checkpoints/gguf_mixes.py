"""Which type each tensor of a GGUF file gets, as llama.cpp's quantiser decides it without an importance matrix.

A mix keeps more bits where errors cost most: in the output, in values, and in the second map of the feed-forward part.
Nothing here needs torch, so a command can refuse a type or a file before it loads anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vantage.errors import BadInput, unknown


@dataclass(frozen=True)
class TensorLocation:
    """Where a tensor stands in the model."""

    layer: int
    layers: int
    queries_per_key: int  # query heads for each head of keys and values

    @property
    def first(self) -> bool:
        """In the first eighth of the layers."""
        return self.layer < self.layers // 8

    @property
    def counts_more(self) -> bool:
        """In the first and the last eighth, and every third layer between them."""
        eighth = self.layers // 8
        return self.first or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2


Rule = Callable[[TensorLocation], str]


@dataclass(frozen=True)
class Mix:
    """``base``: the type of all matrices that no rule speaks of; ``rules``: by the tensor's name without the layer."""

    number: int  # llama.cpp's, in general.file_type
    base: str
    rules: dict[str, Rule]


def _always(kind: str) -> Rule:
    return lambda place: kind


def _more(kind: str, base: str) -> Rule:
    return lambda place: kind if place.counts_more else base


def _iq4(number: int, base: str) -> Mix:
    return Mix(
        number,
        base,
        {
            "attn_v": lambda place: "Q5_K" if place.queries_per_key >= 4 else base,
            "ffn_down": lambda place: "Q5_K" if place.first else base,
        },
    )


MIXES: dict[str, Mix] = {
    "F32": Mix(0, "F32", {}),
    "F16": Mix(1, "F16", {}),
    "BF16": Mix(32, "BF16", {}),
    "Q8_0": Mix(7, "Q8_0", {}),
    "Q4_0": Mix(2, "Q4_0", {}),
    "Q4_1": Mix(3, "Q4_1", {}),
    "Q5_0": Mix(8, "Q5_0", {}),
    "Q5_1": Mix(9, "Q5_1", {}),
    "IQ4_NL": _iq4(25, "IQ4_NL"),
    "IQ4_XS": _iq4(30, "IQ4_XS"),
    # llama.cpp's own mix of that number has experts in MXFP4 and everything else in Q8_0
    "MXFP4": Mix(38, "MXFP4", {"token_embd": _always("Q8_0")}),
    "Q2_K": Mix(
        10,
        "Q2_K",
        {
            "attn_v": lambda place: "Q4_K" if place.queries_per_key >= 4 else "Q3_K",
            "ffn_down": _always("Q3_K"),
            "attn_output": _always("Q3_K"),
        },
    ),
    "Q3_K_S": Mix(11, "Q3_K", {}),
    "Q3_K_M": Mix(
        12,
        "Q3_K",
        {
            "attn_v": lambda place: "Q5_K" if place.layer < 2 else "Q4_K",
            "ffn_down": lambda place: "Q5_K" if place.layer < place.layers // 16 else "Q4_K",
            "attn_output": _always("Q4_K"),
            "attn_qkv": _always("Q4_K"),
        },
    ),
    "Q3_K_L": Mix(
        13,
        "Q3_K",
        {
            **{name: _always("Q5_K") for name in ("attn_v", "ffn_down", "attn_output")},
            "attn_qkv": _always("Q4_K"),
        },
    ),
    "Q4_K_S": Mix(
        14,
        "Q4_K",
        {
            "attn_v": lambda place: "Q5_K" if place.layer < 4 else "Q4_K",
            "ffn_down": lambda place: "Q5_K" if place.first else "Q4_K",
        },
    ),
    "Q4_K_M": Mix(
        15,
        "Q4_K",
        {"attn_v": _more("Q6_K", "Q4_K"), "ffn_down": _more("Q6_K", "Q4_K"), "attn_qkv": _always("Q5_K")},
    ),
    "Q5_K_S": Mix(16, "Q5_K", {}),
    "Q5_K_M": Mix(
        17,
        "Q5_K",
        {"attn_v": _more("Q6_K", "Q5_K"), "ffn_down": _more("Q6_K", "Q5_K"), "attn_qkv": _always("Q6_K")},
    ),
    "Q6_K": Mix(18, "Q6_K", {}),
}
PLAIN = ("F32", "F16", "BF16")
# What a type becomes where rows are no multiple of its block.
SMALLER_BLOCKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
NOT_QUANTISED = re.compile(r"_norm\.weight$|^position_embd\.|^token_types\.|\.bias$")


def check_gguf(path: str | Path, type: str, *, overwrite: bool = False) -> None:
    """Refuse a file that cannot be written."""
    if type not in MIXES:
        raise BadInput(unknown("type of GGUF file", type, MIXES))
    path = Path(path).expanduser()
    if path.suffix != ".gguf":
        raise BadInput(f"{path}: the name of a GGUF file ends in .gguf")
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(
            f"{path} already exists: choose another name, or pass overwrite=True (vantage convert: --overwrite)"
        )


def block_size(kind: str) -> int:
    """How many weights a block holds: rows must be multiples of it."""
    return 1 if kind in PLAIN else 256 if kind.endswith("_K") or kind == "IQ4_XS" else 32


def type_of(name: str, shape: tuple[int, ...], mix: Mix, place: TensorLocation, *, tied: bool) -> str:
    """The type of a tensor. ``tied``: the embedding is the output as well."""
    if len(shape) < 2 or NOT_QUANTISED.search(name):
        return "F32"
    if mix.base in PLAIN:
        return mix.base
    is_output = name == "output.weight" or (tied and name == "token_embd.weight")
    if is_output:
        kind = "Q8_0" if mix.base in ("Q8_0", "MXFP4") else "Q6_K"
    else:
        rule = mix.rules.get(re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight"))
        kind = mix.base if rule is None else rule(place)
    if shape[-1] % block_size(kind):
        kind = SMALLER_BLOCKS.get(kind, kind)
    return "F16" if shape[-1] % block_size(kind) else kind
