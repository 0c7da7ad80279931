"""Time to the first token of a conversation's fifth turn: with its cache, the bare computation, and from nothing."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_text import text

WORDS = (430, 430, 430, 430, 30)  # of each turn: the fifth, a short one, begins at some 2,000 tokens
ANSWER = 20


def setup(how: str) -> None:
    global model, what
    model, what = vt.load("smollm2", dtype="auto"), how


def question(turn: int) -> str:
    start = sum(WORDS[:turn])
    return " ".join(text().split()[start : start + WORDS[turn]])


def round() -> dict[str, list[float]]:
    talk = vt.Conversation(model, max_tokens=ANSWER)
    for turn in range(4):
        talk.ask(question(turn))
    if what == "conversation":
        start = perf_counter()
        pieces = talk.stream(question(4))
        next(iter(pieces))
        return {"seconds": [perf_counter() - start]}
    messages = [*talk.messages, {"role": "user", "content": question(4)}]
    tokens = model.tokenizer.encode(model.tokenizer.chat(messages), special=False)
    held = len(talk.tokens)
    with torch.inference_mode():
        cache = model.new_cache()
        if what == "bare":  # the same new tokens at the same depth, with the cache already there
            model.hidden(torch.tensor([tokens[:held]]), cache=cache)
            tokens = tokens[held:]
        start = perf_counter()
        hidden = model.hidden(torch.tensor([tokens]), cache=cache)
        model.head(hidden[:, -1:]).argmax(-1).tolist()
        return {"seconds": [perf_counter() - start]}
