"""Images from files, bytes, Pillow and tensors to pixels. Size and format are checked before anything is decoded.

Pillow decodes (``pip install vantage[images]``); tensors need none.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused

FORMATS = ("PNG", "JPEG", "WEBP")
LARGEST_FILE = 32 * 2**20  # bytes
MAX_PIXELS = 50_000_000  # decoded, 150 MB


def read_pixels(image: Any, most: int = MAX_PIXELS) -> Tensor:
    """(3, H, W) of whole numbers from 0 to 255: red, green and blue. ``most``: pixels that are decoded.

    ``image``: a path, the bytes of a file, a Pillow image, or a tensor (3, H, W) of such numbers or of fractions from
    0 to 1. PNG, JPEG and WebP are read. A photograph is turned as its file says; what is transparent loses only that.
    """
    if isinstance(image, Tensor):
        return _from_tensor(image, most)
    if isinstance(image, (str, Path)):
        return _decode(_file_bytes(Path(image)), most)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return _decode(bytes(image), most)
    if type(image).__module__.partition(".")[0] == "PIL":
        return _from_pillow(image, most)
    raise BadInput(f"an image {image!r:.80}: give a path, the bytes of a file, a Pillow image, or a tensor (3, H, W)")


def _from_tensor(image: Tensor, most: int) -> Tensor:
    if image.dim() != 3 or image.shape[0] != 3 or image.numel() == 0:
        raise BadInput(f"an image of shape {tuple(image.shape)}: give (3, height, width) for red, green and blue")
    check_size(image.shape[2], image.shape[1], most)
    if image.dtype == torch.uint8:
        return image.cpu()
    if not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
        raise BadInput(f"an image of {image.dtype}: give uint8 from 0 to 255, or fractions from 0 to 1")
    return (image.float().cpu() * 255).round().to(torch.uint8)


def _file_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size <= LARGEST_FILE:
            return path.read_bytes()
    except OSError as e:
        raise BadInput(f"the image {path} cannot be read: {e.strerror}") from e
    raise BadInput(f"the image {path} has {size:,} bytes: at most {LARGEST_FILE:,} are read")


def _decode(data: bytes, most: int) -> Tensor:
    if len(data) > LARGEST_FILE:
        raise BadInput(f"an image of {len(data):,} bytes: at most {LARGEST_FILE:,} are read")
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes: they are checked here
            image = pillow.open(io.BytesIO(data), formats=FORMATS)  # reads the header alone
    except Exception as e:  # whatever a decoder finds in a stranger's file
        raise BadInput(f"this is no image of a kind that is read here ({', '.join(FORMATS)})") from e
    return _from_pillow(image, most)


def _from_pillow(image: Any, most: int) -> Tensor:
    width, height = image.size
    check_size(width, height, most)
    if getattr(image, "n_frames", 1) > 1:
        raise Refused(f"an image of {image.n_frames} frames: films are not read, give one of them")
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = ImageOps.exif_transpose(image).convert("RGB")
            data = bytearray(plain.tobytes())
    except Exception as e:  # a file that breaks off, or a decoder's own error
        raise BadInput(f"this image cannot be decoded: {e}") from e
    return torch.frombuffer(data, dtype=torch.uint8).view(plain.height, plain.width, 3).permute(2, 0, 1).contiguous()


def check_size(width: int, height: int, most: int = MAX_PIXELS) -> None:
    """Refuse what would take too much memory to decode."""
    if width * height > most or min(width, height) < 1:
        raise BadInput(f"an image of {width} × {height} pixels: at most {most:,} are decoded; make it smaller")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise Refused("image files are decoded by Pillow, which is not installed: pip install 'vantage[images]'") from e
    return Image
