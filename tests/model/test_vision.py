"""Vision towers: what goes with a pass, gradients, what others count of them, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import vantage as vt
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from vantage.errors import BadInput
from vantage.generation.images import PromptImages, features_of
from vantage.inspect import cost
from vantage.model.feed_forward import quick_gelu
from vantage.model.lora import Lora, add_lora
from vantage.model.maps import linear_maps
from vantage.model.patches import PatchVectors
from vantage.model.vision import VisionTower
from vantage.spec.images import ImageFeatures, ImageTokens


def prompt(model):
    image = model.image_processor(pixels())
    tokens = [50, *[image_token(model)] * image.tokens(2), 40, 41]
    placed = PromptImages.of(model, tokens, [image])
    return torch.tensor([tokens]), placed


def test_gradients_reach_the_whole_tower():
    model = copy.deepcopy(vision_chat_model()).double()
    tokens, placed = prompt(model)
    images = placed.tokens(features_of(model, placed.images), 0, tokens.shape[1])
    logits = model(tokens, positions=placed.positions(0, tokens.shape[1]), images=images)
    logits.square().sum().backward()
    still = [name for name, p in model.vision.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert still == []


@torch.no_grad()
def test_a_pass_in_pieces():
    """A cache that decides token by token what the next one sees takes a pass apart, and its images with it."""
    model = copy.deepcopy(vision_chat_model()).double()
    tokens, placed = prompt(model)
    images = placed.tokens(features_of(model, placed.images), 0, tokens.shape[1])
    where = placed.positions(0, tokens.shape[1])
    cache, other = (model.new_cache(1, kind=vt.TovaCache(4)) for _ in range(2))
    whole = model(tokens, positions=where, images=images, cache=cache)
    assert cache.widest(where) < tokens.shape[1]
    single = [
        model(tokens[:, i : i + 1], positions=where.narrow(i, 1), images=images.narrow(i, 1), cache=other)
        for i in range(tokens.shape[1])
    ]
    torch.testing.assert_close(whole, torch.cat(single, 1))


def test_what_stands_at_the_tokens():
    features = ImageFeatures(torch.ones(2, 3), (torch.full((2, 3), 5.0),))
    images, x = ImageTokens(torch.tensor([[-1, 1, 0]]), features), torch.zeros(1, 3, 3)
    assert images.put(x)[0, :, 0].tolist() == [0, 1, 1]
    assert images.after(0, x)[0, :, 0].tolist() == [0, 5, 5]
    assert images.after(1, x) is x
    assert images.narrow(1, 2).put(x[:, 1:])[0, :, 0].tolist() == [1, 1]


def test_adapters_and_costs_know_the_text_model_from_the_tower():
    model = copy.deepcopy(vision_chat_model())
    assert {m.role for m in linear_maps(model) if m.name.startswith("vision.")} == {"other"}
    names = add_lora(model, Lora(rank=2))
    assert names
    assert not any(name.startswith("vision.") for name in names)
    plain = vision_chat_model()
    tower = sum(p.numel() for p in plain.vision.parameters())
    assert cost(plain, context=64).parameters["vision tower"] == tower
    assert "vision tower" in plain.summary()


def test_quick_gelu_is_near_gelu():
    x = torch.linspace(-4, 4, 99)
    assert (quick_gelu(x) - F.gelu(x)).abs().max() < 0.021
    assert quick_gelu(torch.tensor(1.0)).item() == pytest.approx(0.845795, abs=1e-6)


def test_refused():
    tower = vision_chat_model().spec.vision
    plain = vt.build(vt.decoder(vocab=9, width=8, layers=1, heads=2))
    with pytest.raises(BadInput, match="reads patches"):
        VisionTower(5, plain.spec)
    with pytest.raises(BadInput, match="give a token id"):
        replace(tower, token=-1)
    with pytest.raises(BadInput, match="deep="):
        replace(tower, deep=(1, 1))
    with pytest.raises(BadInput, match="at least 1 pixel"):
        PatchVectors(0)
    images = ImageTokens(torch.tensor([[0]]), ImageFeatures(torch.zeros(1, 8)))
    with pytest.raises(BadInput, match="this model reads no images"):
        plain(torch.tensor([[1]]), images=images)
    with pytest.raises(BadInput, match=r"images for tokens of shape \(1, 1\), and these are \(1, 2\)"):
        vision_chat_model()(torch.tensor([[1, 2]]), images=images)
    with pytest.raises(BadInput, match=r"patches are torch\.float32 of shape"):
        vision_chat_model().vision.encoder.embed.tokens.check(torch.zeros(1, 2, 3))
