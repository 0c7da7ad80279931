// What the words of the pages mean, for whoever rests the pointer on one.

export const TERMS: Record<string, string> = {
  // how a token is chosen
  Temperature: "Divides the logits before the softmax. 0 always takes the most likely token; above 1 unlikely tokens become more frequent.",
  "Top-p": "Sample only from the most likely tokens whose probabilities add up to this. 1 keeps all.",
  "Top-k": "Sample only from this many most likely tokens.",
  "Min-p": "Drop tokens whose probability is below this fraction of the highest one.",
  Seed: "The same seed and settings give the same answer again.",
  // what a head does
  Entropy: "How spread out a head's weights are, in nats: 0 is one token, 1.1 an even spread over three tokens, 2.3 over ten.",
  Distance: "How far back the head looks, on average, in tokens.",
  induction: "Attends to the token that followed the previous occurrence of the current token. This lets a model repeat patterns.",
  previous: "Attends to the previous token.",
  first: "An attention sink: most of its weight is on the first token. The head has little effect here.",
  same: "Attends to earlier copies of the current token.",
  itself: "Attends to the current token itself.",
  local: "Most of its weight is on the last few tokens.",
  positional: "Attends by position: its weights are nearly the same for any words.",
  diagonal: "Follows the source, token by token.",
  last: "Attends to the end of the source.",
  mixed: "None of the other kinds clearly.",
  // the lens
  "Residual stream": "The vector of one token as it passes through the layers. Every part reads it and adds to it.",
  "Logit lens": "The model's final norm and output head, applied after every layer: what the model would predict if it ended there.",
  Ablation: "A part's output is replaced by 0 or by its mean over the text. The change in the prediction shows what the part does.",
  Patching: "The model runs on one text with one activation copied from another text. Where this changes the answer, that activation carries the difference.",
  "KL to the output": "KL divergence between this prediction and the model's final one, in nats; 0 means equal.",
  // the course material and papers of the studies
  S0: "Attention mechanisms, RoPE, NoPE, transformer architecture (a CS 182 discussion)",
  S1: "Transformers II (a CS 189 discussion)",
  S2: "Understanding language models (NLP notes)",
  S3: "Positional encoding (a course week)",
  S4: "Attention exploration (CS224N, assignment 4)",
  S5: "In-context learning and induction heads (Olsson et al. 2022)",
  S6: "Efficient streaming language models with attention sinks (Xiao et al. 2023)",
  S7: "Lost in the middle: how language models use long contexts (Liu et al. 2023)",
  S8: "Contextual position encoding: learning to count what's important (Golovneva et al. 2024)",
  S9: "Forgetting transformer: softmax attention with a forget gate (Lin et al. 2025)",
  S10: "PaTH attention: position encoding via accumulating Householder transformations (Yang et al. 2025)",
  S11: "The impact of positional encoding on length generalization in transformers (Kazemnejad et al. 2023)",
  S12: "Physics of language models, part 4.1: Canon layers (Allen-Zhu 2025)",
  S13: "H2O (Zhang et al. 2023), TOVA (Oren et al. 2024), SnapKV (Li et al. 2024)",
  S14: "Eliciting latent predictions from transformers with the tuned lens (Belrose et al. 2023)",
  S15: "A mathematical framework for transformer circuits (Elhage et al. 2021)",
  S16: "Interpretability in the wild: a circuit for indirect object identification (Wang et al. 2022)",
  S17: "Steering language models with activation engineering (Turner et al. 2023)",
};

/** The same with its own name before it, for a title. */
export const explained = (name: string): string | undefined => (TERMS[name] ? `${name}: ${TERMS[name]}` : undefined);
