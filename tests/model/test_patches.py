"""Images as sequences."""

from dataclasses import replace

import pytest
import torch

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput
from vantage.model import build, encoder
from vantage.model.patches import Patches
from vantage.model.pooling import First
from vantage.position import Learned
from vantage.spec.model import Embedding, Head

CONFIG = Patches((6, 10), (2, 5), channels=3)  # 3 by 2 patches


def classifier(config=CONFIG):
    spec = encoder(vocab=4, width=8, layers=2, heads=2, position="none")
    embedding = Embedding(inputs=(Learned(config.places),), source=config)
    return replace(spec, embedding=embedding, head=Head(bias=True, transform=First()))


@torch.no_grad()
def test_a_patch_is_a_linear_map_of_its_pixels_row_by_row():
    patches = sharpen(CONFIG.build(8).to(F64))
    images = vectors(2, 3, 6, 10)
    out = patches(images)
    assert out.shape == (2, 7, 8) == (*patches.size(images), 8)
    assert torch.equal(out[:, 0], patches.first.expand(2, 8))
    weight = patches.weight.flatten(1)
    for row in range(3):
        for column in range(2):
            pixels = images[:, :, 2 * row : 2 * row + 2, 5 * column : 5 * column + 5].flatten(1)
            wanted = pixels @ weight.T + patches.bias
            torch.testing.assert_close(out[:, 1 + 2 * row + column], wanted)


@torch.no_grad()
def test_pixels_that_fill_no_patch_are_left_out():
    config = Patches((7, 11), (2, 5))
    assert config.places == 7
    patches = sharpen(config.build(8).to(F64))
    images = vectors(1, 3, 7, 11)
    cut = sharpen(CONFIG.build(8).to(F64))
    cut.load_state_dict(patches.state_dict())
    torch.testing.assert_close(patches(images), cut(images[:, :, :6, :10]))


def test_gradients():
    patches = sharpen(Patches((2, 4), (2, 2), 1).build(3).to(F64))
    check_gradients(patches, lambda m, images: m(images), vectors(2, 1, 2, 4))


@torch.no_grad()
def test_a_model_takes_images():
    model = sharpen(build(classifier()).double()).eval()
    images = vectors(2, 3, 6, 10)
    assert model(images).shape == (2, 4)
    hidden = model.hidden(images)
    assert hidden.shape == (2, 7, 8)
    torch.testing.assert_close(model(images), model.head.linear(hidden[:, 0]))
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
    assert model(images.float()).dtype == F64  # pixels come as they come
    assert model.summary().startswith("encoder, ")
    assert "input: Patches(" in model.summary()


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 6, 11),
        torch.zeros(2, 1, 6, 10),
        torch.zeros(3, 6, 10),
        torch.zeros(0, 3, 6, 10),
        torch.zeros(2, 3, 6, 10, dtype=torch.long),
        torch.zeros(2, 5, dtype=torch.long),
    ],
)
def test_images_that_cannot_be(images):
    with pytest.raises(BadInput, match=r"\(batch, 3, 6, 10\) for channels, height and width"):
        build(classifier())(images)


@pytest.mark.parametrize("bad", [((4, 4), (5, 2), 3), ((4, 4), (2, 5), 3), ((4, 4), (0, 2), 3), ((4, 4), (2, 2), 0)])
def test_patches_that_cannot_be(bad):
    with pytest.raises(BadInput, match="room for one patch"):
        Patches(*bad)
