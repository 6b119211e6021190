"""One image file to pixels: modes, sizes, and the agreement with the conversion of tensors."""

import io
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import decode as decode_module
from mereo.data.budget import Budget
from mereo.data.conversion import change_channels, change_size, check_channels, fit_box
from mereo.data.decode import decode, reason_of
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


DEEP = """
import io, resource
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from mereo.data.decode import decode
stream = io.BytesIO()
Image.new("F", (1600, 1600)).save(stream, "TIFF")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(6) as pool:
    list(pool.map(lambda _: decode(io.BytesIO(stream.getbuffer()), (8, 8), 1), range(6)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.long
def test_deep_images_use_little_extra_memory() -> None:
    run = subprocess.run([sys.executable, "-c", DEEP], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 260, "MiB; each has 10, and six in double precision at a time take 430"


def test_threads_decode_within_a_common_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock, convert = 0, 0, threading.Lock(), decode_module._convert

    def watched(image: Image.Image, *arguments: object) -> np.ndarray:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        result = convert(image, *arguments)
        with lock:
            running -= 1
        return result

    monkeypatch.setattr(decode_module, "_convert", watched)
    content = encode(picture(0, (30, 30))).getvalue()
    for limit, together in ((1, 1), (50_000, 2), (2**40, 8)):
        most = 0
        monkeypatch.setattr(decode_module.IN_FLIGHT, "limit", limit)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: decode(io.BytesIO(content), (8, 8), 3), range(40)))
        assert 1 <= most <= together
        assert (most > 1) == (limit > 1)


def test_one_image_above_the_limit_is_decoded_by_itself() -> None:
    budget, running, most = Budget(10), 0, 0
    lock = threading.Lock()

    def work(size: int) -> None:
        nonlocal running, most
        with budget.take(size):
            with lock:
                running += size
                most = max(most, running)
            time.sleep(0.002)
            with lock:
                running -= size

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 50, 4, 10, 1, 7, 60, 2] * 3))
    assert most == 60
    assert running == 0


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_deep_grey_does_not_depend_on_the_bands(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 60000, (13, 7))
    if mode == "F":
        values = values / 100
    types = {"I;16": "<u2", "I;16B": ">u2", "I": "i4", "F": "f4"}
    image = Image.frombytes(mode, (7, 13), values.astype(types[mode]).tobytes())
    whole = np.asarray(decode_module._to_8_bit(image))
    full = 255.0 if mode == "F" else 65535.0
    typed = values.astype(types[mode]).astype(np.float64)
    assert np.array_equal(whole, np.clip(np.rint(typed * (255 / full)), 0, 255))
    monkeypatch.setattr(decode_module, "_BAND", 20)
    assert np.array_equal(np.asarray(decode_module._to_8_bit(image)), whole)


def test_the_reason_for_too_many_pixels_is_their_number() -> None:
    with pytest.raises(Image.DecompressionBombError) as refused:
        Image._decompression_bomb_check((30_000, 30_000))
    assert reason_of(refused.value) == "900 million pixels, which is more than is read; make it smaller"
