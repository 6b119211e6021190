"""The facts of a data set that are known before it is read."""

import io
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mereo.data import dataset_info
from mereo.data.facts import COLOUR, GREY, TEXT, DataFacts, data_facts, finest_side, kind_of_images


@given(st.sampled_from([COLOUR, GREY, TEXT]), st.sampled_from(["0123456789", ("left", "right"), ("cat", "dog")]))
def test_text_signs_and_directions_are_never_mirrored(kind, names):
    about = DataFacts(90, len(names), dict.fromkeys(names, 9), kind=kind)
    for side in (8, 32, 64):
        augment, reason = about.augmentation(side)
        assert ("flip" in augment) == (kind != TEXT and "cat" in names) and reason
        if kind == TEXT:
            assert not any(text.startswith(("crop", "shift", "rotate")) for text in augment)
    assert DataFacts(90, 3).augmentation(32)[0] == ("auto",)


def noise(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def page(seed):
    image = Image.new("L", (64, 64), 250)
    ImageDraw.Draw(image).line([(10, 10 + seed), (50, 50)], fill=10, width=3)
    return np.asarray(image.convert("RGB"))


def test_kinds_of_images():
    grey = noise(0, (64, 64, 1)).repeat(3, axis=2)
    assert kind_of_images([noise(i, (64, 64, 3)) for i in range(3)]) == COLOUR
    assert kind_of_images([grey]) == GREY
    assert kind_of_images([page(i) for i in range(3)]) == TEXT


def folder(path, classes, count, draw):
    for label in range(classes):
        (path / f"kind{label}").mkdir(parents=True)
        for number in range(count):
            draw(label, number).save(path / f"kind{label}" / f"{number}.png")
    return path


def colours(label, number):
    generator = np.random.default_rng(1000 * label + number)
    shade = np.array([[230, 60, 40], [40, 200, 60], [60, 80, 230]])[label % 3]
    return Image.fromarray(np.clip(shade + generator.normal(0, 40, (20, 24, 3)), 0, 255).astype(np.uint8))


def test_facts_of_a_folder(tmp_path):
    info = dataset_info(folder(tmp_path / "photos", 3, 5, colours))
    about = data_facts(info, 12)
    assert about.classes == {"kind0": 5, "kind1": 5, "kind2": 5} and about.kind == COLOUR
    assert about.largest == 24 and about.images == 12 and about.colour
    (tmp_path / "photos" / "kind0" / "0.png").write_text("no image")
    assert data_facts(info, 12).kind == COLOUR


def drawn(width, void=False):
    """A mask of stripes, some pixels of no class."""
    mask = torch.zeros(1, 512, 512, dtype=torch.uint8)
    mask[:, :, torch.arange(512) // width % 2 == 1] = 1
    if void:
        mask[:, :100] = 255
    return mask


def test_fine_masks_need_larger_images():
    assert finest_side(torch.zeros(2, 512, 512, dtype=torch.uint8)) == 32
    assert finest_side(torch.full((2, 512, 512), 255, dtype=torch.uint8)) == 512  # nothing to lose, nothing known
    sides = [finest_side(drawn(width)) for width in (128, 16, 4, 1)]
    assert sides == [32, 32, 128, 512] and finest_side(drawn(4, void=True)) == 128
    assert finest_side(torch.cat((drawn(128), drawn(1)))) == 512


@pytest.mark.parametrize(("width", "side"), [(64, 32), (4, 64), (1, 256)])
def test_masks_are_looked_at_for_the_size_of_images(tmp_path, width, side):
    stripes = 255 * (np.arange(256) // width % 2 == 1)
    for number in range(3):
        for place, pixels in (("images", noise(number, (256, 256, 3))), ("masks", np.tile(stripes, (256, 1)))):
            (tmp_path / place).mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / place / f"{number}.png")
    assert data_facts(dataset_info(tmp_path), 3).finest == side
    assert data_facts(dataset_info("digits"), 100).finest is None


@pytest.mark.long
def test_very_large_images_are_sampled_sparingly(tmp_path):
    info = dataset_info(folder(tmp_path / "photos", 2, 2, lambda c, n: Image.new("RGB", (4000, 4000), (90 * c, 5, 9))))
    about = data_facts(info, 4)
    assert about.largest == 4000 and about.kind == COLOUR


def test_facts_of_a_tar_file_are_those_of_its_images(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "pages.tar", "w") as archive:
        for number in range(12):
            file = io.BytesIO()
            Image.fromarray(page(number)).save(file, format="PNG")
            for kind, content in (("png", file.getvalue()), ("cls", b"left" if number % 3 else b"right")):
                member = tarfile.TarInfo(f"{number:03d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with pytest.warns(UserWarning, match="set aside"):
        info = dataset_info(tmp_path / "pages.tar")
    about = data_facts(info, 9)
    assert about.kind == TEXT and sum(about.classes.values()) == info.splits["train"] and set(about.classes) == {
        "left", "right"
    }  # fmt: skip
    assert about.largest == 64 and about.augmentation(32)[0] == ("zoom=0.75:1",), "text is not mirrored"
