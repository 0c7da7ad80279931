"""``vantage check``: run the conformance matrix and print it."""

from __future__ import annotations

import argparse
import json
import sys

from vantage.cli.flags import check_device
from vantage.cli.progress import Bar

EXAMPLE = """\
examples:
  vantage check                        # every pair of parts
  vantage check --strength 3           # every triple; takes much longer
  vantage check --filter alibi         # only the cells with `alibi` in their name
  vantage check --device cuda          # the parts on a GPU
  vantage check --json > matrix.json   # for a program to read

exit code: 0 when every cell holds, 1 when one fails, 2 for bad input
"""

LOG_WIDTH = 160


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check",
        help="run the conformance matrix",
        description=(
            "Run the conformance matrix: encodings, attention kinds, masks, caches and kernels combined,\n"
            "each combination compared with the uncached float64 reference."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--strength",
        type=int,
        choices=(2, 3),
        default=2,
        help="cover every pair (2) or every triple (3) of parts; default: %(default)s",
    )
    parser.add_argument("--filter", metavar="TEXT", default="", help="only the cells whose name contains TEXT")
    parser.add_argument("--device", default="cpu", help="where the parts run; the reference stays on the host")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_device(args.device)
    from rich.console import Console

    from vantage.conformance.matrix import run_matrix

    with Bar("cells") as progress:
        report = run_matrix(strength=args.strength, filter=args.filter, device=args.device, progress=progress)
    if args.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        # In a file or a log there is no width to respect, and rich's own guess of 80 cuts cell names off.
        Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(report.table())
    return 0 if report.ok else 1
