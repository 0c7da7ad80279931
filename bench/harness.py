"""Runs contestants against each other, a round of each in turn, and reports ratios.

Each contestant is a worker process (``worker.py``) in the environment it belongs to: ours in this one,
the peers in ``bench/.venv``. One works at a time while the others wait, A B B A …, so that whatever else
the machine does falls on all of them alike. A figure from one run is never compared with one from another.

    BENCH = Bench(
        name="forward",
        title="Forward pass, 12 layers of width 768, 1,024 tokens",
        contestants=(Contestant("vantage", "forward_vantage.py"), Contestant("transformers", "forward_hf.py", PEERS)),
        goals=(Goal("vantage", "transformers", 1.0),),
    )
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.stats import Ratio, Summary, flat, ratio, summarise

HERE = Path(__file__).parent
OURS = Path(sys.executable)
PEERS = HERE / ".venv" / "bin" / "python"
LENS = HERE / ".lens" / "bin" / "python"  # of TransformerLens, made by `make lens`
RESULTS = HERE / "results"

# A waiting worker that takes more of one core than this is disturbing the one that works.
IDLE_SHARE_ALLOWED = 0.02


class BenchError(Exception):
    """A bench that cannot run. The message says what to do."""


@dataclass(frozen=True)
class Contestant:
    """A file in ``bench/contestants`` with ``setup(**params)`` and ``round()``, and the Python it runs in."""

    name: str
    file: str | Path
    python: Path = OURS
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return HERE / "contestants" / self.file


@dataclass(frozen=True)
class Goal:
    """``of`` over ``over`` is at most ``limit``, in seconds or in the bytes of ``peak_rss`` or ``peak_growth``.

    "At least 1.5 times as fast" is a limit of 1 / 1.5.
    """

    of: str
    over: str
    limit: float
    measure: str = "seconds"


@dataclass(frozen=True)
class Bench:
    """The first contestant is ours: every other is its divisor in the table.

    ``memory`` adds the peak of each process, and its growth since the end of its setup. It makes the times a
    little longer, for all contestants alike.
    """

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    goals: tuple[Goal, ...] = ()
    rounds: int = 10
    warmup: int = 2
    threads: int = 2
    memory: bool = False

    def __post_init__(self) -> None:
        names = [c.name for c in self.contestants]
        if not names or len(set(names)) != len(names):
            raise BenchError(
                f"bench {self.name!r} has contestants {names}: give it at least one, each with its own name"
            )
        if self.rounds < 1 or self.warmup < 0 or self.threads < 1:
            raise BenchError(
                f"rounds={self.rounds}, warmup={self.warmup}, threads={self.threads}: "
                "use at least 1 round, 0 warm-up rounds and 1 thread"
            )
        for goal in self.goals:
            if goal.measure not in MEASURES:
                raise BenchError(f"a goal in {goal.measure!r}: use one of {', '.join(MEASURES)}")
            if unknown := {goal.of, goal.over} - set(names):
                raise BenchError(f"a goal for {sorted(unknown)}: the contestants are {names}")


@dataclass(frozen=True)
class Outcome:
    """What one contestant did."""

    contestant: Contestant
    rounds: list[list[float]]
    others: list[dict[str, Any]]
    report: dict[str, Any]
    idle_share: float

    @property
    def seconds(self) -> Summary:
        return summarise(flat(self.rounds))

    def samples(self, measure: str) -> list[list[float]]:
        """Round by round; memory is one figure for the whole run."""
        return self.rounds if measure == "seconds" else [[float(self.report[measure])]]


MEASURES = ("seconds", "peak_rss", "peak_growth")


@dataclass(frozen=True)
class Result:
    bench: Bench
    outcomes: list[Outcome]
    date: str

    def ratio(self, of: str, over: str, measure: str = "seconds") -> Ratio:
        by_name = {o.contestant.name: o for o in self.outcomes}
        return ratio(by_name[of].samples(measure), by_name[over].samples(measure))

    def met(self, goal: Goal) -> bool:
        return self.ratio(goal.of, goal.over, goal.measure).value <= goal.limit

    @property
    def ok(self) -> bool:
        return all(self.met(goal) for goal in self.bench.goals)


class Process:
    """A worker: one order, one answer. Between two orders it is blocked on a read."""

    def __init__(self, contestant: Contestant, threads: int, memory: bool) -> None:
        if not contestant.python.exists():
            raise BenchError(f"{contestant.name} needs {contestant.python}, which is not there: run `make bench`")
        if not contestant.path.exists():
            raise BenchError(f"{contestant.name} needs {contestant.path}, which is not there")
        self.contestant = contestant
        self.idle_cpu = self.idle_wall = 0.0
        self._cpu_done = self._wall_done = 0.0
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (lives as long as the worker)
        settings = worker_environment(threads, memory)
        inherited = {name: value for name, value in os.environ.items() if name not in settings}
        # -P: the folder of worker.py stays off the path, or bench/NAME.py would hide packages of that name.
        self._process = subprocess.Popen(
            [str(contestant.python), "-P", str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=inherited | {name: value for name, value in settings.items() if value is not None},
            cwd=HERE.parent,
        )

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started = time.monotonic()
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"{self.contestant.name} died during {order['do']!r}:\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.contestant.name} failed during {order['do']!r}:\n{answer['error']}{self._tail()}")
        cpu_before, cpu_after = answer.pop("cpu")
        if self._wall_done:
            self.idle_cpu += cpu_before - self._cpu_done
            self.idle_wall += started - self._wall_done
        self._cpu_done, self._wall_done = cpu_after, time.monotonic()
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]


def worker_environment(threads: int, memory: bool) -> dict[str, str | None]:
    """The same for every contestant; None: not set, whatever the caller's shell says.

    OpenMP threads that never spin (OMP_WAIT_POLICY=PASSIVE) would be the quietest neighbours, but waking
    them made a decode step five times as slow: 20 ms instead of 4, on two cores. Those that always spin
    (ACTIVE) take a core from whoever's turn it is. GNU's default, which torch brings, spins for some 8 ms
    and then sleeps; a worker rests that long before it answers (worker.py).

    Where memory is measured, malloc gives every large block back at once. By default it starts to keep some,
    and the same work grows by 32 MiB in one process and by 52 in the next. It costs time, so a bench measures
    memory only when asked to.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": None,
        "GOMP_SPINCOUNT": None,
        "KMP_BLOCKTIME": "8",  # milliseconds: the same for Intel's and LLVM's OpenMP, which would spin for 200
        "MALLOC_MMAP_THRESHOLD_": "131072" if memory else None,  # glibc's own value, but fixed
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # a benchmark that downloads is measuring something else
    }


def run(bench: Bench) -> Result:
    processes: list[Process] = []
    try:
        for contestant in bench.contestants:
            process = Process(contestant, bench.threads, bench.memory)
            processes.append(process)
            process.ask(
                {"do": "setup", "file": str(contestant.path), "params": contestant.params, "threads": bench.threads}
            )
        for _ in range(bench.warmup):
            for process in processes:
                process.ask({"do": "round"})
        rounds: list[list[dict[str, Any]]] = [[] for _ in processes]
        turns = list(zip(rounds, processes, strict=True))
        for _ in range(bench.rounds):
            for answers, process in turns:
                answers.append(process.ask({"do": "round"}))
            turns.reverse()  # else each would always be measured as the same other one leaves the machine
        outcomes = [outcome(process, answers) for process, answers in zip(processes, rounds, strict=True)]
    finally:
        for process in processes:
            process.close()
    return Result(bench, outcomes, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def outcome(process: Process, answers: list[dict[str, Any]]) -> Outcome:
    report = process.ask({"do": "report"})
    seconds = [answer.pop("seconds") for answer in answers]
    idle_share = process.idle_cpu / process.idle_wall if process.idle_wall else 0.0
    return Outcome(process.contestant, seconds, answers, report, idle_share)


def write(result: Result, folder: Path = RESULTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.bench.name}.json"
    file.write_text(json.dumps(as_json(result), indent=2) + "\n")
    return file


def as_json(result: Result) -> dict[str, Any]:
    bench = result.bench
    first = bench.contestants[0].name
    measures = MEASURES if bench.memory else ("seconds",)
    return {
        "name": bench.name,
        "title": bench.title,
        "date": result.date,
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "platform": platform.platform()},
        "threads": bench.threads,
        "warmup": bench.warmup,
        "contestants": [contestant_json(o) for o in result.outcomes],
        "ratios": [
            {"of": first, "over": o.contestant.name, "measure": m, **vars(result.ratio(first, o.contestant.name, m))}
            for o in result.outcomes[1:]
            for m in measures
        ],
        "goals": [
            {**vars(g), **vars(result.ratio(g.of, g.over, g.measure)), "met": result.met(g)} for g in bench.goals
        ],
    }


def contestant_json(o: Outcome) -> dict[str, Any]:
    return {
        "name": o.contestant.name,
        "params": o.contestant.params,
        **o.report,
        "idle_share": o.idle_share,
        "seconds": vars(o.seconds),
        "rounds": o.rounds,
        "others": o.others,
    }


def commit() -> str | None:
    try:
        finished = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()


# What the kernels of ours and of the peers are written for, as the kernel of Linux spells it.
INSTRUCTION_SETS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")
UNUSED_IF = {"amx_int8": lambda setting: setting == "0", "i8mm": lambda setting: setting != "1"}  # VANTAGE_MATRIX_UNITS


def cpu_model() -> str:
    """The processor's name, and its instruction sets: a figure holds for its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    has = (fields.get("flags") or fields.get("Features") or "").split()
    unused = [name for name, check in UNUSED_IF.items() if check(os.environ.get("VANTAGE_MATRIX_UNITS"))]
    sets = ", ".join(
        f"{name}, which ours leaves alone" if name in unused else name for name in INSTRUCTION_SETS if name in has
    )
    return fields.get("model name", platform.machine()) + (f" ({sets})" if sets else "")


def disturbers(result: Result) -> Sequence[Outcome]:
    """Those that took CPU time while it was another's turn."""
    return [o for o in result.outcomes if o.idle_share > IDLE_SHARE_ALLOWED]
