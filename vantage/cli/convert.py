"""``vantage convert``: a checkpoint as a folder in the Hugging Face layout."""

from __future__ import annotations

import argparse
import json

from vantage.cli.flags import at_least
from vantage.cli.models import add_adapter, busy, load_model
from vantage.files import SHARD_BYTES

EXAMPLE = """\
examples:
  vantage convert model.gguf folder                         # a GGUF file, dequantised
  vantage convert smollm2 folder --dtype bfloat16           # a model that was pulled
  vantage convert folder other --shard-bytes 1000000000     # in files of at most 1 GB
  vantage convert smollm2 folder --adapter runs/tuned       # with an adapter merged into the weights
  vantage convert model.gguf folder --overwrite             # in the place of an earlier one
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
    parser.add_argument("folder", metavar="FOLDER", help="where to write; one that holds a model needs --overwrite")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16", "float64"),
        default="float32",
        help="the type of the weights; default: %(default)s",
    )
    parser.add_argument(
        "--shard-bytes",
        type=at_least(1),
        metavar="N",
        default=SHARD_BYTES,
        help="the largest file; default: %(default)s",
    )
    add_adapter(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a model that Vantage wrote there; until the new one is whole, the old one stays",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.checkpoints.model_folder import check_model_folder

    check_model_folder(args.folder, overwrite=args.overwrite)
    model = load_model(args.source, args.dtype, adapter=args.adapter)
    from vantage.families import save
    from vantage.model.lora import adapted, merge

    if adapted(model):
        merge(model)
    with busy(f"writing {args.folder}"):
        save(model, args.folder, shard_bytes=args.shard_bytes, overwrite=args.overwrite)
    result = {"source": args.source, "folder": args.folder, "dtype": args.dtype}
    print(json.dumps(result) if args.json else args.folder)
    return 0
