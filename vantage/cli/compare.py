"""``vantage compare``: which encoding works beyond the training length?"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli import compare_extend
from vantage.cli.flags import at_least, check_device
from vantage.cli.models import import_torch

if TYPE_CHECKING:
    from vantage.compare.executors import ExecutionBackend
    from vantage.compare.experiment import Experiment
    from vantage.compare.experiment_fields import ExperimentFields

EXAMPLE = """\
examples:
  vantage compare                                     # copy and sort, six encodings, eight seeds: 14 minutes
  vantage compare --list                              # what can be named
  vantage compare --positions all
  vantage compare --tasks copy reverse addition --positions none rope alibi t5 --seeds 5 --budget 2h
  vantage compare --tasks passkey multi-needle lookup --train-length 40 --budget 30m
  vantage compare --tasks text --text book.txt --train-length 64 --budget 30m      # train short, read long
  vantage compare --attention multi-head grouped-query multi-query --positions rope --equal parameters
  vantage compare --published length-generalization --scale small                  # next to the paper's numbers
  vantage compare --published alibi --scale tiny --text book.txt
  vantage compare --extend smollm2 --text book.txt --context 256 --times 1 2 4 --lora-steps 50
  vantage compare --extend ./my-model --text book.txt --device cuda --lora-steps 400
  vantage compare my-experiment.toml --out reports/mine
  vantage compare --resume                            # continue after an interruption
  vantage compare --on ray://head.example.org         # on a Ray cluster; `--on ray` starts one here

Writes a folder with a self-contained page (index.html), scores.csv, verdicts.csv, report.json, and runs.jsonl with a
line for each finished run.
"""
DEFAULT_BUDGET = "14m"
FIELDS = (
    *("tasks", "positions", "attention", "train_length", "test_lengths", "seeds", "steps", "batch", "rates"),
    *("search", "test_examples", "equal", "text", "vocabulary", "score", "first_seed"),
)
SHAPE = ("width", "layers", "heads")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="which encoding works beyond the training length?",
        description="Train small models that differ in one part on the same data, and test them on longer sequences "
        "than they saw.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="EXPERIMENT", help="a TOML file; flags override it")
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="names from docs/tasks.md, or text; default: copy sort"
    )
    parser.add_argument(
        "--positions",
        nargs="+",
        metavar="NAME",
        help="encodings (--list shows them); all; or plain (all without randomised positions)",
    )
    parser.add_argument(
        "--attention",
        nargs="+",
        metavar="KIND",
        help="multi-head, multi-query, grouped-query, shared-keys, gate, top-k, entmax, moba, …",
    )
    parser.add_argument("--list", action="store_true", help="list the tasks, positions and attentions there are")
    _add_runs(parser)
    parser.add_argument("--width", type=at_least(1), metavar="N", help="model width; default: 64")
    parser.add_argument("--layers", type=at_least(1), metavar="N", help="layers; default: 2")
    parser.add_argument("--heads", type=at_least(1), metavar="N", help="attention heads; default: 4")
    parser.add_argument(
        "--equal",
        metavar="WHAT",
        help="what the models have in common: compute (default), or parameters, by adjusting the feed-forward width",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="total time, such as 90s, 30m or 2h; steps and seeds are reduced to fit; default: 14m",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", default="comparison", help="folder for the results; default: %(default)s"
    )
    parser.add_argument("--resume", action="store_true", help="continue the experiment in that folder")
    parser.add_argument("--device", help="cpu or cuda; default: VANTAGE_DEVICE, or cuda if there is a GPU")
    parser.add_argument("--workers", type=at_least(1), metavar="N", help="number of processes; default: one per core")
    parser.add_argument("--on", metavar="WHERE", help="ray, or ray://HOST:PORT: train on the machines of a Ray cluster")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    papers = parser.add_argument_group("repeat a paper's set-up and show its numbers next to ours")
    papers.add_argument(
        "--published",
        nargs="+",
        metavar="PAPER",
        help="alibi, length-generalization or randomized: repeat the first, show the numbers of all",
    )
    papers.add_argument("--scale", metavar="SIZE", help="tiny, small or paper-like; default: tiny")
    compare_extend.add(parser)
    parser.set_defaults(run=run)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    """How each model is trained, and on what it is tested."""
    parser.add_argument(
        "--train-length", type=at_least(1), metavar="N", help="longest sequence in training; default: 10"
    )
    parser.add_argument(
        "--test-lengths",
        type=at_least(1),
        nargs="+",
        metavar="N",
        help="default: 1, 1.5, 2 and 4 times the training length",
    )
    parser.add_argument("--text", nargs="+", metavar="FILE", help="text files, for the task text or for --extend")
    parser.add_argument(
        "--vocabulary", metavar="NAME", help="tokens of the text: bytes (default), characters, bpe-4096"
    )
    parser.add_argument(
        "--seeds", type=at_least(1), metavar="N", help="runs for each model; default: 8, fewer in a small budget"
    )
    parser.add_argument(
        "--steps",
        type=at_least(1),
        metavar="N",
        help="training steps of each run; default: 500 for copy and sort, up to 3000 for other tasks",
    )
    parser.add_argument("--batch", type=at_least(1), metavar="N", help="batch size; default: 32")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        metavar="LR",
        help="learning rates to search, for every model; default: 0.001 0.003",
    )
    parser.add_argument(
        "--search",
        type=float,
        metavar="SHARE",
        help="share of the steps to spend on each rate in the search; default: 0.25",
    )
    parser.add_argument("--test-examples", type=at_least(1), metavar="N", help="test examples per length; default: 512")
    parser.add_argument(
        "--score", metavar="WHAT", help="exact (whole answers), tokens, or auto (tokens if answers are long)"
    )
    parser.add_argument("--first-seed", type=at_least(0), metavar="N", help="first random seed; default: 0")


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()  # a budget counts from here: what follows imports torch
    out = Path(args.out)
    if args.list:
        return _list_names(args.json)
    check(args, out)
    if compare_extend.wanted(args, out):
        return compare_extend.run(args, out)
    import_torch()
    from vantage.cli.compare_show import ExperimentDisplay, show_verdicts
    from vantage.compare.budget import Budget
    from vantage.compare.metadata import experiment_in, report_metadata
    from vantage.compare.names import budget_seconds
    from vantage.compare.report import JSON, write_report
    from vantage.compare.run import run_experiment

    if args.resume:
        experiment = experiment_in(out)
        _same(experiment, args)
    else:
        experiment = _experiment(args)
    chosen = args.resume or args.steps is not None or args.file is not None or args.published is not None
    allowed = args.budget or (None if chosen else DEFAULT_BUDGET)
    budget = None if allowed is None else Budget(budget_seconds(allowed), started)
    with _resumable(out), _backend(args) as backend, ExperimentDisplay() as display:
        results = run_experiment(experiment, out, backend, resume=args.resume, observer=display, budget=budget)
    experiment = experiment_in(out)  # as it fitted the budget
    page = write_report(out, report_metadata(experiment, out, results), results)
    if args.json:
        print((out / JSON).read_text())
    else:
        show_verdicts(out / JSON)
        print(f"the report is {page}")
    return 0


def _list_names(as_json: bool) -> int:
    import dataclasses
    import json
    import textwrap

    from vantage.compare.names import compared_names

    names = dataclasses.asdict(compared_names())
    if as_json:
        print(json.dumps(names))
    else:
        for what, known in names.items():
            print(textwrap.fill(f"{what}: {', '.join(known)}", 120, subsequent_indent="  ", break_on_hyphens=False))
    return 0


def check(args: argparse.Namespace, out: Path) -> None:
    """Refuse what can be refused without torch, whose import takes seconds."""
    from vantage.cluster import address_of
    from vantage.compare.names import EXPERIMENT_FILE, SCALES, budget_seconds, check_names, paper_name, refuse_occupied
    from vantage.errors import BadInput, unknown
    from vantage.files import expand

    check_device(args.device)
    check_names(args.tasks or (), args.positions or (), args.attention or ())
    if args.scale is not None and args.scale not in SCALES:
        raise BadInput(unknown("scale", args.scale, SCALES))
    for name in args.published or ():
        paper_name(name)
    if args.budget is not None:
        budget_seconds(args.budget)
    if args.on is not None:
        address_of(args.on)
    if args.text:
        expand(args.text)
    if args.file is not None and not Path(args.file).is_file():
        raise BadInput(f"there is no file {args.file}: an experiment is a TOML file, or a set of flags")
    if args.resume and not (out / EXPERIMENT_FILE).is_file():
        raise BadInput(f"there is no experiment to continue in {out}: leave --resume out, or name its folder (--out)")
    if not args.resume:
        refuse_occupied(out)
        if args.extend is None:
            _check_fields(args)


def _check_fields(args: argparse.Namespace) -> None:
    """Refuse values that no experiment can have."""
    from dataclasses import replace

    from vantage.compare.experiment_fields import check_fields, fields_of
    from vantage.compare.names import check_names

    fields = fields_of(*_begin(args))
    fields = replace(fields, **_changes(fields, args))
    check_names(fields.tasks, fields.positions, fields.attention)
    check_fields(replace(fields, positions=tuple(dict.fromkeys(fields.positions))))


@contextlib.contextmanager
def _backend(args: argparse.Namespace) -> Iterator[ExecutionBackend]:
    """This machine, or a cluster that is left at the end."""
    from vantage.compare.executors import LocalBackend

    if args.on is None:
        yield LocalBackend.detect(args.device, args.workers)
        return
    from vantage.cluster import joined
    from vantage.compare.ray_executor import RayBackend

    with joined(args.on, cores=args.workers) as ray:
        yield RayBackend.detect(ray, args.device, args.workers)


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Whoever interrupts it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; continue with: vantage compare --resume --out {shlex.quote(str(out))}", file=sys.stderr)
        raise


def _same(held: Experiment, args: argparse.Namespace) -> None:
    """Refuse flags that say something else than the experiment that is gone on with. Its steps are settled: a budget,
    or none, changes nothing of them."""
    from dataclasses import fields, replace

    from vantage.errors import BadInput

    if args.file or args.published or args.scale:
        wanted = _experiment(args)
        wanted = wanted if args.steps is not None else replace(wanted, steps=held.steps)
    else:
        wanted = replace(held, **_expanded(_changes(held, args)))
    other = [f.name for f in fields(held) if getattr(wanted, f.name) != getattr(held, f.name)]
    if other:
        differences = [
            f"{name} is {_plain(getattr(held, name))}, not {_plain(getattr(wanted, name))}" for name in other
        ]
        raise BadInput(
            f"--resume continues the experiment in {args.out}, and there {'; '.join(differences)}. Leave those "
            "flags out, or choose another folder (--out)"
        )


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _experiment(args: argparse.Namespace) -> Experiment:
    from dataclasses import replace

    from vantage.compare.experiment import default_steps, written_experiment

    experiment = written_experiment(*_begin(args))
    changes = _expanded(_changes(experiment, args))
    if args.file is None and not args.published and args.steps is None:
        changes["steps"] = default_steps(changes.get("tasks", experiment.tasks))
    return replace(experiment, **changes)


def _begin(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """What the other flags change: a file, a paper's set-up, or the default; and what that is called."""
    from vantage.compare.experiment_fields import experiment_table
    from vantage.compare.paper_setups import paper_fields
    from vantage.errors import BadInput

    if args.scale is not None and args.published is None:
        raise BadInput(
            "--scale belongs to a paper's set-up: name the paper (--published alibi, length-generalization, …)"
        )
    if not args.published:
        return ({}, "experiment") if args.file is None else (experiment_table(args.file), args.file)
    if args.file is not None:
        raise BadInput('an EXPERIMENT file and --published: give one of them (a file may say published = ["alibi"])')
    table = paper_fields(args.published[0], args.scale or "tiny", tuple(args.text or ()))
    table["published"] = list(dict.fromkeys([*table["published"], *args.published[1:]]))
    return table, args.published[0]


def _expanded(changes: dict[str, Any]) -> dict[str, Any]:
    """With the names of encodings that "all" and "plain" stand for."""
    from vantage.compare.experiment import expand_positions

    return changes | ({"positions": expand_positions(changes["positions"])} if "positions" in changes else {})


def _changes(experiment: ExperimentFields, args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say that is to be otherwise."""
    from dataclasses import replace

    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in FIELDS
        if (value := getattr(args, name)) is not None
    }
    if "train_length" in changes and "test_lengths" not in changes:
        top = [n / experiment.train_length for n in experiment.test_lengths]
        changes["test_lengths"] = tuple(round(changes["train_length"] * n) for n in top)
    shape = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    if shape:
        changes["shape"] = replace(experiment.shape, **shape)
    return changes
