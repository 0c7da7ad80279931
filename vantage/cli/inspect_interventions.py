"""``vantage inspect lens | attribute | ablate | patch``: what a model would say on the way, and without its parts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vantage.cli.flags import at_least, parse_numbers
from vantage.cli.inspect_attention import check_out, read_text, reading_parser, show_table, text_of, write
from vantage.cli.models import check_model, load_model
from vantage.cli.progress import Bar
from vantage.errors import BadInput

EXAMPLE = """\
examples:
  vantage inspect lens --text "The capital of France is" --target " Paris" --out lens.png
  vantage inspect lens --text "The capital of France is" --fit book.txt --tuned lens.safetensors
  vantage inspect attribute --text "The capital of France is" --target " Paris" --against " London" --out parts.svg
  vantage inspect ablate --text "The capital of France is" --target " Paris" --layers 16-20 --how mean
  vantage inspect patch --text "John and Mary. John saw" --corrupted "John and Mary. Mary saw" \\
      --target " Mary" --against " John" --layers 14-17 --out patch.png
  vantage inspect patch --text "…" --corrupted "…" --activation heads
  vantage inspect patch --text "…" --corrupted "…" --receiver 23.3 --through q    # which heads feed head 23.3
"""
WINDOW = 256  # tokens of a text that a lens is fitted on at once
MAX_SHOWN = 20  # rows of a sweep


def add(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lens = reading_parser(
        what,
        "lens",
        "logit lens: best guess after each layer",
        "The logit lens: the next token the model would predict after each layer.",
        EXAMPLE,
    )
    lens.add_argument("--target", metavar="TOKEN", help="also show the probability and rank of this token")
    lens.add_argument("--positions", metavar="N", help="only these positions, as in 0,3-5; -1 is the last")
    lens.add_argument("--top", type=at_least(1), default=5, metavar="N", help="number of guesses; default: %(default)s")
    lens.add_argument("--tuned", metavar="FILE", help="a tuned lens; with --fit, the file to write it to")
    lens.add_argument("--fit", metavar="FILE", help="text file to fit a tuned lens on first")
    lens.set_defaults(run=run_lens)

    long = "Direct logit attribution: what each part adds to a logit through the final norm and the output head."
    attribute = reading_parser(what, "attribute", "what each part adds to a logit", long, EXAMPLE)
    _add_target(attribute)
    attribute.add_argument(
        "--groups", type=at_least(1), default=8, metavar="N", help="neuron groups per layer; default: %(default)s"
    )
    attribute.set_defaults(run=run_attribute)

    long = "Ablation: how a prediction changes without a head, or without a layer's output at a position."
    ablate = reading_parser(what, "ablate", "what is lost without a head or layer", long, EXAMPLE)
    _add_target(ablate)
    _add_sweep(ablate, "heads")
    ablate.add_argument(
        "--how", default="zero", choices=("zero", "mean", "resample"), help="replacement; default: %(default)s"
    )
    ablate.add_argument("--reference", metavar="FILE", help="text file for mean and resample; default: the text itself")
    ablate.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed of resample; default: %(default)s"
    )
    ablate.set_defaults(run=run_ablate)

    long = "Activation patching: run --corrupted with one activation at a time taken from --text."
    patch = reading_parser(what, "patch", "which activation carries the answer", long, EXAMPLE)
    patch.add_argument("--corrupted", required=True, metavar="TEXT", help="a text with as many tokens as --text")
    _add_target(patch)
    _add_sweep(patch, "residual_before")
    patch.add_argument(
        "--receiver", metavar="L.H", help="path patching into this head instead: layer and head, as in 23.3"
    )
    patch.add_argument(
        "--through",
        default="q",
        choices=("q", "k", "v"),
        help="through its queries, keys or values; default: %(default)s",
    )
    patch.set_defaults(run=run_patch)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="TOKEN", help='one token, as in " Paris"; default: the most likely')
    parser.add_argument("--against", metavar="TOKEN", help="measure the logit difference to this token")
    parser.add_argument(
        "--position", type=int, default=-1, metavar="N", help="position of the prediction; default: the last"
    )


def _add_sweep(parser: argparse.ArgumentParser, activation: str) -> None:
    parser.add_argument(
        "--activation",
        default=activation,
        metavar="NAME",
        help="residual_before, attention, feed_forward, heads, q, k, v, weights, …; default: %(default)s",
    )
    parser.add_argument("--by", choices=("positions", "heads"), help="default: heads if the activation has them")
    parser.add_argument("--layers", metavar="N", help="only these layers, as in 0,3-5")
    parser.add_argument("--positions", metavar="N", help="only these positions, as in 0,3-5")


def run_lens(args: argparse.Namespace) -> int:
    text, positions = text_of(args), parse_numbers(args.positions, "--positions")
    if args.tuned and not args.fit and not Path(args.tuned).is_file():
        raise BadInput(f"there is no file {args.tuned}: fit a lens with --fit TEXT, or leave --tuned out")
    book = None if args.fit is None else read_text(args.fit)
    model = _model(args)
    from vantage.figures.html import table
    from vantage.interventions import TunedLens, fit_lens, logit_lens, plot_lens

    tuned = None
    if book is not None:
        tokens = model.tokenizer.encode(book)
        tuned = fit_lens(model, [tokens[i : i + WINDOW] for i in range(0, len(tokens), WINDOW)])
        if args.tuned:
            tuned.save(args.tuned)
    elif args.tuned:
        tuned = TunedLens.load(args.tuned)
    chosen = {"tuned": tuned, "positions": positions, "target": args.target, "top": args.top, "source": args.source}
    lens = logit_lens(model, text, **chosen)
    if args.json:
        print(json.dumps(lens.to_dict(), ensure_ascii=False))
    else:
        last = [row[0:1] + row[-1:] for row in lens.rows()]
        header = ["after", f"guess after {lens.labels[-1]!r}"]
        if lens.target is not None and lens.rank is not None:
            header += ["target", "rank"]
            for row, share, rank in zip(
                last, lens.target[:, -1].exp().tolist(), lens.rank[:, -1].tolist(), strict=True
            ):
                row += [share, rank]
        show_table(f"{lens!r}; guesses after the last token:", header, last)
    if args.out:
        write(plot_lens(lens), args.out, repr(lens), table(lens.header, lens.rows()))
    return 0


def run_attribute(args: argparse.Namespace) -> int:
    text, model = text_of(args), _model(args)
    from vantage.figures.html import table
    from vantage.interventions import attribute, plot_attribution

    result = attribute(model, text, groups=args.groups, source=args.source, **_target(args))
    _show(args, result, result.rows()[:MAX_SHOWN])
    if args.out:
        write(plot_attribution(result), args.out, repr(result), table(result.header, result.rows()))
    return 0


def run_ablate(args: argparse.Namespace) -> int:
    text, sweep = text_of(args), _sweep(args)
    reference = None if args.reference is None else [read_text(args.reference)]
    model = _model(args)
    from vantage.interventions import ablate

    with Bar("layers") as bar:
        chosen = {"how": args.how, "reference": reference, "seed": args.seed, "source": args.source, "progress": bar}
        result = ablate(model, text, **_target(args), **sweep, **chosen)
    return _show_sweep(args, result)


def run_patch(args: argparse.Namespace) -> int:
    text, sweep = text_of(args), _sweep(args)
    receiver = None if args.receiver is None else _head(args.receiver)
    model = _model(args)
    from vantage.interventions import patch, patch_path

    with Bar("layers") as bar:
        shared = {**_target(args), "source": args.source, "progress": bar}
        if receiver is None:
            result = patch(model, text, args.corrupted, **sweep, **shared)
        else:
            paths = {"receiver": receiver, "through": args.through, "layers": sweep["layers"]}
            result = patch_path(model, text, args.corrupted, **paths, **shared)
    return _show_sweep(args, result)


# ---- shared


def _model(args: argparse.Namespace) -> Any:
    check_model(args.model, args.adapter)
    check_out(args)
    return load_model(args.model, args.dtype, adapter=args.adapter, device=args.device)


def _target(args: argparse.Namespace) -> dict[str, Any]:
    return {"target": args.target, "against": args.against, "position": args.position}


def _sweep(args: argparse.Namespace) -> dict[str, Any]:
    layers, positions = parse_numbers(args.layers, "--layers"), parse_numbers(args.positions, "--positions")
    return {"activation": args.activation, "by": args.by, "layers": layers, "positions": positions}


def _head(text: str) -> tuple[int, int]:
    layer, _, head = text.partition(".")
    if not (layer.isdigit() and head.isdigit()):
        raise BadInput(f"--receiver {text}: give a layer and a head, as in 23.3")
    return int(layer), int(head)


def _show(args: argparse.Namespace, result: Any, rows: list[list[Any]]) -> None:
    if args.json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        show_table(repr(result), result.header, rows)


def _show_sweep(args: argparse.Namespace, result: Any) -> int:
    _show(args, result, result.rows()[:MAX_SHOWN])
    if args.out:
        from vantage.figures.html import table
        from vantage.interventions import plot_sweep

        write(plot_sweep(result), args.out, repr(result), table(result.header, result.rows()))
    return 0
