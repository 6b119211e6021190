"""Several labels, numbers and masks in streams: the same as in the folder or table that they were made from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import dataset_info, load_splits
from mereo.data.layout_options import LayoutOptions
from mereo.data.stream import StreamedSet, open_stream, write_shards
from mereo.data.stream.hub import from_splits
from mereo.errors import UsageError
from sources import encoded

COUNT = 20
TAGS = [[name for bit, name in enumerate(("red", "green", "blue")) if (n + 1) >> bit & 1] for n in range(COUNT)]
NUMBERS = [(n / 3, 100.0 - n) for n in range(COUNT)]
SIZE = {"img_size": 8, "validation_fraction": 0.0}


def pictures(folder: Path) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number:02d}.png" for number in range(COUNT)]
    for number, file in enumerate(files):
        file.write_bytes(encoded(number))
    return files


def table(folder: Path, columns: dict[str, list[Any]]) -> Path:
    """A table of files, the last four of them to test on."""
    files = pictures(folder / "pictures")
    rows = [["image", "split", *columns]]
    for number, file in enumerate(files):
        split = "test" if number >= COUNT - 4 else "train"
        rows.append([f"pictures/{file.name}", split, *(str(values[number]) for values in columns.values())])
    (folder / "table.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    return folder / "table.csv"


def parquet(folder: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    """The same pictures in train.parquet and test.parquet."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    folder.mkdir()
    for split, part in (("train", slice(0, COUNT - 4)), ("test", slice(COUNT - 4, COUNT))):
        images = [{"bytes": encoded(number), "path": None} for number in range(COUNT)][part]
        held = arrow.table({"image": images, **{name: values[part] for name, values in columns.items()}})
        if features:
            held = held.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        write_table(held, folder / f"{split}.parquet", row_group_size=5)
    return folder


def everything(images: Any, field: str) -> list[tuple[bytes, list[float]]]:
    batch = images.batch(torch.arange(len(images)))
    values = getattr(batch, field).flatten(1)
    return sorted((i.numpy().tobytes(), v.tolist()) for i, v in zip(batch.images, values, strict=True))


def assert_same(data: Path, expected: Path, field: str, options: LayoutOptions, others: LayoutOptions) -> None:
    splits, wanted = load_splits(str(data), options=options, **SIZE), load_splits(str(expected), options=others, **SIZE)
    assert isinstance(splits.train, StreamedSet) and splits.class_names == wanted.class_names
    for split in ("train", "test"):
        assert everything(getattr(splits, split), field) == everything(getattr(wanted, split), field)
    assert field in dataset_info(str(data), options=options).fields


AUTO = LayoutOptions()


@pytest.mark.parametrize("kind", ["shards", "lists", "numbered lists", "text", "columns"])
def test_several_labels_are_those_of_the_table(kind: str, tmp_path: Path) -> None:
    expected, options = table(tmp_path, {"labels": [";".join(tags) for tags in TAGS]}), AUTO
    if kind == "shards":
        write_shards(expected, tmp_path / "out", shard_bytes=6000)
    elif kind == "lists":
        parquet(tmp_path / "out", {"labels": TAGS})
    elif kind == "numbered lists":
        names = ["blue", "green", "red"]
        feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
        parquet(tmp_path / "out", {"labels": [[names.index(t) for t in tags] for tags in TAGS]}, {"labels": feature})
    elif kind == "text":
        parquet(tmp_path / "out", {"labels": ["|".join(tags) for tags in TAGS]})
    else:
        options = LayoutOptions(label_column=("blue", "green", "red"))
        parquet(tmp_path / "out", {name: [name in tags for tags in TAGS] for name in options.label_column})
    assert_same(tmp_path / "out", expected, "multi_hot", options, AUTO)


@pytest.mark.parametrize("kind", ["shards", "columns", "one", "one of json"])
def test_numbers_are_those_of_the_table(kind: str, tmp_path: Path, make_tar: Any) -> None:
    both = {name: [row[place] for row in NUMBERS] for place, name in enumerate(("age", "height"))}
    options = LayoutOptions(label_column=("age", "height"))
    if kind == "shards":
        expected = table(tmp_path, both)
        write_shards(expected, tmp_path / "out", shard_bytes=6000, options=options)
        assert_same(tmp_path / "out", expected, "values", AUTO, options)
        only = LayoutOptions(label_column=("height",), task="regression")
        assert_same(tmp_path / "out", expected, "values", only, only)
    elif kind == "columns":
        parquet(tmp_path / "out", both)
        assert_same(tmp_path / "out", table(tmp_path, both), "values", options, options)
    elif kind == "one":
        parquet(tmp_path / "out", {"label": both["age"]})
        assert_same(tmp_path / "out", table(tmp_path, {"label": both["age"]}), "values", AUTO, AUTO)
    else:
        for split, part in (("train", range(COUNT - 4)), ("test", range(COUNT - 4, COUNT))):
            members = {f"{n}.png": encoded(n) for n in part}
            members |= {f"{n}.json": json.dumps({"label": NUMBERS[n][0]}).encode() for n in part}
            make_tar(f"out/{split}.tar", members)
        assert_same(tmp_path / "out", table(tmp_path, {"label": both["age"]}), "values", AUTO, AUTO)


def test_an_image_without_a_number_is_left_out(tmp_path: Path) -> None:
    parquet(tmp_path / "out", {"label": [None if n == 3 else n / 3 for n in range(COUNT)]})
    assert len(load_splits(str(tmp_path / "out"), **SIZE).train) == COUNT - 5


@pytest.mark.parametrize("kind", ["shards", "parquet"])
@pytest.mark.parametrize("coloured", [False, True])
def test_masks_are_those_of_the_folder(kind: str, coloured: bool, tmp_path: Path) -> None:
    random, folder = np.random.default_rng(0), tmp_path / "folder"
    colours = np.array([(0, 0, 0), (200, 10, 10), (10, 200, 10)], np.uint8)
    for number in range(COUNT):
        split = "test" if number >= COUNT - 4 else "train"
        for place in ("images", "masks"):
            (folder / place / split).mkdir(parents=True, exist_ok=True)
        (folder / "images" / split / f"{number}.png").write_bytes(encoded(number))
        mask = random.integers(0, 3, (9, 12)).astype(np.uint8)
        Image.fromarray(colours[mask] if coloured else mask).save(folder / "masks" / split / f"{number}.png")
    if coloured:
        lines = [f"{name},{r},{g},{b}" for name, (r, g, b) in zip("abc", colours.tolist(), strict=True)]
        (folder / "class_dict.csv").write_text("name,r,g,b\n" + "\n".join(lines) + "\n")
    if kind == "shards":
        write_shards(folder, tmp_path / "out", shard_bytes=6000)
    elif coloured:
        pytest.skip("a table has no list of colours")
    else:
        files = [folder / "masks" / ("test" if n >= COUNT - 4 else "train") / f"{n}.png" for n in range(COUNT)]
        parquet(tmp_path / "out", {"mask": [{"bytes": file.read_bytes(), "path": None} for file in files]})
    assert_same(tmp_path / "out", folder, "masks", AUTO, AUTO)


def test_text_beside_images_is_no_mask(tmp_path: Path) -> None:
    parquet(tmp_path / "out", {"annotation": ["a picture"] * COUNT, "label": [n % 2 for n in range(COUNT)]})
    assert load_splits(str(tmp_path / "out"), **SIZE).class_names == ("0", "1")


def test_stated_labels_are_read_where_there_are_masks_too(tmp_path: Path) -> None:
    masks = [{"bytes": encoded(0), "path": None}] * COUNT
    parquet(tmp_path / "out", {"mask": masks, "label": [n % 2 for n in range(COUNT)]})
    splits = load_splits(str(tmp_path / "out"), options=LayoutOptions(task="classification"), **SIZE)
    assert splits.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"labels": TAGS}, LayoutOptions(task="classification"), "list of labels.*--task multilabel"),
        ({"label": [[1.5, 2.0]] * COUNT}, AUTO, "kind list.*need a column each"),
        ({"label": [1.5] * COUNT}, AUTO, "nothing to learn"),
        ({"label": [0, 1] * (COUNT // 2)}, LayoutOptions(label_column=("kind",)), "label_column is 'kind'"),
        ({"a": ["x"] * COUNT, "b": ["y"] * COUNT}, LayoutOptions(label_column=("a", "b")), "holds 'x'"),
        ({"label": ["a", None] * (COUNT // 2)}, AUTO, "without a label"),
    ],
)
def test_what_cannot_be_read_is_refused(
    columns: dict[str, Any], options: LayoutOptions, message: str, tmp_path: Path
) -> None:
    parquet(tmp_path / "out", columns)
    with pytest.raises(UsageError, match=message):
        open_stream(tmp_path / "out", tmp_path, options=options)


def test_labels_of_two_forms_are_refused(tmp_path: Path, make_tar: Any) -> None:
    one, other = {"a.png": encoded(0), "a.json": b'["x"]'}, {"b.png": encoded(1), "b.cls": b"x"}
    make_tar("out/0.tar", one)
    make_tar("out/1.tar", other)
    with pytest.raises(UsageError, match="different forms"):
        open_stream(tmp_path / "out", tmp_path)
    make_tar("both/0.tar", one | other)
    with pytest.raises(UsageError, match=r"0\.tar has labels of different forms"):
        open_stream(tmp_path / "both", tmp_path)
    make_tar("fields/0.tar", {"a.png": encoded(0), "a.json": b'{"age": 3}'})
    with pytest.raises(UsageError, match="no field 'height'; it has age"):
        open_stream(tmp_path / "fields", tmp_path, options=LayoutOptions(label_column=("age", "height")))


def test_the_hub_has_one_label_an_image() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UsageError, match="to_parquet"):
        from_splits({}, "hf:a/b", evaluation=False, options=LayoutOptions(task="regression"))
