"""Images in prompts: where their tokens stand, and how prompts with the same words are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from vantage.errors import BadInput, Refused
from vantage.model import Model
from vantage.spec.images import ImageFeatures, ImageGrid, ImageTokens, PreparedImage, VisionConfig
from vantage.spec.positions import Positions

AXES = 3  # time, row and column


@final
@dataclass(frozen=True, eq=False)
class PromptImages:
    """The images of a prompt whose tokens are written out: ``starts`` says where each begins."""

    prompt: tuple[int, ...]
    images: tuple[PreparedImage, ...]
    starts: tuple[int, ...]
    merge: int

    @staticmethod
    def of(model: Model, prompt: Sequence[int], images: Sequence[PreparedImage]) -> PromptImages | None:
        """``None``: the prompt is text alone."""
        vision = model.spec.vision
        if vision is None:
            if images:
                raise BadInput("this model reads no images: leave them out, or use one with a vision tower")
            return None
        places = [i for i, token in enumerate(prompt) if token == vision.token]
        sizes = [image.tokens(vision.merge) for image in images]
        if len(places) != sum(sizes):
            raise _mismatch(len(places), images, vision)
        if not images:
            return None
        starts = [places[sum(sizes[:i])] for i in range(len(sizes))]
        for start, size in zip(starts, sizes, strict=True):
            if any(token != vision.token for token in prompt[start : start + size]):
                raise BadInput(f"an image of {size} tokens from {start} on is cut apart: its tokens follow one another")
        return PromptImages(tuple(prompt), tuple(images), tuple(starts), vision.merge)

    @staticmethod
    def at(
        model: Model, prompt: Sequence[int], images: Sequence[PreparedImage], starts: Sequence[int]
    ) -> PromptImages | None:
        """With what is known of each: where it begins. Checked, since a file may say anything."""
        if not images and not starts:
            return None
        vision = model.spec.vision
        if vision is None:
            raise BadInput("this model reads no images: leave them out, or use one with a vision tower")
        sizes = [image.tokens(vision.merge) for image in images]
        ends = [0, *(start + size for start, size in zip(starts, sizes, strict=False))]
        fits = len(starts) == len(images) and all(end <= start for end, start in zip(ends, starts, strict=False))
        runs = zip(starts, sizes, strict=False)
        if not fits or any(list(prompt[at : at + n]) != [vision.token] * n for at, n in runs):
            raise BadInput("its images do not stand where this conversation says they do: start a new one")
        return PromptImages(tuple(prompt), tuple(images), tuple(starts), vision.merge)

    @cached_property
    def axes(self) -> Tensor:
        """(3, T): time, row and column of every token. After an image a text goes on past its longer side."""
        parts, at, now = list[Tensor](), 0, 0
        for image, start in zip(self.images, self.starts, strict=True):
            grid = image.grid.merged(self.merge)
            parts += [_text(now, start - at), _patches(now + start - at, grid)]
            now, at = now + start - at + max(grid), start + image.tokens(self.merge)
        return torch.cat([*parts, _text(now, len(self.prompt) - at)], 1)

    @cached_property
    def ahead(self) -> int:
        """By how much positions are ahead of the count of tokens after the prompt; never above 0."""
        return int(self.axes.amax()) + 1 - len(self.prompt)

    def positions(self, start: int, end: int) -> Positions:
        """Where the tokens from ``start`` to ``end`` stand, those of an answer included."""
        prompt, generated = self.axes[:, start:end], max(start, len(self.prompt))
        axes = torch.cat([prompt, _text(generated + self.ahead, max(0, end - generated))], 1)
        return Positions.of_axes(axes[:, None], starts=torch.tensor([start]))

    @cached_property
    def index(self) -> Tensor:
        """(T,): which of all features stands at each token of the prompt; -1: none."""
        index, at = torch.full((len(self.prompt),), -1), 0
        for image, start in zip(self.images, self.starts, strict=True):
            size = image.tokens(self.merge)
            index[start : start + size] = torch.arange(at, at + size)
            at += size
        return index

    def any_in(self, start: int, end: int) -> bool:
        """Whether some of these tokens are an image's."""
        return bool((self.index[start:end] >= 0).any())

    def tokens(self, features: ImageFeatures, start: int, end: int) -> ImageTokens:
        """What stands at the tokens from ``start`` to ``end``."""
        index = self.index[start:end]
        index = functional.pad(index, (0, end - start - len(index)), value=-1)  # an answer's tokens are text
        return ImageTokens(index[None].to(features.embeddings.device), features)

    @cached_property
    def names(self) -> tuple[int, ...]:
        """The prompt as prefixes are told apart: in the place of an image's tokens a number below 0, of its digest."""
        names = list(self.prompt)
        for image, start in zip(self.images, self.starts, strict=True):
            size = image.tokens(self.merge)
            names[start : start + size] = [-1 - int.from_bytes(image.digest)] * size
        return tuple(names)


def named(tokens: Sequence[int], images: PromptImages | None) -> list[int]:
    """Tokens as prefixes are told apart: a front of a prompt with these images, or the prompt and its answer."""
    return list(tokens) if images is None else [*images.names[: len(tokens)], *tokens[len(images.prompt) :]]


def go_on(
    model: Model,
    front: Sequence[int],
    earlier: PromptImages | None,
    more: Sequence[int],
    images: Sequence[PreparedImage],
) -> tuple[list[int], PromptImages | None]:
    """A text that goes on, its tokens written out and where all of its images stand. ``earlier``: the images of
    ``front``, which are the first of ``images``; ``more`` has one token for each of the others.

    An answer in ``front`` may have written the token of images itself, which makes it none.
    """
    known = () if earlier is None else earlier.images
    new = images[len(known) :]
    written = written_out(model, more, new)
    added = PromptImages.of(model, written, new)
    starts = [] if earlier is None else list(earlier.starts)
    starts += [] if added is None else [len(front) + start for start in added.starts]
    tokens = [*front, *written]
    if not starts:
        return tokens, None
    assert model.spec.vision is not None
    return tokens, PromptImages(tuple(tokens), tuple(images), tuple(starts), model.spec.vision.merge)


def features_of(model: Model, images: Sequence[PreparedImage]) -> ImageFeatures:
    """What the tower makes of images, one after another."""
    assert model.vision is not None
    each = [model.vision(image) for image in images]
    deep = zip(*(one.deep for one in each), strict=True)
    return ImageFeatures(torch.cat([one.embeddings for one in each]), tuple(map(torch.cat, deep)))


def written_out(model: Model, prompt: Sequence[int], images: Sequence[PreparedImage]) -> tuple[int, ...]:
    """The prompt with as many tokens in the place of each image as it takes. One that has them all stays as it is."""
    vision = model.spec.vision
    if vision is None or not images:
        return tuple(prompt)
    sizes = [image.tokens(vision.merge) for image in images]
    places = sum(token == vision.token for token in prompt)
    if places == sum(sizes):
        return tuple(prompt)
    if places != len(images):
        raise _mismatch(places, images, vision)
    sizes_left = iter(sizes)
    return tuple(one for token in prompt for one in [token] * (next(sizes_left) if token == vision.token else 1))


def prepared(model: Model, images: Sequence[Any]) -> tuple[PreparedImage, ...]:
    """Images as the model's tower reads them."""
    if images and model.spec.vision is None:
        raise BadInput("this model reads no images: leave them out, or use one with a vision tower")
    if images and model.image_processor is None:
        raise BadInput("this model has no image processor: set model.image_processor, or give prepared images")
    return tuple(model.image_processor(image) for image in images)


def taken_out(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """The messages for a template, and the images of their parts ``{"type": "image", "image": ...}`` in order."""
    plain, images = list[Mapping[str, Any]](), list[Any]()
    for message in messages:
        content = message.get("content")
        if not isinstance(content, (list, tuple)):
            plain.append(message)
            continue
        parts = list[Any]()
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in ("video", "audio"):
                raise Refused(f"a part of type {kind!r}: texts and images are read")
            if kind == "image" and "image" in part:
                images.append(part["image"])
            parts.append({"type": "image"} if kind == "image" else part)
        plain.append({**message, "content": parts})
    return plain, images


def _text(start: int, width: int) -> Tensor:
    return torch.arange(start, start + width).expand(AXES, width)


def _patches(start: int, grid: ImageGrid) -> Tensor:
    rows, columns = grid.axes()
    return torch.stack([torch.zeros_like(rows), rows, columns]) + start


def _mismatch(places: int, images: Sequence[object], vision: VisionConfig) -> BadInput:
    places_text = f"{places or 'no'} place{'s' * (places > 1)} for images"
    images_text = f"{len(images) or 'no'} image{'s' * (len(images) > 1)}"
    return BadInput(
        f"the prompt has {places_text} and {images_text}: write the token {vision.token} once for each image, or give "
        'messages with parts {"type": "image", "image": ...}'
    )
