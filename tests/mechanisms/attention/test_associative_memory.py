"""Associative memories: worked numbers, reductions to one another, energies that fall, masks, refusals."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.similarity import SIMILARITIES
from mereo.errors import UsageError
from mereo.mechanisms.attention import MEMORIES, SEPARATIONS, Separation, associative_memory, energy, retrieve
from mereo.mechanisms.attention.memory.separation import entmax, logarithm, maximum, power, threshold, top_k

FEW = settings(max_examples=30, deadline=None, database=None, derandomize=True)
D = torch.float64
MEMORY = torch.tensor([[[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]]], dtype=D)
QUERY = torch.tensor([[[1, 0.8, 0.3, 0]]], dtype=D)
EVERY: dict[str, str | Separation] = {name: name for name in SEPARATIONS} | {
    "power3": power(3),
    "power0.3": power(0.3),
    "log_sum": logarithm(normalise=False),
    "signed_cube": power(3, rectify=False, normalise=False),
    "threshold": threshold(0.1),
    "top_k": top_k(2),
    "entmax1.25": entmax(1.25),
    "leaky": Coupling("senders", "leaky_softmax"),
}


def close(got: Tensor, *expected: float, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.flatten(), torch.tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("similarity", "separation", "expected"),
    [
        ("dot", "softmax", (0.571197, 0.115323, 0.313480)),
        ("dot", "entmax15", (0.706310, 0.001634, 0.292056)),
        ("dot", "sparsemax", (0.8, 0, 0.2)),
        ("dot", power(3), (0.725727, 0.009795, 0.264478)),
        ("dot", "max", (1, 0, 0)),
        ("dot", "identity", (2.1, 0.5, 1.5)),
        ("dot", threshold(1.4), (1, 0, 1)),
        ("dot", power(2, normalise=False), (4.41, 0.25, 2.25)),
        ("neg_euclidean", "softmax", (0.745181, 0.030375, 0.224444)),
        ("neg_euclidean", "entmax15", (0.884187, 0, 0.115813)),
        ("neg_euclidean", "sparsemax", (1, 0, 0)),
        ("neg_manhattan", "softmax", (0.571197, 0.115323, 0.313480)),
    ],
)
def test_worked_weights(similarity: str, separation: str | Separation, expected: tuple[float, ...]) -> None:
    close(retrieve(QUERY, MEMORY, similarity=similarity, separation=separation)[1], *expected)


def test_worked_outputs() -> None:
    close(retrieve(QUERY, MEMORY)[0], 1, 0.769354, 0.373040, 0.142395)
    close(retrieve(QUERY, MEMORY, separation="identity")[0], 4.1, 3.1, 1.1, 0.1)


@pytest.mark.parametrize(
    ("alpha", "beta", "expected", "rest", "where"),
    [
        (1, 1, (1.303592, 1.271997, 1.207364, 1.121876), 1.057815, (1, 0.953930, 0.953930, 0.907861)),
        (1, 0.25, (1.444947, 1.344756, 1.334587), 1.333333, (1, 1 / 3, 1 / 3, -1 / 3)),
        (1.5, 1, (-1.388487, -1.659883, -1.997456), -2, (1, 1, 1, 1)),
        (2, 1, (-1.275, -1.84, -2), -2, (1, 1, 1, 1)),
    ],
)
def test_worked_energies(alpha: float, beta: float, expected: tuple[float, ...], rest: float, where: Any) -> None:
    def after(steps: int) -> Tensor:
        return retrieve(QUERY, MEMORY, separation=entmax(alpha), beta=beta, steps=steps)[0] if steps else QUERY

    energies = [energy(after(steps), MEMORY, alpha=alpha, beta=beta).item() for steps in range(len(expected))]
    close(torch.tensor(energies, dtype=D), *expected)
    last, weights = retrieve(QUERY, MEMORY, separation=entmax(alpha), beta=beta, steps=60)
    close(last, *where)
    close(energy(last, MEMORY, alpha=alpha, beta=beta), rest)
    if alpha > 1:
        assert weights.flatten().tolist() == [1, 0, 0]


def random_problem(seed: int, queries: int = 2, patterns: int = 5, size: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(2, queries, size, dtype=D), torch.randn(2, patterns, size, dtype=D)


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@given(seed=st.integers(0, 10_000), beta=st.floats(0.05, 8), masked=st.booleans())
@FEW
def test_energy_never_rises(alpha: float, seed: int, beta: float, masked: bool) -> None:
    query, memory = random_problem(seed)
    mask = torch.rand(2, 5) < 0.7 if masked else None
    if mask is not None:
        mask[:, 0] = True
    previous = energy(query, memory, alpha=alpha, beta=beta, mask=mask)
    for _ in range(5):
        query, _ = retrieve(query, memory, separation=entmax(alpha), beta=beta, mask=mask)
        current = energy(query, memory, alpha=alpha, beta=beta, mask=mask)
        assert (current <= previous + 1e-9).all()
        if alpha == 1:
            assert (current >= -1e-9).all() and (current <= 2 * memory.square().sum(-1).max() + 1e-9).all()
        previous = current


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_gradient_of_the_energy_is_the_query_less_what_it_retrieves(alpha: float) -> None:
    query, memory = random_problem(0)
    query.requires_grad_()
    (slope,) = torch.autograd.grad(energy(query, memory, alpha=alpha, beta=2.0).sum(), query)
    retrieved, _ = retrieve(query, memory, separation=entmax(alpha), beta=2.0)
    torch.testing.assert_close(slope, query - retrieved, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_energy_of_a_masked_memory_is_that_of_the_rest(alpha: float) -> None:
    query, memory = random_problem(0)
    memory[:, 1] *= 10
    mask = torch.tensor([True, False, True, True, False])
    expected = energy(query, memory[:, mask], alpha=alpha)
    torch.testing.assert_close(energy(query, memory, alpha=alpha, mask=mask.expand(2, 5)), expected)
    torch.testing.assert_close(energy(query, memory, alpha=alpha, mask=mask.expand(2, 2, 5)), expected)


def test_energy_of_no_pattern_is_infinite() -> None:
    query, memory = random_problem(0)
    for alpha in (1.0, 1.5):
        assert energy(query, memory, alpha=alpha, mask=torch.zeros(2, 5, dtype=torch.bool)).isposinf().all()


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0)])
def test_sparse_retrieval_is_exact_beyond_its_margin(alpha: float, margin: float) -> None:
    memory = torch.eye(3, dtype=D).unsqueeze(0)
    query = torch.tensor([[[1.0, 0.2, 0.1]]], dtype=D)
    beta = margin / 0.8
    out, weights = retrieve(query, memory, separation=entmax(alpha), beta=beta * 1.001)
    assert torch.equal(out, memory[:, :1]) and weights.flatten().tolist() == [1, 0, 0]
    assert retrieve(query, memory, separation=entmax(alpha), beta=beta * 0.99)[1][0, 0, 1] > 0
    assert retrieve(query, memory, beta=20)[1][0, 0, 1] > 0


@given(seed=st.integers(0, 1000))
@FEW
def test_bipolar_memory_dot_and_manhattan_weigh_alike(seed: int) -> None:
    torch.manual_seed(seed)
    memory, query = torch.randn(1, 5, 6, dtype=D).sign(), 2 * torch.rand(1, 3, 6, dtype=D) - 1
    dot, manhattan = (retrieve(query, memory, similarity=s)[1] for s in ("dot", "neg_manhattan"))
    torch.testing.assert_close(dot, manhattan)


@given(seed=st.integers(0, 1000), beta=st.floats(0.1, 5))
@FEW
def test_equal_norms_make_euclidean_the_dot_at_twice_beta(seed: int, beta: float) -> None:
    query, memory = random_problem(seed)
    memory = memory / memory.norm(dim=-1, keepdim=True)
    euclidean = retrieve(query, memory, similarity="neg_euclidean", beta=beta)[1]
    torch.testing.assert_close(euclidean, retrieve(query, memory, beta=2 * beta)[1])


def test_limits_of_beta() -> None:
    query, memory = random_problem(0)
    torch.testing.assert_close(retrieve(query, memory, beta=1e6)[1], retrieve(query, memory, separation="max")[1])
    mean = memory.mean(1, keepdim=True).expand_as(query)
    torch.testing.assert_close(retrieve(query, memory, beta=0)[0], mean)


def test_gaussian_is_a_posterior_mean() -> None:
    query, memory = random_problem(0)
    beta = 1.7
    density = torch.distributions.Normal(memory.unsqueeze(1), (2 * beta) ** -0.5)
    likelihood = density.log_prob(query.unsqueeze(2)).sum(-1).exp()
    posterior = likelihood / likelihood.sum(-1, keepdim=True)
    torch.testing.assert_close(associative_memory("gaussian", beta=beta)(query, memory)[0], posterior @ memory)


def test_retrieval_by_softmax_is_attention() -> None:
    torch.manual_seed(0)
    query, memory, values = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    out, _ = retrieve(query, memory, values, beta=0.5)
    expected = attend(*(x.unsqueeze(1) for x in (query, memory, values)), Coupling("senders"), scale=0.5)
    torch.testing.assert_close(out, expected.squeeze(1))


@pytest.mark.parametrize(
    ("beta", "steps", "state", "weights"),
    [
        (1, 1, (0.507460, 0.374582), (0.411279, 0.428064, 0.160657)),
        (1, 30, (0.511264, 0.386577), None),
        (8, 1, (0.767867, 0.463399), (0.420580, 0.579192, 0.000228)),
        (8, 30, (0.621857, 0.756253), (0.054677, 0.945315, 0.000009)),
    ],
)
def test_a_child_retrieves_from_the_predictions_of_its_parents(
    beta: float, steps: int, state: tuple[float, ...], weights: tuple[float, ...] | None
) -> None:
    predictions = torch.tensor([[[1.0, 0], [0.6, 0.8], [-1, 0.2]]], dtype=D)
    out, last = retrieve(torch.tensor([[[0.5, 0.3]]], dtype=D), predictions, beta=beta, steps=steps)
    close(out, *state)
    if weights is not None:
        close(last, *weights)


@pytest.mark.parametrize("separation", list(EVERY))
@pytest.mark.parametrize("similarity", list(SIMILARITIES))
def test_permuting_the_memory_permutes_the_weights(similarity: str, separation: str) -> None:
    torch.manual_seed(1)
    query, memory, order = torch.rand(2, 3, 4, dtype=D), torch.rand(2, 6, 4, dtype=D), torch.randperm(6)
    out, weights = retrieve(query, memory, None, similarity, EVERY[separation])
    permuted, moved = retrieve(query, memory[:, order], None, similarity, EVERY[separation])
    torch.testing.assert_close(moved, weights[..., order])
    torch.testing.assert_close(permuted, out)


@pytest.mark.parametrize("separation", list(EVERY))
@given(seed=st.integers(0, 1000), steps=st.integers(1, 3))
@FEW
def test_a_masked_pattern_is_as_if_it_were_absent(separation: str, seed: int, steps: int) -> None:
    query, memory = random_problem(seed)
    mask = torch.rand(5) < 0.6
    mask[0] = True
    out, weights = retrieve(query, memory, separation=EVERY[separation], steps=steps, mask=mask.expand(2, 5))
    short_out, short = retrieve(query, memory[:, mask], separation=EVERY[separation], steps=steps)
    assert (weights[..., ~mask] == 0).all()
    torch.testing.assert_close(weights[..., mask], short, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(out, short_out, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("separation", list(EVERY))
def test_all_masked_gives_zeros(separation: str) -> None:
    query, memory = random_problem(0)
    query.requires_grad_()
    mask = torch.ones(2, 2, 5, dtype=torch.bool)
    mask[0, 1] = False
    out, weights = retrieve(query, memory, separation=EVERY[separation], mask=mask)
    assert (weights[0, 1] == 0).all() and (out[0, 1] == 0).all() and (weights[0, 0] != 0).any()
    if out.requires_grad:
        out.square().sum().backward()
        assert query.grad is not None and query.grad.isfinite().all() and (query.grad[0, 1] == 0).all()


@pytest.mark.parametrize("separation", list(EVERY))
@pytest.mark.parametrize("similarity", list(SIMILARITIES))
def test_gradients_at_zero_are_finite(similarity: str, separation: str) -> None:
    query, memory = torch.zeros(1, 2, 3, requires_grad=True), torch.zeros(1, 4, 3, requires_grad=True)
    out, weights = retrieve(query, memory, None, similarity, EVERY[separation])
    assert out.isfinite().all() and weights.isfinite().all()
    (out.sum() + weights.square().sum()).backward()
    assert memory.grad is not None and memory.grad.isfinite().all()
    if separation in {"max", "threshold"}:
        assert query.grad is None
    else:
        assert query.grad is not None and query.grad.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "max", "sqrt", "log"])
def test_weights_that_compete_sum_to_one(name: str) -> None:
    torch.manual_seed(0)
    weights = retrieve(torch.rand(2, 3, 4), torch.rand(2, 6, 4), separation=name)[1]
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_equals_share_the_maximum() -> None:
    close(maximum()(torch.tensor([1.0, 3, 3, 0]), None), 0, 0.5, 0.5, 0)


def test_scores_below_zero_weigh_nothing_unless_signs_are_kept() -> None:
    scores = torch.tensor([-2.0, 1, 2])
    close(power(2)(scores, None), 0, 0.2, 0.8)
    close(power(2, rectify=False, normalise=False)(scores, None), 4, 1, 4)
    close(power(3, rectify=False, normalise=False)(scores, None), -8, 1, 8)
    close(logarithm(normalise=False)(scores, None), 0, 0.693147, 1.098612)
    assert (power(3)(-scores.abs(), None) == 0).all()


def test_values_are_returned_for_patterns() -> None:
    query, memory = random_problem(0)
    values = torch.randn(2, 5, 7, dtype=D)
    out, weights = retrieve(query, memory, values)
    torch.testing.assert_close(out, weights @ values)
    torch.testing.assert_close(weights, retrieve(query, memory)[1])


def test_values_of_equal_size_walk_through_a_sequence() -> None:
    memory = torch.eye(4, dtype=D).unsqueeze(0)
    out, _ = retrieve(memory[:, :1], memory, memory.roll(-1, 1), separation="max", steps=3)
    assert torch.equal(out, memory[:, 3:])


def test_one_memory_serves_a_batch() -> None:
    query, memory = random_problem(0)
    shared = retrieve(query, memory[:1])[0]
    torch.testing.assert_close(shared[1:], retrieve(query[1:], memory[:1])[0])


def test_classical_memory_completes_bipolar_patterns() -> None:
    torch.manual_seed(0)
    memory = torch.randn(1, 3, 32).sign()
    query = memory.clone()
    query[..., :6] *= -1
    out, weights = associative_memory("classical")(query, memory, steps=3)
    assert torch.equal(out, memory)
    assert weights.diagonal(dim1=1, dim2=2).eq(32).all()


def test_sparse_distributed_memory_counts_patterns_in_reach() -> None:
    memory = torch.tensor([[[1.0, 1, 1, 1], [1, 1, 1, -1], [-1, -1, 1, -1]]])
    out, weights = associative_memory("sdm", theta=2.5)(memory[:, :1], memory)
    close(weights, 1, 1, 0)
    close(out, 2, 2, 2, 0)


@pytest.mark.parametrize(
    ("name", "arguments", "same"),
    [
        ("dam", {"k": 3}, {"separation": power(3)}),
        ("mchn", {"beta": 3.0}, {"beta": 3.0}),
        ("sparse", {"alpha": 2.0, "beta": 0.5}, {"separation": "sparsemax", "beta": 0.5}),
        ("topk", {"k": 2}, {"separation": top_k(2)}),
    ],
)
def test_named_memories(name: str, arguments: dict[str, float], same: dict[str, Any]) -> None:
    query, memory = random_problem(0)
    for got, expected in zip(
        associative_memory(name, **arguments)(query, memory), retrieve(query, memory, **same), strict=True
    ):
        assert torch.equal(got, expected)
    assert name in MEMORIES


def test_sharper_and_better_separated_retrieval_errs_less() -> None:
    torch.manual_seed(0)
    directions = torch.linalg.qr(torch.randn(8, 8, dtype=D))[0].unsqueeze(0)

    def error(scale: float, beta: float) -> float:
        memory = scale * directions
        return (retrieve(memory + 0.05, memory, beta=beta)[0] - memory).norm().item() / scale

    by_beta, by_margin = [error(1, b) for b in (1, 4, 16)], [error(s, 4) for s in (0.5, 1, 2)]
    assert by_beta == sorted(by_beta, reverse=True) and by_margin == sorted(by_margin, reverse=True)


@pytest.mark.parametrize("separation", ["softmax", "max", "sqrt", "sparsemax", "entmax1.25"])
@pytest.mark.parametrize("similarity", ["dot", "neg_euclidean", "cosine"])
def test_half_precision_stays_half_and_finite(similarity: str, separation: str) -> None:
    torch.manual_seed(0)
    query, memory = torch.randn(1, 3, 16).bfloat16(), torch.randn(1, 9, 16).bfloat16()
    out, weights = retrieve(query, memory, None, similarity, EVERY[separation])
    assert out.dtype == weights.dtype == torch.bfloat16 and out.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"similarity": "cosin"}, r"similarity is 'cosin'"),
        ({"separation": "softmaks"}, r"separation is 'softmaks'"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"steps": 0}, "steps is 0"),
        ({"activation": "relu"}, "activation is 'relu'"),
        ({"values": torch.zeros(1, 3, 7), "steps": 2}, "steps is 2 with values of size 7 and queries of size 4"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        retrieve(QUERY, MEMORY, **options)


def test_wrong_memories_and_parameters() -> None:
    with pytest.raises(UsageError, match="'mchn'"):
        associative_memory("mchm")
    with pytest.raises(UsageError, match=r"memory 'dam'.*'k'"):
        associative_memory("dam")
    with pytest.raises(UsageError, match="'mchn'"):
        associative_memory("mchn", theta=1.0)
    for refused in (lambda: power(0), lambda: power(2.5, rectify=False), lambda: entmax(2.5), lambda: entmax(0.5)):
        with pytest.raises(UsageError):
            refused()
    with pytest.raises(UsageError, match="beta is 0"):
        energy(QUERY, MEMORY, beta=0)
    with pytest.raises(UsageError, match="alpha is 3"):
        energy(QUERY, MEMORY, alpha=3)
