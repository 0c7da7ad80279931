"""``vantage inspect cost | extend``: what a model costs, and what another position does to it."""

from __future__ import annotations

import argparse
import importlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.flags import at_least, parse_numbers
from vantage.cli.inspect_attention import check_out, show_table, text_of, write
from vantage.cli.models import (
    DEFAULT,
    add_adapter,
    add_dtype,
    add_max_memory,
    check_max_memory,
    check_model,
    import_torch,
    load_model,
)
from vantage.cli.progress import Bar
from vantage.errors import BadInput

if TYPE_CHECKING:
    from vantage.spec.mesh import MeshShape

EXAMPLE = """\
examples:
  vantage inspect cost smollm2 --context 8192 --batch 4
  vantage inspect cost config.json --context 131072 --machine h200 --out cost.html
  vantage inspect cost smollm2 --context 2048 --machine measure --weights float32
  vantage inspect cost config.json --context 131072 --mesh tensor=4,context=2
  vantage inspect cost config.json --context 8192 --mesh data=2,tensor=4       # as in vantage train
  vantage inspect extend smollm2 --file book.txt --lengths 2048,4096 --scaling linear:2
  vantage inspect extend smollm2 --file book.txt --lengths 1024 --position none --tries 0 --json
"""
SCALINGS = "linear:FACTOR, ntk:FACTOR:ORIGINAL, yarn:FACTOR:ORIGINAL, llama3:FACTOR:LOW:HIGH:ORIGINAL or none"
RULES = {"linear": ("Linear", 1), "ntk": ("DynamicNTK", 2), "yarn": ("YaRN", 2), "llama3": ("Llama3", 4)}
FLOATS = ("float32", "bfloat16", "float16", "float64")
MACHINES = ("h200", "h100", "a100", "measure")


def add(what: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    cost = _parser(
        what,
        "cost",
        "parameters, operations, cache, time",
        "Parameters, operations, cache and time of a model, without running it.",
    )
    cost.add_argument(
        "model", nargs="?", default=DEFAULT, metavar="MODEL", help="a model or a config.json; default: %(default)s"
    )
    cost.add_argument(
        "--context", type=at_least(1), default=2048, metavar="N", help="tokens per row; default: %(default)s"
    )
    cost.add_argument("--batch", type=at_least(1), default=1, metavar="N", help="batch size; default: %(default)s")
    cost.add_argument(
        "--source", type=at_least(1), metavar="N", help="source tokens of an encoder-decoder; default: the context"
    )
    cost.add_argument("--kind", default="contiguous", help="cache; default: %(default)s")
    cost.add_argument("--weights", choices=FLOATS, help="type of weights and cache; default: the model's")
    cost.add_argument(
        "--window",
        type=at_least(1),
        default=4096,
        metavar="N",
        help="window of the sliding-window alternative; default: %(default)s",
    )
    cost.add_argument(
        "--machine", choices=MACHINES, help="predict the time on this machine; measure: benchmark the present one"
    )
    cost.add_argument(
        "--mesh",
        metavar="AXES",
        help="memory and bytes sent over several devices, as in tensor=4,context=2; for training also data, experts",
    )
    add_max_memory(cost, context=False)
    cost.add_argument("--device", default="auto", help="with --max-memory: cpu or cuda")
    add_adapter(cost)
    cost.set_defaults(run=run_cost)

    extend = _parser(
        what,
        "extend",
        "try another encoding or RoPE scaling",
        "Perplexity by position and passkey retrieval, before and after a change of encoding.",
    )
    extend.add_argument("model", nargs="?", default=DEFAULT, metavar="MODEL", help="default: %(default)s")
    extend.add_argument("--file", required=True, metavar="FILE", help="a text file")
    extend.add_argument("--lengths", default="512,1024", metavar="N,N", help="lengths in tokens; default: %(default)s")
    extend.add_argument("--position", metavar="NAME", help="another encoding: rope, alibi, none, sinusoidal, …")
    extend.add_argument("--base", type=float, metavar="B", help="another base for RoPE")
    extend.add_argument("--scaling", metavar="RULE", help=f"for RoPE: {SCALINGS}")
    extend.add_argument("--window", type=at_least(0), metavar="N", help="sliding window; 0 removes one")
    extend.add_argument("--init", action="store_true", help="allow an encoding with weights; they start untrained")
    extend.add_argument(
        "--tries", type=at_least(0), default=3, metavar="N", help="passkey tests per length; default: %(default)s"
    )
    add_dtype(extend)
    add_adapter(extend)
    extend.set_defaults(run=run_extend, text=None)


def _parser(what: Any, name: str, short: str, long: str) -> argparse.ArgumentParser:
    parser = what.add_parser(
        name, help=short, description=long, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", metavar="FILE", help="write a picture: .png, .svg or .html")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


# ---- cost


def run_cost(args: argparse.Namespace) -> int:
    from vantage.parts import check_part_name
    from vantage.spec.mesh import MeshShape

    check_part_name("cache", args.kind)
    if not args.model.endswith(".json"):
        check_model(args.model, args.adapter)
    elif not Path(args.model).is_file():
        raise BadInput(f"no file {args.model}")
    elif args.adapter is not None:
        raise BadInput("--adapter needs a model, and a config.json has no weights: name the model")
    config = _config(args.model) if args.model.endswith(".json") else None
    check_max_memory(args.max_memory)
    if args.max_memory is not None and config is not None:
        raise BadInput("--max-memory needs a model's weights, and a config.json has none: name the model")
    mesh = None if args.mesh is None else MeshShape.read(args.mesh)
    check_out(args)
    import_torch()
    from vantage.figures.html import table
    from vantage.inspect import cost, machine, plot_cost
    from vantage.inspect.cost import dtype_for

    subject = _subject(args, config)
    # not every processor can multiply in bfloat16, and none of them is fast at it: a config is measured in float32
    weights = args.weights or ("float32" if args.machine == "measure" else None)
    named = str(dtype_for(subject, weights)).removeprefix("torch.")
    on = None if args.machine is None else machine(args.machine, named)  # measured as the cost is told
    options = {"context": args.context, "batch": args.batch, "source": args.source, "window": args.window}
    result = cost(subject, dtype=weights, kind=args.kind, machine=on, **options)
    shares = None if mesh is None else _mesh_cost(args, mesh, subject, named)
    plan = None if args.max_memory is None else _memory_plan(args)
    if args.json:
        more = ({} if shares is None else {"mesh": shares.to_dict()}) | ({} if plan is None else {"memory": plan})
        print(json.dumps(result.to_dict() | more, ensure_ascii=False))
    else:
        _show_cost(result)
        if shares is not None:
            show_table(f"each of {shares.mesh.devices} devices ({args.mesh})", shares.header, shares.rows())
        if plan is not None:
            rows = [[name, n, n / 2**20] for name, n in plan["device"].items()]
            show_table(f"memory of {args.max_memory}", ["what", "bytes", "MiB"], rows)
            print(f"offloaded layers: {plan['off'] or 'none'}; each pass copies {plan['brought']:,} bytes")
    if args.out:
        write(plot_cost(result), args.out, repr(result), table(result.header, result.rows()))
    return 0


def _subject(args: argparse.Namespace, config: dict[str, Any] | None) -> Any:
    """What is counted: a model, or where it may not fit or has no weights, its spec."""
    if config is not None:
        return _spec(config)
    if args.max_memory is None:
        return load_model(args.model, adapter=args.adapter)
    from vantage.families import read_spec

    return read_spec(args.model)


def _memory_plan(args: argparse.Namespace) -> dict[str, Any]:
    from vantage.families import memory_plan

    device = ("cuda" if args.machine in ("h200", "h100", "a100") else "cpu") if args.device == "auto" else args.device
    dtype = "auto" if args.weights is None else getattr(importlib.import_module("torch"), args.weights)
    plan = memory_plan(args.model, max_memory=args.max_memory, context=args.context, device=device, dtype=dtype)
    return {"limit": plan.limit, "device": plan.parts, "off": list(plan.off), "brought": plan.off_bytes}


def _mesh_cost(args: argparse.Namespace, mesh: MeshShape, subject: Any, dtype: str) -> Any:
    from vantage.inspect.mesh_cost import mesh_cost
    from vantage.spec.model import ModelSpec

    spec = subject if isinstance(subject, ModelSpec) else subject.spec
    return mesh_cost(spec, mesh, context=args.context, batch=args.batch, dtype=dtype)


def _config(name: str) -> dict[str, Any]:
    """What a config.json says."""
    try:
        config = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise BadInput(f"{name}: {e}") from e
    if not isinstance(config, dict):
        raise BadInput(f"{name}: a config is an object, not {type(config).__name__}")
    return config


def _spec(config: dict[str, Any]) -> Any:
    """The spec that a config describes: its cost needs no weights."""
    from vantage.checkpoints.config import Config
    from vantage.families import family_of

    return family_of(config).spec(Config(config))


def _show_cost(result: Any) -> None:
    show_table("parameters", ["part", "number"], [*map(list, result.parameters.items()), ["all", result.total]])
    show_table("operations, bytes read, and operations per byte", result.header, result.rows())
    caches = {"this model": result.cache, **result.instead} if result.cache else {}
    rows = [[name, n, n / 2**20] for name, n in caches.items()]
    if rows:
        show_table(
            f"cache of {result.batch} x {result.context:,} tokens, {result.kind}", ["kind", "bytes", "MiB"], rows
        )
    for one in result.passes:
        print(f"{one.name}: {one.visible:.1%} of the counted query-key pairs are visible")
        if one.seconds is not None:
            slowest = max(one.parts, key=lambda part: part.seconds)
            print(f"  on {result.machine.name}: {one.seconds:.3g} s at best, most of it {slowest.name}")
    for name in result.uncounted:
        print(f"not counted: what {name} multiplies")


# ---- extend


def run_extend(args: argparse.Namespace) -> int:
    text = text_of(args)
    lengths = parse_numbers(args.lengths, "--lengths") or []
    _check_changes(args)
    check_model(args.model, args.adapter)
    check_out(args)
    import_torch()
    from vantage.figures.html import table
    from vantage.inspect import extend, plot_extension, swap

    changes = _changes(args)
    before = load_model(args.model, args.dtype, adapter=args.adapter)
    after = swap(before, init=args.init, **changes)
    change = ", ".join(f"{name} {value}" for name, value in changes.items())
    with Bar("passes", first="reading") as bar:
        result = extend(before, after, text, lengths, change=change, tries=args.tries, progress=bar)
    if args.json:
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        show_table(f"{args.model} with {change}", result.header, result.rows())
    if args.out:
        write(plot_extension(result), args.out, repr(result), table(result.header, result.rows()))
    return 0


def _check_changes(args: argparse.Namespace) -> None:
    """Refuse what the flags cannot mean."""
    from vantage.parts import check_part_name

    if all(getattr(args, name) is None for name in ("position", "base", "scaling", "window")):
        raise BadInput("give what changes: --position, --base, --scaling or --window")
    if args.position is not None:
        check_part_name("position", args.position)
    if args.scaling is not None:
        scaling_numbers(args.scaling)


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """What ``vt.swap`` takes."""
    changes: dict[str, Any] = {}
    if args.position is not None:
        changes["position"] = args.position
    if args.base is not None:
        changes["base"] = args.base
    if args.scaling is not None:
        changes["scaling"] = parse_scaling(args.scaling)
    if args.window is not None:
        changes["window"] = args.window or None
    return changes


def parse_scaling(text: str) -> Any:
    """ "yarn:4:2048" as the rule it names; "none" as no scaling."""
    from vantage.position import scaling

    named = scaling_numbers(text)
    return None if named is None else getattr(scaling, named[0])(*named[1])


def scaling_numbers(text: str) -> tuple[str, list[float]] | None:
    """The class and the arguments of such a rule."""
    name, *values = text.split(":")
    if text == "none":
        return None
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    if name not in RULES or len(numbers) != RULES[name][1] or not all(map(math.isfinite, numbers)):
        raise BadInput(f"--scaling {text}: write {SCALINGS}")
    if len(numbers) > 1:  # the last is a length
        *others, original = numbers
        if original != int(original):
            raise BadInput(f"--scaling {text}: {original} is a number of tokens, so give a whole one")
        numbers = [*others, int(original)]
    return RULES[name][0], numbers
