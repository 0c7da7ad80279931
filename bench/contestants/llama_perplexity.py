"""Quantises GGUF files and reads them, with llama.cpp: a request as JSON on stdin, the answer as JSON on stdout.

{"plain": FILE, "quantise": {FILE: type's number}, "read": [FILE], "windows": [[token]]} is answered by the mean
negative log-probability of every token but a window's first, for each file that is read.
"""

import ctypes
import json
import os
import sys

import llama_cpp as lib
import numpy as np

Q8_0 = 8  # of ggml's types


def quantise(plain: str, to: str, number: int) -> None:
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype = os.cpu_count() or 1, number
    if number == lib.LLAMA_FTYPE_MOSTLY_MXFP4_MOE:  # its mix of that name has nothing but experts in MXFP4
        params.pure, params.output_tensor_type, params.token_embedding_type = True, Q8_0, Q8_0
    if lib.llama_model_quantize(plain.encode(), to.encode(), params):
        raise RuntimeError(f"llama.cpp could not quantise to {to}")


def nats(file: str, windows: list[list[int]]) -> float:
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp could not load {file}")
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = len(windows[0])
    context = lib.llama_init_from_model(model, params)
    vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(len(windows[0]), 0, 1)
    total = 0.0
    for window in windows:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch.n_tokens = len(window)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert lib.llama_decode(context, batch) == 0
        pointer = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(pointer, (len(window), vocabulary)).astype(np.float64)
        most = logits.max(1, keepdims=True)
        logprobs = logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))
        total -= logprobs[np.arange(len(window) - 1), window[1:]].sum()
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    return total / sum(len(window) - 1 for window in windows)


@lib.llama_log_callback
def silent(level: int, text: bytes, user: object) -> None:
    """What llama.cpp tells of every tensor."""


def main() -> None:
    lib.llama_log_set(silent, ctypes.c_void_p())
    request = json.load(sys.stdin)
    for file, number in request["quantise"].items():
        quantise(request["plain"], file, number)
    print(json.dumps({file: nats(file, request["windows"]) for file in request["read"]}))


if __name__ == "__main__":
    main()
