"""K6: a conversation of many turns, with its keys and values kept and without."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vantage.figures import Figure, Line, Lines
from vantage.generation import Conversation
from vantage.generation.conversation import Message
from vantage.model import Model
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

SYSTEM = "You are a helpful assistant. Answer in one short sentence."
ASKED = (
    "What is the capital of France?",
    "And which river flows through it?",
    "Name one famous building there.",
    "When was it built?",
    "How do people usually travel around that city?",
    "What do they like to eat for breakfast?",
    "Which other cities in the country should I visit?",
    "Can you tell me how far the sea is from there?",
    "What is the weather like in spring?",
    "Thank you. Which question did I ask first?",
)


@dataclass(frozen=True)
class Took:
    """One turn."""

    text: str
    prompt: int  # tokens of the whole conversation before the answer
    read: int  # of those, computed in this turn
    first: float  # seconds to the first token


def run(values: Values, progress: Progress) -> Result:
    turns, most = int(values["turns"]), int(values["answer"])
    model = smollm2()
    Conversation(model, system=SYSTEM, max_tokens=2).ask("Hello")  # what is made once is made before the clock runs
    kept: list[Took] = []
    anew: list[Took] = []
    conversation = Conversation(model, system=SYSTEM, max_tokens=most)
    for i, text in enumerate(ASKED[:turns]):
        progress(i / turns, f"turn {i + 1} of {turns}")
        before = list(conversation.messages)
        kept.append(_took(conversation, text))
        anew.append(_took(_forgetful(model, before, most), text))
    progress(1.0, "done")
    last = turns - 1
    grew = [later.prompt - earlier.prompt for earlier, later in pairwise(kept)]
    new = [took.read for took in kept[1:]]
    same = sum(a.text == b.text for a, b in zip(kept, anew, strict=True))
    numbers = [
        judged("most tokens computed for a later prompt, kept", max(new), max(new) <= max(grew), "only what is new"),
        compared("tokens computed for the last prompt, from nothing", anew[last].read, anew[last].prompt),
        compared("answers that are the same (rounding may part one)", same, turns, within=1),
        judged("last turn: seconds to the first token, kept", kept[last].first, kept[last].first < anew[last].first),
        Number("last turn: seconds to the first token, from nothing", anew[last].first),
        Number("last turn: times faster", anew[last].first / kept[last].first),
        Number("tokens of the last prompt", kept[last].prompt),
        Number("tokens of it that were new", kept[last].read),
        Number("all turns: seconds to first tokens, kept", sum(took.first for took in kept)),
        Number("all turns: seconds to first tokens, from nothing", sum(took.first for took in anew)),
    ]
    words = (
        f"In the last of {turns} turns the prompt has {kept[last].prompt} tokens, of which {kept[last].read} are new. "
        f"With keys and values kept the answer begins after {kept[last].first:.2f} s, without after "
        f"{anew[last].first:.2f} s, and the gap grows with every turn. {same} of {turns} answers are the same, word "
        "for word."
    )
    return conclude(words, numbers, [_picture(kept, anew)])


def _forgetful(model: Model, messages: list[Message], most: int) -> Conversation:
    """The same conversation with nothing kept: everything said so far has to be read again."""
    made = Conversation(model, system=SYSTEM, max_tokens=most)
    made.messages = list(messages)
    return made


def _took(conversation: Conversation, text: str) -> Took:
    turn = conversation.ask(text)
    return Took(turn.text, turn.prompt, turn.prompt - turn.reused, turn.to_first)


def _picture(kept: list[Took], anew: list[Took]) -> Figure:
    x = list(range(1, len(kept) + 1))
    pairs = (("kept", kept), ("from nothing", anew))
    return Figure(
        "turns",
        "With keys and values kept a turn costs what is new in it. Without, it costs the whole conversation so far.",
        (
            Lines(
                "Tokens computed for a prompt",
                "turn",
                "tokens",
                tuple(Line(name, x, [took.read for took in of]) for name, of in pairs),
            ),
            Lines(
                "Time to the first token",
                "turn",
                "seconds",
                tuple(Line(name, x, [took.first for took in of]) for name, of in pairs),
            ),
        ),
    )


STUDY = Study(
    tag="K6",
    title="A conversation that keeps its cache",
    sources=("S1",),
    statement=(
        "In a chat of many turns, keep the keys and values of the conversation so far. A new turn then costs only its "
        "own new tokens, and not everything that was said before."
    ),
    explanation=(
        "Every turn of a chat sends the model the whole conversation again: the system's message, all questions, all "
        "answers, and the new question at the end. The front of that text is exactly what the last turn ended with, "
        "so its keys and values are already known. A conversation that keeps them has only the new question to read "
        "before it can say its first word.\n\n"
        "The study talks to SmolLM2 twice over: once with one cache, once with a new cache for every turn. It counts "
        "the tokens that had to be computed and measures the time to the first token of each answer. Both say the "
        "same words. The first line stays flat, the second climbs with everything that was ever said; the longer the "
        "conversation, the more there is to save."
    ),
    run=run,
    parameters=(
        Parameter("turns", 6, "questions asked", 2, len(ASKED)),
        Parameter("answer", 12, "the most tokens of an answer", 1, 32),
    ),
    seconds=10.0,
    needs=("smollm2",),
)
