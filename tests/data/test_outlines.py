"""Masks drawn from outlines: against loops over pixels, the formats are one data set, and faults are counted."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import dataset_info, load_splits
from mereo.data.box_folder import read_box_layout
from mereo.data.boxes import Outline, write_crops
from mereo.data.contents import Contents
from mereo.data.layout_options import LayoutOptions
from mereo.data.outlines import Drawing, draw, pixels_inside, pixels_of, read_outline_layout
from mereo.data.trees import open_tree
from mereo.errors import UsageError

HEIGHT, WIDTH = 20, 30
SQUARE, TRIANGLE = [2, 3, 12, 3, 12, 18, 2, 18], [10, 2, 28, 10, 10, 18]
OBJECTS = {0: [("cat", SQUARE), ("dog", TRIANGLE)], 1: []}
"""The outlines of the objects of each image."""


def inside(polygon: list[float], x: float, y: float) -> bool:
    """Whether a ray to the right of a point crosses an odd number of sides."""
    corners, odd = [*zip(polygon[::2], polygon[1::2], strict=True)], False
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if (y0 <= y) != (y1 <= y) and x < x0 + (y - y0) / (y1 - y0) * (x1 - x0):
            odd = not odd
    return odd


@pytest.mark.parametrize("seed", range(5))
def test_a_pixel_is_inside_if_its_centre_is(seed: int) -> None:
    polygon = np.random.default_rng(seed).uniform(-10, 40, 14).tolist()
    part = pixels_inside(polygon, (HEIGHT, WIDTH))
    found = np.zeros((HEIGHT, WIDTH), bool)
    found[part.place] = part.pixels
    expected = [[inside(polygon, column + 0.5, row + 0.5) for column in range(WIDTH)] for row in range(HEIGHT)]
    assert np.array_equal(found, expected) and found.any()


def test_run_lengths_go_down_the_columns() -> None:
    runs = {"size": [2, 3], "counts": [1, 2, 3]}
    assert pixels_of(runs, (2, 3)).tolist() == [[False, True, False], [True, False, False]]
    # The same as COCO's programs compress it: differences to the count before the last, five bits a letter.
    assert np.array_equal(pixels_of({"size": [2, 3], "counts": "123"}, (2, 3)), pixels_of(runs, (2, 3)))
    block = pixels_of({"size": [40, 10], "counts": "e2l0<000000000[2"}, (40, 10))
    assert block[5:33, 2:8].all() and block.sum() == 168
    for wrong in ({"size": [3, 2], "counts": [6]}, {"counts": [6]}, {"size": [2, 3], "counts": [9, -3]}):
        with pytest.raises(ValueError, match="run lengths"):
            pixels_of(wrong, (2, 3))
    with pytest.raises(ValueError, match="too long"):
        pixels_of({"size": [2, 3], "counts": "o" * 99}, (2, 3))


def test_small_objects_lie_over_large_ones_and_crowds_are_of_no_class() -> None:
    runs = {"size": [4, 4], "counts": [0, 4, 12]}
    objects = [
        ("cup", Outline([[1, 1, 3, 1, 3, 3, 1, 3]])),
        ("table", Outline([[0, 0, 4, 0, 4, 4, 0, 4]])),
        ("person", Outline((), runs, True)),
    ]
    outer, inner = [255, 2, 2, 2], [255, 1, 1, 2]
    assert draw(Drawing("a", (4, 4), objects), {"cup": 1, "table": 2}).tolist() == [outer, inner, inner, outer]


def write(root: Path, form: str) -> Path:
    """The data set of `OBJECTS` in a format; labelme's square is a rectangle of two corners."""
    (root / "images").mkdir(parents=True)
    for number in OBJECTS:
        Image.new("RGB", (WIDTH, HEIGHT), (90, 120 * number, 20)).save(root / f"images/{number}.png")
    names, files = ["cat", "dog"], {}
    if form == "coco":
        annotations: list[Any] = [
            {"image_id": number, "category_id": names.index(name), "bbox": [0, 0, 9, 9], "segmentation": [polygon]}
            for number, objects in OBJECTS.items()
            for name, polygon in objects
        ]
        images = [{"id": number, "file_name": f"{number}.png"} for number in OBJECTS]
        kinds = [{"id": place, "name": name} for place, name in enumerate(names)]
        files["instances.json"] = json.dumps({"images": images, "annotations": annotations, "categories": kinds})
    for number, objects in OBJECTS.items():
        if form == "yolo":
            rows = [
                " ".join(map(str, [names.index(name), *(v / (WIDTH, HEIGHT)[i % 2] for i, v in enumerate(polygon))]))
                for name, polygon in objects
            ]
            files |= {f"labels/{number}.txt": "\n".join(rows), "classes.txt": "cat\ndog\n"}
        elif form == "labelme":
            shapes = [{"label": name, "points": np.reshape(polygon, (-1, 2)).tolist()} for name, polygon in objects]
            for shape in shapes[:1]:
                shape |= {"shape_type": "rectangle", "points": [shape["points"][0], shape["points"][2]]}
            files[f"images/{number}.json"] = json.dumps({"shapes": shapes, "imagePath": f"{number}.png"})
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.filterwarnings("ignore:.*no test split")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["coco", "yolo", "labelme"])
def test_the_formats_are_the_same_masks(tmp_path: Path, form: str, stream: bool) -> None:
    data = write(tmp_path / "data", form)
    info = dataset_info(data, options=LayoutOptions(task="segmentation"))
    assert "2 objects of 2 classes" in info.summary and info.num_classes == 3
    assert info.layout is not None and info.layout.names == ("background", "cat", "dog")
    masks = []
    for number in OBJECTS:
        split = info.layout.splits["train"]
        assert split.masks is not None
        with split.masks.open(number) as opened, Image.open(opened) as image:
            masks.append(np.asarray(image))
    for (row, column), label in {(5, 4): 1, (9, 20): 2, (1, 1): 0, (9, 11): 2}.items():
        assert masks[0][row, column] == label
    assert (masks[0] == 1).sum() == 150 - 15 - 14 and not masks[1].any()
    boxes = dataset_info(data)
    assert "2 objects of 2 classes on 2 images" in boxes.summary and "--task segmentation" in boxes.summary
    options = {"options": LayoutOptions(task="segmentation"), "validation_fraction": 0, "stream": stream}
    splits = load_splits(str(data), img_size=(HEIGHT, WIDTH), **options)  # type: ignore[arg-type]
    read = torch.cat([part.batch(torch.arange(1)).masks for part in (splits.train, splits.test) if part is not None])
    assert sorted((read == 1).sum((1, 2)).tolist()) == [0, 121]


@pytest.mark.parametrize("form", ["coco", "labelme"])
def test_crowds_and_what_is_to_be_ignored_have_no_box_and_no_class(tmp_path: Path, form: str) -> None:
    data = write(tmp_path / "data", form)
    if form == "coco":
        path = data / "instances.json"
        path.write_text(path.read_text().replace('"category_id": 1,', '"category_id": 1, "iscrowd": 1,'))
    else:
        path = data / "images/0.json"
        path.write_text(path.read_text().replace('"dog"', '"__ignore__"'))
    layout = read_outline_layout(Contents(open_tree(data)))
    assert layout.names == ("background", "cat")
    masks = layout.splits["train"].masks
    assert masks is not None
    with masks.open(0) as opened, Image.open(opened) as image:
        assert np.asarray(image)[9, 20] == 255
    with pytest.warns(UserWarning, match="crowds, or marked to be ignored, left out: 1"):
        assert read_box_layout(Contents(open_tree(data))).names == ("cat",)


def test_points_and_lines_of_labelme_are_counted_and_circles_are_polygons(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "labelme")
    path = data / "images/1.json"
    shapes = [("eel", "line", [[1, 1], [4, 4]]), ("eel", "point", [[2, 2]]), ("sun", "circle", [[15, 10], [15, 4]])]
    rows = [{"label": label, "shape_type": kind, "points": points} for label, kind, points in shapes]
    path.write_text(json.dumps({"shapes": rows, "imagePath": "1.png"}))
    with pytest.warns(UserWarning, match="objects with a box and no outline, left out: 2"):
        layout = read_outline_layout(Contents(open_tree(data)))
    masks = layout.splits["train"].masks
    assert layout.names == ("background", "cat", "dog", "sun") and masks is not None
    with masks.open(1) as opened, Image.open(opened) as image:
        assert (np.asarray(image) == 3).sum() == pytest.approx(36 * math.pi, rel=0.03)
    with pytest.warns(UserWarning, match="no numbers, left out: 2"):
        boxes = read_box_layout(Contents(open_tree(data)))
    assert boxes.splits["train"].fields["boxes"][1, 0].tolist() == pytest.approx([9, 4, 21, 16], abs=1e-4)


def test_two_forms_at_once_are_refused_and_crowds_are_not_cut_out(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "labelme")
    path = data / "images/0.json"
    path.write_text(path.read_text().replace('"dog"', '"__ignore__"'))
    assert write_crops(data, tmp_path / "crops") == {"cat": 1}
    (data / "coco.json").write_text('{"images": [], "annotations": [], "bbox": []}')
    with pytest.raises(UsageError, match=r"COCO JSON.*labelme JSON"):
        read_box_layout(Contents(open_tree(data)))


def test_what_is_wrong_is_counted_and_classes_of_a_network_keep_their_order(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "coco")
    path = data / "instances.json"
    document = json.loads(path.read_text())
    for shape in ([[1, 2, 3, 4]], [["x"] * 6, SQUARE], [], 5, None):
        document["annotations"].append({"image_id": 0, "category_id": 0, "bbox": [1, 1, 5, 5], "segmentation": shape})
    path.write_text(json.dumps(document))
    contents = Contents(open_tree(data))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layout = read_outline_layout(contents, ("background", "dog", "eel", "cat"))
    assert layout.names == ("background", "dog", "eel", "cat")
    said = sorted(str(each.message).partition(": ")[2] for each in caught)
    assert said == ["objects with a box and no outline, left out: 3", "polygons without three corners, left out: 2"]
    with pytest.raises(UsageError, match=r"'dog'.*background, cat"):
        read_outline_layout(contents, ("background", "cat"))
    for annotation in document["annotations"]:
        annotation["segmentation"] = []
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"no outlines.*--task detection"):
        read_outline_layout(contents)
