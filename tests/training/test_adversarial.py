"""Adversarial examples in training: what they are, which images become them, and that a run uses them."""

import pytest
import torch
from torch import nn

from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models.weights import load_tensors
from mereo.training.adversarial import AdversarialTraining, adversarial_images, places_of
from mereo.training.plan import make_plan
from mereo.training.trainer import train


def same(images):
    return images


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(27, 4)
    return nn.Sequential(*layers).double().train()


def slow_attack(model, image, label, start, epsilon, steps):
    """One image, its gradient by differences, pixel by pixel."""
    point = start.clone()
    places = list(torch.cartesian_prod(*(torch.arange(side) for side in image.shape)).tolist())

    def loss(at):
        return float(-model(at[None])[0].log_softmax(0)[label])

    def clipped(value, clean):
        return min(max(value, clean - epsilon, 0.0), clean + epsilon, 1.0)

    for c, y, x in places:
        point[c, y, x] = clipped(float(point[c, y, x]), float(image[c, y, x]))
    for _ in range(steps):
        moved = point.clone()
        for c, y, x in places:
            ahead, behind = point.clone(), point.clone()
            ahead[c, y, x] += 1e-6
            behind[c, y, x] -= 1e-6
            slope = loss(ahead) - loss(behind)
            sign = (slope > 0) - (slope < 0)
            moved[c, y, x] = clipped(float(point[c, y, x]) + 2.5 * epsilon / steps * sign, float(image[c, y, x]))
        point = moved
    return point


@pytest.mark.parametrize("steps", [1, 3])
def test_the_attack_is_gradient_ascent_pixel_by_pixel(classifier, steps):
    images, labels = torch.rand(3, 2, 5, 5).double(), torch.tensor([0, 3, 1])
    start = images + 0.1 * (2 * torch.rand_like(images) - 1)
    fast = adversarial_images(classifier, images, labels, start, epsilon=0.1, steps=steps, prepare=same)
    classifier.eval()
    with torch.no_grad():
        slow = [slow_attack(classifier, *each, 0.1, steps) for each in zip(images, labels, start, strict=True)]
    torch.testing.assert_close(fast, torch.stack(slow), rtol=0, atol=1e-12)
    assert (fast - images).abs().max() <= 0.1 + 1e-12 and fast.min() >= 0 and fast.max() <= 1


def test_it_raises_the_loss_and_leaves_the_network_as_it_was(classifier):
    classifier[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    images, labels = torch.rand(32, 2, 5, 5).double(), torch.randint(0, 4, (32,))
    changed = adversarial_images(classifier, images, labels, images, epsilon=0.2, steps=5, prepare=same)
    assert classifier.training and not classifier[0].weight.requires_grad and classifier[5].weight.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in classifier.state_dict().items())
    assert all(parameter.grad is None for parameter in classifier.parameters())
    classifier.eval()
    loss = nn.functional.cross_entropy
    assert loss(classifier(changed), labels) > loss(classifier(images), labels) + 0.05


@pytest.mark.parametrize("share", [0.1, 0.25, 1 / 3, 0.5, 1.0])
def test_the_same_images_are_replaced_however_a_batch_is_divided(share):
    whole = places_of(0, 96, share)
    parts = torch.cat([first + places_of(first, 24, share) for first in range(0, 96, 24)])
    assert torch.equal(whole, parts)
    assert abs(len(whole) - 96 * share) < 1


def test_only_chosen_images_change_and_the_decoder_keeps_the_clean_ones(classifier):
    batch = Batch(torch.rand(8, 2, 5, 5).double(), torch.randint(0, 4, (8,)))
    changed = AdversarialTraining(0.1, 2, 0.5, same)(classifier, batch, 0, seed=3)
    differ = (changed.images != batch.images).flatten(1).any(1)
    assert differ.tolist() == [False, True] * 4
    assert changed.targets is batch.images
    half = Batch(batch.images[4:], batch.labels[4:])
    second = AdversarialTraining(0.1, 2, 0.5, same)(classifier, half, 4, seed=3)
    torch.testing.assert_close(second.images, changed.images[4:], rtol=0, atol=1e-12)


def test_soft_labels_are_taken_and_several_objects_refused(classifier):
    attack, images = AdversarialTraining(0.1, 1, 1.0, same), torch.rand(4, 2, 5, 5).double()
    soft = torch.eye(4).double() * 0.8 + 0.05
    assert not torch.equal(attack(classifier, Batch(images, soft), 0, 0).images, images)
    with pytest.raises(UsageError, match="adversarial"):
        attack(classifier, Batch(images, torch.zeros(4, 2, dtype=torch.int64)), 0, 0)


def test_a_run_trains_on_them(small_config, silent):
    plain = train(small_config(name="plain", epochs=1), silent, pictures=False)
    hard = train(small_config(name="hard", epochs=1, adversarial=0.3, adversarial_steps=1), silent, pictures=False)
    first, second = (load_tensors(run.folder.last)[0] for run in (plain, hard))
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_two_objects_an_image_are_refused(small_config):
    with pytest.raises(UsageError, match="adversarial is"):
        make_plan(small_config(data="multimnist", adversarial=0.1))


@pytest.mark.parametrize("wrong", [{"adversarial": -0.1}, {"adversarial": 2.0}, {"adversarial_share": 0.0},
                                   {"adversarial_share": 1.5}, {"adversarial_steps": 0}])  # fmt: skip
def test_wrong_numbers_are_refused(small_config, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        small_config(**{"adversarial": 0.1, **wrong}).check()
