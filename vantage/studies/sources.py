"""The documents and papers whose statements are studied. S0 to S4 are course material, the others papers."""

from __future__ import annotations

SOURCES = {
    "S0": "Attention mechanisms, RoPE, NoPE, transformer architecture (a CS 182 discussion)",
    "S1": "Transformers II (a CS 189 discussion)",
    "S2": "Understanding language models (NLP notes)",
    "S3": "Positional encoding (a course week)",
    "S4": "Attention exploration (CS224N, assignment 4)",
    "S5": "In-context learning and induction heads (Olsson et al. 2022)",
    "S6": "Efficient streaming language models with attention sinks (Xiao et al. 2023)",
    "S7": "Lost in the middle: how language models use long contexts (Liu et al. 2023)",
    "S8": "Contextual position encoding: learning to count what's important (Golovneva et al. 2024)",
    "S9": "Forgetting transformer: softmax attention with a forget gate (Lin et al. 2025)",
    "S10": "PaTH attention: position encoding via accumulating Householder transformations (Yang et al. 2025)",
    "S11": "The impact of positional encoding on length generalization in transformers (Kazemnejad et al. 2023)",
    "S12": "Physics of language models, part 4.1: Canon layers (Allen-Zhu 2025)",
    "S13": "H2O (Zhang et al. 2023), TOVA (Oren et al. 2024), SnapKV (Li et al. 2024)",
    "S14": "Eliciting latent predictions from transformers with the tuned lens (Belrose et al. 2023)",
    "S15": "A mathematical framework for transformer circuits (Elhage et al. 2021)",
    "S16": "Interpretability in the wild: a circuit for indirect object identification (Wang et al. 2022)",
    "S17": "Steering language models with activation engineering (Turner et al. 2023)",
}
