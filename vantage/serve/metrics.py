"""Prometheus' text format, written by hand.

The client library keeps its metrics in one registry for the process, and a process may hold several
apps (tests do). What is needed of it is these few lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import final

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


@final
class MetricCounter:
    """A number for each set of labels, which only grows."""

    def __init__(self) -> None:
        self.values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0) + amount


@final
class MetricHistogram:
    """How many were at most so long."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS):
        self.bounds = bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value


@final
class MetricsPage:
    """Lines of a page, one metric after another."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, name: str, kind: str, about: str, values: Iterable[tuple[Mapping[str, str], float]]) -> None:
        self._head(name, kind, about)
        self._lines += [f"{name}{_labels(labels.items())} {_number(value)}" for labels, value in values]

    def counter(self, name: str, about: str, counter: MetricCounter) -> None:
        self.put(name, "counter", about, [(dict(labels), value) for labels, value in counter.values.items()])

    def histogram(self, name: str, about: str, histogram: MetricHistogram) -> None:
        self._head(name, "histogram", about)
        for key, counts in histogram.counts.items():
            so_far = 0
            for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
                so_far += count
                le = "+Inf" if bound == float("inf") else repr(bound)
                self._lines.append(f"{name}_bucket{_labels((*key, ('le', le)))} {so_far}")
            self._lines.append(f"{name}_sum{_labels(key)} {_number(histogram.sums[key])}")
            self._lines.append(f"{name}_count{_labels(key)} {so_far}")

    def _head(self, name: str, kind: str, about: str) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def merge_pages(pages: Mapping[str, str]) -> str:
    """The pages of several replicas as one: every line gets its replica's name, and a metric's lines stay together."""
    heads: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for replica, page in pages.items():
        metric = ""
        for line in page.splitlines():
            if line.startswith("#"):
                metric = line.split(" ", 3)[2]
                head = heads.setdefault(metric, [])
                head += [] if line in head else [line]
            elif line:
                lines.setdefault(metric, []).append(_with_label(line, ("replica", replica)))
    return "".join(f"{line}\n" for metric, head in heads.items() for line in [*head, *lines.get(metric, ())])


def _with_label(line: str, label: tuple[str, str]) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{_labels([label])[:-1]},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{_labels([label])} {value}"


@final
class Metrics:
    """What is counted for all models together; the engines count the rest themselves."""

    def __init__(self) -> None:
        self.requests, self.refused = MetricCounter(), MetricCounter()
        self.seconds, self.first_token, self.per_token = MetricHistogram(), MetricHistogram(), MetricHistogram()
        self.loads, self.unloads = MetricCounter(), MetricCounter()
