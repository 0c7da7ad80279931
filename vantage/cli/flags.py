"""Flags that several verbs share."""

from __future__ import annotations

import argparse
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


def add_sampling(parser: argparse.ArgumentParser, temperature: float = 0.0) -> argparse._ArgumentGroup:
    """How tokens are chosen."""
    how = parser.add_argument_group("how tokens are chosen")
    how.add_argument(
        "--temperature", type=float, default=temperature, metavar="T", help="0 is greedy; default: %(default)s"
    )
    how.add_argument("--top-k", type=int, metavar="K", help="only the K best tokens")
    how.add_argument("--top-p", type=float, metavar="P", help="only the best tokens that together have P")
    how.add_argument("--min-p", type=float, metavar="P", help="only tokens with P times the best one's probability")
    how.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="over prompt and output")
    how.add_argument("--presence-penalty", type=float, default=0.0, metavar="X", help="for tokens that came before")
    how.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X", help="for each time they came")
    how.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    return how


DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """How weights are kept."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="auto keeps the blocks of a quantised GGUF file and is float32 otherwise; default: %(default)s",
    )


def dtype_of(args: argparse.Namespace) -> Any:
    """What ``vt.load`` takes."""
    import torch

    return args.dtype if args.dtype in ("auto", "int8", "int4") else getattr(torch, args.dtype)


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """What those flags said, by the names that ``Sampling`` knows."""
    return {name: getattr(args, name) for name in SAMPLING}
