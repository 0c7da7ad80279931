"""The table of README.md, from the figures in ``bench/kept/peers.json``: ``python -m bench.readme`` writes it there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "bench" / "kept" / "peers.json"
BEGIN, END = "<!-- written by `python -m bench.readme` -->\n", "<!-- end of what was written -->"


def read() -> dict[str, Any]:
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def row(peer: dict[str, Any], machines: dict[str, Any]) -> str:
    proof = ", ".join(f"[{words}]({link})" for words, link in peer["proof"])
    figures = "; ".join(f"{figure['what']}: {figure['value']}" for figure in peer["figures"])
    machine = machines[peer["machine"]]
    cores = f", {machine['cores']} cores" if (machine["cores"] or 1) > 1 else ""
    measured = (
        f"{figures} ({machine['cpu']}{cores}, {machine['date']})"
        if figures
        else f"speed not measured; checked {machine['date']}"
    )
    return f"| {peer['peer']} | {peer['adds']} ({proof}) | {measured} |"


def table() -> str:
    figures = read()
    rows = [row(peer, figures["machines"]) for peer in figures["peers"]]
    return "\n".join(["| beside | what Vantage has | measured |", "|---|---|---|", *rows, ""])


def written(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit("README.md has no place for the table")
    readme.write_text(written(text), encoding="utf-8")
