"""``python -m tests.serve.faulty serve …``: the real server over models in which things go wrong when a file says so.

The file named by FAULTS holds a word. It is taken away when the fault has happened; "slow" and "hold", which make steps
wait for as long as they stand there, are for the test to take away.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import vantage.cli.serve
import vantage.families
import vantage.serve.run
from vantage.cli.main import main
from vantage.generation.scheduler import Scheduler
from vantage.model import Model
from vantage.serve import ServedModel

CONTROL = Path(os.environ["FAULTS"])


def said(word: str) -> bool:
    try:
        return CONTROL.read_text() == word
    except FileNotFoundError:
        return False


def due(word: str) -> bool:
    if said(word):
        CONTROL.unlink()
        return True
    return False


def load(served: ServedModel) -> Model:
    fill = vantage.families.fill

    def vanishing(*args, **options):
        if due("vanish"):  # the config was read, the weights were not
            Path(served.source, "model.safetensors").unlink()
            raise FileNotFoundError(2, "No such file or directory", str(Path(served.source, "model.safetensors")))
        return fill(*args, **options)

    vantage.families.fill = vanishing
    try:
        model = vantage.families.load(served.source)
    finally:
        vantage.families.fill = fill
    model.blocks[1].register_forward_pre_hook(fault)  # the layer before it has written its keys by then
    return model


def fault(module, args) -> None:
    while said("hold"):
        time.sleep(0.01)
    time.sleep(0.05 if said("slow") else float(os.environ.get("SLOWLY", "0")))
    if args[0].shape[1] > 1:
        return  # prompts pass: the fault is for those that decode
    if due("step"):
        raise RuntimeError("the roof fell in at /secret/path")
    if due("memory"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if due("allocator"):
        torch.empty(2**50)


def broken(self) -> None:
    if due("engine"):
        raise AssertionError("the scheduler lost count")
    return admit(self)


admit = Scheduler.admit
Scheduler.admit = broken
serve = vantage.serve.run.serve
vantage.serve.run.serve = lambda settings, **options: serve(settings, load=load, **options)

if __name__ == "__main__":
    sys.exit(main())
