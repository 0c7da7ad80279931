"""A larger file of the kind that most people download: random weights in the shape of Qwen2.5-1.5B, quantised to
Q4_K_M by llama.cpp. Written once, in some minutes, beside the models that were pulled.

Run by itself it writes the file: python bench/contestants/large_file.py
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parents[1] / ".venv" / "bin" / "python"  # which has llama.cpp, whoever asks first
LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY, CONTEXT = 28, 1536, 12, 2, 8960, 151936, 32768
Q4_K_M = 15  # llama.cpp's number for it


def large_file() -> str:
    home = Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage")
    path = home / "bench" / "random-1.5b.Q4_K_M.gguf"
    missing = importlib.util.find_spec("llama_cpp") is None
    if not path.exists() and missing and Path(sys.prefix) == PEERS.parents[1]:
        raise SystemExit(f"llama.cpp is not installed in {sys.prefix}: make bench installs it")
    if not path.exists() and missing:
        subprocess.run([PEERS, __file__], check=True, stdout=subprocess.DEVNULL)
    elif not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        plain, part = path.with_suffix(".f16"), path.with_suffix(".part")
        try:
            _write_plain(plain)
            _quantise(plain, part)
            part.replace(path)
        finally:
            plain.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
    return str(path)


def _write_plain(path: Path) -> None:
    import numpy as np
    from gguf import GGUFReader, GGUFWriter
    from smollm2_file import default_file

    writer = GGUFWriter(str(path), "qwen2")
    writer.add_name("random-1.5b")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    # SmolLM2's vocabulary, filled up
    reader = GGUFReader(default_file())
    fields = reader.fields
    tokens = [bytes(fields["tokenizer.ggml.tokens"].parts[i]) for i in fields["tokenizer.ggml.tokens"].data]
    merges = [bytes(fields["tokenizer.ggml.merges"].parts[i]) for i in fields["tokenizer.ggml.merges"].data]
    tokens += [f"<filler_{i}>".encode() for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    draw = np.random.default_rng(0)
    key = WIDTH // HEADS * KV_HEADS

    def matrix(name: str, outputs: int, inputs: int) -> None:
        numbers = draw.standard_normal((outputs, inputs), dtype=np.float32) * inputs**-0.5
        writer.add_tensor(name, numbers.astype(np.float16))

    def vector(name: str, size: int, value: float) -> None:
        writer.add_tensor(name, np.full(size, value, np.float32))

    matrix("token_embd.weight", VOCABULARY, WIDTH)
    vector("output_norm.weight", WIDTH, 1.0)
    for i in range(LAYERS):
        block = f"blk.{i}"
        vector(f"{block}.attn_norm.weight", WIDTH, 1.0)
        vector(f"{block}.ffn_norm.weight", WIDTH, 1.0)
        for name, outputs in (("q", WIDTH), ("k", key), ("v", key)):
            matrix(f"{block}.attn_{name}.weight", outputs, WIDTH)
            vector(f"{block}.attn_{name}.bias", outputs, 0.0)
        matrix(f"{block}.attn_output.weight", WIDTH, WIDTH)
        matrix(f"{block}.ffn_gate.weight", HIDDEN, WIDTH)
        matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
        matrix(f"{block}.ffn_down.weight", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantise(plain: Path, to: Path) -> None:
    import llama_cpp as lib

    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype = os.cpu_count() or 1, Q4_K_M
    if lib.llama_model_quantize(str(plain).encode(), str(to).encode(), params):
        raise RuntimeError("llama.cpp could not quantise the file")


if __name__ == "__main__":
    print(large_file())
