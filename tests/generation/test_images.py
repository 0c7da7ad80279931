"""Images in prompts: how they are given, and through the engine: together as alone, prefixes, preemption, chunks."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from PIL import Image

import vantage as vt
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from vantage.errors import BadInput, Refused
from vantage.generation import Engine
from vantage.generation.images import PromptImages, features_of, written_out

SMALL = {"block": 4, "chunk": 8}
FAMILIES = ("qwen2_vl", "qwen3_vl")


def double(family):
    return copy.deepcopy(vision_chat_model(family)).double()


def ask(model, *seeds, words=(40, 41), size=(16, 24)):
    """A prompt with so many images, and the images."""
    images = tuple(model.image_processor(pixels(*size, seed)) for seed in seeds)
    prompt = [50, *(token for _ in seeds for token in (51, image_token(model), 52)), *words]
    return {"tokens": written_out(model, prompt, images), "images": images}


def wanted(model, asked, max_tokens):
    """Greedy tokens by whole passes without a cache, each from the positions of all tokens."""
    tokens = list(asked["tokens"])
    placed = PromptImages.of(model, tokens, asked["images"])
    features = None if placed is None else features_of(model, placed.images)
    with torch.no_grad():
        for _ in range(max_tokens):
            n, extra = len(tokens), {}
            if placed is not None:
                extra = {"positions": placed.positions(0, n), "images": placed.tokens(features, 0, n)}
            tokens.append(int(model(torch.tensor([tokens]), **extra)[0, -1].argmax()))
    return tokens[len(asked["tokens"]) :]


def answers(engine, asked, max_tokens=12):
    requests = [engine.submit(max_tokens=max_tokens, **one) for one in asked]
    engine.run()
    assert [request.error for request in requests] == [None] * len(requests)
    return requests, [request.outputs[0].tokens for request in requests]


def mixed(model):
    """Prompts with two images, with one, with none, and with one of another size."""
    return [ask(model, 0, 1), ask(model, 2), ask(model, words=(40, 41, 42, 43)), ask(model, 3, size=(32, 8))]


# ---- through the engine


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("capacity", [None, 48])
def test_rows_with_and_without_images_together(family, capacity):
    """With little room rows are put back, and read again."""
    model = double(family)
    expected = [wanted(model, one, 12) for one in mixed(model)]
    engine = Engine(model, capacity=capacity, **SMALL)
    requests, got = answers(engine, mixed(model))
    assert got == expected
    if capacity is not None:
        assert engine.stats.preemptions > 0
        assert any(request.preemptions and request.images is not None for request in requests)
        assert engine.stats.recomputed > 0


@pytest.mark.parametrize("chunk", [1, 3, 5, 64])
def test_chunks_cut_images_anywhere(chunk):
    model = double("qwen3_vl")
    (one,) = mixed(model)[:1]
    assert answers(Engine(model, chunk=chunk, block=4), [one])[1] == [wanted(model, one, 12)]


@pytest.mark.parametrize("capacity", [None, 48])
def test_batch_invariant_is_the_same_bits(capacity):
    model = vision_chat_model("qwen3_vl")

    def logprobs(asked, **options):
        engine = Engine(model, batch_invariant=True, **SMALL, **options)
        requests = [engine.submit(max_tokens=9, sampling=vt.Sampling(logprobs=2), **one) for one in asked]
        engine.run()
        return [[pick.logprob for pick in request.outputs[0].picks] for request in requests]

    alone = [logprobs([one])[0] for one in mixed(model)]
    assert logprobs([*mixed(model), *mixed(model)], capacity=capacity) == [*alone, *alone]


def test_samples_share_a_prompt():
    model = double("qwen2_vl")
    engine = Engine(model, **SMALL)
    request = engine.submit(max_tokens=6, n=3, **ask(model, 0))
    engine.run()
    assert [output.tokens for output in request.outputs] == [wanted(model, ask(model, 0), 6)] * 3


# ---- prefixes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_is_shared_only_with_the_same_images(family):
    model = double(family)
    engine = Engine(model, **SMALL)
    first, same, other = ask(model, 0, 1), ask(model, 0, 1, words=(40, 44)), ask(model, 0, 2)
    answers(engine, [first])
    requests, got = answers(engine, [same])
    assert got == [wanted(model, same, 12)]
    assert requests[0].prefix.tokens == len(same["tokens"]) - 1  # all but the last word
    requests, got = answers(engine, [other])
    assert got == [wanted(model, other, 12)]
    assert requests[0].prefix.tokens == 1 + 8 + 1  # up to the second image, whose first token differs
    assert requests[0].prefix.reason == "differs at token 10"
    turned = ask(model, 0, size=(24, 16))  # as many tokens, of another shape
    requests, got = answers(engine, [turned])
    assert got == [wanted(model, turned, 12)]
    assert requests[0].prefix.tokens == 2


def test_an_image_that_is_found_is_not_read_again(monkeypatch):
    model = double("qwen3_vl")
    engine, read = Engine(model, **SMALL), []
    plain = type(model.vision).forward
    monkeypatch.setattr(type(model.vision), "forward", lambda self, image: (read.append(image), plain(self, image))[1])
    answers(engine, [ask(model, 0)])
    assert len(read) == 1  # once, though the prompt came in several chunks
    answers(engine, [ask(model, 0, words=(40, 45))])
    assert len(read) == 1


def test_a_prefix_that_ends_inside_an_image():
    """Prefixes are shared in whole chunks here: the rest of the image is computed with its own rows and columns."""
    model = double("qwen3_vl")
    engine, long = Engine(model, batch_invariant=True, **SMALL), ask(model, 0, size=(32, 32))
    answers(engine, [long])
    requests, got = answers(engine, [long])
    assert requests[0].prefix.tokens == 16  # the image ends at 18
    assert got == [wanted(model, long, 12)]


# ---- how they are given


def encoded(image):
    out = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(out, "PNG")
    return out.getvalue()


def test_every_form_gives_the_same_answer(tmp_path):
    model, image = vision_chat_model(), pixels()
    (tmp_path / "a.png").write_bytes(encoded(image))
    options = {"max_tokens": 8, "ends": False}
    answer = vt.generate(model, "hello", images=image, chat=True, **options)
    assert len([token for token in answer.prompt if token == image_token(model)]) == 6
    forms = [image, [image], str(tmp_path / "a.png"), tmp_path / "a.png", encoded(image)]
    forms += [Image.open(tmp_path / "a.png"), model.image_processor(image)]
    for form in forms:
        assert vt.generate(model, "hello", images=form, chat=True, **options).tokens == answer.tokens
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "hello"}]
    messages = [{"role": "user", "content": parts}]
    assert vt.generate(model, messages, **options).tokens == answer.tokens
    bare = [{"role": "user", "content": [{"type": "image"}, parts[1]]}]
    assert vt.generate(model, bare, images=[image], **options).tokens == answer.tokens
    text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>hello<|im_end|>\n<|im_start|>assistant\n"
    assert vt.generate(model, text, images=[image], **options).tokens == answer.tokens
    both = vt.generate(model, ["hello", "hello"], images=[[image], [pixels(seed=1)]], chat=True, **options)
    assert both[0].tokens == answer.tokens
    assert both[1].tokens != answer.tokens
    without = vt.generate(model, ["hello", "hello"], images=[None, image], chat=True, **options)
    assert without[1].tokens == answer.tokens
    assert image_token(model) not in without[0].prompt


def test_what_does_not_fit():
    model, image = vision_chat_model(), pixels()
    message = {"role": "user", "content": [{"type": "image", "image": image}]}
    with pytest.raises(BadInput, match="images in the messages and images= as well"):
        vt.generate(model, [message], images=[image], max_tokens=1)
    with pytest.raises(BadInput, match="1 place for images and no image"):
        vt.generate(model, [{"role": "user", "content": [{"type": "image"}]}], max_tokens=1)
    with pytest.raises(BadInput, match="1 place for images and 2 images"):
        vt.generate(model, "<|image_pad|> hello", images=[image, image], max_tokens=1)
    with pytest.raises(BadInput, match="for 2 prompts: give a list of images for each"):
        vt.generate(model, ["a", "b"], images=[image], chat=True, max_tokens=1)
    with pytest.raises(Refused, match="a part of type 'video'"):
        vt.generate(model, [{"role": "user", "content": [{"type": "video"}]}], max_tokens=1)
    with pytest.raises(Refused, match="beam search reads no images"):
        vt.beam_search(model, [message], max_tokens=1)
    cut = ask(model, 0)
    tokens = [*cut["tokens"][:4], 40, *cut["tokens"][4:]]
    with pytest.raises(BadInput, match="is cut apart"):
        Engine(model).submit(tokens, max_tokens=1, images=cut["images"])
