"""``vantage inspect``: look inside. Here ``cache``: what it holds, what it let go of, and why a prefix missed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli import inspect_attention, inspect_cost, inspect_interventions, inspect_kernels
from vantage.cli.flags import add_cache_kind
from vantage.cli.models import DEFAULT, add_adapter, load_model

if TYPE_CHECKING:
    from vantage.cache import Holding, ModelCache

EXAMPLE = """\
examples:
  vantage inspect attention smollm2 --text "The cat sat. The cat sat." --layer 18 --head 6 --out head.png
  vantage inspect atlas smollm2 --file book.txt --out atlas.html
  vantage inspect scores smollm2 --text "The cat sat on the mat" --layer 16 --out scores.svg
  vantage inspect lens smollm2 --text "The capital of France is" --target " Paris" --out lens.png
  vantage inspect attribute smollm2 --text "The capital of France is" --target " Paris" --against " London"
  vantage inspect ablate smollm2 --text "The capital of France is" --target " Paris" --layers 22-24
  vantage inspect patch smollm2 --text "The capital of France is" --corrupted "The capital of Italy is" \\
      --target " Paris" --against " Rome"
  vantage inspect cost smollm2 --context 8192 --batch 4 --machine h200
  vantage inspect extend smollm2 --file book.txt --lengths 2048,4096 --scaling linear:2
  vantage inspect kernels smollm2 --context 8192                   # which kernel each layer runs, and why
  vantage inspect cache talk.vantage                               # a conversation saved by `vantage chat`
  vantage inspect cache --prompt "The cat sat on the mat"          # the cache after this text
  vantage inspect cache --prompt "The cat sat" --against "The cat ran"
  vantage inspect cache --model ./gemma --kind ring --prompt "A long text …" --json
"""
CONTEXT = 40  # characters shown before the place where two texts part


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="attention, heads, scores, logit lens, attribution, ablation, patching, cost, kernels, caches",
        description="Look inside a model.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True, title="what to look at")
    cache = what.add_parser(
        "cache",
        help="positions that are cached, shared and evicted",
        description="Which positions each layer caches, which are shared, and which were evicted and why.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect_attention.add(what)
    inspect_interventions.add(what)
    inspect_cost.add(what)
    inspect_kernels.add(what)
    cache.add_argument("file", nargs="?", metavar="FILE", help="a saved conversation or cache")
    cache.add_argument(
        "--model", default=DEFAULT, metavar="MODEL", help="model that reads the prompt; default: %(default)s"
    )
    cache.add_argument("--prompt", metavar="TEXT", help="read this text and show the cache")
    cache.add_argument(
        "--against", metavar="TEXT", help="then read this text: how much of the cache is reused, and why"
    )
    cache.add_argument("--chat", action="store_true", help="send the texts as user messages, with the chat template")
    add_cache_kind(cache, "--kind")
    add_adapter(cache)
    cache.add_argument("--json", action="store_true", help="print the result as JSON")
    cache.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.errors import BadInput
    from vantage.parts import check_part_name

    if (args.file is None) == (args.prompt is None):
        raise BadInput("give a FILE, or a --prompt for a model to read")
    if args.against is not None and args.prompt is None:
        raise BadInput("--against is compared with a --prompt: give both")
    if args.prompt is None and not Path(args.file).is_file():
        raise BadInput(f"no file {args.file}: give a conversation saved with /save in `vantage chat`, or a --prompt")
    if args.prompt is not None:
        if not args.prompt:
            raise BadInput("an empty prompt: give some text")
        check_part_name("cache", args.kind)
    description = _file(args.file) if args.prompt is None else _prompt(args)
    print(json.dumps(description, ensure_ascii=False) if args.json else _text(description))
    return 0


def _file(path: str) -> dict[str, Any]:
    from vantage.cache.saved import read_cache

    saved = read_cache(path)
    messages = saved.extra.get("messages")
    description = {"model": saved.fingerprint.model, "fingerprint": saved.fingerprint.digest}
    if isinstance(messages, list):
        description["messages"] = str(len(messages))
    return {**description, **described(saved.cache)}


def _prompt(args: argparse.Namespace) -> dict[str, Any]:
    model = load_model(args.model, adapter=args.adapter)
    import torch

    from vantage.generation.cached_sequence import CachedSequence, new_cache
    from vantage.generation.prompts import PromptBatch

    if model.encoder is not None:
        from vantage.errors import Refused

        raise Refused("an encoder-decoder also reads a source: save its cache and inspect the file")
    first = PromptBatch.of(model, args.prompt, chat=args.chat).rows[0]
    row = CachedSequence(model, new_cache(model, args.kind, 0))
    with torch.inference_mode():
        row.feed(first)
    description = {"model": args.model, "prompt": len(first), **described(row.cache)}
    if args.against is not None:
        other = PromptBatch.of(model, args.against, chat=args.chat).rows[0]
        description["against"] = parting(model.tokenizer, first, other) | {"reused": row.match(other)}
        description["against"]["why"] = _why(description["against"])
    return description


# ---- as data


def described(cache: ModelCache) -> dict[str, Any]:
    """A cache as plain data."""
    report = cache.holds()
    layers = {"layers": report.layers, "cross": report.cross}
    return {
        "bytes": report.bytes,
        "length": cache.length,
        "recomputed": cache.recomputed,
        **{name: [_layer(holding) for holding in of] for name, of in layers.items()},
    }


def _layer(holding: Holding) -> dict[str, Any]:
    rows = [
        {
            "held": [list(span) for span in row.order],
            "positions": [list(span) for span in row.pos],
            "tokens": row.tokens,
            "shared": row.shared,
            "evicted": row.evicted,
            "why": holding.because if row.evicted else None,
        }
        for row in holding.rows
    ]
    names = {"names": [holding.row_name(i) for i in range(len(rows))]} if holding.heads > 1 else {}
    return {"arrangement": holding.arrangement, "rows": rows, **names}


def parting(tokenizer: Any, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, Any]:
    """Where two texts part: at which token, and what stands there in each."""
    from vantage.generation.cached_sequence import common_length

    n = common_length(a, b)

    def at(tokens: tuple[int, ...]) -> str | None:
        return tokenizer.decode(tokens[n : n + 1], special=True) if n < len(tokens) else None

    return {
        "tokens": len(b),
        "common": n,
        "after": tokenizer.decode(a[:n], special=True)[-CONTEXT:],
        "here": at(a),
        "there": at(b),
    }


def _why(against: dict[str, Any]) -> str:
    """Why no more was kept."""
    if against["reused"] < min(against["common"], against["tokens"] - 1):
        return "a window had evicted earlier tokens, so everything is recomputed"
    if against["there"] is None:
        return "all of it was cached; only the last token is recomputed, to predict what follows"
    return "the second continues the first" if against["here"] is None else f"they part at token {against['common']}"


# ---- as text


def _text(description: dict[str, Any]) -> str:
    lines = [
        f"{name:<12} {description[name]}"
        for name in ("model", "fingerprint", "messages", "prompt")
        if name in description
    ]
    lines.append(f"{'bytes':<12} {description['bytes']:,}")
    if description["length"] is not None:
        lines.append(
            f"{'length':<12} {description['length']:,} declared, "
            f"{description['recomputed']:,} tokens computed again for it"
        )
    for kind, name in (("layers", "layer"), ("cross", "cross-attention")):
        lines += _layers(name, description[kind])
    if (against := description.get("against")) is not None:
        lines += _against(against)
    return "\n".join(lines)


def _layers(name: str, layers: list[dict[str, Any]]) -> list[str]:
    """Equal layers are told once."""
    from vantage.cache.report import spans

    same: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        same.setdefault(json.dumps(layer), []).append(i)
    lines = []
    for text, which in same.items():
        layer = json.loads(text)
        lines.append(f"{name} {_spans(spans(which))}: {layer['arrangement']}")
        for b, row in enumerate(layer["rows"]):
            gone = f"; {row['evicted']} evicted: {row['why']}" if row["evicted"] else ""
            shared = f"; {row['shared']} shared" if row["shared"] else ""
            moved = f" at positions {_spans(row['positions'])}" if row["positions"] != row["held"] else ""
            row_name = layer["names"][b] if "names" in layer else f"row {b}"
            lines.append(f"  {row_name}: holds {_spans(row['held'])} ({row['tokens']} tokens){moved}{shared}{gone}")
    return lines


def _against(comparison: dict[str, Any]) -> list[str]:
    first, second = ("the end" if comparison[name] is None else repr(comparison[name]) for name in ("here", "there"))
    return [
        f"against      {comparison['tokens']} tokens, {comparison['common']} in common, {comparison['reused']} reused: "
        f"{comparison['why']}",
        f"             after {comparison['after']!r}: {first} in the first, {second} in the second",
    ]


def _spans(stretches: Any) -> str:
    return ", ".join(f"{a:g}" if a == b else f"{a:g}..{b:g}" for a, b in stretches) or "nothing"
