"""One contestant in a process of its own, driven by JSON lines on standard input and output.

``{"do": "setup", "file": …, "params": {…}, "threads": 2}``  loads the file and calls its ``setup(**params)``
``{"do": "round"}``                                           calls its ``round()``
``{"do": "report"}``                                          says what it ran on and how much memory it took

Every answer is one line, an object with the CPU time of this process when the order arrived and when
the answer left. In between, the process is blocked on a read and should take no CPU at all; the harness
holds it to that. This file runs in the peers' environments too, so it needs only Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import resource
import sys
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("vantage", "torch", "transformers", "numpy")
IF_USED = {"llama-cpp-python": "llama_cpp", "transformer-lens": "transformer_lens"}  # the modules they are imported as

# Seconds between the work and the answer, in which OpenMP's threads stop spinning (some 8 ms) and go to sleep.
# Without it they would spin into the next contestant's turn.
REST = 0.05


def main() -> None:
    # The protocol takes standard output for itself. Whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        order = json.loads(line)
        cpu_before = time.process_time()
        try:
            answer = worker.do(order)
        except Exception:
            answer = {"error": traceback.format_exc()}
        time.sleep(REST)
        answer |= {"cpu": [cpu_before, time.process_time()]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Worker:
    def __init__(self) -> None:
        self.contestant: ModuleType | None = None
        self.rss_after_setup = 0

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "setup":
                return self.setup(Path(order["file"]), order["params"], order["threads"])
            case "round":
                assert self.contestant is not None, "a round before its setup"
                return as_answer(self.contestant.round())
            case "report":
                return self.report()
            case other:
                raise ValueError(f"unknown order {other!r}: use setup, round or report")

    def setup(self, file: Path, params: dict[str, Any], threads: int) -> dict[str, Any]:
        # Contestants may share a module in their folder. At the end of the path, so that a contestant called
        # transformers.py does not hide the package.
        sys.path.append(str(file.parent))
        self.contestant = load(file)
        set_threads(threads)
        self.contestant.setup(**params)
        set_threads(threads)  # again, for a setup that imported torch only now
        reset_peak()
        self.rss_after_setup = memory("VmRSS") or peak_rss()
        return {}

    def report(self) -> dict[str, Any]:
        peak = peak_rss()
        torch = sys.modules.get("torch")
        return {
            "peak_rss": peak,
            "peak_growth": max(peak - self.rss_after_setup, resource.getpagesize()),  # what cannot be seen is not 0
            "python": platform.python_version(),
            "versions": installed_versions(),
            "threads": torch.get_num_threads() if torch else int(os.environ["OMP_NUM_THREADS"]),
        }


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"contestant_{file.stem}", file)
    assert spec is not None, f"{file} is not a Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_answer(result: Any) -> dict[str, Any]:
    """``round()`` gives its seconds, or an object with ``seconds`` (one, or a list) and whatever else it counted."""
    answer = dict(result) if isinstance(result, dict) else {"seconds": result}
    seconds = answer.get("seconds")
    samples = seconds if isinstance(seconds, list) else [seconds]
    if not samples or not all(isinstance(s, float) and s > 0 for s in samples):
        raise TypeError(f"round() gave {result!r}: give positive seconds, or a dict whose `seconds` is one or a list")
    return answer | {"seconds": samples}


def set_threads(threads: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def reset_peak() -> None:
    """Forget the peak of the setup, where the system lets us: making weights may take more than using them."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss() -> int:
    """Bytes. From /proc where there is one: ru_maxrss also counts the parent's peak from before the exec."""
    peak = memory("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory(field: str) -> int | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    size = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(size[1]) * 1024 if size else None


def installed_versions() -> dict[str, str]:
    versions = {}
    for package in (*PACKAGES, *(name for name, module in IF_USED.items() if module in sys.modules)):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    main()
