"""``vantage convert``: a checkpoint as a folder in the Hugging Face layout."""

from __future__ import annotations

import argparse
import json

from vantage.files import SHARD_BYTES

EXAMPLE = """\
examples:
  vantage convert model.gguf folder                         a GGUF file, dequantised
  vantage convert smollm2 folder --dtype bfloat16           a model that was pulled
  vantage convert folder other --shard-bytes 1000000000     in files of at most 1 GB
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="write a checkpoint as a Hugging Face folder",
        description="Write a checkpoint (a GGUF file, a folder, a pulled model) in the Hugging Face layout.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="a .gguf file, a folder, or the name of a pulled model")
    parser.add_argument("folder", metavar="FOLDER", help="where to write; it must hold no safetensors yet")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16", "float64"),
        default="float32",
        help="the type of the weights; default: %(default)s",
    )
    parser.add_argument(
        "--shard-bytes", type=int, metavar="N", default=SHARD_BYTES, help="the largest file; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import torch

    from vantage.errors import BadInput
    from vantage.families import load, save

    if args.shard_bytes < 1:
        raise BadInput(f"--shard-bytes {args.shard_bytes}: give a positive number of bytes")
    model = load(args.source, dtype=getattr(torch, args.dtype))
    save(model, args.folder, shard_bytes=args.shard_bytes)
    result = {"source": args.source, "folder": args.folder, "dtype": args.dtype}
    print(json.dumps(result) if args.json else args.folder)
    return 0
