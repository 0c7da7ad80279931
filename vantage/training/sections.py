"""The sections of settings that hold plain values: how long and how, when to evaluate and save, what stops a run.

Nothing here needs torch, so that what they refuse is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from operator import or_
from typing import Any, Literal, NamedTuple

from vantage.errors import BadInput, Refused
from vantage.spec.table_reader import KIND, PartNames, Reader, loosely
from vantage.training.log import ScoreRecord
from vantage.training.schedules import WSD, Constant, Cosine

DIVIDING_OPTIMISER = "adamw"  # the default as well
MAX_ENTRIES = 4096  # layers, tests, files: entries of any list


@dataclass(frozen=True)
class LoopSettings:
    """How much, and how. ``batch`` counts the examples of a step, over all processes and parts."""

    steps: int = 1000
    batch: int = 64
    batch_tokens: int | None = None  # instead of batch: as many rows as this many tokens hold, padding included
    accumulate: int | Literal["auto"] = 1  # parts that a batch is computed in; auto: as few as fit into memory
    clip: float | None = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    recompute: bool = False  # keep only what goes into each block, and compute the rest again on the way back
    smoothing: float = 0.0  # the share of each target that is spread over all tokens
    threads: int | None = None  # of the CPU; None: as torch has it

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "batch_tokens", "accumulate", "threads"):
            value = getattr(self, name)
            if value is not None and value != "auto" and value < 1:
                raise BadInput(f"{name}={value}: give at least 1")
        if self.accumulate != "auto" and self.batch % self.accumulate:
            raise BadInput(f"a batch of {self.batch} does not divide into {self.accumulate} parts")
        if not 0 <= self.smoothing < 1:
            raise BadInput(f"smoothing={self.smoothing}: give a share from 0 up to, not including, 1")
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip={self.clip}: give the largest norm of the gradient, or leave it out")


class Best(NamedTuple):
    """The best figure of the watched set so far, what patience compares with, and how long it has waited."""

    value: float
    waited: int  # evaluations without a figure that is better than ``reference``
    reference: float


@dataclass(frozen=True)
class Evaluate:
    """When to evaluate, and when that is reason to stop: ``goal`` is a share of exact rows in the watched set."""

    every: int = 0  # steps; 0: at the end alone
    watch: str | None = None  # None: the first set
    goal: float | None = None
    patience: int = 0  # evaluations without a better figure; 0: never stop for that
    best: bool | None = None  # whether the model that is kept is the best one, not the last; None: with patience
    metric: Literal["loss", "tokens", "exact"] = "loss"  # the figure of the watched set that best and patience mean
    min_delta: float = 0.0  # what a figure must gain to count as better for patience

    def __post_init__(self) -> None:
        if self.every < 0 or self.patience < 0:
            raise BadInput(f"every={self.every}, patience={self.patience}: give numbers of at least 0")
        if self.goal is not None and not 0 < self.goal <= 1:
            raise BadInput(f"goal={self.goal}: give a share of exact rows, above 0 and up to 1")
        if not (isfinite(self.min_delta) and self.min_delta >= 0):
            raise BadInput(f"min_delta={self.min_delta}: give the least change that counts, 0 for any")
        if self.min_delta and not self.patience:
            raise BadInput("min_delta needs patience: say after how many evaluations without that change to stop")
        if (self.goal is not None or self.patience or self.best) and not self.every:
            raise BadInput(
                "goal, patience and best need evaluate.every (eval_steps= in Python): say after how many steps to look"
            )

    @property
    def keeps_best(self) -> bool:
        return bool(self.patience) if self.best is None else self.best

    def watched(self, scores: Sequence[ScoreRecord]) -> ScoreRecord | None:
        named = [s for s in scores if self.watch is None or s.set == self.watch]
        return named[0] if named else None

    def why_enough(self, best: Best | None, scores: Sequence[ScoreRecord]) -> str | None:
        """Why this is reason to stop before the last step; None: it is not."""
        watched = self.watched(scores)
        if watched is not None and self.goal is not None and watched.exact >= self.goal:
            return f"{watched.exact:.1%} of {watched.set} are exact, and the goal was {self.goal:.1%}"
        if best is None or not self.patience or best.waited < self.patience:
            return None
        figure = {"loss": "loss", "tokens": "share of right tokens", "exact": "share of exact rows"}[self.metric]
        least = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"no better {figure}{least} in {best.waited} evaluations"

    def improved(self, best: Best | None, scores: Sequence[ScoreRecord]) -> Best | None:
        """The best figure after these scores. With ``waited`` == 0 patience begins anew."""
        watched = self.watched(scores)
        if watched is None:
            return best
        value = float(getattr(watched, self.metric))
        if best is None:
            return Best(value, 0, value)
        gain = best.reference - value if self.metric == "loss" else value - best.reference
        top = min(best.value, value) if self.metric == "loss" else max(best.value, value)
        return Best(top, 0, value) if gain > self.min_delta else Best(top, best.waited + 1, best.reference)


@dataclass(frozen=True)
class Save:
    """When to write a checkpoint; the last one is always written."""

    every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise BadInput(
                f"every={self.every}, keep={self.keep}: give steps between checkpoints, and at least 1 to keep"
            )


@dataclass(frozen=True)
class ParallelSettings:
    """How the processes that torchrun has started share a run. They compute the same in any arrangement.

    What is left of them, when these numbers are multiplied, has rows of its own; FSDP2 shares the weights out over all
    that have different tokens.
    """

    tensor: int = 1  # processes that share the heads and columns of a model
    context: int = 1  # that share the tokens of a row
    experts: int = 1  # that share the experts, each with rows of its own
    cut: Literal["contiguous", "zigzag"] = "contiguous"  # of the tokens
    exchange: Literal["gather", "ring"] = "gather"  # of keys and values

    def __post_init__(self) -> None:
        for name in ("tensor", "context", "experts"):
            if getattr(self, name) < 1:
                raise BadInput(f"parallel.{name}={getattr(self, name)}: give at least 1")

    def rows(self, processes: int) -> int:
        """How many groups of so many processes have rows of their own."""
        each = self.tensor * self.context * self.experts
        if processes % each:
            axes = [f"{name}={n}" for name in ("tensor", "context", "experts") if (n := getattr(self, name)) > 1]
            are = "is 1" if processes == 1 else f"are {processes}"
            raise BadInput(
                f"parallel {', '.join(axes)} needs {each} processes, or a multiple of that, and there {are}: start "
                f"with torchrun --nproc-per-node {each} -m vantage train …, or change the numbers "
                "(--tensor-parallel, --context-parallel, --expert-parallel)"
            )
        return processes // (self.tensor * self.context)


@dataclass(frozen=True)
class GuardSettings:
    """``spike``: how many nats above the median of the last 100 steps a loss may stand; 0 for no limit."""

    spike: float = 3.0

    def __post_init__(self) -> None:
        if not (isfinite(self.spike) and self.spike >= 0):
            raise BadInput(f"spike={self.spike}: use a number of nats, or 0 for no limit")


# The sections here, by name; the first of several is the default.
PLAIN: dict[str, tuple[type, ...]] = {
    "loop": (LoopSettings,),
    "schedule": (Constant, Cosine, WSD),
    "evaluate": (Evaluate,),
    "save": (Save,),
    "guard": (GuardSettings,),
    "parallel": (ParallelSettings,),
}


def check_sections(table: Mapping[str, Any]) -> None:
    """Refuse what these sections of a table of settings refuse."""
    reader = Reader(MAX_ENTRIES, PartNames(error=BadInput, loose=True))
    for name, classes in PLAIN.items():
        if name in table:
            section = with_part_name(table[name], classes[0])
            section = with_total(section, table.get("loop", {})) if name == "schedule" else section
            reader.value(section, reduce(or_, classes), name, f"settings.{name}", 0)
    if "seed" in table:
        check_seed(reader.value(table["seed"], int, "seed", "settings.seed", 0))


def parallel_of(table: Mapping[str, Any]) -> ParallelSettings:
    """What a table of settings says of the processes."""
    section = with_part_name(table.get("parallel", {}), ParallelSettings)
    reader = Reader(MAX_ENTRIES, PartNames(error=BadInput, loose=True))
    return reader.value(section, ParallelSettings, "parallel", "settings.parallel", 0)


def check_divides(name: str) -> None:
    """Refuse an optimiser that cannot work on shares of parameters."""
    if loosely(name) != DIVIDING_OPTIMISER:
        raise Refused(
            f"optimiser.is = {name!r}: parallel.tensor and parallel.experts divide weights, so they need an optimiser "
            f"that treats every number by itself: optimiser.is = {DIVIDING_OPTIMISER!r}"
        )


def check_table_optimiser(table: Mapping[str, Any]) -> None:
    """The same for a table of settings that divides parameters."""
    parallel = parallel_of(table)
    if max(parallel.tensor, parallel.experts) == 1:
        return
    section = table.get("optimiser", DIVIDING_OPTIMISER)
    name = section.get(KIND, DIVIDING_OPTIMISER) if isinstance(section, dict) else section
    check_divides(str(name))


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise BadInput(f"seed={seed}: give a number from 0 to 2**63 - 1")


def with_part_name(section: Any, default: type | None) -> Any:
    """A section as a table with its part's name: a word is that name, and a table without one means the default's."""
    if isinstance(section, str):
        return {KIND: section}
    return {KIND: default.__name__} | section if isinstance(section, dict) and default is not None else section


def with_total(schedule: Any, loop: Any) -> Any:
    """A schedule lasts as long as the run unless it says otherwise."""
    if not isinstance(schedule, dict) or str(schedule.get(KIND, "")).lower() not in ("cosine", "wsd"):
        return schedule
    steps = loop.get("steps", LoopSettings.steps) if isinstance(loop, dict) else LoopSettings.steps
    return {"total": steps} | schedule
