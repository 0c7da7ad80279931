"""Every position encoding as a page can offer it: parameters from the part's own fields, and the part they make."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, final

import torch

from vantage.errors import BadInput
from vantage.position import (
    ENCODINGS,
    T5,
    Alibi,
    CoPE,
    Fire,
    Kerple,
    Learned,
    NoPE,
    Randomised,
    Rope,
    Shaw,
    Shifted,
    Sinusoidal,
    TransformerXL,
    XPos,
    encoding,
    scaling,
)
from vantage.position.kerple import KINDS
from vantage.position.rope import PAIRINGS
from vantage.position.sinusoidal import LAYOUTS
from vantage.spec.parts import Encoding
from vantage.studies.study import Parameter, Value

ROWS = 512  # of a learned table, where nobody says more
YES_NO = ("no", "yes")
AUTO = ("auto", *YES_NO)  # "auto": as the attention is
OWN = "as the rule says"


@final
@dataclass(frozen=True)
class Asked:
    """What an encoding is made for: a context, and how wide the part of a head is that a rotation sees."""

    length: int
    head: int


@final
@dataclass(frozen=True)
class Note:
    """What a field's name and type do not say. ``default`` stands where the field has none that can be shown."""

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    default: Value | None = None
    name: str | None = None  # where two parts of one encoding have a field of the same name


# Bounds keep a picture finite and a table small; what a part itself refuses, it refuses in its own words.
NOTES: dict[type, dict[str, Note]] = {
    NoPE: {},
    Sinusoidal: {
        "layout": Note("sines and cosines in turn, or all sines first", choices=LAYOUTS),
        "base": Note("the slowest wave is 2π times as long", 2.0, 1e9),
    },
    Learned: {
        "max_length": Note("rows of the table", 1, 16384, default=ROWS),
        "extend": Note("past the last row", choices=("refuse", "last", "wrap"), default="refuse"),
        "offset": Note("rows in front that no position uses", 0, 64),
    },
    Shifted: {
        "anchor": Note("where every query believes to stand", -4096, 4096),
        "base": Note("the slowest wave is 2π times as long", 2.0, 1e9),
    },
    Rope: {
        "base": Note("the slowest pair turns once in 2π times as many positions", 2.0, 1e9),
        "pairing": Note("which dimensions form a pair", choices=PAIRINGS),
        "share": Note("of the head's dimensions, how many turn", 0.05, 1.0),
    },
    XPos: {
        "base": Note("the slowest pair turns once in 2π times as many positions", 2.0, 1e9),
        "gamma": Note("how little the fast pairs fade", 0.01, 10.0),
        "scale_base": Note("the distance over which pairs fade", 8.0, 65536.0, default=512.0),
        "pairing": Note("which dimensions form a pair", choices=PAIRINGS),
    },
    Alibi: {"slopes": Note("one a head, as in 0.5, 0.25; empty: the paper's", default="")},
    T5: {
        "buckets": Note("distances share so many numbers a head", 4, 256),
        "max_distance": Note("from here on all are in the last bucket", 3, 4096),
        "bidirectional": Note("half of the buckets are for the future", choices=AUTO, default="auto"),
    },
    Shaw: {
        "max_distance": Note("further away is as far as this", 1, 512),
        "values": Note("the values get a term as well", choices=YES_NO, default="yes"),
    },
    TransformerXL: {"base": Note("the slowest wave is 2π times as long", 2.0, 1e9)},
    Kerple: {"kind": Note("a logarithm of the distance, or a power of it", choices=KINDS)},
    Fire: {
        "hidden": Note("width of the network that is learned", 1, 256),
        "init_c": Note("how early the logarithm bends, at first", 1e-4, 100.0),
        "init_L": Note("below this position the distance counts as it is", 1.0, 65536.0),
        "bidirectional": Note("looks into the future as well", choices=AUTO, default="auto"),
    },
    CoPE: {"max_positions": Note("counts stop here", 2, 1024)},
    scaling.Linear: {"factor": Note("positions are divided by it", 1.0, 256.0, default=4.0)},
    scaling.Proportional: {
        "share": Note("of the pairs, how many turn: the fastest", 0.0, 1.0, default=0.5, name="turning"),
        "factor": Note("positions are divided by it", 1.0, 256.0),
    },
    scaling.DynamicNTK: {
        "factor": Note("how fast the base rises past the original length", 1.0, 256.0, default=4.0),
        "original": Note("the length trained for", 2, 2**20, default=512),
    },
    scaling.YaRN: {
        "factor": Note("how much longer than trained for", 1.0, 256.0, default=4.0),
        "original": Note("the length trained for", 2, 2**20, default=512),
        "beta_fast": Note("pairs that turn so often within it keep their pace", 0.1, 1024.0, default=32.0),
        "beta_slow": Note("pairs that turn so often or less are slowed in full", 0.01, 512.0, default=1.0),
        "attention_factor": Note(f"sharpens the scores; 0: {OWN}", 0.0, 16.0, default=0.0),
        "truncate": Note("the ramp begins and ends at whole pairs", choices=YES_NO, default="yes"),
    },
    scaling.LongRope: {
        "original": Note("up to here the short divisors hold, past it the long ones", 2, 2**20, default=512),
        "factor": Note("how much longer than trained for", 1.0, 256.0, default=4.0),
        "attention_factor": Note(f"sharpens the scores; 0: {OWN}", 0.0, 16.0, default=0.0),
        "short": Note("the slowest pair's divisor; the others rise to it from 1", 1.0, 256.0, default=1.0),
        "long": Note("the slowest pair's divisor past the original length", 1.0, 256.0, default=4.0),
    },
    scaling.Llama3: {
        "factor": Note("long waves are slowed by it", 1.0, 256.0, default=8.0),
        "low_freq_factor": Note("waves longer than original / this are slowed", 0.01, 64.0, default=1.0),
        "high_freq_factor": Note("waves shorter than original / this are kept", 0.02, 128.0, default=4.0),
        "original": Note("the length trained for", 2, 2**20, default=512),
    },
}
# Not offered: the attention's own business, or a rule's for checkpoints that carry the number.
LEFT_OUT = {(Sinusoidal, "dropout"), (Rope, "scaling"), (T5, "shared"), (scaling.YaRN, "mscale")}
LEFT_OUT |= {(scaling.YaRN, "mscale_all_dim")}


def offered(part: type) -> tuple[Parameter, ...]:
    """A part's fields as parameters. A field without a note is a mistake here: a new one must be looked at."""
    found: list[Parameter] = []
    for f in fields(part):
        if (part, f.name) in LEFT_OUT:
            continue
        note = NOTES[part][f.name]
        own: Any = None if f.default is MISSING else f.default
        default = own if note.default is None else note.default
        found.append(Parameter(note.name or f.name, default, note.help, note.low, note.high, note.choices))
    return tuple(found)


Given = Mapping[str, Value]  # every parameter with its value
Make = Callable[[Given, Asked], Encoding]


@final
@dataclass(frozen=True)
class Choice:
    """An encoding that can be shown."""

    name: str
    title: str
    about: str
    parameters: tuple[Parameter, ...]
    make: Make

    def values(self, given: Mapping[str, Value]) -> dict[str, Value]:
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                there = ", ".join(known) or "none"
                raise BadInput(f"{self.name} has no parameter {name[:64]!r}: it has {there}")
        return {name: read(p, given[name]) if name in given else p.default for name, p in known.items()}

    def made(self, given: Mapping[str, Value], asked: Asked) -> Encoding:
        return self.make(self.values(given), asked)


def read(parameter: Parameter, given: Value) -> Value:
    """As the parameter reads it, but nothing is cut off: 3.5 is no whole number."""
    if isinstance(given, bool) or (isinstance(given, float) and not math.isfinite(given)):
        raise BadInput(f"{parameter.name} is {given}; it must be a number or a word")
    if isinstance(parameter.default, int) and isinstance(given, float) and given != int(given):
        raise BadInput(f"{parameter.name} is {given}; it must be a whole number")
    if isinstance(given, str) and len(given) > 1000:
        raise BadInput(f"{parameter.name} has {len(given):,} characters; it may have 1,000")
    return parameter.read(given)


def _fields(part: type, given: Given) -> dict[str, Any]:
    """The values that belong to this part, under its own names; "yes" and "no" as truths."""
    named = {(note.name or name): name for name, note in NOTES[part].items()}
    own = {named[name]: value for name, value in given.items() if name in named}
    truths = {"yes": True, "no": False, "auto": None}
    said = {name for name, note in NOTES[part].items() if note.choices in (YES_NO, AUTO)}
    return {name: truths[str(value)] if name in said else value for name, value in own.items()}


def _plain(part: Any) -> Make:
    return lambda given, asked: part(**_fields(part, given))


def _learned(given: Given, asked: Asked) -> Encoding:
    extend = None if given["extend"] == "refuse" else str(given["extend"])
    return Learned(int(given["max_length"]), extend, int(given["offset"]))


def _alibi(given: Given, asked: Asked) -> Encoding:
    words = [word.strip() for word in str(given["slopes"]).split(",") if word.strip()]
    if not words:
        return Alibi()
    try:
        slopes = tuple(float(word) for word in words)
    except ValueError as e:
        raise BadInput(f"slopes are {given['slopes']!r}; write numbers, as in 0.5, 0.25") from e
    if not all(0 <= slope <= 16 for slope in slopes):
        raise BadInput(f"slopes are {given['slopes']!r}; each must lie between 0 and 16")
    return Alibi(slopes)


def _rope(rule: Callable[[Given, Asked], scaling.Rule] | None) -> Make:
    def make(given: Given, asked: Asked) -> Encoding:
        return Rope(scaling=None if rule is None else rule(given, asked), **_fields(Rope, _but_rule(given)))

    return make


def _but_rule(given: Given) -> Given:
    return {name: given[name] for name in NOTES[Rope] if name in given}


def _rule(part: type) -> Callable[[Given, Asked], scaling.Rule]:
    def make(given: Given, asked: Asked) -> scaling.Rule:
        own = _fields(part, given)
        if "attention_factor" in own:
            own["attention_factor"] = own["attention_factor"] or None
        for name in ("short", "long"):
            if name in own:
                pairs = max(1, int(asked.head * float(given["share"])) // 2)
                own[name] = tuple(1 + (own[name] - 1) * k / max(1, pairs - 1) for k in range(pairs))
        return part(**own)

    return make


def _randomised(given: Given, asked: Asked) -> Encoding:
    high = int(given["high"])
    inner = CHOICES[str(given["inner"])]
    return Randomised(
        inner.made({"max_length": high} if given["inner"] == "learned" else {}, asked),
        high,
        torch.Generator().manual_seed(int(given["seed"])),
    )


def _scaled(name: str, title: str, about: str, part: type) -> Choice:
    return Choice(f"rope-{name}", f"RoPE, {title}", about, (*offered(Rope), *offered(part)), _rope(_rule(part)))


INSIDE = ("rope", "sinusoidal", "learned", "alibi", "t5", "shaw", "fire")
RANDOMISED = (
    Parameter("inner", "rope", "the encoding that reads the drawn positions", choices=INSIDE),
    Parameter("high", 2048, "positions are drawn below it", 2, 4096),
    Parameter("seed", 0, "of the draws", 0, 2**31 - 1),
)
ALL = (
    Choice("none", "None (NoPE)", "No encoding: the causal mask alone tells a decoder where it is.", (), _plain(NoPE)),
    Choice(
        "sinusoidal",
        "Sinusoidal",
        "Sines and cosines of the position, from fast to slow, are added to the embeddings (Vaswani et al. 2017).",
        offered(Sinusoidal),
        _plain(Sinusoidal),
    ),
    Choice(
        "learned",
        "Learned",
        "One trained row a position is added to the embeddings; past the last row there is none (GPT-2, BERT).",
        offered(Learned),
        _learned,
    ),
    Choice(
        "shifted",
        "Shifted",
        "The attended token's sinusoid, shifted so that the query always stands at the same place.",
        offered(Shifted),
        _plain(Shifted),
    ),
    Choice(
        "rope",
        "RoPE",
        "Pairs of dimensions of queries and keys are turned by angles that grow with the position (Su et al. 2021).",
        offered(Rope),
        _rope(None),
    ),
    _scaled("linear", "linear", "All positions are pressed together (Chen et al. 2023).", scaling.Linear),
    _scaled(
        "proportional", "proportional", "Only the fastest pairs turn (Gemma's global layers).", scaling.Proportional
    ),
    _scaled("ntk", "dynamic NTK", "Past the original length the base rises (bloc97, emozilla).", scaling.DynamicNTK),
    _scaled("yarn", "YaRN", "Fast pairs are kept, slow ones interpolated (Peng et al. 2023).", scaling.YaRN),
    _scaled("longrope", "LongRoPE", "A divisor for each pair; here a ramp for the searched ones.", scaling.LongRope),
    _scaled("llama3", "LLaMA 3", "Long waves are slowed, short ones kept, a ramp between.", scaling.Llama3),
    Choice("xpos", "xPos", "RoPE whose pairs also fade with distance (Sun et al. 2022).", offered(XPos), _plain(XPos)),
    Choice(
        "alibi",
        "ALiBi",
        "A score loses a fixed slope times the distance, another slope in each head (Press et al. 2021).",
        offered(Alibi),
        _alibi,
    ),
    Choice(
        "t5",
        "T5",
        "A learned number for each head and bucket of distances (Raffel et al. 2020).",
        offered(T5),
        _plain(T5),
    ),
    Choice(
        "shaw",
        "Shaw",
        "Learned vectors for the clipped distance, added to keys and values (Shaw et al. 2018).",
        offered(Shaw),
        _plain(Shaw),
    ),
    Choice(
        "xl",
        "Transformer-XL",
        "The query meets a projected sinusoid of the distance (Dai et al. 2019).",
        offered(TransformerXL),
        _plain(TransformerXL),
    ),
    Choice(
        "kerple",
        "KERPLE",
        "A learned kernel of the distance: two positive numbers a head (Chi et al. 2022).",
        offered(Kerple),
        _plain(Kerple),
    ),
    Choice(
        "fire",
        "FIRE",
        "A learned function of the distance as a share of the query's position (Li et al. 2023).",
        offered(Fire),
        _plain(Fire),
    ),
    Choice(
        "cope",
        "CoPE",
        "Positions count the keys that the query cares about (Golovneva et al. 2024).",
        offered(CoPE),
        _plain(CoPE),
    ),
    Choice(
        "randomised",
        "Randomised",
        "In training, tokens stand at random ascending positions (Ruoss et al. 2023).",
        RANDOMISED,
        _randomised,
    ),
)
CHOICES = {choice.name: choice for choice in ALL}
assert set(ENCODINGS) <= set(CHOICES), "an encoding of the registry is not offered"


def choice_of(name: str) -> Choice:
    if name not in CHOICES:
        near = difflib.get_close_matches(name.lower(), CHOICES, 1, 0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"no position encoding is called {name[:64]!r}.{hint} There are: {', '.join(CHOICES)}")
    return CHOICES[name]


def made(name: str, values: Mapping[str, Value], asked: Asked) -> Encoding:
    """The encoding of that name. A learned table of which nothing is said has a row for every position asked for."""
    if name == "learned" and "max_length" not in values:
        values = {**values, "max_length": asked.length}
    if not values and name in ENCODINGS:
        return encoding(name, max_length=asked.length)
    return choice_of(name).made(values, asked)
