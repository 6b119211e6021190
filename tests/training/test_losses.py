"""What is minimised, against the numbers of the paper and slow sums."""

import pytest
import torch

from mereo.core import Capsules
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models import create_model
from mereo.tasks.classification import ClassificationObjective as Objective
from mereo.tasks.losses import many_hot, margin_loss, reconstruction_loss, score_loss


def test_margin_loss_of_a_worked_example():
    lengths = torch.tensor([[0.8, 0.3, 0.05]])
    loss = margin_loss(lengths, many_hot(torch.tensor([0]), 3))
    assert loss.item() == pytest.approx(0.03, abs=1e-7)


def test_margin_loss_is_the_sum_over_classes_and_the_mean_over_images():
    lengths, labels = torch.rand(4, 5, dtype=torch.float64), torch.tensor([0, 4, 2, 2])
    expected = 0.0
    for b in range(4):
        for j in range(5):
            v = lengths[b, j].item()
            expected += max(0, 0.9 - v) ** 2 if j == labels[b] else 0.5 * max(0, v - 0.1) ** 2
    assert margin_loss(lengths, many_hot(labels, 5)).item() == pytest.approx(expected / 4)


def test_hard_margins_are_those_of_the_second_run_of_deepcaps():
    scores, labels = torch.tensor([[0.8, 0.3, 0.05], [0.95, 0.05, 0.0]]), torch.tensor([0, 0])
    expected = (0.15**2 + 0.8 * 0.25**2) / 2
    assert score_loss(scores, labels, "hard_margin").item() == pytest.approx(expected, abs=1e-7)


def test_margin_loss_of_two_objects_wants_both_long():
    targets = many_hot(torch.tensor([[1, 3]]), 4)
    assert targets.tolist() == [[0.0, 1.0, 0.0, 1.0]]
    assert margin_loss(torch.tensor([[0.0, 0.9, 0.1, 0.9]]), targets).item() == 0
    assert margin_loss(torch.tensor([[0.0, 0.9, 0.1, 0.0]]), targets).item() == pytest.approx(0.81)


def test_reconstruction_loss_sums_over_pixels():
    rebuilt, target = torch.rand(3, 1, 28, 28), torch.rand(3, 1, 28, 28)
    mean_squared = torch.nn.functional.mse_loss(rebuilt, target)
    # 0.0005 of the sum is 0.392 of the mean for the 784 pixels of a digit.
    torch.testing.assert_close(0.0005 * reconstruction_loss(rebuilt, target), 0.392 * mean_squared)


def test_cross_entropy_refuses_several_labels():
    with pytest.raises(UsageError, match="one label per image"):
        score_loss(torch.rand(2, 4), torch.tensor([[0, 1], [2, 3]]), "cross_entropy")


def small_capsnet():
    torch.manual_seed(0)
    return create_model("capsnet", num_classes=4, img_size=20, conv_channels=4, primary_types=2)


def test_objective_adds_the_reconstruction_of_the_true_class():
    model = small_capsnet().eval()
    images, labels = torch.rand(3, 1, 20, 20), torch.tensor([0, 3, 1])
    loss, scores = Objective(model, "margin", 0.0005)(Batch(images, labels, images))
    capsules = model.capsules(images)
    expected = margin_loss(scores, many_hot(labels, 4))
    expected = expected + 0.0005 * reconstruction_loss(model.reconstruct(capsules, labels), images)
    torch.testing.assert_close(loss, expected)
    without, _ = Objective(model, "margin", 0.0)(Batch(images, labels, images))
    assert without < loss


def test_objective_rebuilds_each_of_two_objects_by_itself():
    model = small_capsnet().eval()
    images, labels, targets = (
        torch.rand(3, 1, 20, 20),
        torch.tensor([[0, 1], [3, 2], [1, 0]]),
        torch.rand(3, 2, 1, 20, 20),
    )
    loss, scores = Objective(model, "margin", 0.001)(Batch(images, labels, targets))
    capsules: Capsules = model.capsules(images)
    expected = margin_loss(scores, many_hot(labels, 4))
    for obj in range(2):
        rebuilt = model.reconstruct(capsules, labels[:, obj])
        expected = expected + 0.001 * reconstruction_loss(rebuilt, targets[:, obj])
    torch.testing.assert_close(loss, expected)


def test_losses_take_class_numbers():
    scores, labels = torch.rand(5, 4), torch.tensor([0, 3, 1, 1, 2])
    hot = torch.nn.functional.one_hot(labels, 4)
    assert margin_loss(scores, labels) == margin_loss(scores, hot) == margin_loss(scores, hot.float())
    assert margin_loss(scores, labels.to(torch.int32)) == margin_loss(scores, hot)
    two = torch.stack([labels, (labels + 1) % 4], 1)
    assert margin_loss(scores, two) == margin_loss(scores, hot + torch.nn.functional.one_hot((labels + 1) % 4, 4))
    for kind in ("margin", "cross_entropy", "spread"):
        assert score_loss(scores, labels.to(torch.uint8), kind) == score_loss(scores, labels, kind)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "dog"], "labels is a list"),
        ("cat", "labels is a str"),
        (torch.tensor([0, 4]), "they must be 0 to 3"),
        (torch.tensor([-1, 0]), "they must be 0 to 3"),
        (torch.tensor([0.0, 1.0]), "must be whole"),
        (torch.tensor([0, 1, 2]), "labels (3,)"),
    ],
)
@pytest.mark.parametrize("kind", ["margin", "cross_entropy", "spread"])
def test_labels_that_a_loss_cannot_take_are_named(labels, message, kind):
    with pytest.raises(UsageError) as error:
        score_loss(torch.rand(2, 4), labels, kind)
    assert message in str(error.value)


def test_an_unknown_loss_is_named():
    with pytest.raises(UsageError, match="cross_entropy"):
        score_loss(torch.rand(2, 4), torch.tensor([0, 1]), "crossentropy")
