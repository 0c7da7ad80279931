"""``vantage train``: a run from a file of settings, with its progress on the screen."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.flags import at_least, check_device
from vantage.cli.interrupts import stopping
from vantage.cli.models import import_torch

if TYPE_CHECKING:
    from vantage.training import Run, Trained

# Flags that say how many of the processes share what.
AXES = {
    "tensor": "tensor parallelism: split heads and columns over N processes; short for parallel.tensor=N",
    "context": "context parallelism: split each row's tokens over N processes; parallel.context=N",
    "expert": "expert parallelism: split the experts over N processes, each with its own rows; parallel.experts=N",
}
SETTINGS = {"expert": "experts"}  # where a setting has another name
EXAMPLE = """\
examples:
  vantage train --list                                # the recipes and the accuracy each one reaches
  vantage train copy                                  # run a recipe
  vantage train copy model.position=sinusoidal --out runs/a
  vantage generate runs/a dac                         # a run's folder is a model
  vantage train my-settings.toml
  vantage train my-settings.toml --resume             # continue after Ctrl-C or a crash
  vantage train --resume runs/copy --steps 1200       # continue a run; more steps for a finished one
  vantage train tune.toml model.source=smollm2 model.lora.rank=8 --out runs/tuned
  vantage train copy --track wandb                    # also log to Weights & Biases (or mlflow)
  torchrun --nproc-per-node 2 -m vantage train copy   # two processes
  torchrun --nproc-per-node 2 -m vantage train sort --tensor-parallel 2   # half of the heads and columns in each
  torchrun --nproc-per-node 8 -m vantage train sort --tensor-parallel 2 --context-parallel 2   # and half of each row

Settings are a TOML file with the sections model, data, loop, optimiser, schedule, evaluate, save, guard, average and
parallel; KEY=VALUE changes any of them. --list shows what each recipe reaches and which changes keep it; a run
with any other change prints a note. The run's folder holds log.jsonl, TensorBoard files, checkpoints and, at the
end, the model. vt.load, `vantage generate` and the other commands take that folder. A loaded model (model.is =
"loaded") with model.lora trains an adapter; other commands take it as --adapter runs/tuned, and
model.adapter=runs/tuned continues its training. Load a recurrent model with vantage.families.recurrent.load_recurrent,
a classifier with vantage.training.saved_model.load_classifier. With --tensor-parallel or --expert-parallel a process
draws or reads its share of the weights only.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a model, or continue a run",
        description="Train a model from a recipe or a settings file.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "settings", nargs="?", metavar="CONFIG", help="a TOML file, the name of a recipe, or the folder of a run"
    )
    parser.add_argument(
        "changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as model.position=alibi"
    )
    parser.add_argument("--out", metavar="FOLDER", help="folder of the run; default: runs/NAME")
    parser.add_argument("--steps", type=int, metavar="N", help="total number of steps; short for loop.steps=N")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in that folder")
    parser.add_argument("--track", action="append", default=[], metavar="NAME", help="also log to wandb or mlflow")
    parser.add_argument("--device", help="cpu or cuda; default: VANTAGE_DEVICE, or cuda if there is a GPU")
    for axis, what in AXES.items():
        parser.add_argument(f"--{axis}-parallel", type=at_least(1), metavar="N", help=what)
    parser.add_argument("--check", action="store_true", help="check and print the settings without training")
    parser.add_argument("--list", action="store_true", help="list the recipes that come with Vantage")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run, rest="changes")


def run(args: argparse.Namespace) -> int:
    from vantage.cluster import processes
    from vantage.errors import BadInput
    from vantage.training.promises import promise_note
    from vantage.training.sections import check_table_optimiser, parallel_of
    from vantage.training.tables import check_run_folder, check_table, run_folder, table_of
    from vantage.training.track import check_trackers, trackers

    if args.list:
        return _list()
    if args.settings is None:
        raise BadInput("give the settings: a TOML file or a recipe (`vantage train --list`)")
    steps = [] if args.steps is None else [f"loop.steps={args.steps}"]
    changes = [*args.changes, *steps, *arrangement(args)]
    table = table_of(args.settings, changes)
    check_table(table)
    check_device(args.device)
    check_trackers(args.track)
    out = Path(args.out) if args.out else run_folder(args.settings)
    if not args.check:
        parallel_of(table).rows(processes())
        check_run_folder(out, resume=args.resume)
    check_table_optimiser(table)
    note = promise_note(args.settings, changes)
    import_torch()
    from vantage.training.settings import settings_of

    settings = settings_of(table)
    if args.check:
        print(settings)
        if note is not None:
            print(note, file=sys.stderr)
        return 0
    from vantage.cli.train_show import TrainingDisplay
    from vantage.parallel.group import ending_together
    from vantage.training.run import Run

    following = trackers(args.track)
    with ending_together(), TrainingDisplay(out) as display:
        training_run = Run(
            settings,
            out,
            table=table,
            resume=args.resume,
            device=args.device,
            report=display,
            progress=display.preparing,
            callbacks=following,
        )
        if note is not None:
            training_run.report.note(note)
        with _on_interrupt(training_run):
            trained = training_run.go()
        training_run.world.close()
    if training_run.world.first:
        _print_result(args, trained, training_run)
    return 0 if trained.finished else 130


def arrangement(args: argparse.Namespace) -> list[str]:
    """What the flags say of the processes, as changes to the settings."""
    return [f"parallel.{SETTINGS.get(axis, axis)}={count}" for axis, count in _counts(args).items()]


def _counts(args: argparse.Namespace) -> dict[str, int]:
    """How many processes the flags give to each axis."""
    counts = {axis: getattr(args, f"{axis}_parallel") for axis in AXES}
    return {axis: count for axis, count in counts.items() if count is not None}


def _list() -> int:
    from rich.console import Console
    from rich.table import Table

    from vantage.training.promises import promise_of
    from vantage.training.tables import recipes

    table = Table("recipe", "description and result")
    for name, path in recipes().items():
        first = path.read_text().splitlines()[0]
        lines = [first.lstrip("# ")] if first.startswith("#") else []
        if (promise := promise_of(name)) is not None:
            also = f"; also with {promise.also_with}" if promise.holds else ""
            lines.append(f"Reaches {promise.reaches}{also}.")
        table.add_row(name, "\n".join(lines))
    Console().print(table)
    print("With any other change a recipe may not reach its result; the run then prints a note.")
    return 0


@contextlib.contextmanager
def _on_interrupt(training_run: Any) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run after its step, with a checkpoint; the second ends it at once."""

    def stop() -> None:
        training_run.loop.stop = True
        with contextlib.suppress(OSError):  # whoever read it may have gone
            # not print, which may be in the middle of a line
            os.write(2, b"stopping after this step; press Ctrl-C again to stop at once\n")

    with stopping(stop, signal.SIGINT, signal.SIGTERM):
        yield


def _print_result(args: argparse.Namespace, trained: Trained, training_run: Run) -> None:
    from dataclasses import asdict

    if args.json:
        scores = [asdict(score) for score in trained.scores]
        folder = None if trained.kept is None else str(trained.kept)
        print(json.dumps({"finished": trained.finished, "step": trained.step, "model": folder, "scores": scores}))
    elif trained.finished:
        print(f"done: {trained.step} steps; the model is in {trained.kept}, the log in {trained.folder}")
        if (prompt := _prompt(training_run, trained)) is not None:
            words = ["vantage", "generate", str(trained.folder), prompt, *_parts_flags(args)]
            print(f"try it: {shlex.join(words)}")
    else:
        device = [] if args.device is None else ["--device", args.device]
        track = [word for name in args.track for word in ("--track", name)]
        steps = [] if args.steps is None else ["--steps", str(args.steps)]
        arranged = [word for axis, n in _counts(args).items() for word in (f"--{axis}-parallel", str(n))]
        more = ["--out", str(trained.folder), *device, *steps, *arranged, *track, *_parts_flags(args), "--resume"]
        words = ["vantage", "train", args.settings, *args.changes, *more]
        print(f"saved after {trained.step} steps; continue with: {shlex.join(words)}")


def _parts_flags(args: argparse.Namespace) -> list[str]:
    """Parts of one's own are needed by the next command as well."""
    return [word for source in (*args.parts, *args.train_parts) for word in ("--parts", source)]


def _prompt(training_run: Run, trained: Trained) -> str | None:
    """A question of the task, to try the model with; ``None``: it was trained on something else, or cannot generate."""
    from vantage.model import Model
    from vantage.training.sequences import HELD_OUT, Sequences
    from vantage.training.tasks import text_of

    data, model = training_run.opened.data, trained.model
    if not isinstance(data, Sequences) or training_run.opened.tokenizer is None:
        return None
    if not isinstance(model, Model) or not model.generates:
        return None
    return text_of(data.task, data.example(HELD_OUT).prompt)
