"""Flags that several verbs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)

# as the registry has them, which imports torch
CACHE_KINDS = (
    "contiguous",
    "ring",
    "paged",
    "static",
    "quantised",
    "low-bit",
    "kivi",
    "sinks",
    "heavy-hitters",
    "tova",
    "snapkv",
)


def add_sampling(parser: argparse.ArgumentParser, temperature: float = 0.0) -> argparse._ArgumentGroup:
    """How tokens are chosen."""
    how = parser.add_argument_group("sampling")
    how.add_argument(
        "--temperature", type=float, default=temperature, metavar="T", help="0 is greedy; default: %(default)s"
    )
    how.add_argument("--top-k", type=int, metavar="K", help="sample from the K most likely tokens")
    how.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the most likely tokens whose probabilities sum to P"
    )
    how.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the highest probability")
    how.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="for tokens in the prompt or the output; 1 is none",
    )
    how.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="X", help="for tokens already generated; 0 is none"
    )
    how.add_argument(
        "--frequency-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="for each time a token was generated; 0 is none",
    )
    how.add_argument("--seed", type=int, metavar="N", help="seed for sampling; the same seed gives the same text")
    return how


def add_cache_kind(parser: argparse.ArgumentParser, flag: str) -> None:
    """In which form keys and values are kept."""
    *names, last = CACHE_KINDS
    parser.add_argument(flag, default=CACHE_KINDS[0], help=f"{', '.join(names)} or {last}; default: %(default)s")


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """What those flags said, by the names that ``Sampling`` knows."""
    return {name: getattr(args, name) for name in SAMPLING}


def check_sampling(options: dict[str, Any]) -> None:
    """Refuse now what ``Sampling`` refuses."""
    from vantage.spec.sampling import Sampling

    Sampling(**options)


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is no smaller, for ``type=``."""

    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number}: give at least {least}")
        return number

    whole.__name__ = "int"  # argparse says "invalid int value"
    return whole


def check_device(name: str | None) -> None:
    """Refuse what is no name of a device; whether this machine has it is torch's to say."""
    from vantage.errors import BadInput, did_you_mean

    if name is not None and re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", name) is None:
        raise BadInput(
            f"--device {name!r}:{did_you_mean(name, ('cpu', 'cuda'))} Use cpu, cuda, or cuda:1 for the second"
        )


MAX_RANGE = 2**20  # numbers that a range may have


def parse_numbers(text: str | None, what: str) -> list[int] | None:
    """ "0,3,5-8" as numbers; ``None`` stays so."""
    from vantage.errors import BadInput

    if text is None:
        return None
    parsed: list[int] = []
    for piece in text.split(","):
        one = re.fullmatch(r"\s*(-?\d+)(?:-(\d+))?\s*", piece)
        if one is None:
            raise BadInput(f"{what} {text!r}: write numbers as in 0,3,5-8")
        if len(piece) > 30:
            raise BadInput(f"{what} {text[:80]!r}: no number is that large")
        first, last = int(one[1]), int(one[2] or one[1])
        if last - first >= MAX_RANGE:
            raise BadInput(f"{what} {text[:80]!r}: a range has at most {MAX_RANGE:,} numbers")
        parsed += range(first, last + 1)
    return parsed


def add_tensor_parallel(parser: argparse.ArgumentParser, verb: str) -> None:
    """A model over several processes."""
    parser.add_argument(
        "--tensor-parallel",
        type=at_least(1),
        default=1,
        metavar="N",
        help=f"tensor parallelism over N processes: torchrun --nproc-per-node N -m vantage {verb} … --tensor-parallel "
        f"N",
    )
    parser.add_argument(
        "--whole-experts",
        action="store_true",
        help="with --tensor-parallel: each process has some of the experts, not some columns of each",
    )
