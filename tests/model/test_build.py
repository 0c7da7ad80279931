"""From a few names to a spec, and from a spec to a model."""

from dataclasses import replace

import pytest
import torch

import vantage as vt
from vantage.attention import GroupedQuery, Latent, QKNorm
from vantage.errors import BadInput, Refused
from vantage.model import build, decoder, encoder, encoder_decoder
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.model.packed import quantise
from vantage.position import ENCODINGS, T5, Alibi, CoPE, Learned, NoPE, Randomised, Rope, Sinusoidal, scaling
from vantage.spec.masks import Causal, Everything, Prefix, SameSegment, Window
from vantage.spec.model import POST, PRE, SANDWICH, Head, ModelSpec, Parallel, Scores
from vantage.spec.normalisers import Argmax

SMALL = {"vocab": 7, "width": 8, "layers": 2, "heads": 2}
TOKENS = torch.tensor([[1, 2, 3, 4]])


# ---- seeds


def test_the_same_seed_gives_the_same_weights_and_another_others():
    spec = decoder(**SMALL)
    a, b, c = build(spec, seed=3), build(spec, seed=3), build(spec, seed=4)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.embed.tokens.weight, c.embed.tokens.weight)
    assert all(
        torch.equal(x, y) for x, y in zip(build(spec).parameters(), build(spec, seed=0).parameters(), strict=True)
    )


def test_building_leaves_torchs_random_numbers_alone():
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    build(decoder(**SMALL), seed=1)
    assert torch.equal(torch.rand(3), wanted)


def test_fresh_weights():
    model = build(replace(decoder(vocab=200, width=64, layers=1, heads=4, ffn="relu"), head=Head(bias=True)))
    for name, p in model.state_dict().items():
        if p.dim() > 1:
            assert float(p.std()) == pytest.approx(0.02, rel=0.1), name
            assert abs(float(p.mean())) < 2e-3, name
        elif "bias" in name:
            assert (p == 0).all(), name
        else:
            assert (p == 1).all(), name


def test_fresh_latent_weights():
    attention = Latent(4, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16, norm=RMSNorm())
    model = build(decoder(vocab=9, width=64, layers=1, attention=attention))
    part = model.blocks[0].steps[0].sublayer
    assert float(part.k_up.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(part.v_up.detach().std()) == pytest.approx(0.02, rel=0.1)


# ---- recipes


def test_decoder():
    spec = decoder(**SMALL, kv_heads=1, window=5, max_length=9, tied=True)
    assert spec.vocab == 7
    assert spec.width == 8
    assert len(spec.layers) == 2
    assert spec.max_length == 9
    assert spec.head == Head(tied=True)
    assert spec.norm == RMSNorm()
    assert spec.encoder is None
    (layer, same) = spec.layers
    assert layer == same
    assert layer.mask == Causal() & SameSegment() & Window(5)
    assert layer.attention == GroupedQuery(2, 1)
    assert layer.qk == (Rope(),)
    assert layer.bias is None
    assert layer.cross is None


def test_encoder_is_bidirectional_and_has_no_head():
    spec = encoder(**SMALL, window=3)
    assert spec.head is None
    assert spec.layers[0].mask == Everything() & SameSegment() & Window(3)
    out = build(spec)(TOKENS)
    assert out.shape == (1, 4, 8)


@pytest.mark.parametrize(
    ("wiring", "meant", "ends_with_a_norm"),
    [("pre", PRE, True), ("post", POST, False), ("sandwich", SANDWICH, True), ("parallel", Parallel(), True)],
)
def test_wirings(wiring, meant, ends_with_a_norm):
    spec = decoder(**SMALL, wiring=wiring, norm="layer")
    assert spec.layers[0].wiring == meant
    assert (spec.norm == LayerNorm()) == ends_with_a_norm
    assert decoder(**SMALL, wiring=meant, norm=LayerNorm()) == spec
    assert build(spec)(TOKENS).shape == (1, 4, 7)


def test_encoder_decoder():
    spec = encoder_decoder(**SMALL, position="rope", wiring="pre", tied=True, kv_heads=1, bias=False, window=4)
    assert spec.encoder is not None
    assert spec.encoder.head is None
    assert spec.head == Head(tied=True)
    assert spec.layers[0].cross == GroupedQuery(2, 1)
    assert spec.layers[0].mask == Causal() & SameSegment() & Window(4)
    assert spec.encoder.layers[0].mask == Everything() & SameSegment() & Window(4)
    assert spec.embedding.scale == spec.encoder.embedding.scale == 1.0
    assert spec.layers[0].qk == spec.encoder.layers[0].qk == (Rope(),)


@pytest.mark.parametrize("make", [decoder, encoder, encoder_decoder])
def test_embeddings_begin_as_large_as_what_is_added_to_them(make):
    """A sinusoid has the size of one and stays so; beside embeddings of 0.02 it would drown the tokens."""
    spec = make(vocab=500, width=64, layers=1, heads=2, position="sinusoidal")
    assert spec.embedding.scale == 8.0
    assert float((build(spec).embed.tokens.weight.detach() * 8.0).std()) == pytest.approx(1.0, abs=0.02)
    learned = build(make(vocab=500, width=64, layers=1, heads=2, position="learned", max_length=50))
    sizes = [float(p.detach().std()) for p in (learned.embed.tokens.weight, *learned.embed.inputs.parameters())]
    assert sizes == pytest.approx([0.02, 0.02], abs=0.002)


def test_positions_are_put_where_they_act():
    assert decoder(**SMALL, position="sinusoidal").embedding.inputs == (Sinusoidal(),)
    assert decoder(**SMALL, position="learned", max_length=9).embedding.inputs == (Learned(9),)
    assert decoder(**SMALL, position=Alibi()).layers[0].bias == Alibi()
    shaw = decoder(**SMALL, position="shaw").layers[0]
    assert shaw.bias is not None
    assert shaw.value_bias is not None
    nothing = decoder(**SMALL, position="none")
    assert nothing.embedding.inputs == nothing.layers[0].qk == ()
    assert decoder(**SMALL, position=NoPE()) == nothing
    drawn = decoder(**SMALL, position=Randomised(Rope(), 20))
    assert drawn.sampler is not None
    assert drawn.layers[0].qk == (Rope(),)


def test_an_encoding_is_told_if_attention_looks_ahead():
    def bidirectional(spec):
        return spec.layers[0].bias.bidirectional

    assert not bidirectional(decoder(**SMALL, position="t5"))
    assert bidirectional(encoder(**SMALL, position="t5"))
    assert bidirectional(decoder(**SMALL, position="t5", mask=(Causal() | Prefix(3)) & SameSegment()))
    assert not bidirectional(decoder(**SMALL, position="t5", mask=Causal() & Window(2)))
    with pytest.raises(Refused, match="needs causal attention"):
        encoder(**SMALL, position=CoPE())


def test_an_attention_by_name_has_so_many_heads():
    named = decoder(**SMALL, attention="grouped")
    assert named == decoder(**SMALL)
    assert decoder(**SMALL, attention="differential").layers[0].attention.shape(8).heads == 2


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_name_makes_a_model_that_runs(name):
    model = build(decoder(**SMALL, position=name, max_length=6))
    assert model(TOKENS).shape == (1, 4, 7)
    model(TOKENS).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: decoder(vocab=7, width=8, layers=2), "say heads=, or attention="),
        (lambda: decoder(vocab=7, width=8, layers=2, attention="grouped"), "say heads=, or attention="),
        (lambda: decoder(**SMALL, attention="gruped"), r"no attention is called 'gruped'. Did you mean 'grouped'"),
        (lambda: decoder(**SMALL, kv_heads=1, attention="latent"), "leave them out with attention='latent'"),
        (lambda: encoder_decoder(**SMALL, bias=False, attention="latent"), "leave them out with attention='latent'"),
        (lambda: decoder(**SMALL, mask="causal"), r"mask='causal' is no mask: give an object, such as vt\.Causal"),
        (lambda: encoder(**SMALL, mask="window"), "mask='window' is no mask"),
        (lambda: decoder(**SMALL, attention=GroupedQuery(2)), "give them or attention=, not both"),
        (lambda: decoder(vocab=7, width=8, layers=2, kv_heads=1, attention=GroupedQuery(2)), "not both"),
        (lambda: decoder(vocab=7, width=8, layers=2, heads=3), "width 8 does not divide into 3 heads: change one"),
        (lambda: decoder(**SMALL, kv_heads=3), "2 heads over 3 key/value heads: the second must divide the first"),
        (lambda: decoder(**SMALL, window=0), "window=0: give at least 1"),
        (lambda: decoder(**SMALL, position="ropee"), r"no position encoding is called 'ropee'. Did you mean 'rope'\?"),
        (lambda: decoder(**SMALL, position="zzz"), "There are: none, sinusoidal"),
        (lambda: decoder(**SMALL, position=Rope), r"neither a name nor an encoding object: write Rope\(...\)"),
        (lambda: decoder(**SMALL, position="learned"), "needs max_length="),
        (lambda: decoder(**SMALL, norm="batch"), "no norm is called 'batch'. There are: rms, layer"),
        (
            lambda: decoder(**SMALL, wiring="deep"),
            "no wiring is called 'deep'. There are: pre, post, sandwich, parallel",
        ),
        (lambda: decoder(**SMALL, ffn="mlp"), "no feed-forward layer is called 'mlp'"),
        (lambda: decoder(vocab=0, width=8, layers=2, heads=2), "vocab=0: a model needs at least 1"),
        (lambda: decoder(vocab=7, width=8, layers=0, heads=2), "layers=0: give at least 1"),
        (lambda: ModelSpec(7, 0, ()), "width=0: a model needs at least 1"),
        (lambda: build(decoder(**SMALL), kernel="fast"), "no kernel is called 'fast'"),
    ],
)
def test_what_cannot_be_is_refused_and_says_what_to_do(call, says):
    with pytest.raises(BadInput, match=says):
        call()


# ---- specs


def test_specs_are_frozen_data():
    assert decoder(**SMALL) == decoder(**SMALL)
    assert hash(decoder(**SMALL)) == hash(decoder(**SMALL))
    with pytest.raises(AttributeError):
        decoder(**SMALL).width = 9


def test_the_length_at_which_a_rule_changes():
    def length(*ropes):
        spec = decoder(**SMALL)
        return replace(spec, layers=tuple(replace(spec.layers[0], qk=(rope,)) for rope in ropes)).original_length

    ntk, long = scaling.DynamicNTK(2.0, 40), scaling.LongRope((1.0, 1.0), (2.0, 2.0), 30, 2.0)
    assert length(Rope()) is None
    assert length(Rope(scaling=ntk)) == 40
    assert length(Rope(), Rope(scaling=ntk), Rope(scaling=long)) == 30
    assert length(QKNorm(RMSNorm()), Rope(scaling=long)) == 30
    assert decoder(**SMALL, position="alibi").original_length is None


def test_a_layer_pattern_is_data():
    """Gemma 3: local layers with one base, a global one with another. LLaMA 4: a layer without position."""
    spec = decoder(vocab=7, width=8, layers=4, heads=2, window=3)
    (local, *_) = spec.layers
    whole = replace(local, mask=Causal() & SameSegment(), qk=(Rope(base=1e6),))
    bare = replace(local, mask=Causal() & SameSegment(), qk=(vt.QKNorm(RMSNorm()),))
    model = build(replace(spec, layers=(local, whole, local, bare))).double().eval()
    tokens = torch.randint(7, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(tokens)
        for kind in ("contiguous", "ring", "paged"):
            cache = model.new_cache(2, kind=kind)
            got = [model(part, cache=cache) for part in tokens.split([4, 2, 1, 1, 1], dim=1)]
            torch.testing.assert_close(torch.cat(got, 1), wanted)


# ---- the model


def test_the_kernel_can_be_changed_at_any_time():
    scores = GroupedQuery(2, scores=Scores(normalise=Argmax()))
    model = build(decoder(vocab=7, width=8, layers=1, attention=scores))
    assert model.kernel == "auto"
    model(TOKENS)
    model.kernel = "sdpa"
    assert model.kernel == "sdpa"
    with pytest.raises(
        Refused, match="'sdpa' was requested, but sdpa has softmax alone, not Argmax; use kernel='auto'"
    ):
        model(TOKENS)
    model.kernel = "reference"
    model(TOKENS)
    with pytest.raises(BadInput, match="Did you mean 'flex'"):
        model.kernel = "felx"
    assert model.kernel == "reference"


def test_summary():
    text = build(decoder(vocab=1000, width=8, layers=3, heads=2, window=5, position="alibi")).summary()
    assert text.startswith("decoder, ")
    count = sum(p.numel() for p in build(decoder(vocab=1000, width=8, layers=3, heads=2)).parameters())
    assert f"{count:,} parameters" in text
    assert "3 x GroupedQuery" in text
    model = build(decoder(vocab=64, width=32, layers=1, heads=2))
    before = model.summary()
    quantise(model, 8)
    assert model.summary() == before  # weights count however they are kept
    assert "Alibi" in text
    assert "Window(n=5)" in text
    both = build(encoder_decoder(**SMALL)).summary()
    assert both.startswith("encoder-decoder, ")
    assert "\nencoder\n" in both
    assert "cross GroupedQuery" in both
    assert build(encoder(**SMALL)).summary().startswith("encoder, ")
    assert "value bias" in build(decoder(**SMALL, position="shaw")).summary()
    assert "input: Sinusoidal" in build(decoder(**SMALL, position="sinusoidal")).summary()
    assert "q/k Rope" in build(decoder(**SMALL)).summary()


def test_T5_tables_are_shared_by_all_layers():
    model = build(decoder(vocab=7, width=8, layers=3, heads=2, position=T5(8, 16)))
    tables = [name for name, _ in model.named_parameters() if name.endswith("table")]
    assert len(tables) == 1


def test_the_public_surface():
    for name in vt.__all__:
        assert getattr(vt, name) is not None
    assert set(vt.__all__) <= set(dir(vt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vt.nothing
