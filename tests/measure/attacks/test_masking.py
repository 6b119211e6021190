"""Hidden gradients: detected where they are, and only there."""

import pytest
import torch

from mereo.inference.mode import evaluating
from mereo.measure import look_for_masking
from mereo.measure.attack_stage import check_accuracy_falls, informative_epsilon
from mereo.measure.attacks.masking import masking_parts
from mereo.measure.attacks.target import Target
from mereo.measure.curves import Point, check_epsilons


def checks(model, images, epsilon, **options):
    with evaluating(model):
        labels = Target(model).scores(images).argmax(1)
    parts = []
    found = look_for_masking(model, images, labels, epsilon, done=parts.append, **options)
    return {f.name: f for f in found}, sum(parts)


def test_an_honest_network_is_not_suspected(linear, some_pixels):
    found, _ = checks(linear(3), some_pixels((24, 2, 5, 6)), 0.05)
    assert not [name for name, finding in found.items() if finding.suspicious]
    assert found["unbounded"].numbers == {"accuracy": 0.0}
    curve = found["loss over steps"].numbers["curve"]
    assert len(curve) == 20 and curve[-1] > curve[0]


def test_saturated_lengths_are_detected(linear, some_pixels):
    # The sign of a linear score is as easy to change as before, but the slope of the lengths is 0 nearly everywhere.
    found, _ = checks(linear(3, scale=4000.0), some_pixels((24, 2, 5, 6)), 0.05)
    suspected = {name for name, finding in found.items() if finding.suspicious}
    assert {"zero gradients", "unbounded", "black box"} <= suspected
    assert found["zero gradients"].numbers["cross_entropy"] > 0.5
    assert found["black box"].numbers["other"] < found["black box"].numbers["pgd"]


def test_transfer_finds_out_a_saturated_twin(linear, some_pixels):
    honest, saturated = linear(3), linear(3, scale=4000.0)
    images = some_pixels((24, 2, 5, 6))
    found, parts = checks(saturated, images, 0.05, others={"twin": honest})
    assert found["transfer from twin"].suspicious
    assert parts == masking_parts(3, 1)
    found, parts = checks(honest, images, 0.05, others={"twin": saturated})
    assert not found["transfer from twin"].suspicious


def test_two_classes_do_without_dlr(linear, some_pixels):
    found, parts = checks(linear(2), some_pixels((8, 2, 5, 6)), 0.05)
    assert "loss dlr" not in found and "loss margin" in found
    assert parts == masking_parts(2, 0)


def test_without_a_right_answer_there_is_nothing_to_look_for(linear, some_pixels):
    (finding,) = look_for_masking(linear(), some_pixels((0, 2, 5, 6)), torch.zeros(0, dtype=torch.int64), 0.1)
    assert finding.suspicious and "nothing to attack" in finding.words


def test_a_curve_that_rises_is_suspected():
    falling = [Point(0.0, 90, 100), Point(0.1, 50, 100), Point(0.2, 51, 100)]
    rising = [Point(0.0, 90, 100), Point(0.1, 10, 100), Point(0.2, 60, 100)]
    assert not check_accuracy_falls({"FGSM": falling}).suspicious
    found = check_accuracy_falls({"FGSM": falling, "BIM": rising})
    assert found.suspicious and found.numbers["BIM"] == pytest.approx(0.5)


def test_the_informative_epsilon_leaves_about_half():
    weak = [Point(0.0, 90, 100), Point(0.1, 80, 100), Point(0.2, 44, 100), Point(0.3, 40, 100)]
    strong = [Point(0.0, 90, 100), Point(0.1, 46, 100), Point(0.2, 5, 100), Point(0.3, 0, 100)]
    assert informative_epsilon([weak]) == 0.2
    assert informative_epsilon([weak, strong]) == 0.1


def test_epsilons_are_sorted_and_start_at_0():
    assert check_epsilons([0.1, 0.02, 0.1]) == (0.0, 0.02, 0.1)
