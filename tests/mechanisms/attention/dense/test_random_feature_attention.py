"""Random-feature attention: worked numbers, loops from the equations, its exact kernel, and its ridge regression."""

import math

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import RandomFeatureAttention, RandomFeatureMLP, kernel_ridge, random_feature_kernel
from mereo.mechanisms.attention.dense import random_feature_attention
from mereo.mechanisms.attention.dense.random_feature_attention import rectified_product
from mereo.mechanisms.attention.dense.random_features import RandomFeatures

BIASES = ("none", "identity")


def on_sphere(samples: int, keys: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and keys of length 1, in float64."""
    x = torch.randn(samples, keys + 1, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = x / x.norm(dim=-1, keepdim=True)
    return x[:, 0], x[:, 1:]


def layer_of(*sizes: int, trained: bool = True, seed: int = 0, **options: object) -> RandomFeatureAttention:
    torch.manual_seed(seed)
    layer = RandomFeatureAttention(*sizes, **options).double()  # type: ignore[arg-type]
    if trained:
        with torch.no_grad():
            layer.values.normal_()
            layer.intercept.normal_()
    return layer


def by_loops(layer: RandomFeatureAttention, query: Tensor, keys: Tensor) -> Tensor:
    """f of one sample with one output, from the equations."""
    z0, values = torch.cat((query, torch.ones(1))), layer.values.view(layer.units, -1)
    total = layer.intercept[0]
    for weight, value in zip(layer.weight, values, strict=True):
        for key in keys:
            z = torch.cat((key, torch.ones(1)))
            score = sum(z0[a] * weight[a, b] * z[b] for a in range(len(z)) for b in range(len(z)))
            total = total + max(score, torch.zeros(())) * torch.dot(value, z) / len(keys)
    return total


@pytest.mark.parametrize("bias", BIASES)
def test_loops_give_the_same(bias: str) -> None:
    layer, (query, keys) = layer_of(3, 5, bias=bias, at_once=2), on_sphere(2, 4, 3)
    expected = torch.stack([by_loops(layer, *sample) for sample in zip(query, keys, strict=True)])
    torch.testing.assert_close(layer(query, keys), expected)


def test_worked_numbers() -> None:
    layer = layer_of(2, 1, trained=False)
    layer.weight.copy_(torch.tensor([[[1, 2, 0], [0, 1, 0], [0, -1, 1]]]))
    query, keys = torch.tensor([[1.0, 0]]).double(), torch.tensor([[[0.0, 1], [1, 0]]]).double()
    with mereo.record(layer) as trace:
        features = layer.features(query, keys)
    assert (2 * trace["coupling"]).flatten().tolist() == [2, 2]  # the scores, both above 0, over N = 2
    assert features.tolist() == [[[1, 1, 2]]]


@pytest.mark.parametrize("bias", BIASES)
def test_the_order_of_keys_matters_to_the_mlp_only(bias: str) -> None:
    query, keys = on_sphere(3, 6, 4)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    layer = layer_of(4, 20, bias=bias)
    torch.testing.assert_close(layer.features(query, keys), layer.features(query, keys[:, order]), rtol=0, atol=1e-12)
    torch.manual_seed(0)
    mlp = RandomFeatureMLP(4, 6, 20).double()
    change = mlp.block(0, 20, query, keys) - mlp.block(0, 20, query, keys[:, order])
    assert change.abs().max() > 0.05


def test_scores_of_unit_inputs_are_standard_normal() -> None:
    query, keys = on_sphere(40, 8, 8)
    for bias in BIASES:
        layer = layer_of(8, 2000, bias=bias, activation="relu")
        z0, z = (torch.nn.functional.pad(x, (0, 1), value=1.0) for x in (query, keys))
        scores = torch.einsum("bd,hde,bne->bhn", z0, layer.weight, z)
        if bias == "identity":
            scores = scores - torch.einsum("bd,bnd->bn", query, keys).unsqueeze(1)
        assert abs(scores.var().item() - 1) < 0.02 and abs(scores.mean().item()) < 0.02


def test_sums_of_the_mlp_are_standard_normal() -> None:
    torch.manual_seed(0)
    mlp, (query, keys) = RandomFeatureMLP(8, 8, 4000).double(), on_sphere(40, 8, 8)
    flat = torch.cat((query, keys.flatten(1), torch.ones(40, 1)), 1)
    assert abs((flat @ mlp.weight.T).var().item() - 1) < 0.02
    torch.testing.assert_close(mlp.block(0, 4000, query, keys), (flat @ mlp.weight.T).clamp(min=0))


E = torch.eye(2, dtype=torch.float64)
QUERIES, KEYS = torch.stack((E[0], E[0])), torch.stack((E, E[[0, 0]]))
"""The sample x with the keys e1, e2 and the sample y with e1, e1; both have the query e1."""


def test_worked_numbers_of_the_kernel() -> None:
    kernel = random_feature_kernel(QUERIES, KEYS, QUERIES, KEYS)
    # kappa(1) = 1 / 2 and <z, z> = 2 for all four pairs of keys of y.
    assert kernel[1, 1] == 1
    torch.testing.assert_close(kernel[0], torch.tensor([0.652249, 0.652249]).double(), rtol=0, atol=1e-6)
    assert kernel[0, 1] == kernel[1, 0]


def test_many_heads_have_the_kernel() -> None:
    grams = [layer_of(2, 400_000, trained=False, seed=s, at_once=20_000).gram((QUERIES, KEYS)) for s in range(4)]
    kernel = random_feature_kernel(QUERIES, KEYS, QUERIES, KEYS)
    for gram in grams:
        torch.testing.assert_close(gram, kernel, rtol=0.005, atol=0)
    torch.testing.assert_close(sum(grams) / 4, kernel, rtol=0.0025, atol=0)


def test_many_heads_have_the_kernel_of_inputs_of_any_length() -> None:
    query, keys = (3 * x for x in on_sphere(3, 2, 3))
    other, others = on_sphere(2, 4, 3, seed=1)
    gram = layer_of(3, 400_000, trained=False, at_once=20_000).gram((query, keys), (other, others))
    kernel = random_feature_kernel(query, keys, other, others)
    assert ((gram - kernel).abs().max() / kernel.abs().max()).item() < 0.01


def test_worked_numbers_of_the_expectation() -> None:
    r = torch.tensor([1.0, 0, -1], dtype=torch.float64, requires_grad=True)
    means = rectified_product(r, torch.ones(3, dtype=torch.float64))
    assert means.tolist() == [0.5, 1 / (2 * math.pi), 0]
    # The derivative, (pi - arccos r) / (2 pi), is finite at both ends.
    (slope,) = torch.autograd.grad(means.sum(), r)
    assert slope.tolist() == [0.5, 0.25, 0]


@pytest.mark.parametrize("r", [-0.6, 0.3, 0.99])
def test_the_expectation_is_the_integral(r: float) -> None:
    # a and a' = 2 (r a + sqrt(1 - r^2) b), by the trapezoidal rule over a and b.
    grid = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    density = (-grid.square() / 2).exp() / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    other = 2 * (r * grid[:, None] + math.sqrt(1 - r**2) * grid)
    expected = (density[:, None] * density * grid.clamp(min=0)[:, None] * other.clamp(min=0)).sum()
    two = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(rectified_product(2 * r * two / 2, two), expected, rtol=1e-4, atol=1e-6)


def test_the_kernel_has_right_gradients_and_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys = on_sphere(3, 2, 3)
    query, keys = (2 * query).requires_grad_(), keys.requires_grad_()
    other, others = on_sphere(2, 4, 3, seed=1)
    assert torch.autograd.gradcheck(random_feature_kernel, (query, keys, other, others))
    whole = random_feature_kernel(query, keys, other, others)
    monkeypatch.setattr(random_feature_attention, "LARGEST", 20)
    torch.testing.assert_close(random_feature_kernel(query, keys, other, others), whole)


def test_twice_the_keys_and_keys_left_out() -> None:
    layer, (query, keys) = layer_of(4, 12, 2, bias="identity"), on_sphere(3, 5, 4)
    torch.testing.assert_close(layer(query, keys.repeat(1, 2, 1)), layer(query, keys))
    mask = torch.tensor([True, False, True, True, False]).expand(3, 5)
    torch.testing.assert_close(layer(query, keys, mask), layer(query, keys[:, [0, 2, 3]]))
    nothing = layer(query, keys, torch.zeros(3, 5, dtype=torch.bool))
    assert torch.equal(nothing, layer.intercept.expand(3, 2)) and torch.equal(layer(query, keys[:, :0]), nothing)


def test_the_bias_alone_sees_the_query_by_its_products_with_the_keys() -> None:
    layer = layer_of(3, 4, bias="identity")
    layer.weight.copy_(torch.diag_embed(torch.tensor([1.0, 1, 1, 0])).expand(4, 4, 4))
    query, keys = on_sphere(1, 2, 3)
    # Along the normal of the plane of two keys, the query has the same products with both.
    normal = torch.linalg.cross(keys[0, 0], keys[0, 1])
    torch.testing.assert_close(layer(query + 3 * normal, keys), layer(query, keys))
    assert (layer(query + keys[:, 0], keys) - layer(query, keys)).abs() > 1e-3
    noisy = layer_of(3, 4, bias="identity")
    assert (noisy(query + 3 * normal, keys) - noisy(query, keys)).abs() > 1e-3


def test_counts_of_the_paper() -> None:
    layer = RandomFeatureAttention(16, 1000)
    assert (layer.values.numel(), layer.weight.numel()) == (17_000, 289_000)
    assert [name for name, _ in layer.named_parameters()] == ["values", "intercept"] and not layer.values.any()


@pytest.mark.parametrize("bias", BIASES)
def test_blocks_of_heads_change_nothing(bias: str) -> None:
    query, keys = on_sphere(3, 5, 4)
    layers = [layer_of(4, 10, 2, bias=bias, at_once=at_once) for at_once in (3, 10)]
    gradients = []
    for layer in layers:
        inputs = (query.clone().requires_grad_(), keys.clone().requires_grad_())
        output = layer(*inputs)
        gradients.append((output, *torch.autograd.grad(output.square().sum(), (*inputs, *layer.parameters()))))
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(*(layer.gram((query, keys)) for layer in layers))


def test_few_heads_are_in_memory_at_once() -> None:
    def most(at_once: int) -> int:
        layer, (query, keys) = layer_of(4, 64, at_once=at_once), on_sphere(32, 5, 4)
        sizes = []
        layer.coupling.register_forward_hook(lambda _, __, made: sizes.append(made.numel()))
        blocks = RandomFeatures.blocks(layer)
        for first, last in blocks:
            layer.block(first, last, query, keys)
        return max(sizes)

    assert most(64) == 8 * most(8)


def primal(features: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Ridge regression on centred features, by the normal equations of the weights."""
    centred, rest = features - features.mean(0), targets - targets.mean(0)
    added = penalty * centred.square().sum() * torch.eye(features.shape[1], dtype=features.dtype)
    weights = torch.linalg.solve(centred.T @ centred + added, centred.T @ rest)
    return weights, targets.mean(0) - features.mean(0) @ weights


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("samples", [10, 60])
def test_the_fit_is_ridge_regression_on_the_features(bias: str, samples: int) -> None:
    layer, inputs = layer_of(3, 8, 2, bias=bias, at_once=3, trained=False), on_sphere(samples, 4, 3)
    targets = torch.randn(samples, 2, dtype=torch.float64)
    layer.fit(*inputs, targets=targets, penalty=1e-3)
    weights, intercept = primal(layer.features(*inputs).flatten(1), targets, 1e-3)
    torch.testing.assert_close(layer.values.T, weights, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(layer.intercept, intercept, rtol=1e-6, atol=1e-8)
    # By the products of pairs of samples alone, new ones included.
    alpha, constant = kernel_ridge(layer.gram(inputs), targets, 1e-3)
    new = on_sphere(5, 4, 3, seed=1)
    torch.testing.assert_close(layer.gram(new, inputs) @ alpha + constant, layer(*new), rtol=0, atol=1e-8)
    torch.testing.assert_close(alpha.sum(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_penalty_of_zero_interpolates_and_a_large_one_gives_the_mean() -> None:
    layer, inputs = layer_of(3, 40, trained=False), on_sphere(12, 4, 3)
    targets = torch.randn(12, dtype=torch.float64)
    torch.testing.assert_close(layer.fit(*inputs, targets=targets, penalty=0)(*inputs), targets, rtol=0, atol=1e-5)
    constant = layer.fit(*inputs, targets=targets, penalty=1e9)(*inputs)
    torch.testing.assert_close(constant, targets.mean().expand(12), rtol=0, atol=1e-6)
    # One sample, and inputs without any difference, leave their mean.
    alike = [x[:1].expand(4, *x.shape[1:]) for x in inputs]
    found = layer.fit(*alike, targets=targets[:4])(*alike)
    torch.testing.assert_close(found, targets[:4].mean().expand(4))


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_other_activations(activation: str) -> None:
    layer, (query, keys) = layer_of(3, 2, activation=activation), on_sphere(1, 1, 3)
    z0, z = (torch.cat((x.flatten(), torch.ones(1))) for x in (query, keys))
    score = z0 @ layer.weight[1] @ z
    weight = torch.nn.functional.gelu(score) if activation == "gelu" else score.tanh()
    torch.testing.assert_close(layer.features(query, keys)[0, 1], weight * z)


def test_the_mlp_fits_too() -> None:
    torch.manual_seed(0)
    mlp, inputs = RandomFeatureMLP(3, 4, 30, 2, at_once=7).double(), on_sphere(20, 4, 3)
    targets = torch.randn(20, 2, dtype=torch.float64)
    assert mlp.fit(*inputs, targets=targets, penalty=0)(*inputs).shape == (20, 2)
    torch.testing.assert_close(mlp(*inputs), targets, rtol=0, atol=1e-4)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="bias"):
        RandomFeatureAttention(3, 4, bias="learned")
    with pytest.raises(UsageError, match="activation"):
        RandomFeatureAttention(3, 4, activation="softmax")
    with pytest.raises(UsageError, match="at_once"):
        RandomFeatureAttention(3, 4, at_once=0)
    with pytest.raises(UsageError, match="outputs"):
        RandomFeatureMLP(3, 4, 5, 0)
    layer, (query, keys) = layer_of(3, 4), on_sphere(2, 5, 3)
    with pytest.raises(UsageError, match="targets"):
        layer.fit(query, keys, targets=torch.zeros(2, 2))
    with pytest.raises(UsageError, match="penalty"):
        layer.fit(query, keys, targets=torch.zeros(2), penalty=-1)
    with pytest.raises(UsageError, match="gram"):
        kernel_ridge(torch.zeros(2, 3), torch.zeros(2), 1.0)
    with pytest.raises(UsageError, match="inputs"):
        random_feature_kernel(query, keys, query[:, :2], keys[..., :2])
    for given in (
        (query[:0], keys[:0], query, keys), (query, keys, query[:0], keys[:0]), (query, keys[:, :0], query, keys),
        (query, keys, query, keys[:, :0]), (query[:1], keys, query, keys), (query, keys, query, keys[:1]),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="at least one sample and one key"):
            random_feature_kernel(*given)
    with pytest.raises(UsageError, match="keys"):
        layer(query, keys[0])


def test_samples_that_cannot_be_fitted_are_refused() -> None:
    layer, (query, keys) = layer_of(3, 4, trained=False), on_sphere(4, 5, 3)
    targets, before = torch.randn(4, dtype=torch.float64), layer.values.clone()
    bad = [x.clone() for x in (query, keys, targets)]
    for x in bad:
        x.flatten()[2] = math.nan
    with pytest.raises(UsageError, match="targets are of no sample"):
        layer.fit(query[:0], keys[:0], targets=targets[:0])
    for given, wrong, error in (
        ((bad[0], keys), targets, "query"),
        ((query, bad[1]), targets, "keys"),
        ((query, keys), bad[2], "targets"),
        ((1e200 * query, 1e200 * keys), targets, "gram"),
    ):
        with pytest.raises(UsageError, match=f"{error} has values that are infinite or NaN"):
            layer.fit(*given, targets=wrong)
    assert torch.equal(layer.values, before)
    with pytest.raises(UsageError, match="at least one sample"):
        kernel_ridge(targets[:0].view(0, 0), targets[:0], 1.0)
