"""``python -m bench [NAME …]``: run the named benches, or all of them."""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.harness import RESULTS, Bench, BenchError, run, write
from bench.table import show

MACHINERY = {"__init__", "__main__", "compare", "harness", "readme", "stats", "table", "worker"}  # no benches
GPU = "accelerator"  # so begin the files of those that need a GPU; they are run by their own names

LOG_WIDTH = 140  # of a file or a pipe, where rich would guess 80


def names() -> list[str]:
    files = sorted(file.stem for file in Path(__file__).parent.glob("*.py"))
    return [name for name in files if name not in MACHINERY and not name.startswith(GPU)]


def load(name: str) -> Bench:
    if name not in names():
        raise BenchError(f"no bench is called {name!r}: there are {', '.join(names())}")
    bench: Bench = importlib.import_module(f"bench.{name}").BENCH
    if bench.name != name:
        raise BenchError(f"bench/{name}.py calls its bench {bench.name!r}: the two names must agree")
    return bench


def only(bench: Bench, ends: tuple[str, ...]) -> Bench:
    """The bench with some of its contestants, and the goals that these can meet."""
    contestants = tuple(one for one in bench.contestants if one.name.endswith(ends))
    if not contestants:
        names = ", ".join(one.name for one in bench.contestants)
        raise BenchError(f"no contestant of {bench.name} ends with {' or '.join(ends)}: they are {names}")
    left = {one.name for one in contestants}
    return replace(bench, contestants=contestants, goals=tuple(g for g in bench.goals if {g.of, g.over} <= left))


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every goal met, 1 a goal missed, 2 a bench that cannot run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benches; all of them when none is named")
    parser.add_argument(
        "--rounds", type=int, help="how many rounds of each contestant, instead of the bench's own number"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="END",
        help='only contestants whose names end with one of these: --only "decode 16", or --only 16 2048',
    )
    parser.add_argument("--list", action="store_true", help="say which benches there are and stop")
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    try:
        benches = [load(name) for name in args.names or names()]
        if args.list:
            for bench in benches:
                console.print(f"[bold]{bench.name}[/bold]  {bench.title}")
            return 0
        if args.rounds is not None:
            benches = [replace(bench, rounds=args.rounds) for bench in benches]
        if args.only is not None:
            benches = [only(bench, tuple(args.only)) for bench in benches]
        met = [run_one(bench, console) for bench in benches]
        return 0 if all(met) else 1
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def run_one(bench: Bench, console: Console) -> bool:
    result = run(bench)
    show(result, console)
    file = write(result)
    console.print(f"written to {file.relative_to(RESULTS.parent.parent)}", style="dim")
    return result.ok


if __name__ == "__main__":
    sys.exit(main())
