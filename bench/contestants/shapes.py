"""The one shape that both sides build: a LLaMA-like decoder of 12 layers and width 768."""

VOCAB, WIDTH, LAYERS, HEADS, HIDDEN = 32_000, 768, 12, 12, 2048
