"""The examples of docs/reference.md: sections in its order, which run one after the other, in an empty folder."""
# ruff: noqa: E402, I001

# ---- Models
import torch
import vantage as vt

spec = vt.decoder(vocab=64, width=32, layers=2, heads=4, kv_heads=2)
assert isinstance(spec, vt.ModelSpec)
model = vt.build(spec, seed=0)
assert isinstance(model, vt.Model)
tokens = torch.arange(10)[None]
assert model(tokens).shape == (1, 10, 64)

reader = vt.build(vt.encoder(vocab=64, width=32, layers=1, heads=4))
assert reader(tokens).shape == (1, 10, 32)
pair = vt.build(vt.encoder_decoder(vocab=64, width=32, layers=1, heads=4))
assert pair(tokens, source=tokens).shape == (1, 10, 64)

alone = vt.build(vt.decoder(vocab=64, width=32, layers=1, heads=4, ffn=vt.NoFeedForward()))  # attention alone
experts = vt.Experts(vt.FeedForward(16), count=4, router=vt.TopK(2))
for norm in (vt.RMSNorm(), vt.LayerNorm()):
    vt.build(vt.decoder(vocab=64, width=32, layers=1, heads=4, ffn=experts, norm=norm))

# ---- Attention
from dataclasses import replace

import torch
import vantage as vt

norm = vt.RMSNorm()
attentions = [
    vt.GroupedQuery(heads=4, kv_heads=1),
    vt.Latent(heads=4, kv_rank=16, nope_dim=8, rope_dim=8, value_dim=8, norm=norm),
    vt.Differential(heads=4),
    vt.HeavilyCompressed(heads=4, ratio=4, near=4, maps=vt.SmallMaps(q_rank=16)),
    vt.CompressedSparse(heads=4, ratio=2, near=4, choice=vt.EntryChooser(keep=2, heads=2, head_dim=8)),
    vt.NativeSparse(heads=4, kv_heads=1, near=4, blocks=vt.BlockChooser(size=2, keep=4)),
    vt.MoBA(heads=4, kv_heads=2, size=2, keep=3),
    vt.GatedDelta(heads=4, norm=norm),
    vt.KimiDelta(heads=4, norm=norm),
    vt.Mamba2(heads=4, norm=norm, state_dim=8),
    vt.GatedConvolution(taps=3),
    vt.Lightning(heads=4),
    vt.ValueResidual(heads=4, kv_heads=2, learned=True),
    vt.LowRankQuery(heads=4, rank=16),
    vt.Canon(heads=4, taps=3),
]
for attention in attentions:
    position = "rope" if isinstance(attention, vt.GroupedQuery | vt.Latent) else "none"
    net = vt.build(vt.decoder(vocab=64, width=32, layers=1, attention=attention, position=position))
    assert net(torch.arange(8)[None]).shape == (1, 8, 64)

normalisers = [vt.Softmax(temperature=0.5), vt.Argmax(), vt.OffByOne(), vt.Sparsemax(), vt.Entmax15(), vt.Sigmoid()]
for normalise in [*normalisers, vt.StickBreaking()]:
    scores = vt.Scores(normalise=normalise)
    vt.build(
        vt.decoder(vocab=64, width=32, layers=1, attention=vt.GroupedQuery(heads=4, scores=scores), position="none")
    )

layer = vt.decoder(vocab=64, width=32, layers=1, heads=4).layers[0]
chosen = replace(layer, indexer=vt.TopKIndexer(keep=4, heads=2, head_dim=8))  # each query attends to its 4 best keys
alone = replace(layer, ffn=vt.NoFeedForward())  # attention and nothing else
print(chosen, alone, vt.SharedIndexer(0), vt.QKNorm(norm), vt.OutputGate(), vt.Exclusive())  # parts of a layer

# ---- Position
import torch
import vantage as vt

encodings = [
    vt.NoPE(), vt.Sinusoidal(), vt.Learned(max_length=64), vt.Shifted(),
    vt.Rope(base=500_000.0), vt.LeRope(), vt.FoPE(), vt.XPos(), vt.MultiAxisRope(), vt.AxialRope(),
    vt.SelfExtend(), vt.DualChunk(), vt.Alibi(), vt.T5(), vt.Shaw(), vt.TransformerXL(), vt.Kerple(), vt.Fire(),
    vt.CoPE(), vt.Forgetting(), vt.PaTH(), vt.RelativeBank(), vt.SSMax(), vt.Randomised(vt.Rope(), high=256),
    vt.DAPE(), vt.PoPE(), vt.SelectiveRope(),
]  # fmt: skip
for encoding in encodings:
    net = vt.build(vt.decoder(vocab=64, width=32, layers=1, heads=2, position=encoding)).eval()
    assert net(torch.arange(8)[None]).shape == (1, 8, 64)

longer = vt.Rope(scaling=vt.scaling.YaRN(4.0, original=32))  # frequency rules for longer texts
places = vt.Positions.rows([5, 3])  # two rows, the second padded
assert vt.alibi_bias(heads=8, length=6).shape == (8, 6, 6)
assert vt.functional.sinusoid(torch.arange(4), 8).shape == (4, 8)

# ---- Masks
import torch
import vantage as vt

mask = (vt.Causal() | vt.Prefix(4)) & vt.Window(16) & vt.SameSegment()
net = vt.build(vt.decoder(vocab=64, width=32, layers=1, heads=4, mask=mask))
print(net(torch.arange(8)[None]).shape, vt.Chunked(4), vt.Everything())

# ---- Caches
import torch
import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=32, layers=2, heads=4)).eval()
tokens = torch.arange(12)[None]
with torch.inference_mode():
    cache = model.new_cache(batch=1)
    pieces = torch.cat([model(tokens[:, :8], cache=cache), model(tokens[:, 8:], cache=cache)], dim=1)
    torch.testing.assert_close(pieces, model(tokens))
    kinds = [vt.SinkCache(2, 8), vt.HeavyHitterCache(4, 4), vt.TovaCache(8), vt.SnapKVCache(size=8, window=2)]
    kinds += [vt.LowBitCache(key_bits=4, value_bits=4), vt.KiviCache(bits=2, group=4, newest=4)]
    for kind in kinds:
        assert model(tokens, cache=model.new_cache(batch=1, kind=kind)).shape == (1, 12, 64)

# ---- Files
import torch
import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=32, layers=2, heads=4)).eval()
vt.save(model, "kept")
again = vt.load("kept")
assert torch.equal(again(torch.arange(8)[None]), model(torch.arange(8)[None]))
print(vt.pull.__doc__)  # vt.pull("smollm2") brings a model: a download of 93 MB, once
print(vt.save_gguf.__doc__)  # vt.save_gguf(model, "model.gguf") writes a model that was loaded, for llama.cpp

# ---- Generation
import warnings

import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=32, layers=2, heads=4)).eval()
answer = vt.generate(model, [1, 2, 3], max_tokens=5, temperature=0.7, seed=1)
assert len(answer.tokens) == 5
best = vt.beam_search(model, [1, 2, 3], max_tokens=4, beams=vt.Beams(beams=2))
print(best, vt.Sampling(temperature=0.7, top_p=0.9, seed=1))

guessed = vt.generate(model, [1, 2, 3, 1, 2], max_tokens=5, draft=vt.Lookup())
small = vt.build(vt.decoder(vocab=64, width=16, layers=1, heads=2)).eval()
drafted = vt.generate(model, [1, 2, 3, 1, 2], max_tokens=5, draft=vt.DraftModel(small))
assert guessed.tokens == drafted.tokens == vt.generate(model, [1, 2, 3, 1, 2], max_tokens=5).tokens

engine = vt.Engine(model, capacity=256)  # many requests at once; vt.Conversation(model) is one that goes on
print(engine, vt.Conversation.__doc__)
warnings.simplefilter("ignore", vt.ContextWarning)  # of texts past the context that a model was made for

# ---- Training
import vantage as vt

rows = [[i % 64 for i in range(start, start + 16)] for start in range(64)]
trained = vt.train(vt.decoder(vocab=64, width=32, layers=1, heads=4), rows, steps=5, device="cpu")
print(trained.model)

# ---- Looking inside
import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=32, layers=2, heads=4)).eval()
tokens = [5, 6, 7, 8, 9, 5, 6, 7]
seen = vt.capture(model, tokens, layers=1)
assert seen.weights(1, head=0).shape == (8, 8)
print(vt.inspect.decompose(model, tokens, layer=0).share())

read = vt.trace(model, tokens, read=["layers.1.heads", "logits"])
with vt.tracing(model, edits=vt.Edit("layers.1.heads", 0.0, heads=2)):
    vt.generate(model, tokens, max_tokens=2)
print(read["layers.1.heads"].shape, vt.interventions.ablate(model, tokens, target=8).top(3))
without = vt.swap(model, "none")  # the same weights without a position encoding

# ---- Checks, studies and parts of your own
from dataclasses import dataclass

import vantage as vt

model = vt.build(vt.decoder(vocab=64, width=32, layers=2, heads=4))
assert vt.check(model).ok
assert vt.studies.run("A2").verdict == "erratum"


@vt.register("position", "no-position-at-all", title="None at all", summary="Acts nowhere.")
@dataclass(frozen=True)
class Nowhere(vt.NoPE):
    pass


vt.build(vt.decoder(vocab=64, width=32, layers=1, heads=4, position="no-position-at-all"))
