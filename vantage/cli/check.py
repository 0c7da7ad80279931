"""``vantage check``: run the conformance matrix and print it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

from vantage.cli.flags import check_device
from vantage.cli.models import import_torch
from vantage.cli.progress import Bar

if TYPE_CHECKING:
    from vantage.conformance.kernel_column import KernelReport

EXAMPLE = """\
examples:
  vantage check                        # every pair of parts
  vantage check --strength 3           # every triple; takes much longer
  vantage check --filter alibi         # only the cells with `alibi` in their name
  vantage check --device cuda          # the parts on a GPU
  vantage check --device cuda --kernels fused cudnn auto --dtype bfloat16
                                       # the same cells through kernels that need one
  vantage check --device cuda --kernels fused --processes 12
                                       # every pair that this kernel does not refuse
  vantage check --json > matrix.json   # for a program to read

exit code: 0 if every cell passes, 1 if one fails, 2 for bad input
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
    parser.add_argument("--device", default="cpu", help="device to test; the reference always runs on the CPU")
    parser.add_argument(
        "--kernels",
        nargs="+",
        metavar="NAME",
        help="test these kernels on every pair (auto: the one selected by default), and list what they refuse",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="with --kernels; default: %(default)s",
    )
    parser.add_argument("--share", default="1/1", metavar="I/N", help="with --kernels: only the I-th of N equal parts")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="with --kernels: every pair that a kernel does not refuse, over N processes",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with --processes: stop after so long")
    parser.add_argument(
        "--smallest-first",
        action="store_true",
        help="with --processes: in the other order, so that what an earlier run did not reach in time comes first",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_device(args.device)
    import_torch()
    from rich.console import Console

    with Bar("cells", first="choosing the cells") as progress:
        from vantage.conformance.matrix import run_matrix

        if args.kernels:
            report = _through_kernels(args, progress)
        else:
            report = run_matrix(strength=args.strength, filter=args.filter, device=args.device, progress=progress)
    if args.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        # In a file or a log there is no width to respect, and rich's own guess of 80 cuts cell names off.
        Console(width=None if sys.stdout.isatty() else LOG_WIDTH).print(report.table())
    return 0 if report.ok else 1


def _through_kernels(args: argparse.Namespace, progress: Bar) -> KernelReport:
    import torch

    from vantage.conformance.kernel_column import run_column, run_through
    from vantage.errors import BadInput, unknown
    from vantage.kernels import KERNELS

    for name in args.kernels:
        if name != "auto" and name not in KERNELS:
            raise BadInput(unknown("kernel", name, ["auto", *KERNELS]))
    if args.processes is not None:
        if args.processes < 1 or args.filter or args.share != "1/1":
            raise BadInput(
                "--processes runs all of a kernel's pairs over 1 process or more, without --filter and --share"
            )
        return run_column(
            args.kernels,
            dtype=getattr(torch, args.dtype),
            device=args.device,
            processes=args.processes,
            seconds=args.seconds,
            smallest_first=args.smallest_first,
            progress=progress,
        )
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", args.share)
    if part is None or int(part[1]) > int(part[2]):
        raise BadInput(f"--share {args.share}: give I/N, such as 2/8")
    return run_through(
        args.kernels,
        dtype=getattr(torch, args.dtype),
        device=args.device,
        filter=args.filter,
        share=(int(part[1]) - 1, int(part[2])),
        progress=progress,
    )
