# %% [markdown]
# # Position
#
# What attention lacks, and what encodings give it. No download; seconds.

# %%
import matplotlib.pyplot as plt
import torch

import vantage as vt

# %% [markdown]
# ## Without an encoding
#
# Shuffle the tokens of an encoder without position, and its outputs are shuffled alike: it is permutation
# equivariant. A causal mask breaks that, and so does any encoding.

# %%
tokens, shuffle = torch.tensor([[3, 1, 4, 1, 5, 9]]), torch.tensor([4, 0, 5, 2, 1, 3])
for position in ("none", "sinusoidal", "rope", "alibi"):
    reader = vt.build(vt.encoder(vocab=16, width=32, layers=1, heads=4, position=position)).eval()
    with torch.inference_mode():
        off = float((reader(tokens[:, shuffle]) - reader(tokens)[:, shuffle]).abs().max())
    print(f"{position:10} differs by {off:.1e}")
    assert (off < 1e-5) == (position == "none")

# %% [markdown]
# ## Sinusoids
#
# Each pair of dimensions is a clock; the first is the fastest. Inner products depend on the distance alone, and do
# not fall steadily with it.

# %%
table = vt.functional.sinusoid(torch.arange(50), 64)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
left.imshow(table.numpy(), aspect="auto", cmap="RdBu")
left.set_title("position × dimension")
right.plot((table @ table[0]).numpy())
right.set_title("inner product with position 0")
plt.show()

# %% [markdown]
# ## RoPE
#
# Queries and keys are turned by their positions; scores keep the difference.

# %%
q, k = torch.randn(2, 1, 64, dtype=torch.float64)


def score(m: int, n: int) -> float:
    turned_q = vt.functional.apply_rope(q, torch.tensor([m]))
    return float(turned_q @ vt.functional.apply_rope(k, torch.tensor([n])).T)


print(score(10, 3), score(110, 103))
assert abs(score(10, 3) - score(110, 103)) < 1e-9

# %% [markdown]
# ## ALiBi
#
# A penalty that grows with the distance, faster in some heads. The paper's slopes are 2^(−8k/h); 1/2, 1/4, … is that
# for 8 heads only.

# %%
bias = vt.alibi_bias(heads=4, length=32)
figure, axes = plt.subplots(1, 4, figsize=(12, 3))
for head, axis in enumerate(axes):
    axis.imshow(bias[head].numpy())
    axis.set_title(f"slope {float(vt.functional.alibi_slopes(4)[head]):.3g}")
plt.show()

# %% [markdown]
# ## Position without an encoding
#
# A causal head can count: equal keys, and a value that says "I am the first token", give 1/t at position t.

# %%
print(vt.studies.run("P11"))
