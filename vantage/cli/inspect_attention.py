"""``vantage inspect attention | atlas | scores``: what heads look at, what they are, what their scores are made of."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.flags import at_least, parse_numbers
from vantage.cli.models import DEFAULT, add_adapter, add_device, add_dtype, check_model, import_torch, load_model
from vantage.cli.progress import Bar
from vantage.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vantage.inspect import Capture

EXAMPLE = """\
examples:
  vantage inspect attention --text "The cat sat. The cat sat." --layer 18 --head 6
  vantage inspect attention --text "Once upon a time" --steps 20 --layer 3 --out heads.png
  vantage inspect atlas minilm --file book.txt --json
  vantage inspect atlas --file book.txt --out atlas.html
  vantage inspect scores --text "The cat sat on the mat" --layer 16 --heads 0 --out scores.svg
  vantage inspect scores --file book.txt --layer 16 --distances
"""
LONGEST = 200  # rows of a table that are printed
LEFT = ("kinds", "looks at", "position", "head")  # columns of words


def add(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    attention = reading_parser(what, "attention", "attention weights", "The attention weights of a model on a text.")
    _layer(attention)
    attention.add_argument("--head", metavar="N", help="one head, or several as in 0,3-5; default: all")
    attention.add_argument("--kind", choices=("self", "cross", "encoder"), help="which attention; default: self")
    attention.add_argument("--queries", metavar="N", help="only these queries, as in 0,3-5")
    attention.add_argument(
        "--steps", type=at_least(0), default=0, metavar="N", help="generate N more tokens, with a cache"
    )
    attention.add_argument(
        "--most", type=at_least(1), default=3, metavar="K", help="keys shown per query; default: %(default)s"
    )
    attention.set_defaults(run=run_attention)

    atlas = reading_parser(
        what, "atlas", "what every head does", "Measure every head on a text and sort heads by what they do."
    )
    atlas.add_argument("--layers", metavar="N", help="only these layers, as in 0,3-5")
    atlas.add_argument(
        "--longest",
        type=at_least(1),
        default=512,
        metavar="N",
        help="maximum number of tokens to read; default: %(default)s",
    )
    atlas.add_argument(
        "--once",
        action="store_true",
        help="read the text once, not twice; induction heads then show only where the text repeats itself",
    )
    atlas.add_argument("--all", action="store_true", help="also list heads of no particular kind")
    atlas.set_defaults(run=run_atlas)

    scores = reading_parser(
        what,
        "scores",
        "scores before the softmax, in parts",
        "Scores before the softmax, split into content and position.",
    )
    _layer(scores)
    scores.add_argument("--heads", metavar="N", help="only these heads, as in 0,3-5")
    scores.add_argument("--queries", metavar="N", help="only these queries, as in 0,3-5")
    scores.add_argument("--kind", choices=("self", "cross", "encoder"), help="which attention; default: self")
    scores.add_argument("--distances", action="store_true", help="instead: which distances each head can tell apart")
    scores.set_defaults(run=run_scores)


def reading_parser(what: Any, name: str, short: str, long: str, example: str = EXAMPLE) -> argparse.ArgumentParser:
    """A verb that reads a text with a model."""
    parser = what.add_parser(
        name, help=short, description=long, epilog=example, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--text", metavar="TEXT", help="the text (for an encoder-decoder: of the decoder)")
    parser.add_argument("--file", metavar="FILE", help="a text file, instead of --text")
    parser.add_argument("--source", metavar="TEXT", help="the source text of an encoder-decoder")
    parser.add_argument("--out", metavar="FILE", help="write a picture: .png, .svg or .html")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_dtype(parser)
    add_device(parser)
    add_adapter(parser)
    return parser


def _layer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layer", type=int, required=True, metavar="N", help="layer, from 0; -1 is the last")
    parser.add_argument("--beyond", action="store_true", help="allow a text longer than the model's context")


def text_of(args: argparse.Namespace) -> str:
    """The text of --text or --file; files that cannot be read are bad input."""
    if (args.text is None) == (args.file is None):
        raise BadInput("give something to read: --text TEXT or --file FILE")
    return read_text(args.file) if args.text is None else args.text


def read_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(f"{name}: {e}") from e


# ---- attention


def run_attention(args: argparse.Namespace) -> int:
    text = text_of(args)
    heads, queries = parse_numbers(args.head, "--head"), parse_numbers(args.queries, "--queries")
    check_model(args.model, args.adapter, args.device)
    check_out(args)
    import_torch()
    from vantage.inspect import capture

    model = load_model(args.model, args.dtype, adapter=args.adapter, device=args.device)
    keep = "weights" if args.out else f"top{max(args.most, 8)}"
    kind = args.kind or "self"
    choice = {"layers": args.layer, "heads": heads, "queries": queries, "kinds": kind, "beyond": args.beyond}
    with Bar("layers") as bar:
        seen = capture(model, text, source=args.source, keep=keep, steps=args.steps, progress=bar, **choice)
    layer = seen.sites[0][1]
    if args.json:
        print(json.dumps(seen.to_dict(args.most), ensure_ascii=False))
    else:
        for head in seen.heads(layer, kind):
            show_table(f"{kind} attention, layer {layer}, head {head}", ["query", "looks at"], _looks(seen, head, args))
    if args.out:
        from vantage.inspect import plot_attention, plot_heads

        several = len(seen.heads(layer, kind)) > 1
        figure = (
            plot_heads(seen, layer, kind) if several else plot_attention(seen, layer, seen.heads(layer, kind)[0], kind)
        )
        write(figure, args.out, repr(seen))
    return 0


def _looks(seen: Capture, head: int, args: argparse.Namespace) -> list[list[str]]:
    kind, layer = seen.sites[0]
    own, source = seen.tokens("self"), seen.tokens("encoder")
    queries, keys = source if kind == "encoder" else own, source if kind in ("cross", "encoder") else own
    order = seen.queries(layer, kind)[0].tolist()
    weights = seen.weights(layer, head, kind=kind)  # over the keys that were there for some captured query
    best = weights.topk(min(args.most, weights.shape[-1]), -1)
    return [
        [
            f"{o} {queries[o]!r}",
            ", ".join(f"{k} {keys[k]!r} {w:.2f}" for w, k in zip(values, index, strict=True) if w > 0) or "nowhere",
        ]
        for o, values, index in zip(order, best.values.tolist(), best.indices.tolist(), strict=True)
    ]


# ---- atlas


def run_atlas(args: argparse.Namespace) -> int:
    text = text_of(args)
    layers = parse_numbers(args.layers, "--layers")
    check_model(args.model, args.adapter, args.device)
    check_out(args)
    import_torch()
    from vantage.figures.html import table
    from vantage.inspect import atlas, plot_atlas

    model = load_model(args.model, args.dtype, adapter=args.adapter, device=args.device)
    with Bar("layers") as bar:
        result = atlas(
            model, text, source=args.source, layers=layers, longest=args.longest, repeat=not args.once, progress=bar
        )
    if args.json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        rows = [row for row in result.rows() if args.all or row[1] != "mixed"]
        show_table(result.summary, result.header, rows)
        limits = ", ".join(f"{n} {v}" for n, v in result.to_dict()["thresholds"].items())
        print(f"Mean weight from which a head gets each name: {limits}.")
    if args.out:
        write(plot_atlas(result), args.out, repr(result), table(result.header, result.rows()))
    return 0


# ---- scores


def run_scores(args: argparse.Namespace) -> int:
    text = text_of(args)
    heads, queries = parse_numbers(args.heads, "--heads"), parse_numbers(args.queries, "--queries")
    if args.distances and (heads is not None or queries is not None or args.kind not in (None, "self")):
        raise BadInput(
            "--distances looks at every head of a layer's self attention: leave out --heads, --queries, --kind"
        )
    check_model(args.model, args.adapter, args.device)
    check_out(args)
    import_torch()
    from vantage.figures.html import table
    from vantage.inspect import decompose, distinguishable, plot_decomposition, plot_distances

    model = load_model(args.model, args.dtype, adapter=args.adapter, device=args.device)
    if args.distances:
        with Bar("distances") as bar:
            result: Any = distinguishable(
                model, text, layer=args.layer, source=args.source, beyond=args.beyond, progress=bar
            )
        draw = plot_distances
    else:
        chosen = {"layer": args.layer, "heads": heads, "queries": queries, "kind": args.kind}
        result = decompose(model, text, source=args.source, beyond=args.beyond, **chosen)
        draw = plot_decomposition
    if args.json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        show_table(result.summary, result.header, result.rows())
        if args.distances:
            print(
                f"Smallest change of distance that changes the score by {result.threshold}; –: none does; *: longer "
                f"than in training."
            )
    if args.out:
        write(draw(result), args.out, repr(result), table(result.header, result.rows()))
    return 0


# ---- shared


def check_out(args: argparse.Namespace) -> None:
    """Before anything is loaded."""
    if args.out:
        from vantage.figures.canvas import check_name, new_figure

        check_name(args.out)
        new_figure(1, 1)  # says so now if matplotlib is not there


def write(figure: Figure, name: str, title: str, body: str = "") -> None:
    from vantage.figures.canvas import save

    save(figure, name, title, body)
    notes = {axes.get_title().split("\n")[-1] for axes in figure.axes if "reduced" in axes.get_title()}
    for note in sorted(notes):
        print(note, file=sys.stderr)
    print(f"wrote {name}", file=sys.stderr)


def show_table(title: str, header: list[str], rows: list[list[Any]]) -> None:
    """A table for the terminal; a long one is cut, and says so."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print(title)
    drawn = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        drawn.add_column(name, justify="left" if i == 0 or name in LEFT or name.startswith("would follow") else "right")
    for row in rows[:LONGEST]:
        drawn.add_row(*(Text(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else 200).print(drawn)
    if len(rows) > LONGEST:
        print(f"… and {len(rows) - LONGEST} more: use --json for all")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        if abs(value) >= 1e6:
            return f"{value:.3e}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
