"""The same training step with transformers' GPT-2, with its sdpa attention."""

import torch
from train_shape import HEADS, LAYERS, TOKENS, VOCAB, WIDTH, adamw, text, timed
from transformers import GPT2Config, GPT2LMHeadModel


def setup(compiled: bool) -> None:
    global step, optimiser, tokens, targets
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=TOKENS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu",  # torch's own; GPT-2's tanh form is slower
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).train()
    optimiser = adamw(model)
    tokens, targets = text()
    step = torch.compile(model) if compiled else model


def train() -> torch.Tensor:
    mean = step(tokens, labels=tokens, shift_labels=targets).loss  # the targets as they are: nothing to shift
    mean.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return mean.detach()


def round() -> dict[str, object]:
    return timed(train)
