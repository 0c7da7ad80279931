"""Images in a conversation: what was sent, read within the limits of the HTTP API, and where their tokens stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

from pydantic import Field, Strict

from vantage.serve import bounds as b
from vantage.serve.errors import bad
from vantage.serve.image_parts import DATA_URL, check_reads_images, read_image
from vantage.serve.model_pool import LoadedModel
from vantage.spec.images import PreparedImage

# of all images of a conversation, as they are sent and kept. It must fit a body, to be imported
MAX_CHARACTERS = 32 * 2**20

DataUrl = Annotated[str, Strict(), Field(max_length=MAX_CHARACTERS, pattern=f"^(?i:{DATA_URL.pattern})")]
DataUrls = Annotated[list[DataUrl], Field(max_length=b.IMAGES)]


@final
@dataclass(frozen=True, eq=False)
class SentMessage:
    """What a user says. ``urls``: the files of its images as data: URLs; ``images``: these as the model reads them."""

    text: str
    urls: tuple[str, ...] = ()
    images: tuple[PreparedImage, ...] = ()

    @staticmethod
    def read(loaded: LoadedModel, text: str, urls: Sequence[str], earlier: Sequence[str]) -> SentMessage:
        """``earlier``: those of the conversation so far, which count as well: every answer reads all of them."""
        if urls:
            check_reads_images(loaded, "images")
        if len(urls) + len(earlier) > b.IMAGES:
            raise bad(
                f"{len(urls) + len(earlier)} images in this conversation: at most {b.IMAGES} are read. Take some away, "
                "or start a new one",
                "images",
                "too_many_images",
            )
        if sum(map(len, (*urls, *earlier))) > MAX_CHARACTERS:
            most = MAX_CHARACTERS // 2**20 * 3 // 4
            raise bad(
                f"the images of this conversation have more than {most} MiB together: make this one smaller, or start "
                "a new conversation",
                "images",
                "images_too_large",
            )
        return SentMessage(text, tuple(urls), tuple(read_image(loaded, url, "images") for url in urls))


def image_places(tokens: Sequence[int], starts: Sequence[int]) -> list[dict[str, Any]]:
    """Which tokens are an image's: the fields of ``ImagePlace``."""
    places, ends = [], (*starts, len(tokens))
    for n, start in enumerate(starts):
        end, after = start, ends[n + 1]
        while end < after and tokens[end] == tokens[start]:
            end += 1
        places.append({"start": start, "tokens": end - start})
    return places
