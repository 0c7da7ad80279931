"""``vantage compare --extend MODEL``: scalings of RoPE in a loaded model, beyond its context."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.progress import Bar

if TYPE_CHECKING:
    from vantage.compare.extension import Extension
    from vantage.compare.results import Result

OPTIONS = (
    *("context", "times", "scalings", "factor", "pieces", "tries", "needles"),
    *("lora_steps", "lora_length", "lora_rank", "lora_rate", "lora_batch"),
)
OTHERS = (  # of a study that trains its models: none of them means anything here
    *("file", "tasks", "positions", "attention", "train_length", "test_lengths", "vocabulary", "seeds", "steps"),
    *("batch", "rates", "search", "test_examples", "width", "layers", "heads", "equal", "budget", "workers"),
    *("published", "scale", "on"),
)


def add(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("context extension of a loaded model")
    how.add_argument("--extend", metavar="MODEL", help="read texts beyond its context, under scalings of its RoPE")
    how.add_argument("--scalings", nargs="+", metavar="NAME", help="none linear ntk dynamic-ntk yarn longrope llama3")
    how.add_argument("--times", type=float, nargs="+", metavar="X", help="multiples of the context; default: 1 2 4 8")
    how.add_argument(
        "--context", type=int, metavar="N", help="take this for its context, where it is to be a small one"
    )
    how.add_argument("--factor", type=float, metavar="X", help="of every scaling; default: the largest of the times")
    how.add_argument("--pieces", type=int, metavar="N", help="of the text, read by all; default: 3")
    how.add_argument("--tries", type=int, metavar="N", help="passkeys for each piece and length; default: 2; 0: none")
    how.add_argument("--needles", type=int, metavar="N", help="numbers hidden at once; default: 4")
    how.add_argument("--lora-steps", type=int, metavar="N", help="then train each this much and read again; default: 0")
    how.add_argument("--lora-length", type=int, metavar="N", help="of its rows; default: factor x context, to 16384")
    how.add_argument("--lora-rank", type=int, metavar="N", help="default: 8")
    how.add_argument("--lora-rate", type=float, metavar="LR", help="default: 2e-4")
    how.add_argument("--lora-batch", type=int, metavar="N", help="rows of a step; default: 1")


def wanted(args: argparse.Namespace, out: Path) -> bool:
    """Whether this is an extension: asked for, or begun in the folder that is to be gone on with."""
    from vantage.errors import BadInput

    begun = args.resume and _begun(out)
    if args.extend is None and not begun:
        if stray := [name for name in OPTIONS if getattr(args, name) is not None]:
            raise BadInput(f"{_flag(stray[0])} is of a context extension: say which model (--extend MODEL)")
        return False
    if stray := [name for name in OTHERS if getattr(args, name) is not None]:
        raise BadInput(f"{_flag(stray[0])} is of models that a study trains, and --extend loads one: leave it out")
    return True


def run(args: argparse.Namespace, out: Path) -> int:
    from vantage.cli.compare_show import show_verdicts
    from vantage.compare.conduct import STUDY, Place
    from vantage.compare.extension import carry_out, facts_of
    from vantage.compare.extension.conduct import lay_out
    from vantage.compare.report import JSON, write_report

    place = Place.here(args.device)
    how = _resumed(out) if args.resume else _settings(args, place.device.type)
    model = _load(how, place.device)
    laid = lay_out(how, model)
    with Bar("readings") as bar:
        results = carry_out(how, laid, out, Lines(bar), resume=args.resume)
    versions = json.loads((out / STUDY).read_text())["versions"]
    facts = facts_of(how, laid.context, model.context_length, versions, command(how))
    page = write_report(out, facts, results)
    if args.json:
        print((out / JSON).read_text())
    else:
        show_verdicts(out / JSON)
        print(f"the report is {page}")
    return 0


class Lines:
    """Every reading in a line as it is done, under a bar."""

    def __init__(self, bar: Bar):
        self._bar, self._total, self._done = bar, 0, 0

    def began(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        print(f"{total} readings{f', {done} of them done before' if done else ''}", file=sys.stderr)

    def finished(self, results: list[Result]) -> None:
        from vantage.cli.compare_show import line

        for result in results:
            print(line(result), file=sys.stderr)
        self._done += 1
        self._bar(self._done, self._total)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def _settings(args: argparse.Namespace, device: str) -> Extension:
    from vantage.compare.extension import Extension
    from vantage.errors import BadInput

    if not args.text:
        raise BadInput("--extend reads a text: name files (--text FILE), as long as the longest pieces together")
    said: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in OPTIONS
        if (value := getattr(args, name)) is not None
    }
    dtype = "bfloat16" if device == "cuda" else "float32"
    return Extension(args.extend, tuple(args.text), dtype=dtype, **said)


def _load(how: Extension, device: Any) -> Any:
    import torch

    from vantage.checkpoints.pull import pull, to_bring
    from vantage.cli.generate import busy
    from vantage.families import load

    if to_bring(how.model):
        with Bar("bytes") as progress:
            pull(how.model, progress=progress)
    with busy(f"loading {how.model}"):
        return load(how.model, device=device, dtype=getattr(torch, how.dtype)).eval()


def _resumed(out: Path) -> Extension:
    from vantage.compare.conduct import STUDY
    from vantage.compare.extension.settings import extension_of

    return extension_of(json.loads((out / STUDY).read_text())["extension"], str(out / STUDY))


def _begun(out: Path) -> bool:
    from vantage.compare.conduct import STUDY

    try:
        return "extension" in json.loads((out / STUDY).read_text())
    except (OSError, ValueError):
        return False


def command(how: Extension) -> str:
    """What repeats it."""
    import shlex

    from vantage.compare.extension import Extension

    words = ["vantage compare --extend", shlex.quote(how.model), "--text", *map(shlex.quote, how.text)]
    for name in OPTIONS:
        value = getattr(how, name)
        if value != getattr(Extension, name):
            given = value if isinstance(value, tuple) else (value,)
            words += [_flag(name), *(f"{one:g}" if isinstance(one, float) else str(one) for one in given)]
    return " ".join(words + (["--device cuda"] if how.dtype == "bfloat16" else []))


def _flag(name: str) -> str:
    return "STUDY" if name == "file" else f"--{name.replace('_', '-')}"
