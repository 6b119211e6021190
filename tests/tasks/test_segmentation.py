"""Segmentation: losses and metrics against loops, and masks written in the size of the images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.cli.main import main
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.tasks import Segmentation
from mereo.tasks.base import Seen
from mereo.tasks.mask_pictures import PALETTE
from mereo.tasks.segmentation import SegmentationMetrics, dice_loss, pixel_loss

NAMES = ("ground", "cat", "dog")


def some(count: int = 3, side: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 3, side, side), torch.randint(-1, 3, (count, side, side))


def test_losses_are_those_of_loops() -> None:
    scores, masks = some()
    shares = scores.softmax(1)
    places = [(b, y, x) for b, y, x in np.ndindex(*masks.shape) if masks[b, y, x] >= 0]
    entropy = sum(-shares[b, masks[b, y, x], y, x].log() for b, y, x in places) / len(places)
    torch.testing.assert_close(pixel_loss(scores, masks), entropy)
    overlaps = []
    for c in range(3):
        true = sum(masks[p].item() == c for p in places)
        both = sum(shares[b, c, y, x] for b, y, x in places if masks[b, y, x] == c)
        overlaps.append(2 * both / (true + sum(shares[b, c, y, x] for b, y, x in places)))
    torch.testing.assert_close(dice_loss(scores, masks), 1 - sum(overlaps) / 3)


def test_losses_of_masks_without_any_class_are_zero_with_finite_gradients() -> None:
    scores = torch.zeros(1, 3, 2, 2, requires_grad=True)
    masks = torch.full((1, 2, 2), -1)
    loss = pixel_loss(scores, masks) + dice_loss(scores, masks) - 1
    loss.backward()
    assert loss == 0 and scores.grad is not None and scores.grad.isfinite().all()


def test_metrics_are_those_of_sets_of_pixels_over_all_batches() -> None:
    scores, masks = some(6)
    metrics = SegmentationMetrics(3)
    for part in (slice(0, 1), slice(1, 6)):
        metrics.update(scores[part], Batch(masks=masks[part]))
    predicted, known = scores.argmax(1), masks >= 0
    ious, dices = [], []
    for c in range(3):
        a, b = (predicted == c) & known, masks == c
        ious.append(int((a & b).sum()) / int((a | b).sum()))
        dices.append(2 * int((a & b).sum()) / int(a.sum() + b.sum()))
    right = int((predicted == masks)[known].sum()) / int(known.sum())
    expected = {"mean_iou": sum(ious) / 3, "dice": sum(dices) / 3, "pixel_accuracy": right}
    assert metrics.compute() == pytest.approx(expected)


def test_a_class_that_occurs_nowhere_is_left_out_of_the_means() -> None:
    metrics = SegmentationMetrics(3)
    scores = torch.zeros(1, 3, 1, 4)
    scores[:, 0] = 1
    metrics.update(scores, Batch(masks=torch.tensor([[[0, 0, 1, -1]]])))
    assert metrics.compute() == pytest.approx({"mean_iou": 1 / 3, "dice": 0.4, "pixel_accuracy": 2 / 3})


def test_written_masks_have_the_size_and_place_of_the_image(tmp_path: Path) -> None:
    pixels = torch.tensor([[[0, 1], [2, 1]]], dtype=torch.uint8)
    (file,) = Segmentation(NAMES).write(pixels, ["photo"], tmp_path, [Seen((4, 8), (0, 2, 4, 4))])
    with Image.open(file) as image:
        assert image.mode == "P" and image.getpalette()[:9] == PALETTE[:3].flatten().tolist()
        found = np.asarray(image)
    assert found[:, 2:6].tolist() == [[0, 0, 1, 1]] * 2 + [[2, 2, 1, 1]] * 2
    assert (found[:, :2] == 255).all() and (found[:, 6:] == 255).all()


def test_what_does_not_suit_masks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dice_weight"):
        Segmentation(NAMES, {"dice_weight": -1})
    with pytest.raises(UsageError, match=r"\b5\b"):
        SegmentationMetrics(3).update(torch.zeros(1, 3, 1, 1), Batch(masks=torch.tensor([[[5]]])))


@pytest.mark.long
def test_a_folder_of_pictures_trains_evaluates_predicts_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    for number in range(60):
        mask = np.zeros((20, 24), np.uint8)
        y, x = random.integers(2, 10, 2)
        mask[y : y + 8, x : x + 8] = 1
        Image.fromarray(mask * 160 + random.integers(0, 60, mask.shape, dtype=np.uint8)).save(
            f"data/images/{number}.png"
        )
        Image.fromarray(mask).save(f"data/masks/{number}.png")
    few = ["--model-args", "widths=[6,8]", "--img-size", "16", "--device", "cpu", "--no-tensorboard"]
    words = ["train", "--task", "segmentation", "--data", "data", "--name", "run", "--batch-size", "8", *few]
    assert main([*words, "--epochs", "25", "--lr", "0.01", "--task.dice-weight", "0.3"]) == 0
    assert "signs" not in capsys.readouterr().out, "classes without names are no digits"
    results = json.loads(Path("runs/run/results.json").read_text())
    assert results["test_best"]["mean_iou"] > 0.8
    assert Path("runs/run/samples_test.png").stat().st_size and Path("runs/run/samples_train.png").stat().st_size
    capsys.readouterr()
    assert main(["predict", "data/images", "--weights", "runs/run", "--out", "predicted"]) == 0
    with Image.open("predicted/masks/7.png") as found, Image.open("data/masks/7.png") as true:
        assert found.size == true.size == (24, 20)
        inside = np.asarray(found) != 255
        assert (np.asarray(found) == np.asarray(true))[inside].mean() > 0.9
    assert Path("predicted/predictions.png").stat().st_size
    assert main(["evaluate", "runs/run", "--out", "report"]) == 0
    report = json.loads(Path("report/report.json").read_text())["models"]["run"]
    metrics, intervals = report["metrics"], report["intervals"]
    for name in ("mean_iou", "dice", "boundary_distance"):
        assert intervals[name][0] <= metrics[name] <= intervals[name][1]
    assert metrics["mean_iou"] == pytest.approx(results["test_best"]["mean_iou"], abs=1e-6)
    assert main([*words, "--dry-run"]) == 0
    assert main(["export", "runs/run", "--to", "torch", "--out", "exported"]) == 0
