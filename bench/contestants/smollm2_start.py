"""From an import to the first token, in a process of its own each time: ours, transformers', llama.cpp's."""

import json
import subprocess
import sys

PROMPT = "The capital of France is"
END = """
import json, resource
print(json.dumps([perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
OURS = """
import torch
from time import perf_counter
torch.set_num_threads({threads})
start = perf_counter()
import vantage as vt
model = vt.load("smollm2", dtype={dtype})
with torch.inference_mode():
    cache = model.new_cache()
    hidden = model.hidden(torch.tensor([model.tokenizer.encode({prompt!r})]), cache=cache)
    model.tokenizer.decode(model.head(hidden[:, -1:])[0, -1].argmax(-1, keepdim=True).tolist())
"""
TRANSFORMERS = """
import sys, torch
from time import perf_counter
torch.set_num_threads({threads})
sys.path.insert(0, "bench/contestants")
start = perf_counter()
from pathlib import Path
from smollm2_file import default_file
from transformers import AutoModelForCausalLM, AutoTokenizer
file = Path(default_file())
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
with torch.inference_mode():
    out = model(**tokenizer({prompt!r}, return_tensors="pt"))
    tokenizer.decode(out.logits[0, -1].argmax(-1))
"""
LLAMA_CPP = """
import sys
from time import perf_counter
sys.path.insert(0, "bench/contestants")
start = perf_counter()
from smollm2_file import default_file
from llama_cpp import Llama
llama = Llama(default_file(), n_ctx=256, n_threads={threads}, verbose=False)
llama.create_completion({prompt!r}, max_tokens=1, temperature=0.0)
"""
PROGRAMS = {"vantage": OURS, "transformers": TRANSFORMERS, "llama.cpp": LLAMA_CPP}


def setup(who: str, dtype: str = "auto", threads: int = 2) -> None:
    global program
    dtype_text = "torch.float32" if dtype == "float32" else repr(dtype)
    program = PROGRAMS[who].format(prompt=PROMPT, dtype=dtype_text, threads=threads) + END


def round() -> dict[str, list[float]]:
    """Seconds since torch was imported (llama.cpp: since the start); the process's peak memory goes into the file."""
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    seconds, megabytes = json.loads(finished.stdout.splitlines()[-1])
    return {"seconds": [seconds], "peak_megabytes": [megabytes]}
