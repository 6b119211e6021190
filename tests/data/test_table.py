"""Tables of images."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mereo.data import dataset_info, load_splits
from mereo.errors import MereoError, UsageError
from mereo.inference.labelled import UNKNOWN, folder_labels
from mereo.inference.predict import find_images

MakeFolder = Callable[..., Path]


@pytest.fixture
def pictures(make_folder: MakeFolder) -> Path:
    return make_folder("cat=6", "dog=5", name="pictures")


def write(folder: Path, *lines: str, head: str = "path,label,split") -> str:
    path = folder.parent / "table.csv"
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(path)


def listed(folder: Path, split: str = "") -> list[str]:
    return [f"{path.relative_to(folder.parent)},{path.parent.name},{split}" for path in sorted(folder.rglob("*.png"))]


def test_a_table_reads_what_its_folder_does(pictures: Path) -> None:
    table = write(pictures, *(line.removesuffix(",") for line in listed(pictures)), head="path,label")
    with pytest.warns(UserWarning, match="no test split"):
        one = load_splits(table, img_size=8)
    with pytest.warns(UserWarning, match="no test split"):
        other = load_splits(str(pictures), img_size=8)
    assert one.class_names == other.class_names == ("cat", "dog")
    for ours, theirs in zip(one[:3], other[:3], strict=True):
        everything = torch.arange(len(theirs))
        assert torch.equal(ours.batch(everything).images, theirs.batch(everything).images)
        assert torch.equal(ours.batch(everything).labels, theirs.batch(everything).labels)


def test_splits_absolute_paths_and_numbers_as_classes(pictures: Path) -> None:
    lines = [f"{path},{number % 11}," for number, path in enumerate(sorted(pictures.rglob("*.png")))]
    table = write(pictures, *lines, "pictures/cat/000.png,0,val", "pictures/dog/000.png,10,test")
    info = dataset_info(table)
    assert (info.num_classes, info.splits, info.size) == (11, {"train": 11, "validation": 1, "test": 1}, (8, 8))
    splits = load_splits("table.csv", root=pictures.parent, img_size=8)
    assert splits.class_names == tuple(map(str, range(11))), "by value, not by letters"
    assert splits.test.batch(torch.arange(1)).labels.tolist() == [10]


def test_missing_files_are_named_and_skipped(pictures: Path) -> None:
    table = write(pictures, *listed(pictures, "train"), *listed(pictures, "test"), "pictures/cat/none.png,cat,train")
    with pytest.warns(UserWarning, match=r"none.png .*Skipped"):
        assert load_splits(table, img_size=8, validation_fraction=0).skipped == 1


@pytest.mark.parametrize(
    ("head", "line", "error", "fact"),
    [
        ("path,kind", "a.png,cat", UsageError, "no column 'label'"),
        ("", "", UsageError, "no column 'path'"),
        ("path,label,split", "a.png,cat,eval", UsageError, "line 2: split is 'eval'"),
        ("path,label", "a.png,", UsageError, "line 2: it must have one path"),
        ("path,label", "a.png,cat,more", UsageError, "line 2: it must have one path"),
        ("path,label", "a.png,cat", UsageError, "one class only, 'cat'"),
        ("path,label,split", "a.png,cat,test", UsageError, "no training images"),
        ("path,label", 'a.png,"cat', MereoError, "cannot be read"),
        ("path,label", "a.png,cat\0", UsageError, "."),
    ],
)
def test_wrong_tables_are_refused(pictures: Path, head: str, line: str, error: type, fact: str) -> None:
    with pytest.raises(error, match=fact):
        load_splits(write(pictures, line, head=head), img_size=8)


def test_long_names_of_the_splits_are_known(pictures: Path) -> None:
    rows = [f"{line}{split}" for line, split in zip(listed(pictures), ("training", "Testing") * 99, strict=False)]
    splits = load_splits(write(pictures, *rows, head="path,label,split"), img_size=8, validation_fraction=0)
    assert len(splits.train) + len(splits.test) == len(rows) and len(splits.test) == len(rows) // 2


def test_a_table_of_other_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"path,label\n\xff.png,cat\n")
    with pytest.raises(MereoError, match="UTF-8"):
        load_splits(str(tmp_path / "table.csv"), img_size=8)


def test_a_class_that_only_test_images_have_is_refused(pictures: Path) -> None:
    table = write(pictures, *listed(pictures), "pictures/cat/000.png,bird,test")
    with pytest.raises(UsageError, match="class 'bird'"):
        load_splits(table, img_size=8)


@pytest.mark.parametrize(
    ("head", "delimiter"), [("file_name,label", ","), ("Path;Class;Split", ";"), ("image\ttarget\tset", "\t")]
)
def test_usual_names_of_columns_and_delimiters(pictures: Path, head: str, delimiter: str) -> None:
    names = head.split(delimiter)
    rows = [[f"{n}.png", "cat" if n % 2 else "dog", "TRAIN" if n < 6 else "test"][: len(names)] for n in range(8)]
    for name, *_ in rows:
        (pictures / name).touch()
    table = pictures / "table.csv"
    table.write_text("\n".join([head, *(delimiter.join(row) for row in rows)]))
    info = dataset_info(str(table))
    assert info.num_classes == 2
    assert dict(info.splits) == ({"train": 8} if len(names) == 2 else {"train": 6, "test": 2})


def test_a_table_of_which_no_image_exists_names_the_folder_that_was_looked_in(pictures: Path) -> None:
    table = write(pictures, "a.png,cat", "b.png,dog", head="path,label")
    with pytest.raises(UsageError, match=r"lists 2 images, and none .*'a\.png'") as refused:
        load_splits(table, img_size=8)
    assert repr(str(pictures.parent)) in str(refused.value)
    with pytest.raises(UsageError, match="lists 2 images"):
        find_images([table])


def test_a_table_can_be_predicted_with_its_labels(pictures: Path) -> None:
    table = write(pictures, *(line.removesuffix(",") for line in listed(pictures)), head="path,label")
    paths = find_images([table])
    assert [path.parent.name for path in paths] == ["cat"] * 6 + ["dog"] * 5
    assert folder_labels([table], paths, ("dog", "cat")).tolist() == [1] * 6 + [0] * 5
    assert folder_labels([table], paths, ("dog", "bird")).tolist() == [UNKNOWN] * 6 + [0] * 5


def test_a_name_without_a_suffix_is_the_only_image_of_that_name(pictures: Path) -> None:
    """As in tables of Kaggle: the images are in a folder beside the table."""
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        path.rename(pictures / f"{number:x}.v2{'.PNG' if number % 2 else '.png'}")
    rows = [f"{number:x}.v2,{'cat' if number < 6 else 'dog'}" for number in range(11)]
    table = write(pictures, *rows, head="image_id,label")
    assert dataset_info(table).splits == {"train": 11}
    assert find_images([table]) == [
        pictures.parent / "pictures" / f"{n:x}.v2{'.PNG' if n % 2 else '.png'}" for n in range(11)
    ]
    # The folder may be stated; the file of just that name is taken; one that is missing is named and skipped.
    (pictures / "0.v2.png").rename(pictures / "plain")
    (pictures / "1.v2.PNG").rename(pictures / "plain.png")
    lines = ["pictures/plain,cat", *(f"pictures/{row}" for row in rows[2:])]
    table = write(
        pictures,
        *(f"{line},{split}" for split in ("train", "test") for line in lines),
        "pictures/1.v2,cat,train",
        head="id,label,split",
    )
    with pytest.warns(UserWarning, match=r"1 file .*pictures/1\.v2 .*Skipped"):
        assert load_splits(table, img_size=8, validation_fraction=0).skipped == 1
    assert find_images([table])[0].name == "plain"


def test_a_name_of_two_images_or_of_none_is_refused(pictures: Path) -> None:
    table = write(pictures, "000,cat", "001,dog", head="image_id,label")
    with pytest.raises(UsageError, match=r"the image '000', which several .*: cat/000\.png, dog/000\.png") as no:
        load_splits(write(pictures / "cat", "000,cat", "001,dog", head="image_id,label"), img_size=8)
    assert "with its folder and its suffix" in str(no.value)
    with pytest.raises(UsageError, match=r"the image '000', which several .*: pictures/cat/000\.png"):
        load_splits(table, img_size=8)
    with pytest.raises(UsageError, match=r"none of its images exists, such as 'x'"):
        load_splits(write(pictures, "x,cat", "y,dog", head="image_id,label"), img_size=8)


def test_two_columns_of_one_name_are_refused_where_they_are_read(pictures: Path) -> None:
    rows = [f"{line}x,y" for line in listed(pictures)]
    with pytest.raises(UsageError, match="more than one column 'label'"):
        dataset_info(write(pictures, *rows, head="path,label,label,other"))
    twice = write(pictures, *(f"{line},,y" for line in listed(pictures)), head="path,label,split,other,other")
    assert dataset_info(twice).num_classes == 2
