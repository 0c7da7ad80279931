"""From pixels to the patches that a tower reads, as ``preprocessor_config.json`` says: Qwen2-VL's way.

An image is scaled to whole squares of merged patches, its shape kept as far as that allows, within a range of sizes.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.checkpoints.config import Config
from vantage.checkpoints.folder import read_json
from vantage.checkpoints.image_files import check_size, read_pixels
from vantage.errors import BadInput, CheckpointError
from vantage.spec.images import ImageGrid, PreparedImage

FILE, WHOLE = "preprocessor_config.json", "processor_config.json"
KINDS = {name: name for name in ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")}
BICUBIC = 3  # Pillow's number
LONGEST_SIDE = 200  # times the shorter one
# what CLIP was trained with
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class ImageProcessor:
    """``processor(image)`` for whatever ``read_pixels`` takes."""

    patch: int  # pixels to a side
    merge: int  # patches to a side of what becomes one token
    frames: int = 2  # that make one patch: an image is repeated
    least: int = 56 * 56  # pixels
    most: int = 28 * 28 * 1280
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.frames, self.least) < 1 or self.most < max(self.least, self.square**2):
            raise BadInput(f"{self}: no image would have that size")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise BadInput(f"{self}: give a mean and a deviation for each of 3 colours")

    @property
    def square(self) -> int:
        """Pixels to a side of what becomes one token."""
        return self.patch * self.merge

    def __call__(self, image: Any) -> PreparedImage:
        if isinstance(image, PreparedImage):
            return image
        pixels = read_pixels(image)
        height, width = self.fitted(pixels.shape[1], pixels.shape[2])
        if (height, width) != tuple(pixels.shape[1:]):
            pixels = F.interpolate(pixels[None], (height, width), mode="bicubic", antialias=True)[0]
        digest = hashlib.sha256(repr((self, height, width)).encode() + pixels.contiguous().numpy().tobytes()).digest()
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        patches = self._cut((pixels.float() / 255 - mean) / std)
        return PreparedImage(patches, ImageGrid(height // self.patch, width // self.patch), digest)

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image is scaled to: whole squares, from ``least`` to ``most`` pixels."""
        check_size(width, height)
        if max(height, width) > LONGEST_SIDE * min(height, width):
            raise BadInput(f"an image of {width} × {height} pixels: one side may be {LONGEST_SIDE} times the other")
        whole = [round(side / self.square) * self.square for side in (height, width)]
        if math.prod(whole) > self.most:
            factor = math.sqrt(height * width / self.most)
            whole = [max(1, math.floor(side / factor / self.square)) * self.square for side in (height, width)]
        elif math.prod(whole) < self.least:
            factor = math.sqrt(self.least / (height * width))
            whole = [math.ceil(side * factor / self.square) * self.square for side in (height, width)]
        return whole[0], whole[1]

    def _cut(self, image_CHW: Tensor) -> Tensor:
        """(patches, values): square by square, row by row in each; the values by colour, frame, row and column."""
        p, m = self.patch, self.merge
        squares = image_CHW.unflatten(2, (-1, m, p)).unflatten(1, (-1, m, p))  # (C, row, in it, y, column, in it, x)
        patches = squares.permute(1, 4, 2, 5, 0, 3, 6).flatten(0, 3)  # (patches, C, y, x)
        return patches[:, :, None].expand(-1, -1, self.frames, -1, -1).flatten(1)

    def save(self, folder: str | Path) -> None:
        """Write the file that ``load`` and transformers read."""
        values = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": self.patch,
            "merge_size": self.merge,
            "temporal_patch_size": self.frames,
            "size": {"shortest_edge": self.least, "longest_edge": self.most},
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        (Path(folder) / FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def processor_from_folder(folder: Path, otherwise: ImageProcessor) -> ImageProcessor:
    """What a folder says, under account; ``otherwise`` where it has no such file."""
    values = _settings(folder)
    if values is None:
        return otherwise
    c = Config(values, FILE)
    c.choice("image_processor_type", KINDS, "Qwen2VLImageProcessor")
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        c.must_be(name, True)
    c.must_be("resample", BICUBIC)
    c.must_be("rescale_factor", 1 / 255)
    own = {"patch_size": otherwise.patch, "merge_size": otherwise.merge, "temporal_patch_size": otherwise.frames}
    for name, value in own.items():
        c.must_be(name, value)  # the tower's
    c.must_be("do_center_crop", False)
    c.must_be("do_pad", False)
    c.inert("processor_class", "default_to_square", "data_format", "input_data_format", "return_tensors", "device")
    c.inert("disable_grouping", "crop_size", "pad_size", "image_seq_length")
    size = c.part("size")
    least = _bound(c, size, "min_pixels", "shortest_edge", otherwise.least)
    most = _bound(c, size, "max_pixels", "longest_edge", otherwise.most)
    mean, std = c.numbers("image_mean", otherwise.mean), c.numbers("image_std", otherwise.std)
    c.settle()
    try:
        return ImageProcessor(otherwise.patch, otherwise.merge, otherwise.frames, least, most, tuple(mean), tuple(std))
    except BadInput as e:
        raise CheckpointError(f"{FILE}: {e}") from e


def _settings(folder: Path) -> Any:
    """The file of its own, or the part of the file in which transformers 5 keeps a whole processor."""
    if (folder / FILE).exists():
        return read_json(folder, FILE)
    return read_json(folder, WHOLE).get("image_processor") if (folder / WHOLE).exists() else None


def _bound(c: Config, size: Config | None, name: str, edge: str, otherwise: int) -> int:
    """A number of pixels, which has had two names and two places; the oldest comes first, as in transformers."""
    stated = c.whole(name, None, low=1)
    within = None if size is None else size.whole(edge, size.whole(name, None, low=1), low=1)
    return stated or within or otherwise
