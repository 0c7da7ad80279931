"""The report as one page that needs nothing else: what was found, how sure it is, and how to do it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from vantage.compare.learning import guess_level, task_learning
from vantage.compare.report.data import ranked_tasks, ranks
from vantage.compare.report.summary import format_estimate, summary
from vantage.compare.result_table import ResultTable, is_control
from vantage.compare.statistics import Estimate, estimate
from vantage.compare.verdicts import (
    PairedComparison,
    Verdict,
    comparisons,
    overall_comparisons,
    overall_tasks,
    rank_entries,
)
from vantage.figures import Line, Lines
from vantage.figures.inline_svg import Reached, line_chart, swatch
from vantage.figures.palette import report_css, shade

MEASURES = {"exact": "accuracy", "tokens": "token accuracy", "loss": "perplexity"}
WORTH_DRAWING = 0.01  # of a guess: less lies on the axis


@dataclass(frozen=True)
class EntryRow:
    """One entry in the table of a task."""

    entry: str
    swatch: Markup
    beyond: Estimate | None
    within: Estimate | None
    finished: Estimate | None  # beyond, of the runs that did not diverge, where some did
    rank: str
    word: str
    seeds: int
    diverged: int
    rates: str
    parameters: str
    operations: str


@dataclass(frozen=True)
class TaskSection:
    """Everything that the page says about one task."""

    name: str
    measure: str  # as it is called on the page
    loss: bool
    trained: int
    chart: Markup
    lines: tuple[EntryRow, ...]
    lengths: tuple[int, ...]
    points: Mapping[str, Mapping[int, Estimate | None]]
    groups: tuple[str, ...]
    grouped: Mapping[str, Mapping[str, Estimate | None]]
    pairs: tuple[PairedComparison, ...]
    nobody: bool  # learned the task


@dataclass(frozen=True)
class Cell:
    text: str
    style: Markup
    label: str


def page(table: ResultTable, metadata: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """The whole page, as text."""
    entries = _ordered_entries(table, metadata)
    styles = {entry: i for i, entry in enumerate(entries)}
    sections = [_task_section(table, task, styles, metadata) for task in table.tasks]
    folder = resources.files("vantage.compare.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"ci": _format_interval, "word": lambda word: word.replace(" ", "-").partition(",")[0]}
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    seeds = {run.key.seed for run in table.results}
    ranked = sorted(ranks(table, metadata["chance"]).items(), key=lambda item: (-item[1].value, item[0]))
    return template.render(
        metadata=metadata,
        style=Markup(report_css()),
        sections=sections,
        entries=entries,
        heat=_heat(table, entries),
        ranks=ranked,
        ranked_tasks=len(ranked_tasks(table, metadata["chance"])),
        verdicts=verdicts,
        seeds=len(seeds),
        runs=sum(run.key.task in table.counted for run in table.results),
        counted=table.counted,
        diverged=sum(run.diverged for run in table.results if run.key.task in table.counted),
        swatches={entry: swatch(style) for entry, style in styles.items()},
        short=summary(table, metadata),
        overall=overall_comparisons(table, metadata["chance"]),
        overall_tasks=overall_tasks(table, metadata["chance"]),
    )


def _ordered_entries(table: ResultTable, metadata: Mapping[str, Any]) -> list[str]:
    """As the experiment names them; colours go by it."""
    listed = [str(entry) for entry in metadata.get("entries", ())]
    present = table.all_entries
    return [entry for entry in listed if entry in present] + [entry for entry in present if entry not in listed]


# ---------------------------------------------------------------------------------------------------------- tasks


def _task_section(table: ResultTable, task: str, styles: Mapping[str, int], metadata: Mapping[str, Any]) -> TaskSection:
    loss, lengths = table.measure(task) == "loss", table.lengths(task)
    entries = sorted(table.entries(task), key=lambda entry: styles[entry])
    points = {entry: {length: table.estimate(task, entry, [length]) for length in lengths} for entry in entries}
    groups, grouped = tuple(table.groups(task)), {}
    for entry in entries:
        samples = {name: table.group(task, entry, name, "beyond") for name in groups}
        grouped[entry] = {name: estimate(sample) if sample else None for name, sample in samples.items()}
    return TaskSection(
        name=task,
        measure=MEASURES[table.measure(task)],
        loss=loss,
        trained=table.trained(task),
        chart=_chart(table, task, styles, metadata, points),
        lines=tuple(_entry_rows(table, task, entries, styles, metadata)),
        lengths=tuple(lengths),
        points=points,
        groups=groups,
        grouped=grouped,
        pairs=tuple(comparisons(table, task, chance=metadata["chance"])),
        nobody=task_learning(table, task, metadata["chance"]).nobody,
    )


def _chart(
    table: ResultTable,
    task: str,
    styles: Mapping[str, int],
    metadata: Mapping[str, Any],
    points: Mapping[str, Mapping[int, Estimate | None]],
) -> Markup:
    """Score over length, a line for each entry; the training length is marked."""
    lines, loss = {}, table.measure(task) == "loss"
    for entry, by_length in points.items():
        known = {length: estimate for length, estimate in by_length.items() if estimate is not None}
        values = list(known.values())
        if values:
            low, high = [one.low for one in values], [one.high for one in values]
            lines[entry] = Line(entry, list(known), [one.value for one in values], low, high)
    guess = None if loss else guess_level(table, task, metadata["chance"])
    panel = Lines(
        task,
        "position in the window" if task.endswith("over position") else "length",
        MEASURES[table.measure(task)],
        tuple(lines.values()),
        log_y=loss,
        marks=() if guess is None or guess < WORTH_DRAWING else (("chance", guess),),
    )
    reached = "trained to" if metadata["reach"] == "training length" else metadata["reach"]
    return line_chart(panel, [styles[entry] for entry in lines], Reached(reached, table.trained(task)))


def _entry_rows(
    table: ResultTable, task: str, entries: Sequence[str], styles: Mapping[str, int], metadata: Mapping[str, Any]
) -> list[EntryRow]:
    """From the best down; controls and those without a score at the end."""
    ranked = {ranking.entry: ranking for ranking in rank_entries(table, task, chance=metadata["chance"])}
    nobody = task_learning(table, task, metadata["chance"]).nobody
    untested = f"nothing beyond the {metadata['reach']}"
    order = [*ranked, *(entry for entry in entries if entry not in ranked)]
    lines = []
    for entry in order:
        runs, ranking = table.runs(task, entry), ranked.get(entry)
        diverged = table.diverged(task, entry)
        fine = ResultTable(tuple(run for run in runs if not run.diverged), table.train_length, table.measures)
        lines.append(
            EntryRow(
                entry=entry,
                swatch=swatch(styles[entry]),
                beyond=table.estimate(task, entry, "beyond"),
                within=table.estimate(task, entry, "within"),
                finished=fine.estimate(task, entry, "beyond") if diverged else None,
                rank=f"{ranking.rank:g}" if ranking and not nobody else "–",
                word=ranking.word if ranking else "control" if is_control(entry) else untested,
                seeds=len(runs),
                diverged=diverged,
                rates=", ".join(f"{rate:g}" for rate in sorted({run.lr for run in runs})),
                parameters=", ".join(f"{n:,}" for n in sorted({run.parameters for run in runs})),
                operations=", ".join(_big(n) for n in sorted({run.operations for run in runs})),
            )
        )
    return lines


def _heat(table: ResultTable, entries: Sequence[str]) -> list[tuple[str, list[Cell]]]:
    """Task by entry, beyond the training length. Perplexities are shaded from the worst to the best of their task."""
    rows: list[tuple[str, list[Cell]]] = []
    for task in table.tasks:
        estimates = {entry: table.estimate(task, entry, "beyond") for entry in entries if entry in table.entries(task)}
        logs = [math.log(max(one.value, 1e-9)) for one in estimates.values() if one is not None]
        cells = []
        for entry in entries:
            one = estimates.get(entry)
            if one is None:
                cells.append(Cell("–", Markup(""), "not measured"))
                continue
            loss = table.measure(task) == "loss"
            share = one.value
            if loss:
                share = (max(logs) - math.log(max(one.value, 1e-9))) / max(max(logs) - min(logs), 1e-9)
            colour, ink = shade(share)
            text = f"{one.value:.1f}" if loss else f"{one.value:.2f}"
            cells.append(Cell(text, Markup(f"background:{colour};color:{ink}"), format_estimate(one, loss)))
        rows.append((task, cells))
    return rows


# -------------------------------------------------------------------------------------------------------- numbers


def _format_interval(estimate: Estimate | None, loss: bool = False, signed: bool = False) -> Markup:
    """A number with its interval in smaller type."""
    if estimate is None:
        return Markup("–")
    digits, sign = (2 if loss else 3), ("+" if signed else "")
    if not math.isfinite(estimate.low) or not math.isfinite(estimate.high) or estimate.high > 1e300:
        return Markup("{} <small>no interval</small>").format(f"{estimate.value:{sign}.{digits}f}")
    ends = f"[{estimate.low:{sign}.{digits}f}, {estimate.high:{sign}.{digits}f}]"
    return Markup("{} <small>{}</small>").format(f"{estimate.value:{sign}.{digits}f}", ends)


def _big(number: float) -> str:
    """1.23e12 as people write it."""
    power = int(math.log10(number) // 3 * 3) if number >= 1 else 0
    return f"{number / 10**power:.3g}" + (f" × 10^{power}" if power else "")
