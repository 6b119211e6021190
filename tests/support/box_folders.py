"""Folders of images with the same boxes in each format."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 40
BOXES = {
    0: [("cat", (2, 3, 22, 33)), ("dog", (20, 0, 40, 20))],
    1: [("cat", (0, 0, 12, 40)), ("dog", (30, 30, 33, 40))],
}
"""The boxes of each image; the last one is too small."""


def image(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def write(root: Path, form: str) -> Path:
    folder = root / {"voc": "JPEGImages", "coco": "train2017", "yolo": "images/train"}[form]
    folder.mkdir(parents=True)
    for number in BOXES:
        image(number).save(folder / f"{number}.png")
    if form == "voc":
        (root / "Annotations").mkdir()
        (root / "ImageSets/Main").mkdir(parents=True)
        (root / "ImageSets/Main/train.txt").write_text("0\n1\n")
        for number, boxes in BOXES.items():
            objects = "".join(
                f"<object><name>{name}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax>"
                f"<ymax>{y1}</ymax></bndbox></object>"
                for name, (x0, y0, x1, y1) in boxes
            )
            (root / f"Annotations/{number}.xml").write_text(f"<annotation>{objects}</annotation>")
    elif form == "coco":
        (root / "annotations").mkdir()
        annotations = [
            {"image_id": number, "category_id": int(name == "dog"), "bbox": [x0, y0, x1 - x0, y1 - y0]}
            for number, boxes in BOXES.items()
            for name, (x0, y0, x1, y1) in boxes
        ]
        document = {
            "images": [{"id": number, "file_name": f"{number}.png"} for number in BOXES],
            "annotations": annotations, "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
        }  # fmt: skip
        (root / "annotations/instances_train2017.json").write_text(json.dumps(document))
    else:
        (root / "labels/train").mkdir(parents=True)
        (root / "data.yaml").write_text("names:\n  0: cat\n  1: dog\n")
        for number, boxes in BOXES.items():
            lines = [
                " ".join(map(str, (int(name == "dog"), *(each / SIDE for each in centred))))
                for name, (x0, y0, x1, y1) in boxes
                for centred in [((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0)]
            ]
            (root / f"labels/train/{number}.txt").write_text("\n".join(lines))
    return root
