"""Folders and archives from anywhere: links, pipes and sockets, and members beyond the bounds."""

import os
import socket
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mereo.data import dataset_info, load_splits, trees
from mereo.data.trees import FolderTree
from mereo.errors import MereoError, UsageError

MakeFolder = Callable[..., Path]
TWO = ("train/cat=4", "train/dog=4", "test/cat=1", "test/dog=1")


def link(place: Path, target: Path | str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def each_class_into_the_other(root: Path) -> None:
    link(root / "train/cat/more", root / "train/dog")
    link(root / "train/dog/more", root / "train/cat")


def many_loops(root: Path) -> None:
    for number in range(12):
        link(root / f"train/cat/loop{number}", root / "train")


def two_levels_of_links(root: Path) -> None:
    (root / "train/cat/a").mkdir()
    link(root / "train/cat/a/b", root / "train/cat")
    link(root / "train/cat/a/c", root / "train/cat/a/b")


def files_of_the_other_class(root: Path) -> None:
    for path in sorted((root / "train/dog").iterdir()):
        link(root / "train/cat" / f"linked-{path.name}", path)


def up_to_the_data_set(root: Path) -> None:
    link(root / "train/cat/root", root)
    link(root / "train/cat/relative", "../..")


@pytest.mark.parametrize(
    "make",
    [each_class_into_the_other, many_loops, two_levels_of_links, files_of_the_other_class, up_to_the_data_set],
)
def test_links_inside_a_data_set_add_no_image_twice(make_folder: MakeFolder, make: Callable[[Path], None]) -> None:
    root = make_folder(*TWO)
    make(root)
    info = dataset_info(root)
    assert (info.num_classes, info.splits) == (2, {"train": 8, "test": 2})


def test_a_data_set_of_links_to_its_hidden_store_is_read(make_folder: MakeFolder) -> None:
    root = make_folder(".store/cat=4", ".store/dog=3")
    link(root / "train/cat", root / ".store/cat")
    for path in sorted((root / ".store/dog").iterdir()):
        link(root / "train/dog" / path.name, path)
    assert dataset_info(root).splits == {"train": 7}
    link(root.parent / "alias", root)
    assert dataset_info(root.parent / "alias").splits == {"train": 7}


@pytest.mark.parametrize("target", ["elsewhere/cat", "elsewhere/cat/000.png", "/", "nowhere"])
def test_links_out_of_a_data_set_are_refused(make_folder: MakeFolder, target: str) -> None:
    make_folder("cat=2", name="elsewhere")
    root = make_folder(*TWO)
    link(root / "train/cat/out", target if target == "/" else root.parent / target)
    with pytest.raises(UsageError, match=r"train/cat/out is a link"):
        dataset_info(root)


@pytest.mark.parametrize("target", ["missing.png", "broken"])
def test_broken_links_are_named_as_unreadable(make_folder: MakeFolder, target: str) -> None:
    root = make_folder(*TWO)
    link(root / "train/cat/broken", target)
    with pytest.warns(UserWarning, match="1 file in .*train/cat/broken"):
        assert load_splits(str(root), img_size=8, validation_fraction=0).skipped == 1


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL = [make_pipe, make_socket]


@pytest.mark.parametrize("make", SPECIAL)
def test_special_files_in_a_folder_are_named_and_never_opened(
    make_folder: MakeFolder, make: Callable[[Path], None]
) -> None:
    root = make_folder(*TWO)
    make(root / "train/cat/special.png")
    with pytest.warns(UserWarning, match=r"special.png \(not a regular file\)"):
        assert load_splits(str(root), img_size=8, validation_fraction=0).skipped == 1


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["special", "special.zip", "special.csv"])
def test_special_files_as_data_are_refused(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / name)
    with pytest.raises(UsageError, match="a pipe, a device or a socket"):
        load_splits(str(tmp_path / name), img_size=8)


def test_devices_as_data_are_refused() -> None:
    with pytest.raises(UsageError, match="a pipe, a device or a socket"):
        load_splits("/dev/zero", img_size=8)


@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "MNIST/raw/train-images-idx3-ubyte"), ("cifar10", "cifar-10-batches-py/data_batch_1")]
)
def test_special_files_in_a_published_data_set_are_refused(tmp_path: Path, name: str, file: str) -> None:
    folder = (tmp_path / file).parent
    folder.mkdir(parents=True)
    others = ["data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", "batches.meta",
              "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]  # fmt: skip
    for other in others:
        (folder / other).write_bytes(b"")
    os.mkfifo(tmp_path / file)
    with pytest.raises(MereoError, match="not a regular file"):
        load_splits(name, root=tmp_path, img_size=28)


def test_a_folder_that_cannot_be_read_is_an_error(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(*TWO)
    scan = os.scandir

    def refuse(path: str):
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(MereoError, match="dog cannot be read: Permission denied"):
        FolderTree(root)


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("a/" * 30_000 + "x.png", "a member in 30,000 folders"),
        ("a/" * 33, "a member in 33 folders"),
        ("a/" + "b" * 5000 + ".png", "a name of 5,006 characters"),
        ("." + "a/" * 30_000 + "x.png", "a member in 30,000 folders"),
    ],
    ids=["deep", "deep folder", "long", "hidden"],
)
def test_members_beyond_the_bounds_use_no_memory(tmp_path: Path, name: str, fact: str) -> None:
    path = archive(tmp_path / "images.zip", "train/cat/0.png", name)
    tracemalloc.start()
    with pytest.raises(MereoError, match=fact):
        dataset_info(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_an_archive_of_too_many_members_is_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "images.zip", *(f"train/cat/{number}.png" for number in range(100)))
    monkeypatch.setattr(trees, "_LARGEST_DIRECTORY", 5000)
    monkeypatch.setattr(zipfile.ZipFile, "__init__", None)
    with pytest.raises(MereoError, match=r"a list of members of .* bytes"):
        dataset_info(path)


STRANGE = ["~nosuchuser/data", "~nosuchuser", "a\0b", "./a\0b", "a\ud800b", "/a\ud800", "x" * 5000, "./" + "x" * 300]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
@pytest.mark.parametrize("argument", ["data", "root", "cache_dir"])
def test_strange_paths_are_wrong_use(text: str, argument: str) -> None:
    arguments = {"data": "no-such-data", "img_size": 8, argument: text}
    if argument == "cache_dir":
        if len(text) > 100:
            pytest.skip("a long name is refused by the system, when the folder is made")
        arguments["data"] = "digits"
    with warnings.catch_warnings(), pytest.raises(UsageError) as caught:
        warnings.simplefilter("error")
        load_splits(**arguments)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 2000 or len(text) > 1000
    str(caught.value).encode()  # a message can be written
