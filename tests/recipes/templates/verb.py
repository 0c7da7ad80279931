"""``vantage encodings``: the position encodings that there are."""

from __future__ import annotations

import argparse
import json

EXAMPLE = """\
examples:
  vantage encodings
  vantage encodings rope --json
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "encodings",
        help="list the position encodings",
        description="List the position encodings by the names that settings use.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all of them")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.position import ENCODINGS  # not before the verb runs: it brings torch along

    chosen = {name: ENCODINGS[name].title for name in args.names or ENCODINGS}
    if args.json:
        print(json.dumps(chosen))
    else:
        for name, title in chosen.items():
            print(f"{name}: {title}")
    return 0
