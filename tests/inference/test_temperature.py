"""The temperature against a search over a grid, its bounds, and where it is stored."""

import math

import pytest
import torch

import mereo
from mereo.data import ImageSet
from mereo.errors import UsageError
from mereo.inference.predict import describe_outputs
from mereo.inference.temperature import KEY, calibrate, calibration_of, fit_temperature, probabilities


def smoothed_surprise(scores: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    """The mean over images, written out."""
    total, (count, classes) = 0.0, scores.shape
    smoothing = 1 / (count + 2)
    for row, label in zip(scores.double().tolist(), labels.tolist(), strict=True):
        normaliser = math.log(sum(math.exp(s / temperature) for s in row))
        for j, score in enumerate(row):
            target = 1 - smoothing if j == label else smoothing / (classes - 1)
            total -= target * (score / temperature - normaliser)
    return total / count


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_no_temperature_of_a_grid_is_better(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(40, 4, generator=generator)
    labels = torch.where(torch.rand(40, generator=generator) < 0.7, scores.argmax(1), 0)
    fitted = fit_temperature(scores, labels)
    best = smoothed_surprise(scores, labels, fitted)
    grid = [fitted * 1.05**n for n in range(-40, 41)]
    assert min(smoothed_surprise(scores, labels, t) for t in grid) >= best - 1e-9


def test_probabilities_of_drawn_labels_are_recovered() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(20000, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 2.5).softmax(1), 1, generator=generator)[:, 0]
    assert fit_temperature(logits, labels) == pytest.approx(2.5, rel=0.05)
    assert torch.allclose(probabilities(logits, 2.5), (logits / 2.5).softmax(1))


def test_images_without_an_error_do_not_make_certainty() -> None:
    labels = torch.arange(30) % 3
    scores = torch.eye(3)[labels]
    top = probabilities(scores, fit_temperature(scores, labels)).amax(1)
    # The rule of succession: 30 of 30 correct is no more than 31 of 32.
    assert top.tolist() == pytest.approx([31 / 32] * 30, abs=1e-4)


def test_constant_scores_and_wrong_arguments() -> None:
    assert fit_temperature(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)) == 1.0
    reversed_labels = torch.eye(3).argmin(1)
    assert math.isfinite(fit_temperature(torch.eye(3), reversed_labels))
    for scores in (torch.full((2, 3), math.nan), torch.zeros(0, 3), torch.zeros(3)):
        with pytest.raises(UsageError, match="scores"):
            fit_temperature(scores, torch.zeros(len(scores), dtype=torch.int64))
    with pytest.raises(UsageError, match="temperature"):
        probabilities(torch.zeros(1, 2), 0.0)


def tiny() -> mereo.models.VisionModel:
    torch.manual_seed(0)
    return mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=3)


def test_it_is_kept_with_weights_and_gives_probabilities() -> None:
    model = tiny()
    pixels = torch.randint(0, 256, (9, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    split = ImageSet(pixels, torch.arange(9) % 3, ("a", "b", "c"))
    fitted = calibrate(model, split, split)
    assert fitted.images == fitted.test_images == 9
    assert fitted.test_ece_after == fitted.ece_after
    outputs = torch.tensor([[0.2, 0.9, 0.5]])
    assert calibration_of(model) is None
    assert "probabilities" not in describe_outputs(model, outputs, 2)[0]
    model.metadata = {KEY: fitted.to_dict()}
    shares = describe_outputs(model, outputs, 2)[0]["probabilities"]
    expected = (outputs.double() / fitted.temperature).softmax(1)[0]
    assert shares == pytest.approx({"1": float(expected[1]), "2": float(expected[2])})


@pytest.mark.parametrize("value", [0, -1.0, math.inf, "1", True, None])
def test_a_damaged_temperature_is_refused(value: object) -> None:
    model = tiny()
    stored = {"images": 1, "ece_before": 0.1, "ece_after": 0.1, "test_images": 0, "test_ece_before": 0.0}
    model.metadata = {KEY: {**stored, "test_ece_after": 0.0, "temperature": value}}
    with pytest.raises(UsageError, match="temperature"):
        calibration_of(model)


def test_a_run_stores_it(tmp_path) -> None:
    from mereo.training.config import TrainConfig

    config = TrainConfig().replace(
        model="mspcaps_tiny", data="digits", epochs=1, limit=200, augment=("shift=1",), img_size=16,
        model_args={"channels": (4, 8, 8)}, output=str(tmp_path), name="run", tensorboard=False,
    )  # fmt: skip
    result = mereo.train(config)
    stored = calibration_of(mereo.load(result.folder.path))
    assert stored is not None
    assert stored.to_dict() == result.results["calibration"]
    assert stored.images > 0
    assert stored.test_images > 0
    assert mereo.load(result.folder.path).metadata["augment"] == ["shift=1"]


def test_few_validation_images_fit_no_temperature() -> None:
    from mereo.data import load_splits
    from mereo.tasks import Classification
    from mereo.training.calibrate import FEWEST_IMAGES, calibrate_run

    model, splits = mereo.create_model("resnet20", in_chans=1, img_size=8), load_splits("digits", img_size=(8, 8))
    for count in (FEWEST_IMAGES - 1, FEWEST_IMAGES):
        held = splits.test.subset(torch.arange(count))
        fitted = calibrate_run(model, Classification(), splits._replace(validation=held), chosen_on_test=True)
        assert (fitted is None) is (count < FEWEST_IMAGES)
