"""What became slower: ``python -m bench.compare`` (`make bench-compare`).

The last results of `make bench` (``bench/results``) beside those kept in git (``bench/kept/results``) for the same
kind of machine. What fell by more than 10 % is flagged, and the exit code is 1. ``--keep`` keeps the last results.

Machines are shared and change by the hour, so ratios are compared: ours over a peer that ran in the same rounds, with
the same version of it. A bench without a peer is compared by its seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import HERE, RESULTS

KEPT = HERE / "kept" / "results"
MORE = 1.10  # times what it was


@dataclass(frozen=True)
class Change:
    """One figure of a bench, of which less is better, then and now."""

    bench: str
    what: str
    before: float
    now: float

    @property
    def times(self) -> float:
        return self.now / self.before

    @property
    def fell(self) -> bool:
        return self.times > MORE

    def __str__(self) -> str:
        mark = "SLOWER  " if self.fell else "        "
        return f"{mark}{self.bench}, {self.what}: {self.before:.4g} then, {self.now:.4g} now ({self.times:.2f} times)"


def kind(result: dict[str, Any]) -> str:
    """Of the machine: its processor (a GPU's name stands there as well), and how many cores."""
    machine = result["machine"]
    cpu = machine.get("gpu") or machine.get("cpu")
    return re.sub(r"[^a-z0-9]+", "-", f"{cpu} {machine.get('cores') or ''}".lower()).strip("-")


def kept_file(result: dict[str, Any], folder: Path = KEPT) -> Path:
    return folder / kind(result) / f"{result['name']}.json"


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What can be compared with another run."""
    peers = versions(result)
    ratios = {
        f"{one['measure']} of {one['of']} over {one['over']}": float(one["value"])
        for one in result["ratios"]
        if one["over"] in peers
    }
    own = result["contestants"][0]
    return ratios if peers else {f"seconds of {own['name']}": float(own["seconds"]["median"])}


def versions(result: dict[str, Any]) -> dict[str, Any]:
    """What the peers ran; they are in environments that have no Vantage."""
    return {one["name"]: one["versions"] for one in result["contestants"] if "vantage" not in one["versions"]}


def changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    old = figures(before)
    for what, value in figures(now).items():
        if what in old and old[what] > 0:
            yield Change(now["name"], what, old[what], value)


def read(folder: Path) -> list[dict[str, Any]]:
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return [one for one in results if {"name", "machine", "contestants", "ratios"} <= one.keys()]


def keep(result: dict[str, Any], folder: Path = KEPT) -> Path:
    """Without the single rounds, which are many."""
    contestants = [
        {name: value for name, value in one.items() if name not in ("rounds", "others")}
        for one in result["contestants"]
    ]
    path = kept_file(result, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**result, "contestants": contestants}, indent=1) + "\n", encoding="utf-8")
    return path


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 nothing fell, 1 something did, 2 nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="What became slower.")
    parser.add_argument("--keep", action="store_true", help="keep the last results, to compare later ones with")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    parser.add_argument("--kept", type=Path, default=KEPT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    results = read(args.results)
    if not results:
        print("bench-compare: there are no results yet: run `make bench`", file=sys.stderr)
        return 2
    fell = False
    for now in results:
        path = kept_file(now, args.kept)
        if not path.is_file():
            print(f"        {now['name']}: nothing is kept for this kind of machine ({kind(now)})")
        else:
            before = json.loads(path.read_text(encoding="utf-8"))
            if versions(before) != versions(now):
                print(f"        {now['name']}: the peers are of other versions than on {before['date']}")
            else:
                print(f"        {now['name']}, {before['date']} ({before['commit']}) and {now['date']}:")
                for change in changes(before, now):
                    fell |= change.fell
                    print(change)
        if args.keep:
            print(f"        kept in {keep(now, args.kept)}")
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
