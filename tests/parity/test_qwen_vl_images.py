"""Qwen2-VL, Qwen3-VL and Qwen3.5 with images: the tower, logits and greedy tokens of transformers, and a round trip."""

import copy

import pytest
import torch

import vantage as vt
from tests.parity.case import Float64
from tests.parity.vision_models import CLASSES, IMAGE, PROCESSOR, inputs, picture, theirs
from vantage.checkpoints.config import Config
from vantage.errors import BadInput, CheckpointError
from vantage.families import families
from vantage.generation.images import PromptImages, features_of
from vantage.spec.images import ImageGrid, PreparedImage

FAMILIES = list(CLASSES)
# images of different sizes: 2 × 3 tokens, 3 × 1, 1 × 1
WIDE, HIGH, SMALL = (PROCESSOR(picture(*size, seed)) for seed, size in enumerate([(16, 24), (24, 8), (8, 8)]))
IMAGES = [WIDE, HIGH, SMALL]
PROMPT = [9, 7, *[IMAGE] * 6, 8, 11, 12, 7, *[IMAGE] * 3, 8, 7, IMAGE, 8, 13, 14]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    theirs(request.param).save_pretrained(path)
    return request.param, path


def loaded(folder, dtype=torch.float64):
    family, path = folder
    model = vt.load(path, dtype=dtype)
    model.image_processor = PROCESSOR
    return copy.deepcopy(theirs(family)).to(dtype), model


def close(got, wanted, within):
    assert float((got - wanted).abs().max() / wanted.abs().max()) < within


def with_images(model, tokens, images):
    """What a pass takes for one prompt: where its tokens stand, and what stands there."""
    placed = PromptImages.of(model, tokens, images)
    assert placed is not None
    features = features_of(model, placed.images)
    return {"positions": placed.positions(0, len(tokens)), "images": placed.tokens(features, 0, len(tokens))}


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_the_tower(folder, dtype, within):
    reference, model = loaded(folder, dtype)
    with Float64() if dtype == torch.float64 else torch.no_grad():
        patches = torch.cat([image.patches for image in IMAGES]).to(dtype)
        wanted = reference.model.visual(patches, grid_thw=torch.tensor([(1, *image.grid) for image in IMAGES]))
    got = [model.vision(image) for image in IMAGES]
    close(torch.cat([one.embeddings for one in got]), wanted.pooler_output, within)
    deep = getattr(wanted, "deepstack_features", [])
    assert [len(one.deep) for one in got] == [len(deep)] * 3
    for i, features in enumerate(deep):
        close(torch.cat([one.deep[i] for one in got]), features, within)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_logits_with_three_images_in_a_prompt(folder, dtype, within):
    reference, model = loaded(folder, dtype)
    with Float64() if dtype == torch.float64 else torch.no_grad():
        wanted = reference(**inputs(PROMPT, IMAGES, dtype)).logits
    got = model(torch.tensor([PROMPT]), **with_images(model, PROMPT, IMAGES))
    close(got, wanted, within)
    other = with_images(model, PROMPT, [PROCESSOR(picture(16, 24, 9)), HIGH, SMALL])
    assert float((model(torch.tensor([PROMPT]), **other) - got).abs().max()) > 0.1  # what is in an image matters


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("cuts", [(4, 9, 5, 1, 1, 1), (1,) * 21])
def test_a_prompt_is_read_in_pieces_that_cut_images(folder, kind, cuts):
    _, model = loaded(folder)
    tokens, cache = torch.tensor([PROMPT]), model.new_cache(1, kind=kind)
    placed = PromptImages.of(model, PROMPT, IMAGES)
    features = features_of(model, placed.images)
    whole = model(tokens, **with_images(model, PROMPT, IMAGES))
    at, parts = 0, []
    for n in cuts:
        where, images = placed.positions(at, at + n), placed.tokens(features, at, at + n)
        parts.append(model(tokens[:, at : at + n], positions=where, images=images, cache=cache))
        at += n
    close(torch.cat(parts, 1), whole, 1e-9)
    assert int(cache.next_positions.ahead) == placed.ahead
    # 10 tokens of images stand in 3 + 3 + 1 positions
    assert placed.ahead == 7 - 10


@torch.no_grad()
def test_greedy_tokens(folder):
    reference, model = loaded(folder)
    got = vt.generate(model, [PROMPT], images=[IMAGES], max_tokens=24, ends=False)[0].tokens
    with Float64():
        wanted = reference.generate(
            **inputs(PROMPT, IMAGES, torch.float64), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
    assert list(got) == wanted[0, len(PROMPT) :].tolist()
    short = [9, 7, IMAGE, 8, 11, 12, 7, IMAGE, 8, 7, IMAGE, 8, 13, 14]  # one token for each image, which is written out
    again = vt.generate(model, short, images=IMAGES, max_tokens=24, ends=False, cache=False)
    assert again.tokens == got
    assert again.prompt == tuple(PROMPT)


@torch.no_grad()
def test_it_is_saved_whole(folder, tmp_path):
    family, path = folder
    model = vt.load(path)
    vt.save(model, tmp_path / "ours")
    again = vt.load(tmp_path / "ours")
    assert again.spec == model.spec
    assert again.image_processor == model.image_processor
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    vt.save(again, tmp_path / "ours", overwrite=True)  # all of it is ours to replace
    back = type(theirs(family)).from_pretrained(tmp_path / "ours")
    for (name, a), (_, b) in zip(theirs(family).named_parameters(), back.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_images_that_do_not_fit_the_prompt(folder):
    _, model = loaded(folder)
    with pytest.raises(BadInput, match="3 places for images and 1 image"):
        PromptImages.of(model, [9, IMAGE, 3, IMAGE, IMAGE], [WIDE])
    with pytest.raises(BadInput, match="1 place for images and no image"):
        vt.generate(model, [9, IMAGE, 3], max_tokens=1)
    with pytest.raises(BadInput, match="no place for images and 1 image"):
        vt.generate(model, [9, 3], images=[WIDE], max_tokens=1)
    with pytest.raises(BadInput, match="an image of 3 × 2 patches, of which there are 6"):
        model.vision(PreparedImage(WIDE.patches[:6], ImageGrid(3, 2), b""))
    with pytest.raises(BadInput, match="and images do not go together"):
        vt.generate(model, [9, IMAGE, 3], images=[WIDE], max_tokens=1, draft=vt.Lookup())
    plain = vt.build(vt.decoder(vocab=19, width=16, layers=1, heads=2))
    with pytest.raises(BadInput, match="this model reads no images"):
        vt.generate(plain, [9, 3], images=[WIDE], max_tokens=1)


def settle(family, config):
    families()[family].spec(config)
    config.settle()


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("qwen2_vl", {"rope_parameters": {"rope_type": "default"}}, "rope_type is 'default'; wanted 'axial'"),
        ("qwen2_vl", {"hidden_size": 40}, "the tower gives vectors of 40, and the text model's are 48"),
        ("qwen2_vl", {"window_size": 112}, "'window_size' may change the model"),
        ("qwen2_vl", {"in_chans": 1}, "in_chans is 1; wanted 3"),
        ("qwen3_vl", {"num_position_embeddings": 24}, "num_position_embeddings is 24; wanted a square"),
        ("qwen3_vl", {"deepstack_visual_indexes": [2, 0]}, "deep=.2, 0.: give layers of the tower, 0 to 2, in order"),
        ("qwen3_vl", {"deepstack_visual_indexes": [0, 3]}, "deep=.0, 3.: give layers of the tower"),
        ("qwen3_5", {"deepstack_visual_indexes": [0]}, "Qwen3.5 reads none but the last"),
    ],
)
def test_refused_towers(family, changes, says):
    values = theirs(family).config.to_dict()
    values["vision_config"] |= changes
    config = Config(values)
    with pytest.raises((CheckpointError, BadInput), match=says):
        settle(family, config)
