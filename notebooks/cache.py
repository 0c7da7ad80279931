# %% [markdown]
# # The cache
#
# What it saves, what it weighs, and what it must not change. No download; seconds.

# %%
import matplotlib.pyplot as plt
import torch

import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=64, layers=2, heads=8, kv_heads=2), seed=0).eval()

# %% [markdown]
# ## The same result, in any pieces

# %%
tokens = torch.randint(64, (1, 24), generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    whole = model(tokens)
    for sizes in ([24], [8, 16], [1] * 24):
        cache = model.new_cache(batch=1)
        pieces = torch.cat([model(piece, cache=cache) for piece in tokens.split(sizes, dim=1)], dim=1)
        print(f"{len(sizes):2} pieces: off by {float((pieces - whole).abs().max()):.1e}")
        torch.testing.assert_close(pieces, whole)

# %% [markdown]
# ## What it saves
#
# To write N tokens without a cache takes N(N+1)/2 key projections a layer, with one N: counted in the real model.

# %%
counts = {n: max(vt.generate(model, [1], max_tokens=n, stats=True).stats.projections) for n in (4, 8, 16, 32)}
plt.plot(list(counts), [n * (n + 1) // 2 for n in counts], label="without a cache: N(N+1)/2")
plt.plot(list(counts), list(counts.values()), label="with one, counted")
plt.legend()
plt.show()
assert all(count == n for n, count in counts.items())

# %% [markdown]
# ## What it weighs
#
# Fewer key heads, fewer bits, or fewer tokens. The first keeps everything; int8 and 4 bits round; sinks forget.

# %%
with torch.inference_mode():
    for kind in ("contiguous", "quantised", vt.LowBitCache(key_bits=4, value_bits=4), vt.SinkCache(4, 8)):
        cache = model.new_cache(batch=1, kind=kind)
        outs = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(24)], dim=1)
        print(f"{kind!s:60.60} {cache.bytes:6} bytes, logits off by {float((outs - whole).abs().max()):.3f}")

# %% [markdown]
# ## Going back, branching

# %%
with torch.inference_mode():
    cache = model.new_cache(batch=1)
    model(tokens[:, :20], cache=cache)
    branch = cache.fork()
    cache.crop(10)
    again = model(tokens[:, 10:12], cache=cache)
    other = model(tokens[:, 20:22], cache=branch)
torch.testing.assert_close(again, whole[:, 10:12])
torch.testing.assert_close(other, whole[:, 20:22])
