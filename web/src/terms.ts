// What the words of the pages mean, for whoever rests the pointer on one.

export const TERMS: Record<string, string> = {
  // how a token is chosen
  Temperature: "Divides the logits before the softmax. At 0 the likeliest token is always taken; above 1 unlikely ones come more often.",
  "Top-p": "Only the likeliest tokens whose chances add up to this are drawn from. 1 leaves all in.",
  "Top-k": "Only so many of the likeliest tokens are drawn from.",
  "Min-p": "Tokens whose chance is smaller than this share of the likeliest one's are left out.",
  Seed: "The same seed and settings give the same answer again.",
  // what a head does
  Entropy: "How spread a head's weights are, in nats: 0 means all on one token, 1.1 evenly over three, 2.3 over ten.",
  Distance: "How far back the head looks, on average, in tokens.",
  induction: "Looks at the token that followed the last time the present token stood in the text. With it a model repeats patterns.",
  previous: "Looks at the token just before.",
  first: "A sink: most of its weight lies on the first token, where it does no harm. So the head can do nothing.",
  same: "Looks at earlier tokens that are the same as the present one.",
  itself: "Looks at the present token itself.",
  local: "Most of its weight lies on the last few tokens.",
  positional: "Looks by position: its weights are nearly the same whatever the words are.",
  diagonal: "Follows the source along, token by token.",
  last: "Looks at the end of the source.",
  mixed: "None of the other kinds by a clear margin.",
  // the lens
  "Residual stream": "The vector of one token on its way through the layers. Every part reads it and adds something to it.",
  "Logit lens": "The model's last norm and its head, used on the vector after every layer: what it would write if it ended there.",
  Ablation: "A part is taken away (its output set to 0, or to its mean over the text): what the model loses shows what the part does.",
  Patching: "The model reads one text with one activation taken from another text: where that changes the answer, the difference is kept.",
  "KL to the end": "How far a guess is from what the model says in the end, in nats; 0 means the same.",
  // the documents of the studies
  S0: "Attention mechanisms, RoPE, NoPE, transformer architecture (a CS 182 discussion)",
  S1: "Transformers II (a CS 189 discussion)",
  S2: "Understanding language models (NLP notes)",
  S3: "Positional encoding (a course week)",
  S4: "Attention exploration (CS224N, assignment 4)",
};

/** The same with its own name before it, for a title. */
export const explained = (name: string): string | undefined => (TERMS[name] ? `${name}: ${TERMS[name]}` : undefined);
