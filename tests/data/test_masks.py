"""Images with masks from folders, archives and tables: layouts, what is left out, and what is refused."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import Augmentation, dataset_info, load_split, load_splits
from mereo.data.decode import decode_mask
from mereo.errors import MereoError, UsageError

SIDE = 8


def sample(number: int, height: int = SIDE, width: int = SIDE) -> tuple[Image.Image, Image.Image]:
    """An image whose first channel is 50 times its mask: classes 0 to 2, and void in a corner."""
    mask = np.random.default_rng(number).integers(0, 3, (height, width), dtype=np.uint8)
    pixels = np.repeat(50 * mask[..., None], 3, axis=2)
    mask[0, 0] = 255
    return Image.fromarray(pixels), Image.fromarray(mask)


def write(root: Path, place: str, count: int, first: int = 0) -> None:
    """Samples at images and masks of a place such as "{}/train", where {} is one of the two."""
    for kind in ("images", "masks"):
        (root / place.format(kind)).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        image, mask = sample(number)
        image.save(root / place.format("images") / f"{number}.png")
        palette = mask.convert("P")
        palette.putdata(list(mask.get_flattened_data() if hasattr(mask, "get_flattened_data") else mask.getdata()))
        palette.save(root / place.format("masks") / f"{number}.png")


def check(images: torch.Tensor, masks: torch.Tensor) -> None:
    """Assert that masks fit their images, whatever was done to both."""
    assert masks.dtype == torch.int64 and set(masks.unique().tolist()) <= {-1, 0, 1, 2} and (masks >= 0).any()
    known = masks >= 0
    assert torch.equal((images[:, 0] * 255 / 50).round().long()[known], masks[known])


@pytest.mark.parametrize("layout", ["{}/SPLIT", "SPLIT/{}", "{}"])
@pytest.mark.parametrize("form", ["folder", "zip", "csv"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_layout_serves_masks_of_their_images(tmp_path: Path, layout: str, form: str, stream: bool) -> None:
    for place, split in enumerate(("train", "val", "test")):
        write(tmp_path, layout.replace("SPLIT", split), 6, 6 * place)
    data = tmp_path
    if form == "zip":
        data = tmp_path.parent / "packed.zip"
        with zipfile.ZipFile(data, "w") as archive:
            for file in sorted(tmp_path.rglob("*.png")):
                archive.write(file, str(file.relative_to(tmp_path)))
    if form == "csv":
        data, lines = tmp_path / "table.csv", ["image,mask,split"]
        for image in sorted(tmp_path.rglob("images/**/*.png")):
            path = str(image.relative_to(tmp_path))
            split = next((name for name in ("val", "test") if name in path), "train")
            lines.append(f"{path},{path.replace('images', 'masks')},{split}")
        data.write_text("\n".join(lines))
    info = dataset_info(str(data))
    assert info.num_classes == 3 and info.fields == ("images", "masks")
    if "SPLIT" in layout:
        splits = load_splits(str(data), img_size=SIDE, stream=stream)
        assert [len(part) for part in (splits.train, splits.validation or (), splits.test)] == [6, 6, 6]
    else:
        with pytest.warns(UserWarning, match="no test split"):
            splits = load_splits(str(data), img_size=SIDE, stream=stream)
    batch = splits.train.batch(
        torch.arange(4), augmentation=Augmentation.parse(["flip", "crop=2"]), generator=torch.Generator().manual_seed(0)
    )
    assert batch.masks is not None
    check(batch.images, batch.masks)
    plain = splits.test.batch(torch.arange(2))
    assert plain.masks is not None and (plain.masks[:, 0, 0] == -1).all()
    check(plain.images, plain.masks)


def test_the_only_other_folder_beside_masks_holds_their_images(tmp_path: Path) -> None:
    write(tmp_path, "{}", 6)
    (tmp_path / "images").rename(tmp_path / "Training_Images")
    (tmp_path / "masks").rename(tmp_path / "Ground_Truth")
    assert dataset_info(str(tmp_path)).fields == ("images", "masks")
    (tmp_path / "Training_Images").rename(tmp_path / "cats")  # now two classes
    assert "labels" in dataset_info(str(tmp_path)).fields


def test_masks_of_half_the_size_are_those_of_the_resized_images(tmp_path: Path) -> None:
    write(tmp_path, "{}", 6)
    for file in (tmp_path / "images").iterdir():
        with Image.open(file) as image:
            image.resize((40 * SIDE + 1, 40 * SIDE)).save(file)
    with pytest.warns(UserWarning, match="no test split"):
        splits = load_splits(str(tmp_path), img_size=SIDE, validation_fraction=0.0)
    assert splits.skipped == 0 and len(splits.train) + len(splits.test) == 6


def test_masks_are_cut_and_resized_as_their_images(tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    halves = np.zeros((20, 40), np.uint8)
    halves[:, 20:] = 1
    for number in range(6):
        Image.fromarray(200 * halves).save(tmp_path / "images" / f"{number}.png")
        Image.fromarray(halves).save(tmp_path / "masks" / f"{number}_mask.png")
    split = load_split(str(tmp_path), "whole", img_size=(10, 10))
    batch = split.batch(torch.arange(1))
    assert batch.masks is not None and torch.equal(batch.masks[0] == 1, batch.images[0, 0] > 0.5)
    assert batch.masks[0, 0].tolist() == [0] * 5 + [1] * 5


def test_what_is_wrong_is_counted_in_one_line_each(tmp_path: Path) -> None:
    write(tmp_path, "train/{}", 8)
    write(tmp_path, "test/{}", 3, 8)
    (tmp_path / "train/masks/0.png").unlink()
    Image.new("L", (5, 4)).save(tmp_path / "train/masks/1.png")
    Image.fromarray(np.full((SIDE, SIDE), 7, np.uint8)).save(tmp_path / "test/masks/8.png")
    Image.new("RGB", (SIDE, SIDE), (9, 0, 0)).save(tmp_path / "train/masks/2.png")
    with pytest.warns(UserWarning) as caught:
        splits = load_splits(str(tmp_path), img_size=SIDE, validation_fraction=0)
    lines = [str(warning.message) for warning in caught]
    assert any("1 image has no mask" in line and "0.png" in line for line in lines)
    assert any("2 files" in line and "4 x 5" in line and "mode RGB" in line for line in lines)
    assert any("1 file" in line and "index 7" in line and "3 classes" in line for line in lines)
    assert len(splits.train) == 5 and len(splits.test) == 2
    with pytest.warns(UserWarning, match="no mask"), pytest.raises(MereoError, match=r"index 7|4 x 5"):
        load_splits(str(tmp_path), img_size=SIDE, strict=True)


def test_names_of_classes_are_read_beside_the_folders(tmp_path: Path) -> None:
    write(tmp_path, "{}", 6)
    (tmp_path / "classes.txt").write_text("ground\ncat\ndog\nhorse\n")
    with pytest.warns(UserWarning, match="no test split"):
        assert load_splits(str(tmp_path), img_size=SIDE).class_names == ("ground", "cat", "dog", "horse")


COLOURS = ((10, 20, 30), (200, 0, 100), (0, 250, 0))


@pytest.mark.parametrize("form", ["white", "grey", "lossy", "colours", "grey in colour"])
def test_masks_of_levels_and_colours_are_their_classes(tmp_path: Path, form: str) -> None:
    """White masks are a class: they were refused, because 255 marks no class where there are others."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    classes = 2 if form in ("white", "lossy") else 3
    for number in range(6):
        mask = np.random.default_rng(number).integers(0, classes, (4, 4), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        mask[:8, : 8 * classes] = np.arange(classes).repeat(8)
        Image.fromarray(50 * mask).save(tmp_path / "images" / f"{number}.png")
        levels = np.array(COLOURS if form == "colours" else [0, 128, 255] if classes == 3 else [0, 255], np.uint8)
        stored = Image.fromarray(levels[mask])
        stored = stored.convert("RGB") if form == "grey in colour" else stored
        stored.save(tmp_path / "masks" / f"{number}.{'jpg' if form == 'lossy' else 'png'}")
    if form == "colours":
        with pytest.raises(UsageError, match="masks in 3 colours"):
            dataset_info(str(tmp_path))
        rows = [f"{name},{r},{g},{b}" for name, (r, g, b) in zip("abc", COLOURS, strict=True)]
        (tmp_path / "class_dict.csv").write_text("\n".join(["name,r,g,b", *rows]))
    split = load_split(str(tmp_path), "whole", img_size=32)
    batch = split.batch(torch.arange(6))
    known = batch.masks >= 0
    assert known.float().mean() > (0.6 if form == "lossy" else 0.999)
    assert torch.equal((batch.images[:, 0] * 255 / 50).round().long()[known], batch.masks[known])
    names = {"colours": ("a", "b", "c"), "white": ("background", "object"), "lossy": ("background", "object")}
    assert split.class_names == names.get(form, ("0", "128", "255"))


def test_masks_of_one_class_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "{}", 4)
    for file in (tmp_path / "masks").iterdir():
        Image.new("L", (SIDE, SIDE), 0).save(file)
    with pytest.raises(UsageError, match="1 classes"):
        load_splits(str(tmp_path), img_size=SIDE)


def test_images_without_any_mask_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "{}", 3)
    for file in (tmp_path / "masks").iterdir():
        file.rename(file.with_name(f"other{file.name}"))
    with pytest.raises(UsageError, match="none has a mask"):
        load_splits(str(tmp_path), img_size=SIDE)


@pytest.mark.parametrize("form", ["tar", "parquet", "arrow"])
def test_shards_serve_masks_too(tmp_path: Path, form: str) -> None:
    write(tmp_path, "{}/train", 6)
    write(tmp_path, "{}/test", 3, 6)
    (tmp_path / "shards").mkdir()
    for split in ("train", "test"):
        images = sorted((tmp_path / "images" / split).iterdir())
        pairs = [(path.read_bytes(), (tmp_path / "masks" / split / path.name).read_bytes()) for path in images]
        target = tmp_path / "shards" / f"{split}-000.{form}"
        if form == "tar":
            with tarfile.open(target, "w") as archive:
                for number, contents in enumerate(pairs):
                    for name, content in zip((f"{number}.png", f"{number}.mask.png"), contents, strict=True):
                        member = tarfile.TarInfo(name)
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
            continue
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"image": [image for image, _ in pairs], "mask": [mask for _, mask in pairs]})
        if form == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, target, row_group_size=2)
        else:
            with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    data = str(tmp_path / "shards")
    info = dataset_info(data)
    assert info.num_classes == 3 and info.fields == ("images", "masks")
    splits = load_splits(data, img_size=SIDE, validation_fraction=0)
    for part, count in ((splits.train, 6), (splits.test, 3)):
        batch = part.batch(torch.arange(count))
        assert batch.masks is not None
        check(batch.images, batch.masks)


def test_masks_of_16_bits_are_read_if_their_indices_fit_8(tmp_path: Path) -> None:
    def decoded(values: list[int], colours: tuple[tuple[int, int, int], ...] = ()) -> list[int]:
        stream = io.BytesIO()
        Image.fromarray(np.array([values], np.uint16)).save(stream, "PNG")
        stream.seek(0)
        return decode_mask(stream, colours)[0].tolist()

    assert decoded([0, 3, 254, 255]) == [0, 3, 254, 255]
    assert decoded([0, 65535, 0]) == [0, 255, 0]
    assert decoded([0, 65535], ((0, 0, 0), (255, 255, 255))) == [0, 1]
    with pytest.raises(ValueError, match="index 300; indices of classes are 0"):
        decoded([0, 300])
