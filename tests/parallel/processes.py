"""Several gloo processes that run one function, with a limit on how long they may take."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 240.0  # seconds, which only a hang takes
SILENCE = timedelta(seconds=60)  # after which a process that hears nothing of the others gives up


def in_processes(count: int, function: Callable[..., Any], *arguments: Any, limit: float = LIMIT) -> list[Any]:
    """What ``function(*arguments)`` returned in each of ``count`` processes of one group, by rank.

    The function is found by its module and name, as a process that is started anew would find it.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        call = Path(folder) / "call"
        call.write_bytes(pickle.dumps((function.__module__, function.__name__, arguments)))
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "VANTAGE_NATIVE": "0"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.parallel.processes", folder, str(count)]
        errors = [stack.enter_context(Path(folder, f"errors{rank}").open("w+")) for rank in range(count)]
        started = [
            subprocess.Popen(
                [*command, str(rank), str(limit)], cwd=ROOT, env=environment, stdout=errors[rank], stderr=errors[rank]
            )
            for rank in range(count)
        ]
        end = time.monotonic() + limit
        try:
            # one that failed leaves the others waiting for it
            while any(p.poll() is None for p in started) and not any(p.poll() for p in started):
                if time.monotonic() > end:
                    break
                time.sleep(0.05)
        finally:
            for process in started:
                process.kill()
                process.wait()
        reports = []
        for file in errors:
            file.seek(0)
            reports.append(file.read()[-4000:])
        answers = [Path(folder, f"answer{rank}") for rank in range(count)]
        codes = [process.returncode for process in started]
        assert all(answer.exists() for answer in answers), f"they ended with {codes}:\n" + "\n----\n".join(reports)
        return [pickle.loads(answer.read_bytes()) for answer in answers]


def main() -> None:
    folder, count, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    import faulthandler
    import importlib

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(float(sys.argv[4]) * 0.6)  # so that a hang says where
    module, name, arguments = pickle.loads(Path(folder, "call").read_bytes())
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=count, timeout=SILENCE)
    try:
        answer = getattr(importlib.import_module(module), name)(*arguments)
        Path(folder, f"answer{rank}").write_bytes(pickle.dumps(answer))
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # the others wait for this one no longer than SILENCE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
