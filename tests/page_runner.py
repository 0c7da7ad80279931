"""Runs the Python of a page as a reader would: pasted into an interpreter in which nothing was imported by name.

It reads requests from standard input, a line of JSON each, and forks a process for each. So torch is loaded once, and
what a page registers, changes or leaves behind is gone with its process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from pathlib import Path

import numpy as np  # noqa: F401 (so that no page has to wait for these)
import torch  # noqa: F401


def run(name: str, blocks: list[str], folder: str) -> None:
    os.chdir(folder)
    page = types.ModuleType("__main__")  # what is typed at a prompt belongs to this module
    sys.modules["__main__"] = page
    for i, code in enumerate(blocks):
        exec(compile(code, f"{name}, block {i + 1}", "exec"), page.__dict__)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        output = Path(request["folder"]) / "output.txt"
        child = os.fork()
        if child == 0:
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = 1
            try:
                run(request["name"], request["blocks"], request["folder"])
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        reply = {"code": os.waitstatus_to_exitcode(status), "output": output.read_text(errors="replace")}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
