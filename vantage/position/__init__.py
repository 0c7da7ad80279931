"""Position encodings, one file each. ``encoding`` turns what a user wrote into one."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from vantage.errors import BadInput
from vantage.position import scaling
from vantage.position.alibi import Alibi, alibi_bias, alibi_slopes
from vantage.position.cope import CoPE
from vantage.position.fire import Fire
from vantage.position.kerple import Kerple
from vantage.position.learned import Learned
from vantage.position.none import NoPE
from vantage.position.randomised import Randomised
from vantage.position.rope import Rope, permutation
from vantage.position.shaw import Shaw
from vantage.position.shifted import Shifted
from vantage.position.sinusoidal import Sinusoidal, sinusoid
from vantage.position.t5 import T5, t5_bucket
from vantage.position.xl import TransformerXL
from vantage.position.xpos import XPos
from vantage.spec.parts import Encoding

__all__ = [
    "ENCODINGS",
    "T5",
    "Alibi",
    "CoPE",
    "Fire",
    "Kerple",
    "Learned",
    "NoPE",
    "Randomised",
    "Rope",
    "Shaw",
    "Shifted",
    "Sinusoidal",
    "TransformerXL",
    "XPos",
    "alibi_bias",
    "alibi_slopes",
    "encoding",
    "permutation",
    "scaling",
    "sinusoid",
    "t5_bucket",
]


def _plain(make: Callable[[], Encoding]) -> Callable[[int | None], Encoding]:
    return lambda max_length: make()


def _learned(max_length: int | None) -> Encoding:
    if max_length is None:
        raise BadInput('position="learned" needs max_length=, the number of rows of its table')
    return Learned(max_length)


# name -> the encoding with its defaults, for a model of a given max_length
ENCODINGS: dict[str, Callable[[int | None], Encoding]] = {
    "none": _plain(NoPE),
    "sinusoidal": _plain(Sinusoidal),
    "learned": _learned,
    "shifted": _plain(Shifted),
    "rope": _plain(Rope),
    "xpos": _plain(XPos),
    "alibi": _plain(Alibi),
    "t5": _plain(T5),
    "shaw": _plain(Shaw),
    "xl": _plain(TransformerXL),
    "kerple": _plain(Kerple),
    "fire": _plain(Fire),
    "cope": _plain(CoPE),
}


def encoding(position: str | Encoding, *, max_length: int | None = None) -> Encoding:
    """An encoding by name or as an object. ``max_length`` is the model's; only a learned table needs it."""
    if isinstance(position, str):
        if position not in ENCODINGS:
            near = difflib.get_close_matches(position.lower(), ENCODINGS)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise BadInput(f"no position encoding is called {position!r}.{hint} There are: {', '.join(ENCODINGS)}")
        return ENCODINGS[position](max_length)
    if isinstance(position, type) or not isinstance(position, Encoding):
        hint = f": write {position.__name__}(...)" if isinstance(position, type) else ""
        raise BadInput(f"position={position!r} is neither a name nor an encoding object{hint}")
    return position
