"""An answer that repeats much of its prompt: plain, and with guesses from the prompt itself."""

from time import perf_counter

import vantage as vt

TEXT = (
    "The old keeper climbed the stairs of the lighthouse every morning. He counted the steps as he went, and at the "
    "top he cleaned the great lamp with a soft cloth. Then he wrote the weather into a small book: the wind, the "
    "waves, the ships that had passed in the night. In forty years he had filled thirty such books."
)
PROMPT = f"Copy this text word for word, and change nothing:\n\n{TEXT}"


def setup(guess: bool) -> None:
    global model, draft
    model, draft = vt.load("smollm2", dtype="auto"), vt.Lookup() if guess else None


def round() -> dict[str, list[float]]:
    """Seconds for an answer of 80 tokens after the prompt; the answer must not depend on the guesses."""
    start = perf_counter()
    answer = vt.generate(model, PROMPT, chat=True, max_tokens=80, draft=draft)
    seconds = perf_counter() - start
    return {"seconds": [seconds], "tokens": list(answer.tokens)}
