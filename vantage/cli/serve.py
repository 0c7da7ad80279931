"""``vantage serve``: an HTTP server that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from typing import Any

from vantage.cli.flags import check_device
from vantage.cli.models import check_max_memory, check_model
from vantage.cli.progress import Bar

EXAMPLE = """\
examples:
  vantage serve                                       # smollm2 on http://127.0.0.1:8000
  vantage serve smollm2 minilm tiny=./my-model        # several, each loaded on first use
  vantage serve smollm2 --lora-modules formal=./a rhymes=./b   # two LoRA adapters, each under its name
  vantage serve --host 0.0.0.0 --api-key "$KEY" --allow-host llm.example.org
  vantage serve --config serve.toml --port 9000
  vantage serve --on ray --replicas 4                 # replicas on a Ray cluster
  vantage serve ./my-model --on ray --tensor-parallel 2                         # each replica over two processes
  torchrun --nproc-per-node 2 -m vantage serve ./my-model --tensor-parallel 2   # over two processes

  curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}'

MODEL is a folder in the Hugging Face layout, a folder with an adapter, a .gguf file, a name that `vantage pull` knows,
or NAME=one of these.
Every option can also be set in the config file (port = 9000) or the environment (VANTAGE_PORT=9000).
Command-line options override the environment, which overrides the file.
"""
DEFAULT = "smollm2"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from vantage.serve.options import OPTIONS

    parser = subparsers.add_parser(
        "serve",
        help="serve models over HTTP with an OpenAI-compatible API",
        description="Serve models over HTTP with an OpenAI-compatible API, on 127.0.0.1 unless --host says otherwise.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models to serve; default: {DEFAULT}")
    parser.add_argument("--config", metavar="FILE", help="settings in TOML; also VANTAGE_CONFIG")
    parser.add_argument("--json", action="store_true", help="print the address as JSON once the server is ready")
    for option in OPTIONS:
        default = "" if option.default in (False, (), "") else f"; default: {option.default}"
        about: dict[str, Any] = {"dest": option.name, "default": None, "help": option.help + default}
        if option.kind is bool:
            about["action"] = argparse.BooleanOptionalAction
        elif option.kind is tuple:
            about |= {"action": "extend", "nargs": "+"} if option.several else {"action": "append"}
            about["metavar"] = "TEXT"
        else:
            about |= {"type": option.kind, "choices": option.choices or None}
            about["metavar"] = None if option.choices else {str: "TEXT", int: "N", float: "SECONDS"}[option.kind]
        parser.add_argument(option.flag, **about)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.checkpoints.adapter_folder import find_adapter
    from vantage.errors import BadInput
    from vantage.serve.options import NAMED, read_settings

    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise BadInput("serving needs fastapi and uvicorn: pip install 'vantage[serve]'")
    settings = read_settings(
        tuple(args.models), {name: getattr(args, name) for name in NAMED}, config=args.config, default=DEFAULT
    )
    check_device(None if settings.batching.device == "auto" else settings.batching.device)
    check_max_memory(settings.batching.max_memory or None)
    for adapter in settings.adapters:
        find_adapter(adapter.path)
    _note("the server is starting")  # what follows takes seconds
    if settings.tensor_parallel > 1 and not settings.on:
        return _serve_in_group(settings, args.json)
    for served in settings.models:
        _bring(served.source)
    if settings.on:
        from vantage.serve.on_ray import serve_on_ray

        _note("Ray starts its processes and loads the model in each: some 20 seconds")
        serve_on_ray(settings, ready=lambda url: _tell(url, args.json))
        return 0
    from vantage.serve.run import serve

    serve(settings, ready=lambda url: _tell(url, args.json))
    return 0


def _serve_in_group(settings: Any, as_json: bool) -> int:
    """In each of the processes that torchrun has started."""
    from vantage.cli.processes import same_in_all
    from vantage.cluster import check_tensor_parallel

    check_tensor_parallel(settings.tensor_parallel, "serve")
    with same_in_all() as group:
        from vantage.parallel.control import ControlChannel
        from vantage.serve.model_group import serve_in_group

        channel = ControlChannel()
        if group.first:
            _bring(settings.models[0].source)
            channel.tell("the model is here")
        else:
            channel.hear()
            _note("this machine computes with the first one, which accepts the connections (Ctrl-C to stop)")
        serve_in_group(settings, channel, ready=lambda url: _tell(url, as_json))
    return 0


def _note(text: str) -> None:
    """For who looks at a terminal, not among the lines of a log; once on each machine."""
    from vantage.cluster import first_on_machine

    if sys.stderr.isatty() and first_on_machine():
        print(f"vantage: {text}", file=sys.stderr, flush=True)


def _bring(source: str) -> None:
    """A name that is not here yet is pulled; what is no model is refused now, not at the first request."""
    from vantage.checkpoints.pull import pull, to_bring

    if to_bring(source):
        with Bar("bytes") as progress:
            pull(source, progress=progress)
    check_model(source)


def _tell(url: str, as_json: bool) -> None:
    print(json.dumps({"url": url}) if as_json else f"serving on {url} (Ctrl-C to stop)", flush=True)
