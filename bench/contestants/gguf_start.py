"""From a GGUF file to its first token, everything imported before; then a prompt, so that the cache counts as memory.

A round loads anew. What was loaded before is let go first: the peak is that of one model.
"""

import gc
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))
from large_file import large_file
from smollm2_file import default_file
from smollm2_text import text

PROMPT = "The capital of France is"
LONG, ANSWER, CONTEXT = 512, 8, 1024  # tokens of the prompt after it, of its answer, and that there is room for


def setup(who: str, large: bool = False, threads: int = 2) -> None:
    global first_token, go_on, file, count
    file, count = large_file() if large else default_file(), threads
    first_token, go_on = {"vantage": (ours_first, ours_on), "llama.cpp": (theirs_first, theirs_on)}[who]
    for name in ("llama_cpp",) if who == "llama.cpp" else ("vantage.generation.engine", "vantage.families"):
        __import__(name)


def round() -> float:
    gc.collect()
    start = perf_counter()
    loaded = first_token()
    seconds = perf_counter() - start
    go_on(loaded)
    return seconds


def ours_first() -> object:
    import vantage as vt
    from vantage.generation.engine import Engine

    model = vt.load(file, dtype="auto")
    engine = Engine(model)
    engine.submit(model.tokenizer.encode(PROMPT), max_tokens=1)
    engine.run()
    return engine


def ours_on(engine) -> None:
    engine.submit(engine.model.tokenizer.encode(text())[:LONG], max_tokens=ANSWER)
    engine.run()


def theirs_first() -> object:
    from llama_cpp import Llama

    llama = Llama(file, n_ctx=CONTEXT, n_threads=count, n_threads_batch=count, verbose=False)
    llama.create_completion(PROMPT, max_tokens=1, temperature=0.0)
    return llama


def theirs_on(llama) -> None:
    llama.create_completion(llama.tokenize(text().encode())[:LONG], max_tokens=ANSWER, temperature=0.0)
