# %% [markdown]
# # Inside SmolLM2
#
# A real model of 135 million weights: `vantage pull smollm2` brings it (93 MB, once).

# %%
import matplotlib.pyplot as plt

import vantage as vt
from vantage.inspect import atlas, decompose

model = vt.load("smollm2", dtype="auto")
answer = vt.generate(model, "The capital of France is", max_tokens=8, stats=True)
print(answer)
print(answer.stats)

# %% [markdown]
# ## What each head does
#
# The atlas reads a text twice over and measures where every head looks.

# %%
heads = atlas(model, "The cat sat on the mat, and the dog lay beside the door.")
print(heads)

# %% [markdown]
# ## One head, and how much of its score is position

# %%
text = "The cat sat. The cat sat."
seen = vt.capture(model, text, layers=18)
plt.imshow(seen.weights(18, head=6).numpy(), cmap="viridis")
plt.show()
parts = decompose(model, text, layer=18)
print("share of position in each head's scores:", parts.share())
assert parts.error < 1e-2

# %% [markdown]
# ## A chat of many turns with one cache
#
# A new turn computes its new tokens only.

# %%
talk = vt.Conversation(model, system="Answer briefly.")
for line in ("What is a cat?", "And a dog?"):
    print(talk.ask(line, max_tokens=24))
