# %% [markdown]
# # Interventions
#
# What a head looks at does not say what it does. Here activations of SmolLM2 are read and replaced while it runs
# (`vantage pull smollm2`, 93 MB, once).

# %%
import matplotlib.pyplot as plt

import vantage as vt
from vantage.interventions import ablate, attribute, logit_lens, patch

model = vt.load("smollm2", dtype="auto")
text = "The capital of France is"

# %% [markdown]
# ## What it would write, layer by layer

# %%
lens = logit_lens(model, text, target=" Paris", positions=-1)
print(lens)

# %% [markdown]
# ## What adds to the answer, and what happens without it

# %%
print(attribute(model, text, target=" Paris", against=" London").rows()[:8])
effects = ablate(model, text, target=" Paris", layers=[24, 25])
print("the heads that matter most:", effects.top(3))
layer, head, _ = effects.top(1)[0]
with vt.tracing(model, edits=vt.Edit(f"layers.{layer}.heads", 0.0, heads=head)):
    print("without it:", vt.generate(model, text, max_tokens=4))

# %% [markdown]
# ## Patching
#
# The model reads one text with the residual stream of another at one place. An effect of 1 is the other text's answer.

# %%
swapped = patch(
    model, "John and Mary. John saw", "John and Mary. Mary saw", target=" Mary", against=" John", layers=[10, 20, 29]
)
plt.imshow(swapped.effects.numpy(), cmap="RdBu", vmin=-1, vmax=1)
plt.xlabel("token")
plt.ylabel("layer")
plt.show()
