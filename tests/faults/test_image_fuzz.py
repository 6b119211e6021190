"""Image files as they should not be: cut, flipped, of absurd size, in forms that would run a program."""

import contextlib
import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from mereo.cli.main import main
from mereo.data.decode import FORMATS, decode
from mereo.errors import MereoError
from mereo.inference.predict import read_images
from pictures import picture

FUZZ = settings(max_examples=150, derandomize=True, deadline=None, database=None)


def encoded(kind: str, image: Image.Image | None = None) -> bytes:
    stream = io.BytesIO()
    (image or picture(1, (23, 31))).save(stream, kind)
    return stream.getvalue()


WHOLE = {kind: encoded(kind) for kind in FORMATS}


@st.composite
def broken(draw):
    """The bytes of an image with some of them lost, changed, or put in."""
    content = bytearray(WHOLE[draw(st.sampled_from(FORMATS))])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.one_of(st.integers(0, 64), st.integers(0, len(content))))
        change = draw(st.sampled_from(["cut", "flip", "insert", "repeat", "zeros"]))
        if change == "cut":
            del content[place:]
        elif change == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif change == "insert":
            content[place:place] = draw(st.binary(max_size=20))
        elif change == "repeat":
            content += content[:place]
        elif change == "zeros":
            content[place : place + 40] = bytes(40)
    return bytes(content)


def read_all(network, **files: bytes):
    for name, content in files.items():
        Path(f"{name}.png").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_images([Path(f"{name}.png") for name in files], network)


@given(content=broken())
@FUZZ
def test_a_broken_image_gives_pixels_or_is_left_out(content):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = decode(io.BytesIO(content), (16, 16), 3)
        except Exception as error:
            # Readers of files catch these, and name the file with the reason.
            assert not isinstance(error, MemoryError | RecursionError)
        else:
            assert pixels.shape == (3, 16, 16) and pixels.dtype == np.uint8


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_cut_at_any_length_differs_from_the_whole(network, kind):
    whole = WHOLE[kind]
    for length in (*range(0, 40, 3), *range(40, len(whole), max(len(whole) // 40, 1))):
        good, images = read_all(network, cut=whole[:length], whole=whole)
        assert Path("whole.png") in good
        assert images.isfinite().all() and 0 <= images.min() <= images.max() <= 1


def test_an_image_is_identified_by_its_content_and_not_by_its_name(network):
    good, images = read_all(network, **{f"really_{kind.lower()}": content for kind, content in WHOLE.items()})
    assert len(good) == len(FORMATS)
    exact = [i for i, path in enumerate(good) if not path.name.startswith(("really_jpeg", "really_gif", "really_webp"))]
    assert all((images[i] == images[exact[0]]).all() for i in exact)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def absurd(side: int) -> dict[str, bytes]:
    """Small files that claim to be images of side x side."""
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    bmp = bytearray(WHOLE["BMP"])
    bmp[18:26] = struct.pack("<ii", side, side)
    gif = bytearray(WHOLE["GIF"])
    gif[6:10] = struct.pack("<HH", side, side)
    jpeg = bytearray(WHOLE["JPEG"])
    start = jpeg.index(b"\xff\xc0")
    jpeg[start + 5 : start + 9] = struct.pack(">HH", side, side)
    return {
        "png": png,
        "bmp": bytes(bmp),
        "gif": bytes(gif),
        "jpeg": bytes(jpeg),
        "ppm": b"P6 %d %d 255\n" % (side, side),
    }


@pytest.mark.parametrize("kind", ["png", "bmp", "gif", "jpeg", "ppm"])
def test_a_decompression_bomb_is_refused_by_its_size(network, kind, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("it was unpacked before it was refused"))
    with pytest.raises(MereoError, match=r"bomb\.png .*(pixels|decompression bomb)"):
        read_all(network, bomb=absurd(60000)[kind])


def test_postscript_runs_no_program(network, monkeypatch):
    from PIL import EpsImagePlugin

    Path("bin").mkdir()
    Path("bin/gs").write_text("#!/bin/sh\necho run > ghostscript_ran\nexit 1\n")
    os.chmod("bin/gs", 0o755)
    monkeypatch.setenv("PATH", f"{os.getcwd()}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(MereoError, match="not an image"):
        read_all(network, photo=page)
    assert not Path("ghostscript_ran").exists()
    with pytest.raises(Exception):  # noqa: B017 - what Pillow does by itself, so that this test can fail
        Image.open(io.BytesIO(page)).load()
    assert Path("ghostscript_ran").exists()


def test_predict_leaves_out_what_is_no_image(call, weights):
    Path("photos").mkdir()
    for kind, content in WHOLE.items():
        Path(f"photos/{kind}.png").write_bytes(content)
    for name, content in {"empty": b"", "cut": WHOLE["PNG"][:90], **absurd(40000)}.items():
        Path(f"photos/bad_{name}.jpg").write_bytes(content)
    done = call("predict", "photos", "--weights", weights, "--json", "--device", "cpu").check()
    assert done.code == 0 and "7 files could not be read" in done.err
    assert len(done.document()["predictions"]) == len(FORMATS)


def test_a_name_that_is_no_text_is_shown(weights):
    name = os.fsdecode(b"caf\xe9.png")
    Path(name).write_bytes(WHOLE["PNG"])
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    with contextlib.redirect_stdout(screen):
        assert main(["predict", name, "--weights", str(weights), "--device", "cpu"]) == 0
    assert b"caf\\udce9.png" in screen.buffer.getvalue()
