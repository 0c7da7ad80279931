"""K6: a conversation of many turns, with its keys and values kept and without."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vantage.figures import Figure, Line, Lines
from vantage.generation import Conversation
from vantage.generation.chat_format import Message
from vantage.model import Model
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

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
    words = TEXT.conclusion(
        turns=turns,
        prompt=kept[last].prompt,
        new=kept[last].read,
        kept_seconds=kept[last].first,
        anew_seconds=anew[last].first,
        same=same,
    )
    return conclude(words, numbers, [_picture(kept, anew)])


def _forgetful(model: Model, messages: list[Message], most: int) -> Conversation:
    """The same conversation with nothing kept: everything said so far has to be read again."""
    conversation = Conversation(model, system=SYSTEM, max_tokens=most)
    conversation.messages = list(messages)
    return conversation


def _took(conversation: Conversation, text: str) -> Took:
    turn = conversation.ask(text)
    return Took(turn.text, turn.prompt, turn.prompt - turn.reused, turn.to_first)


def _picture(kept: list[Took], anew: list[Took]) -> Figure:
    x = list(range(1, len(kept) + 1))
    pairs = (("kept", kept), ("from nothing", anew))
    return Figure(
        "turns",
        TEXT.caption("turns"),
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


STUDY = TEXT.study(
    "K6",
    run,
    (
        TEXT.parameter("turns", 6, 2, len(ASKED)),
        TEXT.parameter("answer", 12, 1, 32),
    ),
    seconds=10.0,
    needs=("smollm2",),
)
