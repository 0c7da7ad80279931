"""The same sweep by TransformerLens, float32 from the same GGUF file, its weights as they are."""

import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"
sys.path.insert(0, str(Path(__file__).parent))
from patching_prompts import prompts
from smollm2_file import default_file


def setup(layers: list[int]) -> None:
    global bridge, clean, corrupted, target, against, index
    import pandas
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = Path(default_file())
    options = {"gguf_file": file.name}
    plain = AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.float32, attn_implementation="eager", **options
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    rows = prompts(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    clean, corrupted = torch.tensor([rows[0]]), torch.tensor([rows[1]])
    target, against = rows[2:]
    index = pandas.DataFrame([(n, at) for n in layers for at in range(len(rows[0]))], columns=["layer", "pos"])
    # the bridge takes the weights from the model in memory, and the rest from a folder
    folder = tempfile.mkdtemp(prefix="vantage-bench-")
    if hasattr(plain.config, "quantization_config"):  # of the file: these weights are float32
        del plain.config.quantization_config
    plain.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(
        folder, hf_model=plain.eval(), device="cpu", tokenizer=AutoTokenizer.from_pretrained(folder)
    )


@torch.inference_mode()
def round() -> dict[str, list[float]]:
    from transformer_lens import patching

    start = perf_counter()
    _, cache = bridge.run_with_cache(clean)
    done = patching.generic_activation_patch(
        bridge,
        corrupted,
        cache,
        lambda logits: logits[0, -1, target] - logits[0, -1, against],
        patch_setter=patching.layer_pos_patch_setter,
        activation_name="resid_pre",
        index_df=index,
    )
    assert done.shape == (len(index),)
    return {"seconds": [perf_counter() - start]}
