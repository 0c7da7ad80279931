"""Run by the Python of bench/.lens: a model and two texts through TransformerLens, as it comes, into one file."""

import json
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

NAMES = {
    "residual_before": "hook_resid_pre",
    "residual_mid": "hook_resid_mid",
    "residual_after": "hook_resid_post",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "weights": "attn.hook_pattern",
    "heads": "attn.hook_z",
    "attention": "hook_attn_out",
    "neurons": "mlp.hook_post",
    "feed_forward": "hook_mlp_out",
}


def main(folder: str, job: str, out: str) -> None:
    wanted = json.loads(job)
    clean, corrupted = (torch.tensor([wanted[name]]) for name in ("clean", "corrupted"))
    target, against = wanted["target"], wanted["against"]
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    # tokens are numbers here: the bridge only wants to have a tokenizer
    words = Tokenizer(models.WordLevel({str(n): n for n in range(plain.config.vocab_size)}, unk_token="0"))
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0", pad_token="0", bos_token="0", eos_token="0")
    made.save_pretrained(f"{out}.tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(f"{out}.tokenizer")
    bridge = TransformerBridge.boot_transformers(folder, hf_model=plain, device="cpu", tokenizer=tokenizer)
    found = {}
    with torch.inference_mode():
        logits, cache = bridge.run_with_cache(clean)
        found["logits"] = logits
        for layer in range(bridge.cfg.n_layers):
            for ours, theirs in NAMES.items():
                found[f"layers.{layer}.{ours}"] = cache[f"blocks.{layer}.{theirs}"]

        def difference(patched):
            return patched[0, -1, target] - patched[0, -1, against]

        found["patched residual_before"] = patching.get_act_patch_resid_pre(bridge, corrupted, cache, difference)
        found["patched heads"] = patching.get_act_patch_attn_head_out_all_pos(bridge, corrupted, cache, difference)
        hook = (f"blocks.{wanted['layer']}.attn.hook_z", lambda z, hook: put(z, cache[hook.name], wanted["head"]))
        found["logits with one head"] = bridge.run_with_hooks(corrupted, fwd_hooks=[hook])
        # what each head adds, by their own stack and their own held norm
        stack = cache.stack_head_results(layer=-1, pos_slice=-1)
        held = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)[:, 0]
        direction = bridge.W_U[:, target] - bridge.W_U[:, against]
        found["attributed heads"] = held @ (direction * bridge.ln_final.weight)
    save_file({name: value.detach().float().contiguous().clone() for name, value in found.items()}, out)


def put(z, clean, head):
    z = z.clone()
    z[:, :, head] = clean[:, :, head]
    return z


main(*sys.argv[1:])
