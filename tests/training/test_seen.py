"""Images that a run was trained on are recognised by their content, wherever they lie."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from mereo.data import ImageSet
from mereo.errors import UsageError
from mereo.measure.trained_models import is_own, load_trained_models
from mereo.training.config import TrainConfig
from mereo.training.engine import train
from mereo.training.report import Report
from mereo.training.results import RunResult
from mereo.training.seen import fingerprints
from pictures import picture

Make = Callable[..., TrainConfig]


def photos(root: Path, first: int, count: int) -> Path:
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for index in range(first, first + count):
            picture(number * 1000 + index, (16, 16)).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def run(small_config: Make, tmp_path: Path) -> RunResult:
    folder = photos(tmp_path / "photos", 0, 10)
    (folder / "cat" / "notes.txt").write_text("not an image")
    with pytest.warns(UserWarning):
        return train(small_config(data=str(folder), limit=None, epochs=1, batch_size=4), Report(silent=True))


def test_equal_pixels_have_equal_fingerprints() -> None:
    pixels = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    pixels[3] = pixels[1]
    marks = fingerprints(ImageSet(pixels, torch.zeros(5, dtype=torch.int64), ("a",))).tolist()
    assert marks[3] == marks[1]
    assert len(set(marks)) == 4


def test_other_images_of_a_folder_without_splits_are_all_evaluated(run: RunResult, tmp_path: Path) -> None:
    (model,) = load_trained_models([run.folder.path], data=str(photos(tmp_path / "new", 50, 7)), device="cpu")
    assert len(model.split) == 14


def test_images_that_the_run_was_trained_on_are_left_out(run: RunResult, tmp_path: Path) -> None:
    copied = photos(tmp_path / "copied", 50, 3)
    for path in (tmp_path / "photos").rglob("*.png"):
        shutil.copy(path, copied / path.parent.name / f"copy-{path.name}")
    with pytest.warns(UserWarning, match="16 of the 26 images.*left out"):
        (model,) = load_trained_models([run.folder.path], data=str(copied), device="cpu")
    # Six new ones, and the four that the run had set aside for testing.
    assert len(model.split) == 10
    only = tmp_path / "only"
    for path in (tmp_path / "photos").rglob("*.png"):
        (only / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, only / path.parent.name)
    with pytest.warns(UserWarning, match="16 of the 20 images"):
        (model,) = load_trained_models([run.folder.path], data=str(only), device="cpu")
    assert len(model.split) == 4


def test_only_training_images_are_refused(run: RunResult, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (seen / "cat").mkdir(parents=True)
    with pytest.warns(UserWarning):
        own = load_trained_models([run.folder.path], split="train", device="cpu")[0].split
    for index, pixels in enumerate((own.batch(torch.arange(3)).images * 255).round().to(torch.uint8)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(seen / "cat" / f"{index}.png")
    with pytest.raises(UsageError, match="all of its 3 images"):
        load_trained_models([run.folder.path], data=str(seen), device="cpu")


def test_the_same_folder_by_another_path_is_the_run_s_own(
    run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrainConfig.from_yaml(run.folder.config)
    assert is_own(config, "photos", None) and is_own(config, "./photos/../photos", None)
    assert not is_own(config, "runs", None) and not is_own(config, "digits", None) and not is_own(None, "photos", None)
    with pytest.warns(UserWarning, match="no test split"):
        (model,) = load_trained_models([run.folder.path], data="photos", device="cpu")
    assert len(model.split) == 4


def test_unreadable_files_are_listed(run: RunResult) -> None:
    lines = run.folder.set_aside.read_text().splitlines()
    assert lines[0] == "split,file,reason"
    assert [line.split(",")[1:] for line in lines[1:]] == [["cat/notes.txt", "not an image"]]
