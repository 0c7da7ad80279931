"""What each process of ``torchrun`` runs in the tests: every run of a JSON file, one after the other.

It ends as `vantage train` would not: one start serves many runs, because starting is what takes long.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

warnings.simplefilter("error")
torch.set_num_threads(1)

from tests.training.runs import go  # noqa: E402
from vantage.training.distributed import join  # noqa: E402

if __name__ == "__main__":
    world = join(torch.device("cpu"))
    for task in json.loads(Path(sys.argv[1]).read_text()):
        go(Path(task["folder"]), task["said"], resume=task["resume"], stop=task["stop"], device="cpu")
    world.close()
