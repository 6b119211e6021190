"""Images that a run was trained on are recognised by their content, wherever they lie."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
from PIL import Image

from mereo.cli.main import main
from mereo.data import ImageSet, load_splits
from mereo.data.stream import StreamedSet
from mereo.errors import UsageError
from mereo.inference.predict import read_images
from mereo.measure.trained_models import is_own, load_trained_models
from mereo.training.config import TrainConfig
from mereo.training.fingerprints import fingerprints, keep_fingerprints, recorded_images, trained_on
from mereo.training.report import Report
from mereo.training.results import RunResult
from mereo.training.run_folder import RunFolder
from mereo.training.trainer import train
from pictures import picture

if TYPE_CHECKING:
    from mereo.models import VisionModel

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
    (folder / "cat" / "notes.dat").write_text("not an image")
    with pytest.warns(UserWarning):
        return train(small_config(data=str(folder), limit=None, epochs=1, batch_size=4), Report(silent=True))


def test_equal_pixels_have_equal_fingerprints() -> None:
    pixels = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    pixels[3] = pixels[1]
    images = ImageSet(pixels, torch.zeros(5, dtype=torch.int64), ("a",))
    marks = fingerprints(images, (4, 6)).tolist()
    assert marks[3] == marks[1]
    assert len(set(marks)) == 4
    pixels[0] = pixels[2]
    pixels[0, :, :, 0] += 1  # outside the centre that the network takes
    assert len(set(fingerprints(images, (4, 6)).tolist())) == 4
    assert len(set(fingerprints(images, (2, 4)).tolist())) == 3


@pytest.mark.filterwarnings("ignore:.*has no test split")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "crop_pct"), [((16, 16), 1.0), ((12, 20), 0.7), ((9, 9), 0.875), ((40, 32), 2 / 3)])
def test_files_are_recognised_as_prediction_reads_them(
    tmp_path: Path, stream: bool, size: tuple[int, int], crop_pct: float
) -> None:
    """Training, of stored images or of a stream, and prediction give one image the same fingerprint."""
    folder, foreign = tmp_path / "photos", tmp_path / "foreign"
    turned = Image.Exif()
    turned[0x0112] = 6
    for place, seed in ((folder, 0), (foreign, 500)):
        for number, name in enumerate(("cat", "dog")):
            (place / name).mkdir(parents=True)
            for index in range(4):  # large enough for a stream to decode them at a part of their size
                shown = picture(seed + number * 100 + index, (300, 230))
                shown.save(place / name / f"{index}.jpg", quality=90, exif=turned if index == 1 else Image.Exif())
            picture(seed + number * 100 + 50, (31, 17)).convert("L").save(place / name / "grey.png")
    splits = load_splits(
        str(folder), img_size=size, in_chans=3, crop_pct=crop_pct, validation_fraction=0.3, stream=stream
    )
    kept = RunFolder(tmp_path / "run")
    kept.path.mkdir()
    keep_fingerprints(kept, splits, size)
    model = cast("VisionModel", SimpleNamespace(image_shape=(3, *size), pretrained_cfg={"crop_pct": crop_pct}))
    copies = []
    for path in sorted(folder.rglob("*.*")):
        copies.append(tmp_path / f"copy-{path.parent.name}-{path.stem}.png")  # a name of another kind, too
        shutil.copy(path, copies[-1])
    seen = trained_on(kept.path)
    # A training image of each class is in neither the test nor the validation split.
    trained = len(splits.train)
    assert 0 < trained < len(copies)
    assert int(seen(read_images(copies, model)[1]).sum()) == trained
    (kept.path / "weights").mkdir()
    assert int(trained_on(kept.path / "weights" / "best.safetensors")(read_images(copies, model)[1]).sum()) == trained
    assert not seen(read_images(sorted(foreign.rglob("*.*")), model)[1]).any()
    for images in (splits.train, splits.validation):
        assert images is not None and recorded_images(kept.path, images, size).all()
    assert not recorded_images(kept.path, splits.test, size).any()
    assert not trained_on(tmp_path)(read_images(copies, model)[1]).any()


@pytest.mark.filterwarnings("ignore:.*has no test split")
def test_unreadable_images_of_a_stream_do_not_hide_the_others(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 0, 6)
    splits = load_splits(str(folder), img_size=8, in_chans=3, stream=True)
    kept = RunFolder(tmp_path / "run")
    kept.path.mkdir()
    keep_fingerprints(kept, splits, (8, 8))
    assert isinstance(splits.train, StreamedSet)
    broken = next(folder.rglob(splits.train.source.name(1)))
    broken.write_bytes(broken.read_bytes()[:40])
    again = load_splits(str(folder), img_size=8, in_chans=3, stream=True).train
    assert recorded_images(kept.path, again, (8, 8)).tolist() == [n != 1 for n in range(len(again))]


def test_prediction_counts_apart_what_was_trained_on(
    run: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = photos(tmp_path / "copied", 50, 3)
    for path in (tmp_path / "photos").rglob("*.png"):
        shutil.copy(path, copied / path.parent.name / f"copy-{path.name}")
    words = ["predict", str(copied), "--weights", str(run.folder.path), "--json", "--device", "cpu"]
    assert main(words) == 0
    counted = json.loads(capsys.readouterr().out)["summary"]
    # Twenty images: four set aside for testing, two to choose the epoch by.
    assert counted["trained_on"] == 14 and counted["all"]["count"] == 26 and counted["held_out"]["count"] == 12


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
    assert [line.split(",")[1:] for line in lines[1:]] == [["cat/notes.dat", "not an image"]]
