"""A layer and a network trained by their bound: gradients, learning, masks, samples, errors."""

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.generative import GenerativeCapsNet, GenerativeCapsules, Inversion


def small(**arguments: float) -> GenerativeCapsules:
    torch.manual_seed(0)
    return GenerativeCapsules(5, 3, 4, 6, **arguments).double()  # type: ignore[arg-type]


def poses(count: int = 4) -> Tensor:
    return torch.randn(count, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("arguments", [{}, {"kappa": 0.0}, {"sparsity": 1.0}, {"kappa": 5.0, "sparsity": 0.5}])
def test_the_differentiable_bound_equals_that_of_the_inversion(arguments: dict[str, float]) -> None:
    layer = small(**arguments)
    inversion = layer.invert(poses())
    torch.testing.assert_close(layer.elbo(poses(), inversion), inversion.elbo)
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) < 0.6
    masked = layer.invert(poses(), mask)
    torch.testing.assert_close(layer.elbo(poses(), masked, mask), masked.elbo)


@pytest.mark.parametrize("name", ["weight", "prior_mean", "log_prior", "log_sigma"])
def test_gradients_of_the_bound_are_its_differences(name: str) -> None:
    layer = small()
    inversion, parameter = layer.invert(poses()), dict(layer.named_parameters())[name]
    (gradient,) = torch.autograd.grad(layer.elbo(poses(), inversion).sum(), parameter)
    place, step = (0,) * parameter.dim(), 1e-6
    with torch.no_grad():
        parameter[place] += step
        above = layer.elbo(poses(), inversion).sum()
        parameter[place] -= 2 * step
        below = layer.elbo(poses(), inversion).sum()
    assert gradient[place].item() == pytest.approx(((above - below) / (2 * step)).item(), rel=1e-5, abs=1e-7)


def test_what_the_parents_predict_is_the_sum_over_parents() -> None:
    layer = small()
    found = layer.invert(poses())
    expected = torch.zeros_like(poses())
    for b in range(4):
        for i in range(5):
            for j in range(3):
                expected[b, i] += found.responsibilities[b, i, j] * (layer.weight[i, j] @ found.mean[b, j])
    torch.testing.assert_close(layer.predict(found), expected)


@pytest.mark.long
def test_training_leads_back_to_the_layer_that_drew_the_children() -> None:
    truth = small(sigma=0.1, kappa=0.0)
    with torch.no_grad():
        truth.weight *= 5
        poses = truth.sample(256, torch.Generator().manual_seed(0)).poses
        poses = poses + 0.1 * torch.randn(poses.shape, dtype=poses.dtype, generator=torch.Generator().manual_seed(1))
        layer = small(sigma=0.3, kappa=0.0)
        layer.load_state_dict(truth.state_dict())
        layer.weight += 0.2 * torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(2))
        best, first = truth(poses).mean(), layer(poses).mean()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(60):
        loss = -layer(poses).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        last = layer(poses).mean()
    assert last - first > 0.8 * (best - first) > 4


def test_samples_are_predictions_of_the_chosen_parent() -> None:
    layer = small()
    drawn = layer.sample(7, torch.Generator().manual_seed(0))
    for b in range(7):
        for i in range(5):
            j = int(drawn.chosen[b, i])
            torch.testing.assert_close(drawn.poses[b, i], layer.weight[i, j].detach() @ drawn.parents[b, j])
    again = layer.sample(7, torch.Generator().manual_seed(0))
    assert torch.equal(drawn.poses, again.poses)


def test_the_mixture_under_the_parents_is_the_model() -> None:
    layer = small(kappa=0.0)
    parents = torch.randn(2, 3, 6, dtype=torch.float64)
    density = layer.mixture(parents).log_prob(poses(2))
    normal = torch.distributions.Normal(torch.einsum("mnde,bne->bmnd", layer.weight, parents), layer.sigma)
    expected = (normal.log_prob(poses(2).unsqueeze(2)).sum(-1) - torch.log(torch.tensor(3.0))).logsumexp(-1)
    torch.testing.assert_close(density, expected)


@pytest.mark.parametrize("side", [(28, 28), (9, 12), (32, 21)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_size_come_back_in_theirs(side: tuple[int, int], channels: int) -> None:
    model = GenerativeCapsNet(3, channels, side, parent_dim=4, channels=4, types=2, child_dim=4, sweeps=2)
    images = torch.rand(2, channels, *side)
    assert model.decode(model.parts(images)).shape == images.shape
    found = model.explain(images)
    assert found.rebuilt.shape == images.shape and isinstance(found.inversion, Inversion)
    assert model.sample(3).shape == (3, channels, *side)
    assert model.elbo(images).shape == (2,) and model.rebuild_loss(images).dim() == 0


def test_a_part_is_seen_when_its_field_is_clear() -> None:
    model = GenerativeCapsNet(2, 1, 13, parent_dim=2, channels=2, types=2, child_dim=2)
    hidden = torch.zeros(1, 13, 13, dtype=torch.bool)
    hidden[0, 0, 0] = True
    seen = model.visible_parts(hidden).view(2, *model.grid)
    expected = torch.ones(3, 3, dtype=torch.bool)
    for row in range(3):
        for column in range(3):
            expected[row, column] = not hidden[0, 2 * row : 2 * row + 9, 2 * column : 2 * column + 9].any()
    assert torch.equal(seen[0], expected) and torch.equal(seen[1], expected) and not expected.all()


def test_unseen_parts_are_filled_in_from_the_parents() -> None:
    model = GenerativeCapsNet(2, 1, 13, parent_dim=2, channels=2, types=2, child_dim=2)
    images = torch.rand(1, 1, 13, 13)
    found = model.explain(images, torch.zeros(1, 18, dtype=torch.bool))
    prior = model.capsules.log_prior.softmax(-1)
    expected = torch.einsum("mn,mnde,ne->md", prior, model.capsules.weight, model.capsules.prior_mean)
    torch.testing.assert_close(found.predicted[0], expected)


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 28, 28), torch.full((1, 1, 28, 28), 1e6)])
def test_empty_and_huge_images_are_finite(images: Tensor) -> None:
    model = GenerativeCapsNet(2, parent_dim=4, channels=4, types=2, child_dim=4)
    found = model.explain(images)
    assert found.rebuilt.isfinite().all() and found.inversion.elbo.isfinite().all()
    model.elbo(images).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="children is 0"):
        GenerativeCapsules(0, 3, 4, 6)
    with pytest.raises(UsageError, match="kappa is -1"):
        GenerativeCapsules(5, 3, 4, 6, kappa=-1.0)
    with pytest.raises(UsageError, match="img_size is 8"):
        GenerativeCapsNet(img_size=8)
    with pytest.raises(UsageError, match="this network takes"):
        GenerativeCapsNet().parts(torch.zeros(1, 3, 28, 28))
    with pytest.raises(UsageError, match="count is 0"):
        small().sample(0)
