"""``vantage inspect kernels``: which kernel each layer runs, which way a step runs, and what keeps the others."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from vantage.cli.flags import at_least
from vantage.cli.models import DEFAULT, add_adapter, add_max_memory, check_model, import_torch, load_model

EXAMPLE = """\
examples:
  vantage inspect kernels smollm2 --context 8192
  vantage inspect kernels runs/a --context 4096 --batch 4 --dtype bfloat16 --train
"""


def add(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = what.add_parser(
        "kernels",
        help="which kernel each layer runs, and why not another",
        description="Which kernel each layer runs in one pass, which way a step with a cache runs (lowered, a graph of "
        "the modules, or module by module), and what keeps the others from it. Nothing is computed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument(
        "--context", type=at_least(1), default=2048, metavar="N", help="tokens per row; default: %(default)s"
    )
    parser.add_argument("--batch", type=at_least(1), default=1, metavar="N", help="batch size; default: %(default)s")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="device; default: VANTAGE_DEVICE, or a GPU if there is one"
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        default="float32",
        help="type of the weights; default: %(default)s",
    )
    parser.add_argument("--train", action="store_true", help="for training, with gradients")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_adapter(parser)
    add_max_memory(parser, context=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_model(args.model, args.adapter)
    import_torch()
    from vantage.inspect.kernels import kernel_choices, step_kernel

    # packed weights cannot be asked
    where = None if args.max_memory is None else args.device or "auto"
    model = load_model(args.model, args.dtype, adapter=args.adapter, device=where, max_memory=args.max_memory)
    choices = kernel_choices(
        model,
        context=args.context,
        batch=args.batch,
        device=args.device,
        train=args.train,
    )
    if not args.train:
        choices.append(step_kernel(model, args.device))
    if args.json:
        print(json.dumps([asdict(choice) for choice in choices], ensure_ascii=False))
        return 0
    same: dict[str, list[str]] = {}
    for choice in choices:
        same.setdefault(json.dumps([choice.kernel, choice.others]), []).append(choice.site)
    for text, sites in same.items():
        kernel, others = json.loads(text)
        print(f"{sites[0]} to {sites[-1]}: {kernel}" if len(sites) > 1 else f"{sites[0]}: {kernel}")
        for name, why in others.items():
            print(f"  {name}: {why}")
    return 0
