"""``vantage chat``: talk with a model, turn by turn."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.flags import add_cache_kind, add_sampling, at_least, check_sampling, sampling_of
from vantage.cli.interrupts import reads_a_terminal, stopping
from vantage.cli.models import DEFAULT, add_adapter, add_device, add_dtype, add_max_memory, load_model
from vantage.errors import VantageError

if TYPE_CHECKING:
    from vantage.generation import Answer, Conversation

EXAMPLE = """\
examples:
  vantage chat                                        # with smollm2
  vantage chat ./my-model --system "Answer briefly."
  vantage chat --temperature 0.7 --seed 1 --stats
  vantage chat --adapter runs/tuned                   # with a LoRA adapter
  vantage chat --load talk.vantage                    # continue a saved conversation
  echo "Why is the sky blue?" | vantage chat          # one answer for each line

Ctrl-C stops an answer and keeps the conversation; Ctrl-D exits.
"""
HELP = """\
/reset        start over, keeping the system message
/save FILE    write the conversation and its cache
/load FILE    continue a saved conversation of the same model
/stats        size of the conversation, and timing of the last answer
/help         show this list
/quit         exit (or Ctrl-D)
Anything else is sent to the model. Ctrl-C stops its answer."""
HISTORY = 1000  # lines that are remembered between sessions


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "chat",
        help="chat with a model",
        description="Chat with a model. Keys and values are cached, so each turn computes only its new tokens.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--max-tokens",
        type=at_least(1),
        default=512,
        metavar="N",
        help="maximum length of an answer; default: %(default)s",
    )
    add_sampling(parser)
    add_dtype(parser)
    add_device(parser)
    add_max_memory(parser)
    add_adapter(parser)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; repeatable")
    add_cache_kind(parser, "--cache")
    parser.add_argument(
        "--lookup", action="store_true", help="prompt-lookup speculative decoding: faster on repetitive text"
    )
    parser.add_argument("--load", metavar="FILE", help="continue a conversation that /save wrote")
    parser.add_argument("--stats", action="store_true", help="print token counts and timings after each answer")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vantage.errors import BadInput
    from vantage.parts import check_part_name
    from vantage.spec.stop import Stop

    check_sampling(sampling_of(args))
    Stop.of(args.stop)
    check_part_name("cache", args.cache)
    if args.load is not None and not Path(args.load).is_file():
        raise BadInput(f"--load {args.load}: there is no such file; /save FILE writes one")
    memory = {"max_memory": args.max_memory, "context": args.context}
    model = load_model(args.model, args.dtype, adapter=args.adapter, device=args.device, **memory)
    check_chat_model(args.model, model)
    chat = Chat(args, model)
    if args.load is not None:
        chat.load(args.load)
    with history() if reads_a_terminal() else contextlib.nullcontext():
        chat.talk()
    return 2 if chat.refused and not sys.stdin.isatty() else 0


def check_chat_model(source: str, model: Any) -> None:
    """Refuse a model that cannot converse, before anybody has typed."""
    from vantage.errors import BadInput

    instead = f'`vantage generate {shlex.quote(source)} "Once upon a time"` continues a text'
    if model.tokenizer is None:
        raise BadInput(f"{source} has no tokenizer, so it cannot chat")
    if model.encoder is not None:
        raise BadInput(f"{source} is an encoder-decoder, which cannot chat: {instead}")
    if model.tokenizer.template is None:
        raise BadInput(
            f"{source} has no chat template: it was not tuned for conversations, or its tokenizer_config.json lost it. "
            f"{instead}; `vantage chat {DEFAULT}` uses a model that can"
        )


class Chat:
    """One sitting."""

    def __init__(self, args: argparse.Namespace, model: Any):
        from vantage.generation import Sampling
        from vantage.generation.conversation import Conversation
        from vantage.generation.speculate import Lookup

        self._model, self._stats = model, args.stats
        self._options: dict[str, Any] = {
            "sampling": Sampling(**sampling_of(args)),
            "stop": args.stop,
            "max_tokens": args.max_tokens,
            "draft": Lookup() if args.lookup else None,
        }
        self._conversation: Conversation = Conversation(model, system=args.system, kind=args.cache, **self._options)
        # a template that takes no system message, or is broken, says so now and not once somebody has typed
        self._conversation.format.render([*self._conversation.messages, {"role": "user", "content": "Hello"}])
        self._asking = reads_a_terminal()
        self.refused = False  # some line was
        self._verbs: dict[str, Callable[[str], None]] = {
            "/reset": self._reset,
            "/save": self._save,
            "/load": self.load,
            "/stats": self._show_stats,
            "/help": lambda _: print(HELP),
        }

    def talk(self) -> None:
        """Read and answer until there is nothing more to read."""
        if self._asking:
            print("Ctrl-C stops an answer, Ctrl-D exits, /help lists the commands.")
        for line in self._lines():
            verb, _, rest = line.partition(" ")
            if verb in ("/quit", "/exit"):
                return
            try:
                if not line.startswith("/"):
                    self._answer(line)
                elif verb in self._verbs:
                    self._verbs[verb](rest.strip())
                else:
                    print(f"unknown command {verb}: /help lists the commands")
            except VantageError as error:  # the conversation goes on
                self.refused = True
                print(f"vantage: {error}", file=sys.stderr)

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                line = input("> " if self._asking else "").strip()
            except EOFError:
                if self._asking:
                    print()
                return
            except KeyboardInterrupt:  # while typing: the line is given up
                print("\n(Ctrl-D or /quit exits)")
                continue
            if line:
                yield line

    def _answer(self, text: str) -> None:
        before = len(self._conversation.turns)
        with interrupts(self._conversation.stop):
            for piece in self._conversation.stream(text):
                print(printable(piece), end="", flush=True)
        print()
        if len(self._conversation.turns) > before:
            turn = self._conversation.turns[-1]
            if turn.finish_reason != "stop":
                print(f"[{self._cut(turn)}]")
            if self._stats:
                print(f"[{describe_turn(turn)}]")

    def _cut(self, turn: Answer) -> str:
        """Why an answer is not whole."""
        if turn.finish_reason == "stopped":
            return f"stopped after {len(turn.picks)} tokens"
        context = self._model.context_length
        full = context is not None and turn.prompt + len(turn.picks) >= context
        why = f": the model's context of {context:,} tokens is full, /reset starts over" if full else ""
        return f"cut off after {len(turn.picks)} tokens{why}"

    # ---- verbs

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        print("started over")

    def _save(self, path: str) -> None:
        if not path:
            print("/save FILE: give a file name")
            return
        self._conversation.save(path)
        print(
            f"saved {len(self._conversation.messages)} messages and {len(self._conversation.tokens)} tokens to {path}"
        )

    def load(self, path: str) -> None:
        """Go on with a saved conversation."""
        from vantage.generation.conversation import Conversation

        if not path:
            print("/load FILE: give a file name")
            return
        self._conversation = Conversation.load(path, self._model, **self._options)
        print(f"loaded {len(self._conversation.messages)} messages and {len(self._conversation.tokens)} tokens")

    def _show_stats(self, _: str) -> None:
        talk = self._conversation
        print(f"messages  {len(talk.messages)}")
        print(f"cache     {len(talk.tokens):,} tokens, {talk.cache.bytes:,} bytes")
        if talk.turns:
            print(f"answer    {describe_turn(talk.turns[-1])}")


def describe_turn(turn: Answer) -> str:
    """What an answer took, in a line."""
    after = turn.seconds - turn.to_first
    speed = f", {(len(turn.picks) - 1) / after:.1f} tokens/s" if after > 0 and len(turn.picks) > 1 else ""
    again = f", {turn.recomputed} recomputed" if turn.recomputed else ""
    guessed = f", {turn.accepted} of {turn.proposed} draft tokens accepted" if turn.proposed else ""
    return (
        f"{turn.prompt} tokens read, {turn.reused} from the cache{again}; "
        f"{len(turn.picks)} generated in {turn.calls} passes"
        f"{guessed}; first token after {1e3 * turn.to_first:.0f} ms{speed}; seed {turn.seed}"
    )


def printable(text: str) -> str:
    """Without the characters that would steer the terminal: a model may say anything."""
    return "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in text)


@contextlib.contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C asks for a stop after the present token; the second one does not wait for it."""
    with contextlib.suppress(KeyboardInterrupt), stopping(stop, signal.SIGINT):  # what was said is kept all the same
        yield


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Lines of earlier sessions behind the arrow keys, kept where only their owner reads them."""
    try:
        import readline
    except ImportError:  # not on every system: then there are no arrow keys
        yield
        return
    from vantage.checkpoints.pull import home

    path = home() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a folder that cannot be written is no reason to fail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
