"""``vantage pull``: download a model by name."""

from __future__ import annotations

import argparse
import json

from vantage.cli.progress import Bar

EXAMPLE = """\
examples:
  vantage pull smollm2                          # the default model, 93 MB
  vantage pull gemma3-270m                      # prints its terms of use
  vantage pull gemma3-270m --accept-terms
  vantage pull HuggingFaceTB/SmolLM2-360M       # from Hugging Face
  vantage pull Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf

Models are stored under VANTAGE_HOME (default: ~/.cache/vantage).
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="download a model by name",
        description="Download a model by name and verify its SHA-256. A model that is already there is not downloaded "
        "again.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="smollm2, gemma3-270m, minilm, mpnet, or a Hugging Face id")
    parser.add_argument("--accept-terms", action="store_true", help="accept the model's terms of use")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.checkpoints.pull import place, pull, terms_of

    if not args.accept_terms and not place(args.name).is_dir() and (terms := terms_of(args.name)) is not None:
        print(terms)
    with Bar("bytes") as progress:
        path = pull(args.name, accept_terms=args.accept_terms, progress=progress)
    print(json.dumps({"name": args.name, "path": str(path)}) if args.json else path)
    return 0
