"""Attacks: the closed form on a linear network, slow references, and the laws of the budget."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mereo
from mereo.errors import MereoError, UsageError
from mereo.inference.mode import evaluating
from mereo.measure import ATTACKS, attack
from mereo.measure.attacks.apgd import apgd, checkpoints
from mereo.measure.attacks.budget import Budget
from mereo.measure.attacks.losses import LOSSES, rival
from mereo.measure.attacks.square import square_side
from mereo.measure.attacks.target import Target

LINEAR = LOSSES.keys() - {"dlr"}


def lengths_of(model, images):
    with evaluating(model):
        return Target(model).scores(images)


def worst(model, images, labels, epsilon):
    """The image of the ball at which a linear network of two classes is most wrong."""
    weight = model.head.weight.detach()
    towards = (weight[1 - labels] - weight[labels]).view_as(images).sign()
    return (images + epsilon * towards).clamp(0, 1)


@pytest.mark.parametrize("loss", sorted(LINEAR))
@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd", "apgd"])
def test_gradient_attacks_find_the_optimum_of_a_linear_network(linear, some_pixels, name, loss):
    model, images = linear(), some_pixels((6, 2, 5, 6))
    labels = lengths_of(model, images).argmax(1)
    found = attack(name, model, images, labels, 0.1, steps=10, loss=loss)
    torch.testing.assert_close(found, worst(model, images, labels, 0.1), atol=1e-6, rtol=0)


def test_square_comes_near_the_optimum_of_a_linear_network(linear, some_pixels):
    model, images = linear(), some_pixels((4, 2, 5, 6))
    # The first class leads by so much that no image is misclassified, and the search of none ends early.
    model.head.bias.data += torch.tensor([0.5, -0.5])
    labels = torch.zeros(4, dtype=torch.int64)

    def margin(x):
        lengths = lengths_of(model, x)
        return lengths.gather(1, labels[:, None])[:, 0] - rival(lengths, labels)

    best, start = margin(worst(model, images, labels, 0.02)), margin(images)
    few, many = (margin(attack("square", model, images, labels, 0.02, steps=n)) for n in (5, 400))
    assert bool((best - 1e-4 <= many).all() & (many < few).all())
    assert bool(((start - many) > 0.7 * (start - best)).all())


def test_square_never_loses_ground(linear, some_pixels):
    model, images = linear(3), some_pixels((5, 2, 5, 6))
    labels = lengths_of(model, images).argmax(1)
    losses = []
    attack("square", model, images, labels, 0.03, steps=50, watch=losses.append)
    curve = torch.stack(losses)
    assert bool((curve[1:] >= curve[:-1]).all())


def test_losses_by_hand():
    lengths, labels = torch.tensor([[0.8, 0.3, 0.05, 0.2]]), torch.tensor([0])
    # (0.9 - 0.8)^2 + 0.5 (0.2^2 + 0^2 + 0.1^2)
    assert float(LOSSES["margin"](lengths, labels)) == pytest.approx(0.01 + 0.5 * 0.05)
    expected = lengths.exp().sum().log() - 0.8
    assert float(LOSSES["cross_entropy"](lengths, labels)) == pytest.approx(float(expected))
    # -(0.8 - 0.3) / (0.8 - 0.2)
    assert float(LOSSES["dlr"](lengths, labels)) == pytest.approx(-0.5 / 0.6)
    # wrong: -(0.3 - 0.8) / (0.8 - 0.2)
    assert float(LOSSES["dlr"](lengths, torch.tensor([1]))) == pytest.approx(0.5 / 0.6)


def test_the_margin_loss_has_the_weights_of_training():
    from mereo.tasks.losses import score_loss

    lengths = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, 1, 1, 2])
    for kind in ("margin", "cross_entropy"):
        torch.testing.assert_close(LOSSES[kind](lengths, labels).mean(), score_loss(lengths, labels, kind))


def test_dlr_ignores_scale():
    lengths, labels = torch.tensor([[0.8, 0.3, 0.05]]), torch.tensor([0])
    torch.testing.assert_close(LOSSES["dlr"](lengths, labels), LOSSES["dlr"](0.01 * lengths, labels))


def test_checkpoints_of_the_paper():
    # p = 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(10) == [3, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == [1]


def apgd_by_the_book(target, clean, label, start, epsilon, steps):
    """Algorithm 1 for one image, with lists and plain comparisons."""

    def value(x):
        found = target.slope(x, label)
        return float(found.loss), found.gradient, int(found.scores.argmax()) != int(label)

    def inside(x):
        return torch.minimum(torch.maximum(x, clean - epsilon), clean + epsilon).clamp(0, 1)

    f, gradient, wrong = value(start)
    size, x, previous, fooled = 2 * epsilon, start, start, start if wrong else None
    best_x, best_f, best_gradient = x, f, gradient
    outcomes, history, changed_before, f_before = [], [], True, f
    last = 0
    for k in range(1, steps + 1):
        z = inside(x + size * gradient.sign())
        alpha = 1.0 if k == 1 else 0.75
        new = inside(x + alpha * (z - x) + (1 - alpha) * (x - previous))
        previous, x = x, new
        new_f, gradient, wrong = value(x)
        outcomes.append(new_f > f)
        f = new_f
        if wrong:
            fooled = x
        if f > best_f:
            best_x, best_f, best_gradient = x, f, gradient
        if k in checkpoints(steps):
            few = sum(outcomes[last:]) < 0.75 * (k - last)
            stuck = not changed_before and best_f == f_before
            changed_before = few or stuck
            if changed_before:
                size /= 2
                x, f, gradient = best_x, best_f, best_gradient
            history.append(size)
            f_before, last = best_f, k
    return fooled if fooled is not None else best_x, history


@pytest.mark.parametrize("epsilon", [0.005, 0.05])
def test_apgd_follows_the_algorithm_image_by_image(network, some_pixels, epsilon):
    images = some_pixels((3, *network.image_shape))
    labels = lengths_of(network, images).argmax(1)
    start = (images + epsilon * (2 * some_pixels(images.shape, 5) - 1)).clamp(0, 1)
    with evaluating(network):
        target = Target(network.double(), "cross_entropy")
        images, start = images.double(), start.double()
        found = apgd(target, images, labels, start, Budget(epsilon, 20, None, torch.Generator()))
        for i in range(3):
            one, history = apgd_by_the_book(target, images[i : i + 1], labels[i : i + 1], start[i : i + 1], epsilon, 20)
            torch.testing.assert_close(found[i : i + 1], one, atol=1e-9, rtol=0)
            assert history[-1] < 2 * epsilon


def bim_by_the_book(target, image, label, epsilon, size, steps):
    x = image.clone()
    for _ in range(steps):
        gradient = target.slope(x, label).gradient
        for place in torch.cartesian_prod(*(torch.arange(n) for n in image.shape)):
            i = tuple(place.tolist())
            moved = float(x[i]) + size * float(gradient[i].sign())
            moved = min(max(moved, float(image[i]) - epsilon), float(image[i]) + epsilon)
            x[i] = min(max(moved, 0.0), 1.0)
    return x


def test_bim_follows_the_algorithm_pixel_by_pixel(network, some_pixels):
    images = some_pixels((2, *network.image_shape)).double()
    network.double()
    labels = lengths_of(network, images).argmax(1)
    found = attack("bim", network, images, labels, 0.05, steps=4, step_size=0.02)
    with evaluating(network):
        for i in range(2):
            one = bim_by_the_book(Target(network), images[i : i + 1], labels[i : i + 1], 0.05, 0.02, 4)
            torch.testing.assert_close(found[i : i + 1], one, atol=1e-9, rtol=0)


def test_more_epsilon_does_more_harm(network, some_pixels):
    images = some_pixels((8, *network.image_shape))
    labels = lengths_of(network, images).argmax(1)
    losses = []
    for epsilon in (0.0, 0.01, 0.05, 0.2):
        found = attack("apgd", network, images, labels, epsilon, steps=10)
        losses.append(float(LOSSES["cross_entropy"](lengths_of(network, found), labels).mean()))
    assert losses == sorted(losses) and losses[-1] > losses[0]


def test_restarts_only_help(network, some_pixels):
    images = some_pixels((8, *network.image_shape))
    labels = lengths_of(network, images).argmax(1)

    def state(restarts):
        lengths = lengths_of(network, attack("pgd", network, images, labels, 0.01, steps=3, restarts=restarts))
        return lengths.argmax(1) != labels, LOSSES["cross_entropy"](lengths, labels)

    (fooled, loss), (fooled_more, loss_more) = state(1), state(4)
    assert bool((fooled <= fooled_more).all())
    assert bool((loss_more >= loss - 1e-6)[~fooled_more].all())


@pytest.mark.parametrize("name", ATTACKS)
@settings(max_examples=8, deadline=None)
@given(
    epsilon=st.floats(0, 1), kind=st.sampled_from(["random", "zeros", "ones", "grey"]), seed=st.integers(0, 99),
    loss=st.sampled_from(sorted(LOSSES)), restarts=st.integers(1, 2),
)  # fmt: skip
def test_the_budget_is_kept(name, epsilon, kind, seed, loss, restarts):
    torch.manual_seed(0)
    arguments = {"channels": (4, 8, 8), "in_chans": 1, "img_size": 16, "num_classes": 4}
    model = mereo.create_model("mspcaps_tiny", **arguments)
    shape = (2, *model.image_shape)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    images = {"random": images, "zeros": 0 * images, "ones": 0 * images + 1, "grey": 0 * images + 0.5}[kind]
    labels = torch.tensor([seed % 4, 1])
    found = attack(name, model, images, labels, epsilon, steps=3, loss=loss, restarts=restarts, seed=seed)
    assert found.shape == images.shape and not found.requires_grad
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    assert float((found - images).abs().max()) <= epsilon + 1e-6
    if epsilon == 0:
        assert torch.equal(found, images)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_repeat_and_leave_the_model_unchanged(network, some_pixels, name):
    images = some_pixels((3, *network.image_shape))
    labels = torch.tensor([0, 1, 2])
    next(network.parameters()).requires_grad_(False)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = (attack(name, network, images, labels, 0.1, steps=4, restarts=2, seed=7) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training and all(m.training for m in network.modules())
    flags = [p.requires_grad for p in network.parameters()]
    assert flags.count(False) == 1 and not flags[0]
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_empty_images_have_gradients(network, loss):
    images = torch.zeros(2, *network.image_shape)
    found = attack("apgd", network, images, torch.tensor([0, 1]), 0.1, steps=3, loss=loss)
    assert bool(found.isfinite().all())


def test_bad_weights_are_refused(network, some_pixels):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(torch.nan)
    images = some_pixels((1, *network.image_shape))
    with pytest.raises(MereoError, match="not finite"):
        attack("fgsm", network, images, torch.tensor([0]), 0.1)


@pytest.mark.parametrize("name", ATTACKS)
def test_one_image_and_none(network, some_pixels, name):
    images = some_pixels((1, *network.image_shape))
    assert attack(name, network, images, torch.tensor([0]), 0.1, steps=2).shape == images.shape
    assert attack(name, network, images[:0], torch.zeros(0, dtype=torch.int64), 0.1).shape == (0, *images.shape[1:])


def test_wrong_arguments_are_named(linear, some_pixels):
    model, images, labels = linear(), some_pixels((2, 2, 5, 6)), torch.tensor([0, 1])

    def refused(match, *changed, **options):
        arguments = dict(zip(("name", "images", "labels", "epsilon"), ("pgd", images, labels, 0.1), strict=True))
        arguments |= dict(changed)
        with pytest.raises(UsageError, match=match):
            attack(arguments["name"], model, arguments["images"], arguments["labels"], arguments["epsilon"], **options)

    refused("did you mean|Did you mean", ("name", "pgdd"))
    refused("epsilon is -0.1", ("epsilon", -0.1))
    refused("epsilon is nan", ("epsilon", float("nan")))
    refused("not a number", ("images", images * torch.nan))
    refused("outside", ("images", images * 3))
    refused("one label an image", ("labels", torch.tensor([[0, 1], [1, 0]])))
    refused("outside 0 .. 1", ("labels", torch.tensor([0, 2])))
    refused("this model takes", ("images", images[:, :1]))
    refused("steps is 0", steps=0)
    refused("restarts is 0", restarts=0)
    refused("step_size", step_size=-1.0)
    refused("three classes", loss="dlr")
    refused("loss is 'mse'", loss="mse")
    with pytest.raises(UsageError, match="at least 2"):
        attack("pgd", linear(1), images, labels, 0.1)


def test_the_side_of_the_square_shrinks():
    sides = [square_side(q, 1000, 32, 32) for q in range(1000)]
    assert sides == sorted(sides, reverse=True)
    # sqrt(0.8 * 1024) = 28.6, and 512 times fewer pixels at the end
    assert sides[0] == 29 and sides[-1] == 1
    assert square_side(0, 10, 4, 30) <= 4
