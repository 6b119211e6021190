"""Tables with several labels, or with numbers, of an image: what is recognised, and what is refused or counted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import dataset_info, load_splits
from mereo.data.layout import read_layout
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError

COUNT = 12


@pytest.fixture
def pictures(make_folder) -> Path:
    return make_folder("all=12", name="pictures").parent


def table(folder: Path, head: str, *cells: str, name: str = "table.csv") -> str:
    """A table of the pictures with their cells, which are repeated."""
    rows = [f"pictures/all/{n:03d}.png,{cells[n % len(cells)]}" for n in range(COUNT)]
    (folder / name).write_text("\n".join([f"image,{head}", *rows]) + "\n")
    return str(folder / name)


def test_labels_of_a_cell_and_of_columns_are_the_same_set(pictures: Path) -> None:
    cells = table(pictures, "tags", "red;big", "big", "", "red")
    columns = table(pictures, "big,red", "1,1", "1,0", "0,0", "0,1", name="columns.csv")
    for path in (cells, columns):
        info = dataset_info(path)
        assert info.fields == ("images", "multi_hot") and info.layout is not None
        assert info.layout.names == ("big", "red") and "3 images have none" in info.layout.evidence
        split = info.layout.splits["train"]
        assert split.fields["multi_hot"][:4].tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]
        assert split.take(torch.tensor([3, 0])).fields["multi_hot"].tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("stream", [False, True])
def test_numbers_are_served_with_their_images(pictures: Path, stream: bool) -> None:
    path = table(pictures, "angle,split", "-1.5,train", "2,train", "0.25,test")
    splits = load_splits(path, img_size=8, validation_fraction=0, stream=stream)
    batch = splits.train.batch(torch.tensor([1, 0]))
    assert splits.class_names == ("angle",) and len(splits.train) == 8
    assert batch.values is not None and batch.values.tolist() == [[2.0], [-1.5]]


def test_lists_in_json_are_several_labels(pictures: Path) -> None:
    records = [{"file": f"pictures/all/{n:03d}.png", "tags": [["a", "b"], ["b"], []][n % 3]} for n in range(COUNT)]
    (pictures / "tags.json").write_text(json.dumps(records))
    layout = dataset_info(pictures / "tags.json").layout
    assert layout is not None and layout.names == ("a", "b")


def test_a_stated_task_decides_where_two_fit(pictures: Path) -> None:
    whole = table(pictures, "label", "1", "2", "5")
    kinds = {None: "labels", "regression": "values"}
    assert {task: dataset_info(whole, options=LayoutOptions(task=task)).fields[1] for task in kinds} == kinds
    hot = table(pictures, "a,b", "1,0", "0,1", name="hot.csv")
    kinds = {None: "labels", "multilabel": "multi_hot", "classification": "labels", "regression": "values"}
    assert {task: dataset_info(hot, options=LayoutOptions(task=task)).fields[1] for task in kinds} == kinds
    words = table(pictures, "label", "big red", "small", name="words.csv")
    kinds = {None: "labels", "multilabel": "multi_hot"}
    assert {task: dataset_info(words, options=LayoutOptions(task=task)).fields[1] for task in kinds} == kinds
    # A task that only follows from the network leaves the table to say what it holds.
    fractions = table(pictures, "label", "1.5", "2.5", "3", name="fractions.csv")
    assert dataset_info(fractions, options=LayoutOptions(task="classification", follows=True)).fields[1] == "values"


def test_several_columns_are_named(pictures: Path) -> None:
    path = table(pictures, "x,y,kind", "1.5,2,left", "0.5,1,right")
    layout = dataset_info(path, options=LayoutOptions(label_column=("y", "x"))).layout
    assert layout is not None and layout.names == ("y", "x")
    assert layout.splits["train"].fields["values"][0].tolist() == [2.0, 1.5]
    with pytest.raises(UsageError, match=r"label_column is x kind, and x holds '1\.5'"):
        dataset_info(path, options=LayoutOptions(label_column=("x", "kind")))


def test_rows_without_a_number_are_counted_and_left_out(pictures: Path) -> None:
    layout = dataset_info(table(pictures, "age", "1.5", "nan", "2", "")).layout
    assert layout is not None and len(layout.splits["train"]) == 6 and "6 rows" in layout.evidence


@pytest.mark.parametrize(
    ("head", "cells", "task", "words"),
    [
        ("age", ("1.5", "inf"), None, r"line 3: age is 'inf'"),
        ("age", ("3.5",), None, r"3\.5 in 'age' for all 12"),
        ("age", ("1.5", "2.5", "old"), None, r"'age', and 4 cells of other text, such as 'old'"),
        ("age", ("1", "2", "old"), "regression", r"4 cells of other text, such as 'old'"),
        ("label,split", ("nan,train",), "regression", r"no number in the column 'label'"),
        ("x,y", ("1.5,2.5", "2.5,3"), None, r"--label-column x y"),
        ("tags", ("a;b",), None, r"same labels for all 12 training images \(a, b\)"),
        ("tags,split", ("a;b,train", "b,train", "a;rare,val"), None, r"no training image has \(rare 4\)"),
        ("tags,split", ("a;b,val", "b,val"), None, r"no training images"),
        ("label", ("a", "", "b"), None, r"line 3.*4 of 12 rows have an empty label"),
        ("label", ("1e39", "2.5"), "regression", r"too large"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_its_count(
    pictures: Path, head: str, cells: tuple[str, ...], task: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        dataset_info(table(pictures, head, *cells), options=LayoutOptions(task=task))


def test_labels_of_a_trained_network_keep_their_order(pictures: Path) -> None:
    path = table(pictures, "tags", "a;b", "b")
    layout = dataset_info(path, options=LayoutOptions(task="multilabel", names=("b", "c", "a"))).layout
    assert layout is not None and layout.splits["train"].fields["multi_hot"][0].tolist() == [1, 0, 1]
    with pytest.raises(UsageError, match="a 6"):
        dataset_info(path, options=LayoutOptions(task="multilabel", names=("b", "c")))


def numbers_table(folder: Path, cells: list[str], column: str = "age") -> Path:
    """A table with semicolons, as spreadsheets write it where a comma is in the numbers."""
    folder.mkdir()
    for number, _ in enumerate(cells):
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(folder / f"{number}.png")
    rows = [f"image;{column}", *(f"{number}.png;{cell}" for number, cell in enumerate(cells))]
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


def test_decimal_commas_are_numbers_of_a_regression(tmp_path: Path) -> None:
    table = numbers_table(tmp_path / "a", ["3,14", "2,5", "-1,25", "", "7", ",5"])
    split = read_layout(table, options=LayoutOptions(task="regression")).splits["train"]
    assert split.fields["values"].flatten().tolist() == [pytest.approx(v) for v in (3.14, 2.5, -1.25, 7, 0.5)]
    table = numbers_table(tmp_path / "b", ["3,5", "2,5", "3,5", "2,5"], "label")
    with pytest.raises(UsageError, match=r"'3,5'.*--task regression.*--task multilabel"):
        read_layout(table)
    assert read_layout(table, options=LayoutOptions(task="multilabel")).names == ("2", "3", "5")
    table = numbers_table(tmp_path / "c", ["1,234", "12,500"])
    with pytest.raises(UsageError, match=r"'1,234'.*a fraction or thousands"):
        read_layout(table, options=LayoutOptions(task="regression"))


def test_a_row_for_each_label_is_refused_and_a_few_are_counted(tmp_path: Path) -> None:
    table = numbers_table(tmp_path / "a", ["cat", "dog"] * 10, "label")
    rows = table.read_text()
    table.write_text(rows + "".join(f"{n}.png;eel\n" for n in range(4)))
    with pytest.raises(
        UsageError, match=r"4 images in rows with different answers, such as '0\.png' with 'cat' and 'eel'"
    ):
        read_layout(table)
    table.write_text(rows + "0.png;eel\n1.png;dog\n")
    with pytest.warns(UserWarning, match="1 image in rows with different answers"):
        read_layout(table)
