# %% [markdown]
# # Attention
#
# From one score to the heads of a model. This notebook is text: open it as a notebook in VS Code, or in Jupyter with
# jupytext. It needs no download and runs in seconds.

# %%
import matplotlib.pyplot as plt
import torch

import vantage as vt

# %% [markdown]
# ## One query
#
# Scores are dot products; the softmax makes weights of them; the context is the values, each as much as its weight
# says. These are the numbers of a worked example (study A2), in which the document's weights 0.3374 and 0.4125 are
# slips.

# %%
states = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
query = torch.tensor([0.5, 0.2])
weights = torch.softmax(states @ query, dim=0)
print("weights", [round(float(w), 5) for w in weights], "context", (weights @ states).tolist())
assert [round(float(w), 5) for w in weights] == [0.33758, 0.25009, 0.41233]

# %% [markdown]
# ## Why scores are divided by √d
#
# The variance of a dot product grows with the width, and with it the softmax becomes one-sided.

# %%
torch.manual_seed(0)
entropies = {}
for width in (4, 16, 64, 256):
    q, k = torch.randn(200, width), torch.randn(50, width)
    for name, scores in (("plain", q @ k.T), ("scaled", q @ k.T / width**0.5)):
        p = torch.softmax(scores, dim=-1)
        entropies[name, width] = float(-(p * p.clamp_min(1e-30).log()).sum(-1).mean())
for (name, width), entropy in entropies.items():
    print(f"{name:6} d={width:3}: entropy {entropy:.2f} of at most {torch.tensor(50.0).log():.2f}")
assert entropies["plain", 256] < 1 < entropies["scaled", 256]

# %% [markdown]
# ## The heads of a model
#
# `vt.capture` shows the weights, whichever kernel ran.

# %%
model = vt.build(vt.decoder(vocab=32, width=64, layers=2, heads=4), seed=0).eval()
seen = vt.capture(model, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], layers=0)
figure, axes = plt.subplots(1, 4, figsize=(12, 3))
for head, axis in enumerate(axes):
    axis.imshow(seen.weights(0, head=head).numpy(), cmap="viridis", vmin=0, vmax=1)
    axis.set_title(f"head {head}")
plt.show()

# %% [markdown]
# ## Other normalisers
#
# The softmax is a part as well. Sparsemax gives exact zeros; hard attention takes the highest score alone. (Weights are
# fresh here, so scores are made larger than usual.)

# %%
for normalise in (vt.Softmax(), vt.Softmax(temperature=0.2), vt.Sparsemax(), vt.Argmax()):
    attention = vt.GroupedQuery(heads=4, scores=vt.Scores(scale=8.0, normalise=normalise))
    other = vt.build(vt.decoder(vocab=32, width=64, layers=1, attention=attention), seed=0).eval()
    last = vt.capture(other, [3, 1, 4, 1, 5, 9, 2, 6], layers=0).weights(0, head=0)[-1]
    print(f"{normalise}: largest weight {float(last.max()):.2f}, zeros {int((last == 0).sum())} of 8")
