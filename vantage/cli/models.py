"""The model that a verb runs: its flags, what can be refused of it before torch is imported, and loading it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from vantage.cli.flags import at_least, check_device
from vantage.cli.progress import Bar

DEFAULT = "smollm2"
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")
ADAPTER = "a folder with a LoRA adapter from peft or `vantage train`"


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """How weights are kept."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="type of the weights; auto keeps a GGUF file's quantised blocks and is float32 otherwise; "
        "default: %(default)s",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Where the model runs."""
    parser.add_argument(
        "--device", default="auto", help="cpu or cuda; default: VANTAGE_DEVICE, or cuda if there is a GPU"
    )


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """What was trained on top of the model."""
    parser.add_argument("--adapter", metavar="PATH", help=ADAPTER)


def add_max_memory(parser: argparse.ArgumentParser, *, context: bool = True) -> None:
    """A model that does not fit."""
    parser.add_argument(
        "--max-memory",
        metavar="SIZE",
        help="limit of device memory for weights, cache and activations, such as 6GiB, or auto for what is free; "
        "layers that do not fit stay in host memory (on a CPU: in a file)",
    )
    if context:
        parser.add_argument(
            "--context",
            type=at_least(1),
            metavar="N",
            help="context length that --max-memory reserves memory for; default: 4096",
        )


def check_max_memory(size: str | None, context: int | None = None) -> None:
    """Refuse what is no size, before anything is loaded."""
    from vantage.errors import BadInput
    from vantage.spec.memory_size import memory_size

    if size is None and context is not None:
        raise BadInput("--context is for --max-memory: give that as well")
    if size not in (None, "auto"):
        memory_size(size, "--max-memory")


def check_model(source: str, adapter: str | None = None, device: str | None = None) -> None:
    """Refuse what is not there, and what is no device. Nothing is brought and nothing loaded yet."""
    check_device(None if device == "auto" else device)
    from vantage.checkpoints.adapter_folder import find_adapter, find_with_adapter
    from vantage.checkpoints.pull import to_bring

    if not to_bring(source):
        find_with_adapter(source, adapter)
    elif adapter is not None:
        find_adapter(adapter)


def load_model(
    source: str,
    dtype: str = "auto",
    *,
    adapter: str | None = None,
    device: str | None = None,
    tensor_parallel: bool = False,
    whole_experts: bool = False,
    max_memory: str | None = None,
    context: int | None = None,
) -> Any:
    """The model, brought first if it is a name that is not here yet. ``device``: "auto", a name, or ``None``: a CPU."""
    check_max_memory(max_memory, context)
    check_model(source, adapter, device)
    from vantage.checkpoints.pull import pull, to_bring

    if to_bring(source):
        with Bar("bytes") as progress:
            pull(source, progress=progress)
    with busy(f"loading {source}"):
        import torch

        from vantage.families import load
        from vantage.spec.devices import generation_device

        where = None if device is None else generation_device(device)
        kept = dtype if dtype in ("auto", "int8", "int4") else getattr(torch, dtype)
        memory = {"max_memory": max_memory, "context": context}
        shared = {"tensor_parallel": tensor_parallel, "whole_experts": whole_experts}
        return load(source, dtype=kept, adapter=adapter, device=where, **shared, **memory)


@contextlib.contextmanager
def busy(label: str) -> Iterator[None]:
    """A spinner, where standard error is a terminal; of several processes the first on each machine has one."""
    from vantage.cluster import first_on_machine

    if not sys.stderr.isatty() or not first_on_machine():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield


def import_torch() -> None:
    """Import what every verb that computes needs, with a spinner: it takes seconds."""
    with busy("starting"):
        importlib.import_module("torch")


def is_model(source: str) -> bool:
    """Whether this is a model's file or folder: a prompt that is one was meant as a model."""
    from pathlib import Path

    path = Path(source)
    with contextlib.suppress(OSError):  # a prompt may be longer than any path
        if path.is_dir():
            return any((path / name).is_file() for name in ("config.json", "adapter_config.json"))
        return path.suffix == ".gguf" and path.is_file()
    return False
