"""The same attacks in other implementations: foolbox, and torchattacks where it is installed (`make test-oracles`)."""

import importlib
import warnings

import pytest
from torch import nn

from mereo.inference.mode import evaluating
from mereo.measure import attack
from mereo.measure.attacks.losses import LOSSES
from mereo.measure.attacks.target import Target

EPSILON = 0.03


class Logits(nn.Module):
    """A capsule network as the others expect one: images in [0, 1] to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return Target(self.model)._scores(images)


@pytest.fixture
def case(network, some_pixels):
    images = some_pixels((12, *network.image_shape))
    logits = Logits(network).eval()
    with evaluating(network):
        labels = Target(network).scores(images).argmax(1)
    return network, logits, images, labels


@pytest.fixture
def torchattacks():
    return pytest.importorskip("torchattacks", reason="torchattacks is not installed: make test-oracles")


@pytest.fixture
def foolbox():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("foolbox")


def same(ours, theirs):
    # A gradient within rounding of 0 may fall to either side.
    assert float(((ours - theirs).abs() > 1e-6).double().mean()) < 1e-3


def test_foolbox(case, foolbox):
    model, logits, images, labels = case
    theirs = foolbox.PyTorchModel(logits, bounds=(0, 1), device="cpu")
    kinds = {
        "fgsm": (foolbox.attacks.LinfFastGradientAttack(), {}),
        "bim": (
            foolbox.attacks.LinfBasicIterativeAttack(abs_stepsize=0.007, steps=8, random_start=False),
            {"steps": 8, "step_size": 0.007},
        ),
    }
    for name, (other, options) in kinds.items():
        _, clipped, _ = other(theirs, images, labels, epsilons=EPSILON)
        same(attack(name, model, images, labels, EPSILON, **options), clipped)


def test_torchattacks_fgsm_and_bim(case, torchattacks):
    model, logits, images, labels = case
    same(attack("fgsm", model, images, labels, EPSILON), torchattacks.FGSM(logits, eps=EPSILON)(images, labels))
    other = torchattacks.BIM(logits, eps=EPSILON, alpha=0.007, steps=8)
    same(attack("bim", model, images, labels, EPSILON, steps=8, step_size=0.007), other(images, labels))


@pytest.mark.parametrize("loss", ["cross_entropy", "dlr"])
def test_torchattacks_apgd_does_no_more_harm(case, torchattacks, loss):
    model, logits, images, labels = case
    other = torchattacks.APGD(logits, eps=0.01, steps=30, loss={"cross_entropy": "ce"}.get(loss, loss))
    theirs = other(images, labels)
    ours = attack("apgd", model, images, labels, 0.01, steps=30, loss=loss)

    def left(x):
        with evaluating(model):
            lengths = Target(model).scores(x)
        return int((lengths.argmax(1) == labels).sum())

    assert abs(left(ours) - left(theirs)) <= 1


def test_torchattacks_pgd_raises_the_loss_as_much(case, torchattacks):
    model, logits, images, labels = case
    theirs = torchattacks.PGD(logits, eps=0.01, alpha=0.0025, steps=30)(images, labels)
    ours = attack("pgd", model, images, labels, 0.01, steps=30, step_size=0.0025)
    with evaluating(model):
        ours_loss, theirs_loss = (
            float(LOSSES["cross_entropy"](Target(model).scores(x), labels).mean()) for x in (ours, theirs)
        )
    assert ours_loss == pytest.approx(theirs_loss, rel=0.02)


def test_torchattacks_square_is_about_as_strong(linear, some_pixels, torchattacks):
    model, images = linear(3), some_pixels((40, 2, 5, 6))
    with evaluating(model):
        labels = Target(model).scores(images).argmax(1)
        theirs = torchattacks.Square(Logits(model), eps=0.1, n_queries=60)(images, labels)
        ours = attack("square", model, images, labels, 0.1, steps=60)
        left = [int((Target(model).scores(x).argmax(1) == labels).sum()) for x in (ours, theirs)]
    assert abs(left[0] - left[1]) <= 5
