"""``vantage compare``: which encoding holds beyond the training length?"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from vantage.compare.conduct import Entry
    from vantage.compare.results import Result
    from vantage.compare.study import Study

EXAMPLE = """\
examples:
  vantage compare                                     ordering, seven entries, three seeds: 15 minutes on 2 cores
  vantage compare --positions all
  vantage compare --tasks copy reverse addition --positions none rope alibi t5 --seeds 5 --budget 2h
  vantage compare my-study.toml --out reports/mine
  vantage compare --resume                            go on after any interruption

Writes a folder: one self-contained page (index.html), scores.csv, report.json, and runs.jsonl, which grows as runs
finish.
"""
DEFAULT_BUDGET = "14m"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="which encoding holds beyond the training length?",
        description="Train small models that differ in one part, on the same data, and test them beyond their lengths.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="STUDY", help="a TOML file; flags change what it says")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="see docs/tasks.md; default: ordering")
    parser.add_argument("--positions", nargs="+", metavar="NAME", help="encodings, or all, or plain (no random ones)")
    parser.add_argument("--attention", nargs="+", metavar="KIND", help="multi-head, multi-query, grouped-query")
    parser.add_argument("--train-length", type=int, metavar="N", help="the longest in training; default: 20")
    parser.add_argument("--test-lengths", type=int, nargs="+", metavar="N", help="default: 1 to 5 times that")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each; default: 3")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run; without a budget default: 3000")
    parser.add_argument("--batch", type=int, metavar="N", help="examples of a step; default: 64")
    parser.add_argument("--width", type=int, metavar="N", help="of the models; default: 64")
    parser.add_argument("--layers", type=int, metavar="N", help="default: 2")
    parser.add_argument("--heads", type=int, metavar="N", help="default: 4")
    parser.add_argument("--budget", metavar="TIME", help="such as 90s, 30m or 2h: fewer steps if need be")
    parser.add_argument("--out", metavar="FOLDER", default="comparison", help="default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="go on with the study in that folder")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.compare.conduct import Place, conduct, within
    from vantage.compare.report import JSON, write_report

    out = Path(args.out)
    study = _resumed(args, out) if args.resume else _study(args)
    place = Place.here(args.device, args.workers)
    if not args.resume:
        budget = args.budget or (DEFAULT_BUDGET if args.steps is None and args.file is None else None)
        if budget is not None:
            print(f"timing a few steps of each entry, to fit {budget}", file=sys.stderr)
            study = within(study, _seconds(budget), place)
    with Display() as display:
        results = conduct(study, out, place, resume=args.resume, watcher=display)
    page = write_report(out, _facts(study, out), results)
    if args.json:
        print((out / JSON).read_text())
    else:
        print(f"the report is {page}")
    return 0


def _study(args: argparse.Namespace) -> Study:
    from dataclasses import replace

    from vantage.compare.study import Study, named, read_study

    study = Study() if args.file is None else read_study(args.file)
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name in ("tasks", "positions", "attention", "train_length", "test_lengths", "seeds", "steps", "batch")
        if (value := getattr(args, name)) is not None
    }
    if "positions" in changes:
        changes["positions"] = named(changes["positions"])
    if "train_length" in changes and "test_lengths" not in changes:
        changes["test_lengths"] = tuple(changes["train_length"] * n for n in range(1, 6))
    shape = {name: getattr(args, name) for name in ("width", "layers", "heads") if getattr(args, name) is not None}
    if shape:
        changes["shape"] = replace(study.shape, **shape)
    return replace(study, **changes)


def _resumed(args: argparse.Namespace, out: Path) -> Study:
    """The study that the folder holds: nothing need be said again, and what is said must agree."""
    import json

    from vantage.compare.conduct import STUDY
    from vantage.compare.study import study_of
    from vantage.errors import BadInput

    try:
        said = json.loads((out / STUDY).read_text())["study"]
    except (OSError, ValueError, KeyError) as e:
        raise BadInput(f"there is no study in {out} to go on with ({e})") from e
    return study_of(said, str(out / STUDY))


def _facts(study: Study, out: Path) -> dict[str, Any]:
    """What the page says besides the results: a resumed study says the same."""
    import json
    from dataclasses import asdict

    from vantage.compare.conduct import STUDY

    return {
        "title": "Which encoding holds beyond the training length?",
        "train_length": study.train_length,
        "settings": asdict(study),
        "versions": json.loads((out / STUDY).read_text())["versions"],
        "command": _command(study),
        "entries": list(study.positions),
    }


def _command(study: Study) -> str:
    """What repeats it, with the number of steps that the budget came to."""
    words = ["vantage compare", "--tasks", *study.tasks, "--positions", *study.positions]
    words += ["--attention", *study.attention, "--train-length", str(study.train_length), "--test-lengths"]
    words += [*map(str, study.test_lengths), "--seeds", str(study.seeds), "--steps", str(study.steps)]
    words += ["--batch", str(study.batch), "--width", str(study.shape.width), "--layers", str(study.shape.layers)]
    return " ".join([*words, "--heads", str(study.shape.heads)])


def _seconds(text: str) -> float:
    from vantage.errors import BadInput

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"a budget of {text!r}: write it as 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


class Display:
    """A bar over all steps with the time left, and a table that fills as runs finish."""

    def __init__(self) -> None:
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._study: Any = None
        self._results: list[Result] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def began(self, study: Study, total: int, done: int) -> None:
        self._study = study
        runs = len(study.wanted())
        came = f", {done} of them done before" if done else ""
        print(f"{runs} runs of {study.steps} steps{came}", file=sys.stderr)
        if sys.stderr.isatty():
            self._draw(total)

    def moved(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def chose(self, entry: Entry, rate: float) -> None:
        if self._live is None:
            print(f"{entry[0]}: {entry[1]} takes a learning rate of {rate:g}", file=sys.stderr)

    def finished(self, results: list[Result]) -> None:
        self._results += results
        if self._live is not None:
            self._live.update(self._group())
            return
        for r in results:
            scores = ", ".join(f"{s.exact:.0%} at {s.length}" for s in r.scores) or "diverged"
            print(f"{r.key.task}: {r.key.entry}, seed {r.key.seed}: {scores}", file=sys.stderr)

    def note(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            print(text, file=sys.stderr)

    def _draw(self, total: int) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bar = Progress(TextColumn("comparing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("comparing", total=total)
        self._live = Live(self._group(), console=Console(stderr=True), refresh_per_second=2)
        self._live.start()

    def _group(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        lengths = sorted({self._study.train_length, *self._study.test_lengths})
        table = Table("task", "entry", "runs", *(f"at {n}" for n in lengths))
        for task, entry in dict.fromkeys((r.key.task, r.key.entry) for r in sorted(self._results, key=lambda r: r.key)):
            own = [r for r in self._results if (r.key.task, r.key.entry) == (task, entry)]
            cells = []
            for n in lengths:
                scores = [s.exact for r in own if (s := r.at(n)) is not None]
                cells.append(f"{sum(scores) / len(scores):.1%}" if scores else "")
            lost = sum(r.diverged for r in own)
            table.add_row(task, entry, f"{len(own)}" + (f", {lost} diverged" if lost else ""), *cells)
        return Group(table, self._bar)
