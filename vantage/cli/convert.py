"""``vantage convert``: a checkpoint as a folder in the Hugging Face layout, or as a GGUF file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from vantage.cli.flags import at_least
from vantage.cli.models import add_adapter, busy, load_model
from vantage.cli.progress import Bar
from vantage.errors import BadInput
from vantage.files import SHARD_BYTES

GGUF_TYPE = "Q4_K_M"

EXAMPLE = """\
examples:
  vantage convert model.gguf folder                         # a GGUF file, dequantised
  vantage convert smollm2 folder --dtype bfloat16           # a downloaded model
  vantage convert folder other --shard-bytes 1000000000     # in files of at most 1 GB
  vantage convert smollm2 folder --adapter runs/tuned       # with an adapter merged into the weights
  vantage convert model.gguf folder --overwrite             # replace an earlier one
  vantage convert folder model.gguf --type Q4_K_M           # a GGUF file for llama.cpp, quantised
  vantage convert runs/tuned tuned.gguf --type Q8_0         # a trained run

The types of a GGUF file are llama.cpp's: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q4_K_M, Q4_K_S, Q3_K_L, Q3_K_M,
Q3_K_S, Q2_K, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_XS, IQ4_NL, MXFP4. K types and IQ4 mix types as llama.cpp does; where
a row is not a multiple of 256, the tensor gets the nearest type with blocks of 32. Families that can be written: llama,
mistral, smollm3, qwen2, qwen3, gemma3, gpt2, bert, models with LLaMA's parts, and your own that name one of these.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="write a checkpoint as a Hugging Face folder or a GGUF file",
        description="Write a checkpoint (GGUF file, folder, pulled model) as a Hugging Face folder or a GGUF file.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="a .gguf file, a folder, or the name of a pulled model")
    parser.add_argument(
        "folder",
        metavar="TARGET",
        help="the folder to write, or a .gguf file; replacing a model needs --overwrite",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16", "float64"),
        help="the type of the weights in a folder; default: float32",
    )
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help=f"the type of the weights in a GGUF file, such as Q4_K_M, Q8_0 or F16; default: {GGUF_TYPE}",
    )
    parser.add_argument(
        "--shard-bytes",
        type=at_least(1),
        metavar="N",
        help=f"maximum size of one file in a folder; default: {SHARD_BYTES}",
    )
    add_adapter(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a model that Vantage wrote there, once the new one is complete",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return _to_gguf(args) if args.folder.endswith(".gguf") else _to_folder(args)


def _to_folder(args: argparse.Namespace) -> int:
    from vantage.checkpoints.model_folder import check_model_folder

    if args.type is not None:
        raise BadInput(f"--type {args.type} is for GGUF files, and {args.folder} does not end in .gguf")
    check_model_folder(args.folder, overwrite=args.overwrite)
    dtype = args.dtype or "float32"
    model = _merged(args, dtype)
    from vantage.families import save

    with busy(f"writing {args.folder}"):
        save(model, args.folder, shard_bytes=args.shard_bytes or SHARD_BYTES, overwrite=args.overwrite)
    result = {"source": args.source, "folder": args.folder, "dtype": dtype}
    print(json.dumps(result) if args.json else args.folder)
    return 0


def _to_gguf(args: argparse.Namespace) -> int:
    from vantage.checkpoints.gguf_mixes import check_gguf

    for flag, value in (("--dtype", args.dtype), ("--shard-bytes", args.shard_bytes)):
        if value is not None:
            raise BadInput(f"{flag} is for folders: a GGUF file is one file, and --type says the type of its weights")
    kind = args.type or GGUF_TYPE
    check_gguf(args.folder, kind, overwrite=args.overwrite)
    model = _merged(args, "float32")
    from vantage.families.gguf_files import save_gguf

    with Bar("weights") as progress:
        save_gguf(model, args.folder, kind, overwrite=args.overwrite, progress=progress)
    result = {"source": args.source, "file": args.folder, "type": kind}
    print(json.dumps(result) if args.json else args.folder)
    return 0


def _merged(args: argparse.Namespace, dtype: str) -> Any:
    """The model, an adapter made part of its weights."""
    model = load_model(args.source, dtype, adapter=args.adapter)
    from vantage.model.lora import adapted, merge

    if adapted(model):
        merge(model)
    return model
