"""The same in llama.cpp, through its own C interface: one batch holds the next token of every sequence."""

import ctypes
import sys
from pathlib import Path
from time import perf_counter

import llama_cpp as lib
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from large_file import large_file
from smollm2_file import default_file
from smollm2_text import text

STEPS = 24


def setup(task: str = "decode", context: int = 512, rows: int = 1, threads: int = 2, large: bool = False) -> None:
    global llama, context_, batch, tokens, vocab, what, n, count
    what, n, count = task, context, rows
    llama = lib.Llama(large_file() if large else default_file(), n_ctx=64, verbose=False)
    params = lib.llama_context_default_params()
    params.n_ctx = max(256, rows * (context + rows * 8 + STEPS + 8))
    params.n_batch = params.n_ubatch = 512
    params.n_seq_max, params.kv_unified = rows, True  # sequences share the cache, the faster way for a few
    params.n_threads = params.n_threads_batch = threads
    context_ = lib.llama_init_from_model(llama.model, params)
    tokens = llama.tokenize(text().encode(), add_bos=False)[: context + rows * 8]
    vocab = llama.n_vocab()
    batch = lib.llama_batch_init(max(512, rows), 0, 1)


def decode(items: list[tuple[int, int, int]], outputs: list[int]) -> list[int]:
    """(token, position, sequence) each; the most likely next token at the wanted places."""
    batch.n_tokens = len(items)
    for i, (token, position, sequence) in enumerate(items):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, int(i in outputs)
        batch.seq_id[i][0] = sequence
    assert lib.llama_decode(context_, batch) == 0
    tokens = []
    for i in outputs:
        logits = lib.llama_get_logits_ith(context_, i)
        tokens.append(
            int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (vocab,)).argmax())
        )
    return tokens


def prompt(sequence: int, length: int) -> int:
    for a in range(0, length, 512):
        part = tokens[a : min(a + 512, length)]
        result = decode([(t, a + i, sequence) for i, t in enumerate(part)], [len(part) - 1])
    return result[0]


def round() -> dict[str, list[float]]:
    lib.llama_memory_clear(lib.llama_get_memory(context_), True)
    if what == "prefill":
        start = perf_counter()
        prompt(0, n)
        return {"seconds": [perf_counter() - start]}
    lengths = [n + i * 8 for i in range(count)]
    for i, length in enumerate(lengths):
        prompt(i, length)
    now = tokens[:count]
    start = perf_counter()
    for step in range(STEPS):
        now = decode([(now[i], lengths[i] + step, i) for i in range(count)], list(range(count)))
    return {"seconds": [(perf_counter() - start) / STEPS]}
