"""``vantage generate``: continue a prompt."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from vantage.cli.flags import add_sampling, add_tensor_parallel, at_least, check_sampling, sampling_of
from vantage.cli.models import DEFAULT, add_adapter, add_device, add_dtype, add_max_memory, busy, is_model, load_model

EXAMPLE = """\
examples:
  vantage generate "The capital of France is" --max-tokens 8
  vantage generate --chat "Why is the sky blue?" --temperature 0.7 --seed 1
  vantage generate --chat "Name a city" --regex "[A-Z][a-z]+"
  vantage generate ./qwen3-vl "What is this?" --chat --image cat.png
  vantage generate ./my-model "Once upon a time" --stop "The end" --stats
  vantage generate smollm2 "Once upon a time" --adapter runs/tuned
  cat notes.txt | vantage generate - --json
  torchrun --nproc-per-node 2 -m vantage generate ./my-model "Once upon a time" --tensor-parallel 2

MODEL is a folder in the Hugging Face layout, a folder with an adapter, a .gguf file, or a name that `vantage pull`
knows.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt",
        description="Continue a prompt. The text is printed as it is generated.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="vantage generate [MODEL] PROMPT [options]",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="[MODEL] PROMPT",
        help=f"the model (default: {DEFAULT}) and the prompt; a prompt of - is read from standard input",
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least(1),
        default=128,
        metavar="N",
        help="maximum number of new tokens; default: %(default)s",
    )
    parser.add_argument(
        "--chat", action="store_true", help="send the prompt as a user's message, with the chat template"
    )
    parser.add_argument("--image", action="append", metavar="FILE", help="an image for the prompt; repeatable")
    how = add_sampling(parser)
    how.add_argument("-n", type=at_least(1), default=1, metavar="N", help="number of samples; default: %(default)s")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; repeatable")
    parser.add_argument(
        "--schema", metavar="JSON", help="generate JSON that matches this schema; @FILE reads it from a file"
    )
    parser.add_argument("--regex", metavar="PATTERN", help="generate text that matches this whole pattern")
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: log-probabilities, and the N most likely tokens"
    )
    parser.add_argument(
        "--lookup",
        action="store_true",
        help="prompt-lookup speculative decoding: same tokens, faster on repetitive text",
    )
    parser.add_argument("--beams", type=int, metavar="N", help="beam search with N beams")
    add_dtype(parser)
    add_device(parser)
    add_max_memory(parser)
    add_adapter(parser)
    add_tensor_parallel(parser, "generate")
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="results that do not depend on other requests, bit for bit; slower",
    )
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole text for every token")
    parser.add_argument("--stats", action="store_true", help="print token counts and timings")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.errors import BadInput

    if len(args.words) > 2:
        raise BadInput(f"{len(args.words)} words: give a model and a prompt, the prompt in quotes")
    source, prompt = (DEFAULT, args.words[0]) if len(args.words) == 1 else args.words
    if len(args.words) == 1 and is_model(prompt):
        raise BadInput(f'{prompt} is a model: give a prompt too, as in vantage generate {prompt} "Once upon a time"')
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if not prompt:
        raise BadInput("an empty prompt: give some text")
    if args.logprobs is not None and not args.json:
        raise BadInput("--logprobs is for --json")
    options = {
        "max_tokens": args.max_tokens,
        **sampling_of(args),
        "n": args.n,
        "stop": args.stop,
        "schema": _schema(args.schema),
        "regex": args.regex,
        "logprobs": args.logprobs,
        "chat": args.chat,
        "images": args.image,
        "batch_invariant": args.batch_invariant,
        "cache": not args.no_cache,
    }
    _check(args, options)
    if args.tensor_parallel == 1:
        return _go_on(args, source, prompt, options)
    from vantage.cli.processes import same_in_all

    with same_in_all() as group:
        args.stats = args.stats and group.first
        if options["seed"] is None:
            options["seed"] = group.seed()
        return _go_on(args, source, prompt, options)


def _go_on(args: argparse.Namespace, source: str, prompt: str, options: dict[str, Any]) -> int:
    shared = args.tensor_parallel > 1
    device = "cpu" if shared else args.device
    how = {"max_memory": args.max_memory, "context": args.context, "whole_experts": args.whole_experts}
    model = load_model(source, args.dtype, adapter=args.adapter, device=device, tensor_parallel=shared, **how)
    if args.beams is not None:
        return _searched(args, model, prompt)
    if args.lookup:
        from vantage.generation import Lookup

        options["draft"] = Lookup()
    at_once = args.json or args.n > 1 or args.lookup
    return _whole(args, model, prompt, options) if at_once else _streamed(args, model, prompt, options)


def _check(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Refuse what can be refused without torch."""
    from vantage.cluster import check_tensor_parallel
    from vantage.errors import BadInput
    from vantage.spec.sampling import check_guessing
    from vantage.spec.stop import Stop

    if args.beams is not None:
        _check_search(args)
    check_sampling(sampling_of(args) | {"logprobs": args.logprobs})
    Stop.of(args.stop)
    if options["schema"] is not None or args.regex is not None:
        _check_form(options["schema"], args.regex)
    if args.lookup:
        check_guessing(n=args.n, stream=False, batch_invariant=args.batch_invariant, cache=options["cache"])
    if args.tensor_parallel > 1 and args.device not in (None, "auto", "cpu"):
        raise BadInput(
            f"--tensor-parallel with --device {args.device}: over processes it generates on CPUs only so far"
        )
    if args.whole_experts and args.tensor_parallel == 1:
        raise BadInput("--whole-experts says how experts lie over processes: give --tensor-parallel as well")
    check_tensor_parallel(args.tensor_parallel, "generate")


def _check_form(schema: str | None, regex: str | None) -> None:
    from vantage.spec.grammars import check_regex, check_schema, given_form  # with their library

    given_form(schema=schema, regex=regex)
    if schema is not None:
        check_schema(schema)
    if regex is not None:
        check_regex(regex)


def _check_search(args: argparse.Namespace) -> None:
    """What a search for the likeliest text cannot follow is refused."""
    from vantage.errors import BadInput

    if args.beams < 1:
        raise BadInput(f"--beams {args.beams}: give at least 1")
    unfit = {
        "sampling": args.temperature or args.top_k or args.top_p or args.min_p,
        "penalties": (args.repetition_penalty, args.presence_penalty, args.frequency_penalty) != (1.0, 0.0, 0.0),
        "-n": args.n > 1,
        "--image": args.image,
        "--stop": args.stop,
        "--schema": args.schema,
        "--regex": args.regex,
        "--logprobs": args.logprobs is not None,
        "--lookup": args.lookup,
        "--batch-invariant": args.batch_invariant,
        "--no-cache": args.no_cache,
    }
    if named := [name for name, wanted in unfit.items() if wanted]:
        raise BadInput(f"--beams and {named[0]} do not go together: leave one of them out")


def _schema(schema: str | None) -> str | None:
    from pathlib import Path

    from vantage.errors import BadInput

    if schema is None or not schema.startswith("@"):
        return schema
    try:
        return Path(schema[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise BadInput(f"--schema {schema}: the file cannot be read ({e})") from e


@contextlib.contextmanager
def notices():
    """What Python would warn of, a line each on standard error, once the text is out."""
    import warnings

    from vantage.errors import ContextWarning

    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ContextWarning)
            yield
    finally:
        for one in caught:
            if issubclass(one.category, ContextWarning):
                print(f"vantage: {one.message}", file=sys.stderr)
            else:
                warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def _streamed(args: argparse.Namespace, model: Any, prompt: str, options: dict[str, Any]) -> int:
    from vantage.generation import generate

    stream = generate(model, prompt, **options, stream=True)
    with notices():
        for piece in stream:
            print(piece.text, end="", flush=True)
        print(flush=True)
    if args.stats:
        print(stream.stats, file=sys.stderr)
    return 0


def _whole(args: argparse.Namespace, model: Any, prompt: str, options: dict[str, Any]) -> int:
    from vantage.generation import generate

    with notices(), busy("generating"):
        result = generate(model, prompt, **options, stats=args.stats)
    answers = result if isinstance(result, list) else [result]
    if args.json:
        texts = [answer.to_json() for answer in answers]
        print(json.dumps(texts if args.n > 1 else texts[0], ensure_ascii=False))
        return 0
    for i, answer in enumerate(answers):
        print(f"--- sample {i} (seed {answer.seed})\n{answer}" if len(answers) > 1 else answer)
    if args.stats:
        print(answers[0].stats, file=sys.stderr)
    return 0


def _searched(args: argparse.Namespace, model: Any, prompt: str) -> int:
    """The best text of a beam search."""
    from dataclasses import asdict

    from vantage.generation import beam_search

    with notices(), busy("searching"):
        result = beam_search(model, prompt, max_tokens=args.max_tokens, beams=args.beams, chat=args.chat)
    print(json.dumps(asdict(result.best[0]), ensure_ascii=False) if args.json else result)
    if args.stats:
        print(f"{result.computed:,} tokens computed in {result.calls:,} calls", file=sys.stderr)
    return 0
