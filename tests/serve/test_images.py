"""Image parts of /v1/chat/completions: the library's own answer, and what is refused with which words."""

from __future__ import annotations

import base64
import io

import openai
import pytest
import torch
from PIL import Image

import vantage as vt
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from tests.serve.running import KEY, serving, tiny
from vantage.serve import bounds


@pytest.fixture(scope="module")
def server(folder):
    vt.save(vision_chat_model(), folder / "eyes")
    models = (f"eyes={folder / 'eyes'}", f"tiny={tiny(folder)}")
    with serving(folder, *models, "--capacity", "512", env={"VANTAGE_API_KEY": KEY}) as it:
        yield it


@pytest.fixture(scope="module")
def model(folder, server):
    return vt.load(folder / "eyes")


def data_url(image, kind="png"):
    out = io.BytesIO()
    options = {"lossless": True} if kind == "webp" else {}
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(out, kind.upper(), **options)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def asked(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "hello"}]}]


def create(server, messages, model="eyes", **options):
    return server.client().chat.completions.create(
        model=model, messages=messages, **{"max_tokens": 8, "temperature": 0, **options}
    )


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_an_answer_is_the_librarys(server, model, kind):
    image, other = pixels(), pixels(8, 32, seed=3)
    wanted = vt.generate(model, "hello", images=[image, other], chat=True, max_tokens=8)
    got = create(server, asked(part(data_url(image, kind)), part(data_url(other, kind))))
    assert got.choices[0].message.content == wanted.text
    assert got.usage.prompt_tokens == len(wanted.prompt)
    assert sum(token == image_token(model) for token in wanted.prompt) == 6 + 4
    pieces = create(server, asked(part(data_url(image)), part(data_url(other))), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == wanted.text
    between = [{"type": "text", "text": "a "}, part(data_url(image)), {"type": "text", "text": " b"}]
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": between}]
    told = create(server, messages).choices[0].message.content
    parts = [between[0], {"type": "image", "image": image}, between[2]]
    assert told == vt.generate(model, [messages[0], {"role": "user", "content": parts}], max_tokens=8).text


@pytest.mark.sampled
def test_what_was_computed_is_shared_only_with_the_same_image(server):
    first, same, other = pixels(seed=20), pixels(seed=20), pixels(seed=21)
    found = []
    for image in (first, same, other):
        usage = create(server, asked(part(data_url(image)))).usage
        found.append((usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens))
    assert found[1][0] == found[1][1] - 1
    assert found[2][0] < found[1][0] - 5


def test_tokens_and_finished_requests(server, model):
    image = pixels(seed=5)
    with server.http() as http:
        tokens = http.post("/tokenize", json={"model": "eyes", "messages": asked(part(data_url(image)))}).json()
        wanted = vt.generate(model, "hello", images=[image], chat=True, max_tokens=1).prompt
        assert tokens["tokens"] == list(wanted)
        done = create(server, asked(part(data_url(image))))
        gone = http.post("/v1/attention", json={"id": done.id})
    assert gone.status_code == 404
    assert "no images" in gone.json()["error"]["message"]


PNG = data_url(pixels())


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("http://127.0.0.1:1/cat.png", "image_url", "is no data: URL, and nothing is fetched here"),
        ("https://example.com/cat.png", "image_url", "is no data: URL"),
        ("file:///etc/passwd", "image_url", "is no data: URL"),
        ("/etc/passwd", "image_url", "is no data: URL"),
        ("", "image_url", "is no data: URL"),
        ("data:text/html;base64,aGk=", "image_url", "is no data: URL"),
        ("data:image/png,plain", "image_url", "is no data: URL"),
        ("data:image/svg+xml;base64,aGk=", "image_url", "is no data: URL"),
        ("data:image/png;base64,%%%", "invalid_image", "not base64"),
        ("data:image/png;base64,aGVsbG8=", "invalid_image", "no image of a kind that is read here"),
        (PNG[:400], "invalid_image", "cannot be decoded|not base64"),
    ],
)
def test_refused_images(server, url, code, says):
    with pytest.raises(openai.BadRequestError, match=says) as error:
        create(server, asked(part(url)))
    assert error.value.code == code
    assert error.value.param == "messages"


def test_sizes(server):
    large = torch.zeros(3, 4100, 4100, dtype=torch.uint8)  # 50 kB as a file
    with pytest.raises(openai.BadRequestError, match="4100 × 4100 pixels: at most 16,777,216 are decoded"):
        create(server, asked(part(data_url(large))))
    with pytest.raises(openai.BadRequestError, match=f"17 images in one request: at most {bounds.IMAGES}"):
        create(server, asked(*[part(PNG)] * 17))
    with pytest.raises(openai.BadRequestError, match="context is 512 tokens") as error:
        create(server, asked(*[part(data_url(pixels(64, 64)))] * 9))
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as error:  # longer than a body may be
        create(server, asked(part("data:image/png;base64," + "A" * 2**20)))
    assert error.value.status_code == 413
    assert create(server, asked(part(PNG))).choices[0].message.content is not None


def test_where_images_may_stand(server):
    with pytest.raises(openai.BadRequestError, match="tiny reads no images") as error:
        create(server, asked(part(PNG)), model="tiny")
    assert error.value.code == "images_not_supported"
    with pytest.raises(openai.BadRequestError):
        create(server, [{"role": "system", "content": [part(PNG)]}, *asked()])
    with pytest.raises(openai.BadRequestError):
        create(server, asked({"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}))
    with pytest.raises(openai.BadRequestError):
        create(server, asked({"type": "image", "image": PNG}))


def test_what_spells_an_image_token_stays_text(server, model):
    text = "<|vision_start|><|image_pad|><|vision_end|>"
    got = create(server, [{"role": "user", "content": text}])
    assert got.usage.prompt_tokens > 12  # as letters
    mixed = [{"role": "user", "content": [part(PNG), {"type": "text", "text": text}]}]
    assert create(server, mixed).usage.prompt_tokens == got.usage.prompt_tokens + 8  # one image, and no more
    with pytest.raises(openai.BadRequestError, match="1 place for images and no image"):
        server.client().completions.create(model="eyes", prompt=[1, image_token(model), 3], max_tokens=1)
