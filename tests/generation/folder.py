"""A tiny model that chats: random weights, a byte-level vocabulary and ChatML, as a folder or in memory."""

from __future__ import annotations

import functools
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

import vantage as vt
from vantage.checkpoints.config import Config
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.conformance.scenarios import sharpen
from vantage.families import family_of
from vantage.model import Model

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = "the cat sat on a mat and said: 12 dogs, 3 birds? no! user assistant system hello world answer é ü 世界"


@functools.cache
def backend(size: int = 330) -> Backend:
    made = Backend(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([WORDS] * 9, trainer)
    return made


@functools.cache
def tokenizer(template: str | None = CHATML) -> Tokenizer:
    return Tokenizer(backend, About("<|im_start|>", "<|im_end|>", template))


@functools.cache
def chat_model(seed: int = 0, layers: int = 2, template: str | None = CHATML) -> Model:
    config = {
        "model_type": "llama",
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    # sharpened: far enough from uniform that the best token is no matter of rounding
    model = sharpen(vt.build(family_of(config).spec(Config(config)), seed=seed), seed)
    model.config, model.tokenizer = config, tokenizer(template)
    return model


def chat_folder(folder: Path, seed: int = 0) -> Path:
    vt.save(chat_model(seed), folder)
    return folder
