# %% [markdown]
# # Longer than in training
#
# Small models learn to go on with a pattern of four tokens, on rows of 16, and are asked on rows up to 64. To know
# which token comes next they must look four places back. One seed and a few seconds of training each: a picture, no
# verdict. `vantage compare` trains with paired seeds and says which differences hold.

# %%
import matplotlib.pyplot as plt
import torch

import vantage as vt

LENGTH, LENGTHS, POSITIONS = 16, (16, 24, 32, 48, 64), ("rope", "alibi", "sinusoidal", "none")


def patterns(count: int, length: int, seed: int) -> torch.Tensor:
    """Rows that repeat four tokens of their own."""
    tokens = torch.randint(32, (count, 4), generator=torch.Generator().manual_seed(seed))
    return tokens.repeat(1, length // 4 + 1)[:, :length]


def loss(model: vt.Model, length: int) -> float:
    """Of the last eight tokens of new rows."""
    rows = patterns(64, length + 1, seed=1)
    with torch.inference_mode():
        logits = model(rows[:, :-1])[:, -8:]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, -8:].flatten()))


# %%
rows = patterns(4096, LENGTH, seed=0).tolist()
models, losses = {}, {}
for position in POSITIONS:
    spec = vt.decoder(vocab=32, width=64, layers=2, heads=4, position=position)
    models[position] = vt.train(spec, rows, steps=300, lr=3e-3, batch_size=64, device="cpu").model.eval()
    losses[position] = [loss(models[position], length) for length in LENGTHS]
    print(position, [f"{one:.2f}" for one in losses[position]])

# %%
for position in POSITIONS:
    plt.plot(LENGTHS, losses[position], marker="o", label=position)
plt.axvline(LENGTH, linestyle=":", color="grey")
plt.xlabel("tokens")
plt.ylabel("loss of the last eight")
plt.legend()
plt.show()
assert min(losses["rope"][0], losses["alibi"][0]) < 1.0  # a guess has 3.5

# %% [markdown]
# ## Another frequency rule for the same weights
#
# `vt.swap` shares the weights and changes the rule.

# %%
for name, rule in (
    ("as trained", None),
    ("linear", vt.scaling.Linear(4.0)),
    ("YaRN", vt.scaling.YaRN(4.0, original=16)),
):
    print(f"{name:10} loss at 64 tokens {loss(vt.swap(models['rope'], scaling=rule), 64):.2f}")
