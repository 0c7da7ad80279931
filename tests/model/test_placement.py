"""Layers that are not on the device: the bits are those of the model that fits."""

import copy

import pytest
import torch

import vantage as vt
from vantage.errors import Refused
from vantage.model.experts import Experts, TopK
from vantage.model.lora import Lora, add_lora, merge
from vantage.model.mapped import MappedLayers, whole_pages
from vantage.model.packed import quantise
from vantage.model.placement import layout_of, shared_tensors
from vantage.model.shared_copy import copy_sharing_weights
from vantage.model.streamed import stream_layers

TOKENS = torch.arange(1, 25).view(2, 12)
SPECS = {
    "rope": {"position": "rope", "kv_heads": 2},
    "t5": {"position": "t5"},  # one table of biases, which all layers share
    "learned": {"position": "learned", "max_length": 64},
    "window": {"position": "rope", "window": 5},
    "experts": {"position": "rope", "ffn": Experts(vt.FeedForward(64), 4, TopK(2))},
    "latent": {"attention": vt.Latent(4, kv_rank=16, nope_dim=8, rope_dim=8, value_dim=16, norm=vt.RMSNorm())},
    "states": {"attention": vt.GatedDelta(4, vt.RMSNorm()), "position": "none"},
}


def build(name="rope", layers=7):
    heads = {} if "attention" in SPECS[name] else {"heads": 4}
    return vt.build(vt.decoder(vocab=97, width=64, layers=layers, **heads, **SPECS[name]), seed=1).eval()


def streamed(model, off=(0, 2, 3, 4, 6)):
    """On "cpu" as the device: buffers and exchanges are those of a GPU, copies are done at once."""
    other = copy.deepcopy(model)
    other.kernel = "sdpa"  # native steps would read host memory, where everything is here
    stream_layers(other, "cpu", off)
    return other


def mapped(model, folder, off=(0, 2, 3, 4, 6)):
    other = copy.deepcopy(model)
    shared = shared_tensors(other)
    nbytes = sum(whole_pages(layout_of(other.blocks[i], shared).nbytes) for i in off)
    placement = MappedLayers(folder, off, nbytes)
    for i in off:
        placement.take(i, other.blocks[i], shared)
    other.requires_grad_(False)
    other.placement = placement
    return other


OFF = [(1,), (0, 6), (2, 3, 4), (0, 2, 3, 4, 6), tuple(range(7))]


@pytest.mark.parametrize(
    ("name", "off"), [*(("rope", off) for off in OFF), *((name, OFF[3]) for name in SPECS if name != "rope")]
)
@torch.no_grad()
def test_the_same_bits(name, off):
    model = build(name)
    model.kernel = "sdpa"
    other = streamed(model, off)
    for _ in range(3):  # the second pass finds the first layers in the buffers
        assert torch.equal(other(TOKENS), model(TOKENS))


@torch.no_grad()
def test_a_cache_is_filled_and_read_as_ever():
    model = build()
    model.kernel = "sdpa"
    other = streamed(model)
    mine, theirs = other.new_cache(2), model.new_cache(2)
    for at in range(0, 12, 3):
        assert torch.equal(other(TOKENS[:, at : at + 3], cache=mine), model(TOKENS[:, at : at + 3], cache=theirs))


@torch.no_grad()
def test_weights_are_the_models_own_before_and_after():
    model = build()
    other = streamed(model)
    own = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(2):
        for name, p in other.named_parameters():
            assert torch.equal(p, own[name]), name
        other(TOKENS)


@torch.no_grad()
def test_only_two_layers_are_on_the_device():
    """What a layer runs with lies in one of two buffers, and is filled for it alone."""
    other, seen = streamed(build()), []
    for i in (0, 2, 3, 4, 6):
        weight = next(p for p in other.blocks[i].modules() if hasattr(p, "weight") and p.weight is not None)
        weight.register_forward_pre_hook(lambda module, _: seen.append(module.weight.untyped_storage().data_ptr()))
    other(TOKENS)
    assert len(set(seen)) == 2
    assert seen == [seen[0], seen[1], seen[0], seen[1], seen[0]]


@torch.no_grad()
def test_a_pass_that_fails_leaves_a_model_that_runs():
    model = build()
    model.kernel = "sdpa"
    other = streamed(model)

    def stop(*_):
        raise ValueError("enough")

    handle = other.blocks[3].register_forward_pre_hook(stop)
    with pytest.raises(ValueError, match="enough"):
        other(TOKENS)
    handle.remove()
    assert torch.equal(other(TOKENS), model(TOKENS))
    x = torch.randn(1, 4, 64)
    assert torch.equal(other.hidden_from(x, 4), model.hidden_from(x, 4))  # not from the first layer on
    assert torch.equal(other(TOKENS), model(TOKENS))


@torch.no_grad()
def test_blocks_of_quantised_weights():
    model = build()
    quantise(model, 8)
    model.kernel = "sdpa"
    other = streamed(model)
    assert torch.equal(other(TOKENS), model(TOKENS))


def test_the_engine_over_it():
    model = build()
    model.kernel = "sdpa"
    want = vt.generate(model, [[1, 2, 3], [4] * 9], max_tokens=12)
    got = vt.generate(streamed(model), [[1, 2, 3], [4] * 9], max_tokens=12)
    assert [a.tokens for a in got] == [a.tokens for a in want]


@torch.no_grad()
def test_an_adapter_that_comes_later():
    model = build()
    model.kernel = "sdpa"
    other = streamed(model)
    for one in (model, other):
        add_lora(one, Lora(rank=2, targets=("attention", "ffn")))
        generator = torch.Generator().manual_seed(3)
        for name, p in sorted(one.named_parameters()):
            if name.endswith(".b"):
                p.copy_(torch.randn(p.shape, generator=generator))
    assert torch.equal(other(TOKENS), model(TOKENS))
    merge(other)
    merge(model)
    assert torch.equal(other(TOKENS), model(TOKENS))


@torch.no_grad()
def test_a_copy_that_shares_weights_shares_the_buffers_too():
    model = build()
    model.kernel = "sdpa"
    other = streamed(model)
    twin = copy_sharing_weights(other)
    assert twin.placement is other.placement
    assert torch.equal(twin(TOKENS), model(TOKENS))
    assert torch.equal(other(TOKENS), model(TOKENS))


@torch.no_grad()
def test_hooks_see_the_weights_that_run():
    other, seen = streamed(build()), []
    module = other.blocks[3].steps[0].sublayer.qkv
    own = module.weight.clone()
    module.register_forward_hook(lambda m, args, out: seen.append(m.weight.clone()))
    other(TOKENS)
    assert torch.equal(seen[0], own)


@pytest.mark.parametrize("make", ["streamed", "mapped"])
def test_what_it_cannot_do_is_refused(make, tmp_path):
    other = streamed(build()) if make == "streamed" else mapped(build(), tmp_path)
    other(TOKENS)  # nothing wants a gradient
    with pytest.raises(Refused, match="gradient"):
        other.hidden_from(torch.randn(1, 4, 64, requires_grad=True), 0)
    with pytest.raises(Refused, match="moved or cast"):
        other.half()


# ---- on a CPU, from a file


@pytest.mark.parametrize("kernel", ["auto", "sdpa"])
@torch.no_grad()
def test_mapped_layers_give_the_same_bits(kernel, tmp_path):
    model = build()
    model.kernel = kernel
    other = mapped(model, tmp_path)
    mine, theirs = other.new_cache(2), model.new_cache(2)
    for at in range(0, 12, 3):
        assert torch.equal(other(TOKENS[:, at : at + 3], cache=mine), model(TOKENS[:, at : at + 3], cache=theirs))
    assert not list(tmp_path.iterdir())  # the file has no name


def test_mapped_layers_in_the_engine_run_natively_layer_by_layer(tmp_path):
    model = build()
    other = mapped(model, tmp_path)
    want = vt.generate(model, [[1, 2, 3], [4] * 9], max_tokens=12, stats=True)
    got = vt.generate(other, [[1, 2, 3], [4] * 9], max_tokens=12, stats=True)
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert got[0].stats.paths == want[0].stats.paths


@torch.no_grad()
def test_what_is_written_into_a_mapped_weight_stays(tmp_path):
    other = mapped(build(), tmp_path)
    weight = other.blocks[3].steps[0].sublayer.qkv.weight
    weight.fill_(0.25)
    other(TOKENS)
    other(TOKENS)
    assert weight.eq(0.25).all()


def test_a_full_disk_is_said_first(tmp_path):
    with pytest.raises(Refused, match="VANTAGE_HOME"):
        MappedLayers(tmp_path, (0,), 2**60)


@torch.no_grad()
def test_swapped_positions_run_with_the_same_layers():
    model = build()
    model.kernel = "sdpa"
    other = vt.swap(streamed(model), base=500.0)
    assert other.placement.layers
    assert torch.equal(other(TOKENS), vt.swap(model, base=500.0)(TOKENS))


def test_no_copy_of_all_of_it():
    with pytest.raises(Refused, match="copy_sharing_weights"):
        copy.deepcopy(streamed(build()))


@torch.no_grad()
def test_the_decoder_of_an_encoder_decoder():
    spec = vt.encoder_decoder(vocab=97, width=64, layers=4, heads=4, position="rope")
    model = vt.build(spec, seed=1).eval()
    other = streamed(model, (0, 1, 3))
    model.kernel = "sdpa"
    assert torch.equal(other(TOKENS, source=TOKENS), model(TOKENS, source=TOKENS))


@torch.no_grad()
def test_of_experts_those_come_that_tokens_go_to():
    model = build("experts")
    model.kernel = "sdpa"
    other = streamed(model, tuple(range(7)))
    twin, swapped = copy_sharing_weights(other), vt.swap(other, base=500.0)
    for one, same in ((other, model), (twin, model), (swapped, vt.swap(model, base=500.0)), (other, model)):
        before = other.placement.copied
        assert torch.equal(one(TOKENS[:1, :1]), same(TOKENS[:1, :1]))  # one token goes to 2 of 4 experts
        expert = sum(p.nbytes for p in other.blocks[0].steps[1].sublayer.experts[0].parameters())
        rest = other.placement.nbytes // 7 - 4 * expert
        layers = 9 if before == 0 else 7  # the first pass finds nothing in the buffers
        assert other.placement.copied - before == 7 * 2 * expert + layers * rest
    assert torch.equal(other(TOKENS), model(TOKENS))
