"""The report as one page that needs nothing else: what was found, how sure it is, and how to do it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from vantage.compare.cells import View, is_control
from vantage.compare.report.data import ranks
from vantage.compare.statistics import Estimate, estimate
from vantage.compare.verdicts import Comparison, Verdict, chance_of, comparisons, places
from vantage.figures import Line, Lines
from vantage.figures.inline_svg import Reached, interval_text, line_chart, swatch
from vantage.figures.palette import report_css, shade


@dataclass(frozen=True)
class TableRow:
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
class TaskPart:
    """Everything that the page says about one task."""

    name: str
    loss: bool
    trained: int
    chart: Markup
    lines: tuple[TableRow, ...]
    lengths: tuple[int, ...]
    points: Mapping[str, Mapping[int, Estimate | None]]
    groups: tuple[str, ...]
    grouped: Mapping[str, Mapping[str, Estimate | None]]
    pairs: tuple[Comparison, ...]


@dataclass(frozen=True)
class Cell:
    text: str
    style: Markup
    label: str


def page(view: View, facts: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """The whole page, as text."""
    entries = _in_order(view, facts)
    styles = {entry: i for i, entry in enumerate(entries)}
    parts = [_part(view, task, styles, facts) for task in view.tasks]
    found = resources.files("vantage.compare.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"ci": _ci, "word": lambda word: word.replace(" ", "-").partition(",")[0]}
    template = environment.from_string(found.joinpath("page.html").read_text(encoding="utf-8"))
    seeds = {run.key.seed for run in view.results}
    ranked = sorted(ranks(view).items(), key=lambda item: (-item[1].value, item[0]))
    return template.render(
        facts=facts,
        style=Markup(report_css()),
        parts=parts,
        entries=entries,
        heat=_heat(view, entries),
        ranks=ranked,
        verdicts=verdicts,
        seeds=len(seeds),
        runs=sum(run.key.task in view.counted for run in view.results),
        counted=view.counted,
        diverged=sum(run.diverged for run in view.results if run.key.task in view.counted),
        swatches={entry: swatch(style) for entry, style in styles.items()},
        short=[_short(view, task, facts["reach"]) for task in view.tasks],
    )


def _in_order(view: View, facts: Mapping[str, Any]) -> list[str]:
    """As the study names them; colours go by it."""
    asked = [str(entry) for entry in facts.get("entries", ())]
    there = view.all_entries
    return [entry for entry in asked if entry in there] + [entry for entry in there if entry not in asked]


# ---------------------------------------------------------------------------------------------------------- tasks


def _part(view: View, task: str, styles: Mapping[str, int], facts: Mapping[str, Any]) -> TaskPart:
    loss, lengths = view.measure(task) == "loss", view.lengths(task)
    entries = sorted(view.entries(task), key=lambda entry: styles[entry])
    points = {entry: {length: view.estimate(task, entry, [length]) for length in lengths} for entry in entries}
    groups, grouped = tuple(view.groups(task)), {}
    for entry in entries:
        samples = {name: view.group(task, entry, name, "beyond") for name in groups}
        grouped[entry] = {name: estimate(sample) if sample else None for name, sample in samples.items()}
    return TaskPart(
        name=task,
        loss=loss,
        trained=view.trained(task),
        chart=_chart(view, task, styles, facts, points),
        lines=tuple(_lines(view, task, entries, styles, facts["reach"])),
        lengths=tuple(lengths),
        points=points,
        groups=groups,
        grouped=grouped,
        pairs=tuple(comparisons(view, task)),
    )


def _chart(
    view: View,
    task: str,
    styles: Mapping[str, int],
    facts: Mapping[str, Any],
    points: Mapping[str, Mapping[int, Estimate | None]],
) -> Markup:
    """Score over length, a line for each entry; the training length is marked."""
    lines, loss = {}, view.measure(task) == "loss"
    for entry, by_length in points.items():
        known = {length: found for length, found in by_length.items() if found is not None}
        values = list(known.values())
        if values:
            low, high = [one.low for one in values], [one.high for one in values]
            lines[entry] = Line(entry, list(known), [one.value for one in values], low, high)
    chance = None if loss else chance_of(task, facts.get("chance"))
    panel = Lines(
        task,
        "position in the window" if task.endswith("over position") else "length",
        "perplexity" if loss else "accuracy",
        tuple(lines.values()),
        log_y=loss,
        marks=() if chance is None else (("chance", chance),),
    )
    reached = "trained to" if facts["reach"] == "training length" else facts["reach"]
    return line_chart(panel, [styles[entry] for entry in lines], Reached(reached, view.trained(task)))


def _lines(view: View, task: str, entries: Sequence[str], styles: Mapping[str, int], reach: str) -> list[TableRow]:
    """From the best down; controls and those without a score at the end."""
    placed = {place.entry: place for place in places(view, task)}
    order = [*placed, *(entry for entry in entries if entry not in placed)]
    lines = []
    for entry in order:
        runs, place = view.runs(task, entry), placed.get(entry)
        diverged = view.diverged(task, entry)
        fine = View(tuple(run for run in runs if not run.diverged), view.train_length, view.measures)
        lines.append(
            TableRow(
                entry=entry,
                swatch=swatch(styles[entry]),
                beyond=view.estimate(task, entry, "beyond"),
                within=view.estimate(task, entry, "within"),
                finished=fine.estimate(task, entry, "beyond") if diverged else None,
                rank=f"{place.rank:g}" if place else "–",
                word=place.word if place else "control" if is_control(entry) else f"nothing beyond the {reach}",
                seeds=len(runs),
                diverged=diverged,
                rates=", ".join(f"{rate:g}" for rate in sorted({run.lr for run in runs})),
                parameters=", ".join(f"{n:,}" for n in sorted({run.parameters for run in runs})),
                operations=", ".join(_big(n) for n in sorted({run.operations for run in runs})),
            )
        )
    return lines


def _short(view: View, task: str, reach: str) -> str:
    """A task in one sentence."""
    placed = places(view, task)
    if not placed:
        return f"{task}: nothing was tested beyond the {reach}."
    first = view.estimate(task, placed[0].entry, "beyond")
    level = [place.entry for place in placed[1:] if place.word.startswith("not")]
    sentence = f"{task}: beyond the {reach} {placed[0].entry} has the best mean"
    sentence += f", {_interval(first, view.measure(task) == 'loss')}" if first else ""
    if first and first.value == 0 and view.measure(task) != "loss":
        return f"{task}: beyond the {reach} no entry had anything right."
    if len(placed) == 1:
        return f"{sentence}. It was alone."
    if len(level) == len(placed) - 1 > 3:
        return f"{sentence}. No other is distinguishable from it."
    if level:
        return f"{sentence}. Not distinguishable from it: {', '.join(level)}."
    return f"{sentence}, distinguishable from every other."


def _heat(view: View, entries: Sequence[str]) -> list[tuple[str, list[Cell]]]:
    """Task by entry, beyond the training length. Perplexities are shaded from the worst to the best of their task."""
    rows: list[tuple[str, list[Cell]]] = []
    for task in view.tasks:
        found = {entry: view.estimate(task, entry, "beyond") for entry in entries if entry in view.entries(task)}
        logs = [math.log(max(one.value, 1e-9)) for one in found.values() if one is not None]
        cells = []
        for entry in entries:
            one = found.get(entry)
            if one is None:
                cells.append(Cell("–", Markup(""), "not measured"))
                continue
            loss = view.measure(task) == "loss"
            share = one.value
            if loss:
                share = (max(logs) - math.log(max(one.value, 1e-9))) / max(max(logs) - min(logs), 1e-9)
            colour, ink = shade(share)
            text = f"{one.value:.1f}" if loss else f"{one.value:.2f}"
            cells.append(Cell(text, Markup(f"background:{colour};color:{ink}"), _interval(one, loss)))
        rows.append((task, cells))
    return rows


# -------------------------------------------------------------------------------------------------------- numbers


def _ci(found: Estimate | None, loss: bool = False, signed: bool = False) -> Markup:
    """A number with its interval in smaller type."""
    if found is None:
        return Markup("–")
    digits, sign = (2 if loss else 3), ("+" if signed else "")
    if not math.isfinite(found.low) or not math.isfinite(found.high) or found.high > 1e300:
        return Markup("{} <small>no interval</small>").format(f"{found.value:{sign}.{digits}f}")
    ends = f"[{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"
    return Markup("{} <small>{}</small>").format(f"{found.value:{sign}.{digits}f}", ends)


def _interval(found: Estimate, loss: bool) -> str:
    return interval_text(found.value, found.low, found.high, log=loss)


def _big(number: float) -> str:
    """1.23e12 as people write it."""
    power = int(math.log10(number) // 3 * 3) if number >= 1 else 0
    return f"{number / 10**power:.3g}" + (f" × 10^{power}" if power else "")
