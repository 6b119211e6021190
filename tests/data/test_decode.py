"""One image file to pixels: modes, sizes, and the agreement with the conversion of tensors."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data.conversion import change_channels, change_size, check_channels, fit_box
from mereo.data.decode import decode
from mereo.errors import UsageError
from pictures import picture


def encode(image: Image.Image, kind: str = "PNG", **arguments: object) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, kind, **arguments)
    stream.seek(0)
    return stream


def constant(image: Image.Image, channels: int, kind: str = "PNG") -> list[int]:
    pixels = decode(encode(image, kind), (image.height, image.width), channels)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (channels, image.height, image.width)
    assert (pixels == pixels[:, :1, :1]).all()
    return pixels[:, 0, 0].tolist()


def test_modes() -> None:
    size = (4, 3)
    assert constant(Image.new("L", size, 100), 3) == [100] * 3
    assert constant(Image.new("1", size, 1), 1) == [255]
    assert constant(Image.new("RGB", size, (10, 20, 30)), 3) == [10, 20, 30]
    assert constant(Image.new("RGB", size, (10, 20, 30)), 1) == [18]
    assert constant(Image.new("RGBA", size, (200, 100, 50, 0)), 3) == [0, 0, 0]
    assert constant(Image.new("RGBA", size, (200, 100, 50, 255)), 3) == [200, 100, 50]
    assert constant(Image.new("LA", size, (200, 255)), 1) == [200]
    assert constant(Image.new("RGB", size, (10, 200, 30)).quantize(), 3) == [10, 200, 30]
    assert constant(Image.new("CMYK", size, (0, 0, 0, 255)), 3, "TIFF") == [0, 0, 0]
    sixteen = Image.fromarray(np.full((3, 4), 128 * 257, dtype=np.uint16))
    assert constant(sixteen, 1) == [128]
    assert constant(sixteen, 3, "TIFF") == [128] * 3
    assert constant(Image.fromarray(np.full((3, 4), 0.5, dtype=np.float32)), 1, "TIFF") == [128]
    assert constant(Image.fromarray(np.full((3, 4), 77, dtype=np.float32)), 1, "TIFF") == [77]


def test_a_palette_with_transparency_becomes_black_there() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    pixels = decode(encode(image, transparency=0), (1, 2), 3)
    assert pixels[:, 0, 0].tolist() == [0, 0, 0]
    assert pixels[:, 0, 1].tolist() == [0, 255, 0]


def test_the_exif_orientation_is_followed() -> None:
    image = picture(0, (4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode(encode(image, exif=exif), (6, 4), 3)
    assert (turned.transpose(1, 2, 0) == np.asarray(image.rotate(-90, expand=True))).all()


def test_too_many_pixels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = encode(picture(0, (8, 8)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)
    with pytest.raises((ValueError, Image.DecompressionBombWarning)):
        decode(stream, (8, 8), 3)


@pytest.mark.parametrize("size", [(6, 6), (16, 16), (5, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_and_tensors_agree(size: tuple[int, int], channels: int) -> None:
    image = picture(3, (11, 14))
    from_file = torch.from_numpy(decode(encode(image), size, channels).copy()).int()
    whole = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    from_tensor = change_size(change_channels(whole, channels), size)[0].int()
    assert (from_file - from_tensor).abs().max() <= 1


def test_luma_is_that_of_the_file_reader() -> None:
    image = picture(1, (20, 20))
    whole = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    assert (change_channels(whole, 1)[0, 0].numpy() == np.asarray(image.convert("L"))).all()
    assert torch.equal(change_channels(change_channels(whole, 1), 3)[:, 2:], change_channels(whole, 1))


def test_boxes_keep_proportions() -> None:
    assert fit_box(28, 28, (32, 32)) == (0, 0, 28, 28)
    assert fit_box(100, 60, (10, 10)) == (20, 0, 60, 60)
    assert fit_box(60, 100, (10, 20)) == (5, 0, 50, 100)
    assert fit_box(1, 100, (10, 10)) == (0, 49, 1, 1)


def test_other_counts_of_channels_are_refused() -> None:
    check_channels(2, 2)
    check_channels(3, 1)
    with pytest.raises(UsageError, match=r"in_chans is 3.*must be 2"):
        check_channels(2, 3)
    with pytest.raises(UsageError, match=r"in_chans is 4.*must be 1 or 3"):
        check_channels(1, 4)
