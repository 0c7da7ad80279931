"""A result as a table on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.harness import IDLE_SHARE_ALLOWED, Outcome, Result, cpu_model, disturbers


def show(result: Result, console: Console) -> None:
    bench = result.bench
    first = bench.contestants[0].name
    plural = "s" if bench.threads > 1 else ""
    console.print(f"\n[bold]{bench.name}[/bold]: {bench.title}")
    console.print(f"{bench.rounds} rounds each, in turn; {bench.threads} thread{plural}; {cpu_model()}", style="dim")
    for outcome in result.outcomes:
        versions = ", ".join(f"{package} {version}" for package, version in outcome.report["versions"].items())
        console.print(f"{outcome.contestant.name}: {versions}", style="dim")
    console.print(table(result, first))
    for goal in bench.goals:
        ratio = result.ratio(goal.of, goal.over, goal.measure)
        verdict = "[green]met[/green]" if result.met(goal) else "[red]missed[/red]"
        console.print(
            f"goal: {goal.of} / {goal.over} in {goal.measure} at most {goal.limit:.3f}: {ratio.value:.3f}, {verdict}"
        )
    for disturber in disturbers(result):
        console.print(
            f"[red]not a fair run[/red]: while waiting, {disturber.contestant.name} took {disturber.idle_share:.1%} "
            f"of a core (at most {IDLE_SHARE_ALLOWED:.0%})"
        )


def table(result: Result, first: str) -> Table:
    shown = Table("contestant")
    headings = ["median", "middle half", f"{first} / it", "round by round"]
    if result.bench.memory:
        headings += ["peak", "growth", f"{first} / it"]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for outcome in result.outcomes:
        shown.add_row(*row(result, outcome, first))
    return shown


def row(result: Result, outcome: Outcome, first: str) -> list[str]:
    name = outcome.contestant.name
    summary = outcome.seconds
    ratio = result.ratio(first, name)
    cells = [name, seconds(summary.median), f"{seconds(summary.low)} to {seconds(summary.high)}"]
    cells += ["", ""] if name == first else [f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"]
    if result.bench.memory:
        cells += [mebibytes(outcome.report[measure]) for measure in ("peak_rss", "peak_growth")]
        cells.append("" if name == first else f"{result.ratio(first, name, 'peak_growth').value:.3f}")
    return cells


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
