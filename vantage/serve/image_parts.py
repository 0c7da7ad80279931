"""Images in messages: data: URLs, checked and decoded. Nothing is ever fetched: a server that fetches what strangers
name can be sent into its own network."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from vantage.checkpoints.image_files import read_pixels
from vantage.errors import VantageError
from vantage.generation.images import written_out
from vantage.serve import bounds as b
from vantage.serve.errors import bad
from vantage.serve.model_pool import LoadedModel
from vantage.serve.requests import ImagePart, Message, UserMessage
from vantage.spec.images import PreparedImage

DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp);base64,", re.IGNORECASE)
WANTED = "give data:image/png;base64,... (or jpeg, webp)"


def read_images(loaded: LoadedModel, messages: Sequence[Message]) -> tuple[PreparedImage, ...]:
    """The images of a conversation, in order, as the model reads them."""
    parts = [part for message in messages for part in image_parts(message)]
    if not parts:
        return ()
    check_reads_images(loaded, "messages")
    if len(parts) > b.IMAGES:
        raise bad(f"{len(parts)} images in one request: at most {b.IMAGES} are read", "messages", "too_many_images")
    return tuple(read_image(loaded, part.image_url.url, "messages") for part in parts)


def check_reads_images(loaded: LoadedModel, param: str) -> None:
    if loaded.model.image_processor is None:
        raise bad(f"{loaded.name} reads no images: leave them out", param, "images_not_supported")


def image_parts(message: Message) -> list[ImagePart]:
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return []
    return [part for part in message.content if isinstance(part, ImagePart)]


def with_images(loaded: LoadedModel, tokens: Sequence[int], images: Sequence[PreparedImage]) -> list[int]:
    """The tokens with as many in the place of each image as it takes."""
    try:
        return list(written_out(loaded.model, tokens, images))
    except VantageError as e:  # a template that writes no place for an image
        raise bad(f"this model's chat template does not fit its images: {e}", "messages", "invalid_image") from e


def read_image(loaded: LoadedModel, url: str, param: str) -> PreparedImage:
    """The image of a data: URL, as the model reads it. ``param``: where it stood, for a refusal."""
    head = DATA_URL.match(url)
    if head is None:
        shown = url[:32] + "..." * (len(url) > 32)
        raise bad(f"the image {shown!r} is no data: URL, and nothing is fetched here: {WANTED}", param, "image_url")
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as e:
        raise bad(f"an image's data: URL is not base64: {WANTED}", param, "invalid_image") from e
    try:
        return loaded.model.image_processor(read_pixels(data, most=b.IMAGE_PIXELS))
    except VantageError as e:
        raise bad(str(e), param, "invalid_image") from e
