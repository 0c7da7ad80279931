"""Reading and writing checkpoints: files, tensors and names. What a model makes of them is in ``families``."""
