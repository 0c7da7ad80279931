"""What importing the kernels brings along: not torch's compiler, which takes seconds that nobody has asked for."""

from __future__ import annotations

import subprocess
import sys

import torch

from vantage.kernels.fused import cannot_run, constant_when_compiled


def test_the_compiler_is_not_imported() -> None:
    said = "import sys, vantage.kernels; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_mark_is_the_one_that_torch_sets() -> None:
    def ours() -> int:
        return 0

    def theirs() -> int:
        return 0

    assert vars(constant_when_compiled(ours)) == vars(torch.compiler.assume_constant_result(theirs)) != {}
    assert vars(cannot_run) == vars(ours)
