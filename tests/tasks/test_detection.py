"""Detection: targets and losses against loops, average precision of COCO's API, and what is written."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import added_losses
from mereo.data import Batch
from mereo.tasks import Detection
from mereo.tasks.average_precision import average_precision, match, pack, summarise, unpack
from mereo.tasks.base import Seen
from mereo.tasks.detection import (
    CellTargets,
    DetectionMetrics,
    DetectionOptions,
    detect,
    detect_in_rounds,
    detection_loss,
)
from mereo.training.config import TrainConfig

NAMES = ("cat", "dog", "eel")


def noisy_detections() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Boxes, classes, scores, true boxes and true classes of twelve images."""
    g = torch.Generator().manual_seed(0)
    corner, side = torch.rand(12, 6, 2, generator=g) * 60, 5 + 25 * torch.rand(12, 6, 2, generator=g)
    true = torch.cat([corner, corner + side], -1).round(decimals=2)
    labels = torch.randint(-1, 3, (12, 6), generator=g)
    pick = torch.randint(0, 6, (12, 30), generator=g)
    boxes = true.take_along_dim(pick[..., None], 1) + torch.randn(12, 30, 4, generator=g) * 2.5
    boxes[..., 2:] = torch.maximum(boxes[..., 2:], boxes[..., :2] + 1)
    correct = torch.rand(12, 30, generator=g) < 0.8
    found = torch.where(correct, labels.gather(1, pick).clamp(min=0), torch.randint(0, 3, (12, 30), generator=g))
    return boxes, found, torch.rand(12, 30, generator=g).sort(1, descending=True)[0], true, labels


def test_average_precision_is_that_of_the_api_of_coco() -> None:
    boxes, found, scores, true, labels = noisy_detections()
    correct, counts = match(boxes, found, true, labels), torch.stack([(labels == c).sum(1) for c in range(3)], 1)
    # pycocotools 2.0.11: stats[:3] of COCOeval for the same boxes.
    expected = {"ap": 0.14171028, "ap50": 0.41943098, "ap75": 0.07325702}
    assert summarise(scores, found, correct, counts) == pytest.approx(expected, abs=1e-7)
    weights = torch.tensor([2] + [1] * 10 + [0])
    again = torch.cat((torch.zeros(1), torch.arange(11))).long()
    drawn = [each[again] for each in (scores, found, correct, counts)]
    assert summarise(scores, found, correct, counts, weights) == pytest.approx(summarise(*drawn), abs=1e-9)
    assert bool((unpack(pack(correct).float()) == correct).all())


def test_the_precision_of_three_detections_by_hand() -> None:
    # correct, wrong, correct of two objects: precision 1 up to recall 1/2, then 2/3.
    correct = torch.tensor([True, False, True]).unsqueeze(1).expand(-1, 10)
    found = average_precision(torch.tensor([0.9, 0.8, 0.7]), correct, 2.0)
    torch.testing.assert_close(found, torch.full((10,), (51 + 50 * 2 / 3) / 101, dtype=torch.float64))


def test_each_cell_is_of_the_smallest_object_of_its_level() -> None:
    model = mereo.create_model("detector_small", num_classes=3, img_size=32)
    places, strides = model.cells(32, 32)
    boxes = torch.tensor([[[2.0, 2.0, 14.0, 12.0], [0.0, 0.0, 30.0, 30.0], [4.0, 3.0, 12.0, 12.0], [0.0] * 4]])
    labels = torch.tensor([[0, 1, 2, -1]])
    got = CellTargets(places, strides, boxes, labels)
    assert (strides[0], strides[-1]) == (4, 16)
    for cell, ((x, y), stride) in enumerate(zip(places.tolist(), strides.tolist(), strict=True)):
        fitting = []
        for (x0, y0, x1, y1), label in zip(boxes[0].tolist(), labels[0].tolist(), strict=True):
            ends, near = (x - x0, y - y0, x1 - x, y1 - y), 1.5 * stride
            middle = abs(x - (x0 + x1) / 2) <= near and abs(y - (y0 + y1) / 2) <= near
            level = (max(ends) <= 4 * stride or stride == 16) and (max(ends) > 2 * stride or stride == 4)
            if label >= 0 and min(ends) > 0 and middle and level:
                central = min(ends[::2]) / max(ends[::2]) * min(ends[1::2]) / max(ends[1::2])
                fitting.append(((x1 - x0) * (y1 - y0), label, central**0.5))
        _, label, central = min(fitting, default=(0.0, -1, 0.0))
        assert int(got.labels[0, cell]) == label and got.central[0, cell].item() == pytest.approx(central, abs=1e-6)
    assert {1, 2} < set(got.labels.flatten().tolist())


def test_the_loss_of_a_perfect_prediction_is_nearly_nothing_and_without_objects_finite() -> None:
    model = mereo.create_model("detector_small", num_classes=3, img_size=32)
    places, strides = model.cells(32, 32)
    boxes, labels = torch.tensor([[[2.0, 2.0, 14.0, 12.0]]]), torch.tensor([[1]])
    targets = CellTargets(places, strides, boxes, labels)
    perfect = torch.full((1, len(places), 8), -20.0)
    perfect[..., :4] = targets.boxes / 32
    perfect[..., 4] = torch.logit(targets.central, 1e-6)
    perfect[..., 5:] += (
        40 * torch.nn.functional.one_hot(targets.labels.clamp(min=0), 3) * (targets.labels >= 0)[..., None]
    )
    entropy = torch.distributions.Bernoulli(targets.central[targets.labels >= 0]).entropy().mean()
    assert detection_loss(perfect, targets, (32, 32)).item() == pytest.approx(entropy.item(), abs=1e-3)
    empty = CellTargets(places, strides, boxes, torch.tensor([[-1]]))
    outputs = torch.zeros(1, len(places), 8, requires_grad=True)
    detection_loss(outputs, empty, (32, 32)).backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all() and outputs.grad[..., 5:].any()


def test_overlapping_boxes_of_a_class_are_one_detection() -> None:
    outputs = torch.full((1, 4, 7), -9.0)
    outputs[0, :, :4] = torch.tensor(
        [[0.1, 0.1, 0.5, 0.5], [0.11, 0.1, 0.5, 0.5], [0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 1.2, 0.9]]
    )
    outputs[0, :, 4] = 9
    outputs[0, [0, 1], 5] = torch.tensor([3.0, 2.0])
    outputs[0, 2, 6] = outputs[0, 3, 6] = 1.0
    found = detect(outputs, DetectionOptions())
    assert found.shape == (1, 100, 6) and found[0, :4, 5].tolist() == [0, 1, 1, -1]
    assert sorted(found[0, :3, 2].tolist()) == [0.5, 0.5, 1.0]  # cut at the border
    few = detect(outputs, DetectionOptions(least_score=0.9))
    assert (few[0, :, 5] >= 0).sum() == 1


@pytest.mark.parametrize(("cells", "shift"), [(3, 0.0), (150, 0.0), (150, 2.0), (150, -9.0)])
def test_detecting_in_rounds_gives_the_same(cells: int, shift: float) -> None:
    g = torch.Generator().manual_seed(0)
    corner, side = torch.rand(4, cells, 2, generator=g), 0.02 + 0.5 * torch.rand(4, cells, 2, generator=g)
    logits = 2 * torch.randn(4, cells, 4, generator=g) + shift
    outputs, options = torch.cat((corner, corner + side, logits), -1), DetectionOptions(overlap=0.3)
    found = detect(outputs, options)
    assert (found[..., 5] >= 0).any() == (shift > -9)
    torch.testing.assert_close(detect_in_rounds(outputs, options), found)


def test_metrics_have_intervals_around_them() -> None:
    boxes, found, scores, true, labels = noisy_detections()
    outputs = torch.full((12, 30, 8), -9.0)
    outputs[..., :4], outputs[..., 4] = boxes / 90, 9
    outputs.scatter_(2, 5 + found.unsqueeze(-1), torch.logit(scores**2).unsqueeze(-1))
    metrics = DetectionMetrics(3, DetectionOptions(overlap=0.99, least_score=0))
    metrics.update(outputs, Batch(torch.zeros(12, 3, 90, 90), boxes=true, box_labels=labels))
    values, ranges = metrics.compute(), metrics.intervals()
    assert 0.05 < values["ap"] < values["ap50"]
    assert all(low < values[name] < high for name, (low, high) in ranges.items())


def test_a_bridge_adds_the_losses_of_its_keypoints_in_training() -> None:
    task = Detection(NAMES)
    entry = mereo.models.get_model_entry("detector_small")
    model = mereo.create_model(
        "detector_small", num_classes=3, **{**(entry.tiny or {}), **(entry.variants or {})["bridging"]}
    )
    objective = task.objective(model, TrainConfig())
    objective.train()
    loss, _ = objective(task.example(model, 2))
    assert set(objective.added) == {"keypoint_scores", "keypoint_offsets"} and loss.isfinite()
    objective.eval()
    objective(task.example(model, 2))
    assert not objective.added and not added_losses(model)


def test_detections_are_written_as_a_coco_document_in_pixels_of_the_file(tmp_path: Path) -> None:
    found = torch.zeros(1, 100, 6)
    found[..., 5] = -1
    found[0, 0] = torch.tensor([0.25, 0.5, 0.75, 1.0, 0.9, 2.0])
    (file,) = Detection(NAMES).write(found, ["photo"], tmp_path, [Seen((4, 8), (0, 2, 4, 4))])
    document = json.loads(file.read_text())
    assert document["images"] == [{"id": 0, "file_name": "photo", "height": 4, "width": 8}]
    (each,) = document["annotations"]
    assert each["bbox"] == [3.0, 2.0, 2.0, 2.0] and document["categories"][each["category_id"]]["name"] == "eel"
    assert Detection(NAMES).predict(found)[0]["objects"][0]["label"] == "eel"


def test_objects_are_printed_with_label_score_and_box() -> None:
    from mereo.api.prediction import _short

    objects = [{"label": "eel", "score": 0.91234, "box": [0.1, 0.25, 0.5, 1.0]}] * 2
    assert _short({"objects": objects}) == "objects eel 0.9123 (0.1, 0.25, 0.5, 1), eel 0.9123 (0.1, 0.25, 0.5, 1)"
    assert _short({"objects": []}) == "objects none"
