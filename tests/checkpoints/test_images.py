"""Images from files and tensors to patches: what transformers makes of them, and what is refused before decoding."""

import io
import json
import struct
import zlib

import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vantage.checkpoints import image_files
from vantage.checkpoints.image_files import LARGEST_FILE, read_pixels
from vantage.checkpoints.image_processor import MEAN, STD, ImageProcessor, processor_from_folder
from vantage.errors import BadInput, CheckpointError, Refused

PIXELS = torch.randint(256, (3, 40, 52), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PLAIN = ImageProcessor(14, 2)


def pillow(pixels=PIXELS):
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def encoded(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_every_way_to_give_an_image(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(pillow()))
    ways = [tmp_path / "a.png", str(tmp_path / "a.png"), encoded(pillow()), pillow(), PIXELS, PIXELS.double() / 255]
    ways += [encoded(pillow(), "WEBP", lossless=True)]
    for way in ways:
        assert torch.equal(read_pixels(way), PIXELS)
    even = torch.arange(52, dtype=torch.uint8).expand(3, 40, 52)
    assert (read_pixels(encoded(pillow(even), "JPEG", quality=95)).float() - even).abs().max() <= 4


def test_a_photograph_is_turned_and_what_is_transparent_loses_only_that():
    exif = Image.Exif()
    exif[274] = 6  # the camera was held on its side
    assert torch.equal(read_pixels(encoded(pillow(), exif=exif)), PIXELS.rot90(-1, (1, 2)))
    seen_through = pillow().convert("RGBA")
    seen_through.putalpha(100)
    assert torch.equal(read_pixels(seen_through), PIXELS)


@pytest.mark.parametrize("size", [(40, 52), (56, 84), (9, 300), (700, 1100), (1200, 1300)])
@pytest.mark.parametrize("options", [{}, {"min_pixels": 20000, "max_pixels": 90000}])
def test_patches_are_those_of_transformers(size, options):
    pixels = torch.randint(256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    theirs = Qwen2VLImageProcessorPil(**options)(pillow(pixels), return_tensors="pt")
    bounds = {"least": 20000, "most": 90000} if options else {}
    ours = ImageProcessor(14, 2, **bounds)(pixels)
    assert theirs["image_grid_thw"].tolist() == [[1, *ours.grid]]
    # torch and Pillow scale alike, and round otherwise here and there, by 2 of 256 at most
    difference, step = (ours.patches - theirs["pixel_values"]).abs(), 1.01 / 255 / min(STD)
    assert difference.max() <= 2 * step
    assert difference.mean() < step / 10


def test_the_digest_tells_images_apart():
    other = PIXELS.clone()
    other[0, 39, 51] ^= 128
    assert PLAIN(PIXELS).digest == PLAIN(pillow()).digest
    assert len({PLAIN(PIXELS).digest, PLAIN(other).digest, ImageProcessor(14, 2, std=(1, 1, 1))(PIXELS).digest}) == 3
    assert PLAIN(PLAIN(PIXELS)).digest == PLAIN(PIXELS).digest


# ---- what is refused


def claims(width, height):
    """A PNG whose header says so, with nothing behind it."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def test_a_size_is_refused_before_it_is_decoded(monkeypatch):
    for size in ((60_000, 60_000), (2**31 - 1, 1)):
        with pytest.raises(BadInput, match=r"at most 50,000,000 are decoded|no image of a kind"):
            read_pixels(claims(*size))
    with pytest.raises(BadInput, match="at most 33,554,432 are read"):
        read_pixels(bytes(LARGEST_FILE + 1))
    monkeypatch.setattr(image_files, "LARGEST_FILE", 100)
    with pytest.raises(BadInput, match="at most 100 are read"):
        read_pixels(encoded(pillow()))
    with pytest.raises(BadInput, match="one side may be 200 times the other"):
        PLAIN(torch.zeros(3, 4, 900, dtype=torch.uint8))


def test_a_long_file_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(pillow()))
    monkeypatch.setattr(image_files, "LARGEST_FILE", 100)
    with pytest.raises(BadInput, match=r"a\.png has .* bytes: at most 100 are read"):
        read_pixels(tmp_path / "a.png")
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        read_pixels(tmp_path / "b.png")


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_formats(kind):
    with pytest.raises(BadInput, match="PNG, JPEG, WEBP"):
        read_pixels(encoded(pillow(), kind))


def test_damaged_files_and_films():
    with pytest.raises(BadInput, match="no image of a kind that is read here"):
        read_pixels(b"nothing")
    with pytest.raises(BadInput, match="cannot be decoded"):
        read_pixels(encoded(pillow())[:3000])
    film = encoded(pillow(), save_all=True, append_images=[pillow(PIXELS.flip(1))])
    with pytest.raises(Refused, match="2 frames: films are not read"):
        read_pixels(film)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (3, "an image 3: give a path"),
        (torch.zeros(4, 4), "of shape"),
        (torch.zeros(1, 4, 4), "of shape"),
        (torch.zeros(3, 4, 4, dtype=torch.long), "uint8 from 0 to 255, or fractions"),
        (torch.full((3, 4, 4), 1.5), "fractions from 0 to 1"),
        (torch.full((3, 4, 4), torch.nan), "fractions from 0 to 1"),
    ],
)
def test_wrong_images(image, says):
    with pytest.raises(BadInput, match=says):
        read_pixels(image)


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(Refused, match=r"pip install 'vantage\[images\]'"):
        read_pixels(b"\x89PNG")
    assert torch.equal(read_pixels(PIXELS), PIXELS)


# ---- what a folder says


def settings(folder, **values):
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return processor_from_folder(folder, PLAIN)


def test_what_folders_say(tmp_path):
    assert processor_from_folder(tmp_path, PLAIN) == PLAIN
    own = ImageProcessor(14, 2, 2, 100, 5000, (0.5,) * 3, (0.5,) * 3)
    own.save(tmp_path)
    assert processor_from_folder(tmp_path, PLAIN) == own
    theirs = Qwen2VLImageProcessorPil.from_pretrained(tmp_path)
    assert theirs.size.longest_edge == 5000
    theirs.save_pretrained(tmp_path)
    assert processor_from_folder(tmp_path, PLAIN) == own
    whole = {"image_processor": json.loads((tmp_path / "preprocessor_config.json").read_text()), "processor_class": "X"}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    (tmp_path / "preprocessor_config.json").unlink()
    assert processor_from_folder(tmp_path, PLAIN) == own
    published = settings(tmp_path, min_pixels=3136, max_pixels=12845056, patch_size=14, merge_size=2, image_mean=MEAN)
    assert published == ImageProcessor(14, 2, most=12845056)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "wanted one of Qwen2VLImageProcessor"),
        ({"do_normalize": False}, "do_normalize is False; wanted True"),
        ({"resample": 2}, "resample is 2; wanted 3"),
        ({"patch_size": 16}, "patch_size is 16; wanted 14"),
        ({"max_pixels": 10}, "no image would have that size"),
        ({"image_std": [0.0, 1.0, 1.0]}, "a deviation for each of 3 colours"),
        ({"sharpen": 1}, "'sharpen' may change the model"),
    ],
)
def test_refused_settings(tmp_path, values, says):
    with pytest.raises(CheckpointError, match=says):
        settings(tmp_path, **values)
