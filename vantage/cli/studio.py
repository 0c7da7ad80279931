"""``vantage studio``: the page, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

from vantage.cli.flags import check_device
from vantage.cli.models import add_device, check_model
from vantage.cli.progress import Bar

EXAMPLE = """\
examples:
  vantage studio                          # with smollm2, in the browser
  vantage studio smollm2 minilm           # several models, each loaded on first use
  vantage studio ./my-model --port 9000
  vantage studio --no-browser --json      # prints the address for a program to read

MODEL is a folder in the Hugging Face layout, a folder with an adapter, a .gguf file, a name that `vantage pull` knows,
or NAME=one of these.
Only this machine can reach the studio. It serves OpenAI's API under /v1 as well.
"""
DEFAULT = "smollm2"
PORT = 8000


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "studio",
        help="open the studio in the browser: chat, attention, positions, costs, studies",
        description="Open the studio in the browser. Only this machine can reach it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models to open; default: {DEFAULT}")
    parser.add_argument(
        "--port", type=int, metavar="N", help=f"port to listen on; default: {PORT}, or a free one if it is in use"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder for conversations and reports; default: ~/.cache/vantage/studio",
    )
    add_device(parser)
    parser.add_argument("--no-browser", action="store_true", help="print the address and do not open a browser")
    parser.add_argument("--json", action="store_true", help="print the address as JSON once the studio runs")
    parser.set_defaults(run=run, rest="models")


def run(args: argparse.Namespace) -> int:
    from vantage.errors import BadInput

    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise BadInput("the studio needs fastapi and uvicorn: pip install 'vantage[serve]'")
    if args.port is not None and not 0 <= args.port <= 65535:
        raise BadInput(f"--port {args.port}: give 0 (any that is free) to 65535")
    check_device(None if args.device == "auto" else args.device)
    if args.folder is not None and args.folder.exists() and not args.folder.is_dir():
        raise BadInput(f"--folder {args.folder}: that is a file, and conversations and reports need a folder")
    from vantage.serve.settings import Batching, Limits, Logs, ServedModel, ServerSettings

    models = tuple(ServedModel.of(text) for text in args.models or (DEFAULT,))
    batching = Batching(rows=8, queue=16, capacity=8192, device=args.device)
    limits = Limits(body_bytes=48 * 2**20)  # a conversation that is imported, with its images
    settings = ServerSettings(
        models, port=_port(args.port), batching=batching, limits=limits, logs=Logs(level="warning")
    )
    troubles = {served.name: trouble for served in models if (trouble := _bring(served.source)) is not None}
    print("vantage: the studio is starting", file=sys.stderr, flush=True)  # what follows takes seconds
    from vantage.serve.run import run_app
    from vantage.serve.studio import create_studio

    app = create_studio(settings, troubles=troubles, folder=args.folder)
    run_app(app, settings, ready=lambda url: _tell(f"{url}/studio/", as_json=args.json, browser=not args.no_browser))
    return 0


def _bring(source: str) -> str | None:
    """Pulls a name that is not here yet. Returns why that failed: the studio starts all the same, and the page says it.
    What is no model is a mistake of the command line, and refused."""
    from vantage.checkpoints.pull import PullError, pull, to_bring

    if to_bring(source):
        print(f"vantage: downloading {source}", file=sys.stderr)
        try:
            with Bar("bytes") as progress:
                pull(source, progress=progress)
        except PullError as error:
            message = f"{source} could not be downloaded: {error}. Try again later: vantage pull {source}"
            print(f"vantage: {' '.join(message.split())}", file=sys.stderr)
            return message
    check_model(source)
    return None


def _port(port: int | None) -> int:
    """The one that was asked for, or the default; if that is taken, 0: the system gives one that is free."""
    if port is not None:
        return port
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            print(f"vantage: port {PORT} is in use, so another one is used", file=sys.stderr)
            return 0
    return PORT


def _tell(url: str, *, as_json: bool, browser: bool) -> None:
    print(json.dumps({"url": url}) if as_json else f"the studio is at {url} (Ctrl-C to stop)", flush=True)
    if browser:
        import threading
        import webbrowser

        # a browser that runs in the terminal would hold the server up
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
