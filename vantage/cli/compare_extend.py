"""``vantage compare --extend MODEL``: scalings of RoPE in a loaded model, beyond its context."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.flags import at_least
from vantage.cli.models import check_model, import_torch, load_model
from vantage.cli.progress import Bar

if TYPE_CHECKING:
    from vantage.compare.extension_settings import ExtensionSettings
    from vantage.compare.results import RunResult

OPTIONS = (
    *("context", "times", "scalings", "factor", "pieces", "tries", "needles"),
    *("lora_steps", "lora_length", "lora_rank", "lora_rate", "lora_batch"),
)
OTHERS = (  # of an experiment that trains its models: none of them means anything here
    *("file", "tasks", "positions", "attention", "train_length", "test_lengths", "vocabulary", "seeds", "steps"),
    *("batch", "rates", "search", "test_examples", "width", "layers", "heads", "equal", "budget", "workers"),
    *("score", "first_seed", "published", "scale", "on"),
)


def add(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("context extension of a loaded model")
    how.add_argument("--extend", metavar="MODEL", help="a model with RoPE: test scaling rules beyond its context")
    how.add_argument(
        "--scalings",
        nargs="+",
        metavar="NAME",
        help="rules to test: none linear ntk dynamic-ntk yarn longrope llama3 self-extend dual-chunk",
    )
    how.add_argument(
        "--times",
        type=float,
        nargs="+",
        metavar="X",
        help="text lengths, as multiples of the context; default: 1 2 4 8",
    )
    how.add_argument(
        "--context",
        type=at_least(1),
        metavar="N",
        help="treat the model's context as this many tokens; default: its own",
    )
    how.add_argument("--factor", type=float, metavar="X", help="scaling factor; default: the largest of --times")
    how.add_argument("--pieces", type=at_least(1), metavar="N", help="number of text samples; default: 3")
    how.add_argument(
        "--tries", type=at_least(0), metavar="N", help="passkey tests per sample and length; 0 for none; default: 2"
    )
    how.add_argument("--needles", type=at_least(1), metavar="N", help="passkeys hidden in one text; default: 4")
    how.add_argument(
        "--lora-steps",
        type=at_least(0),
        metavar="N",
        help="LoRA training steps for each rule, then test again; default: 0",
    )
    how.add_argument(
        "--lora-length",
        type=at_least(1),
        metavar="N",
        help="LoRA training length; default: factor x context, at most 16384",
    )
    how.add_argument("--lora-rank", type=at_least(1), metavar="N", help="LoRA rank; default: 8")
    how.add_argument("--lora-rate", type=float, metavar="LR", help="LoRA learning rate; default: 2e-4")
    how.add_argument("--lora-batch", type=at_least(1), metavar="N", help="LoRA batch size; default: 1")


def wanted(args: argparse.Namespace, out: Path) -> bool:
    """Whether this is an extension: asked for, or begun in the folder that is to be gone on with."""
    from vantage.errors import BadInput

    begun = args.resume and _begun(out)
    if args.extend is None and not begun:
        if stray := [name for name in OPTIONS if getattr(args, name) is not None]:
            raise BadInput(f"{_flag(stray[0])} belongs to a context extension: name the model (--extend MODEL)")
        return False
    if stray := [name for name in OTHERS if getattr(args, name) is not None]:
        raise BadInput(
            f"{_flag(stray[0])} is for models that an experiment trains, and --extend loads one: leave it out"
        )
    return True


def run(args: argparse.Namespace, out: Path) -> int:
    if not args.resume:
        _check(args)
    import_torch()
    from vantage.cli.compare_show import show_verdicts
    from vantage.compare.executors import LocalBackend
    from vantage.compare.extension import extension_metadata, run_extension
    from vantage.compare.extension.run import prepare_texts
    from vantage.compare.names import EXPERIMENT_FILE
    from vantage.compare.report import JSON, write_report

    device = LocalBackend.detect(args.device).device
    settings = _resumed(out) if args.resume else _settings(args, device.type)
    model = load_model(settings.model, settings.dtype, device=str(device)).eval()
    prepared = prepare_texts(settings, model)
    with Bar("readings", first="reading") as bar:
        results = run_extension(settings, prepared, out, ReadingLines(bar), resume=args.resume)
    versions = json.loads((out / EXPERIMENT_FILE).read_text())["versions"]
    metadata = extension_metadata(settings, prepared.context, model.context_length, versions, command(settings))
    page = write_report(out, metadata, results)
    if args.json:
        print((out / JSON).read_text())
    else:
        show_verdicts(out / JSON)
        print(f"the report is {page}")
    return 0


class ReadingLines:
    """Every reading in a line as it is done, under a bar."""

    def __init__(self, bar: Bar):
        self._bar, self._total, self._readings = bar, 0, 0

    def began(self, total: int, finished: int) -> None:
        self._total, self._readings = total, finished
        print(f"{total} readings{f', {finished} of them finished before' if finished else ''}", file=sys.stderr)

    def finished(self, results: list[RunResult]) -> None:
        from vantage.cli.compare_show import result_line

        for result in results:
            print(result_line(result), file=sys.stderr)
        self._readings += 1
        self._bar(self._readings, self._total)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def _settings(args: argparse.Namespace, device: str) -> ExtensionSettings:
    from vantage.compare.extension_settings import ExtensionSettings

    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in OPTIONS
        if (value := getattr(args, name)) is not None
    }
    dtype = "bfloat16" if device == "cuda" else "float32"
    return ExtensionSettings(args.extend, tuple(args.text), dtype=dtype, **options)


def _check(args: argparse.Namespace) -> None:
    """Refuse what can be refused without torch."""
    from vantage.errors import BadInput

    check_model(args.extend)
    if not args.text:
        raise BadInput("--extend reads a text: name files (--text FILE), as long as the longest pieces together")
    _settings(args, args.device or "cpu")


def _resumed(out: Path) -> ExtensionSettings:
    from vantage.compare.extension_settings import extension_of
    from vantage.compare.names import EXPERIMENT_FILE

    return extension_of(json.loads((out / EXPERIMENT_FILE).read_text())["extension"], str(out / EXPERIMENT_FILE))


def _begun(out: Path) -> bool:
    from vantage.compare.names import EXPERIMENT_FILE

    try:
        return "extension" in json.loads((out / EXPERIMENT_FILE).read_text())
    except (OSError, ValueError):
        return False


def command(settings: ExtensionSettings) -> str:
    """What repeats it."""
    import shlex

    from vantage.compare.extension_settings import ExtensionSettings

    words = ["vantage compare --extend", shlex.quote(settings.model), "--text", *map(shlex.quote, settings.text)]
    for name in OPTIONS:
        value = getattr(settings, name)
        if value != getattr(ExtensionSettings, name):
            values = value if isinstance(value, tuple) else (value,)
            words += [_flag(name), *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
    return " ".join(words + (["--device cuda"] if settings.dtype == "bfloat16" else []))


def _flag(name: str) -> str:
    return "EXPERIMENT" if name == "file" else f"--{name.replace('_', '-')}"
