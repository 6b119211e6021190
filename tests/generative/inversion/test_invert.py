"""`invert` as a whole: batches, masks, starts, types, extremes, and a bound that never falls, whatever the problem."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.errors import MereoError
from mereo.generative.inversion import Inversion, invert

D = torch.float64
FAMILIES = ["free", "sphere"]
FIELDS = ("responsibilities", "mean", "covariance", "elbo", "trace")


def problem(*batch: int, m: int = 5, n: int = 3, d: int = 3, e: int = 3) -> dict[str, Any]:
    """Poses and orthogonal transforms, with which both families can do."""
    transforms = torch.linalg.qr(torch.randn(m, n, d, e, dtype=D))[0]
    return {
        "poses": torch.randn(*batch, m, d, dtype=D),
        "transforms": transforms,
        "sigma": 0.5,
        "kappa": 2.0,
        "sweeps": 4,
    }


def agree(one: Inversion, other: Inversion, **tolerances: float) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **tolerances)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_its_elements(family: str) -> None:
    setup = problem(2, 4) | {"family": family}
    directions = torch.nn.functional.normalize(torch.randn(2, 4, 5, 3, dtype=D), dim=-1)
    mask, start = torch.rand(2, 4, 5) > 0.3, torch.rand(2, 4, 5, 3, dtype=D).softmax(-1)
    found = invert(**setup, directions=directions, mask=mask, start=start)
    assert found.responsibilities.shape == (2, 4, 5, 3) and found.mean.shape == (2, 4, 3, 3)
    assert found.covariance.shape == (2, 4, 3, 3, 3) and found.elbo.shape == (2, 4) and found.trace.shape == (5, 2, 4)
    for a, b in itertools.product(range(2), range(4)):
        one = {"directions": directions[a, b], "mask": mask[a, b], "start": start[a, b]}
        alone = invert(**setup | {"poses": setup["poses"][a, b]}, **one)
        assert alone.elbo.shape == ()
        torch.testing.assert_close(found.trace[:, a, b], alone.trace)
        for name in ("responsibilities", "mean", "covariance", "elbo"):
            torch.testing.assert_close(getattr(found, name)[a, b], getattr(alone, name))


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_children_change_nothing(family: str) -> None:
    setup = problem(4) | {"family": family}
    mask = torch.tensor([True, False, True, True, False])
    found = invert(**setup, mask=mask.expand(4, 5))
    left = {"poses": setup["poses"][:, mask], "transforms": setup["transforms"][mask]}
    without = invert(**setup | left)
    torch.testing.assert_close(found.trace, without.trace)
    torch.testing.assert_close(found.mean, without.mean)
    torch.testing.assert_close(found.responsibilities[:, mask], without.responsibilities)
    assert (found.responsibilities[:, ~mask] == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_parents_keep_their_prior(family: str) -> None:
    setup = problem(4) | {"family": family}
    prior = torch.randn(3, 3, dtype=D)
    found = invert(**setup, log_prior=torch.tensor([0.0, -math.inf, 1.0], dtype=D), prior=prior)
    keep = [0, 2]
    left = {
        "transforms": setup["transforms"][:, keep],
        "log_prior": torch.tensor([0.0, 1.0], dtype=D),
        "prior": prior[keep],
    }
    without = invert(**setup | left)
    torch.testing.assert_close(found.trace, without.trace)
    torch.testing.assert_close(found.mean[:, keep], without.mean)
    assert (found.responsibilities[..., 1] == 0).all()
    untouched = invert(**setup, prior=prior, mask=torch.zeros(4, 5, dtype=torch.bool))
    torch.testing.assert_close(found.mean[:, 1], untouched.mean[:, 1])
    torch.testing.assert_close(untouched.elbo, torch.zeros(4, dtype=D), rtol=0, atol=1e-9)
    if family == "free":
        torch.testing.assert_close(untouched.mean, prior.expand(4, 3, 3))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_children_and_parents_does_not_matter(family: str) -> None:
    setup = problem(2) | {"family": family}
    children, parents = torch.randperm(5), torch.tensor([2, 0, 1])
    found = invert(**setup)
    turned = {"poses": setup["poses"][:, children], "transforms": setup["transforms"][children][:, parents]}
    again = invert(**setup | turned)
    torch.testing.assert_close(again.trace, found.trace)
    torch.testing.assert_close(again.responsibilities, found.responsibilities[:, children][:, :, parents])
    torch.testing.assert_close(again.mean, found.mean[:, parents])


@pytest.mark.parametrize("family", FAMILIES)
def test_poses_are_their_own_directions(family: str) -> None:
    setup = problem(3) | {"family": family}
    setup["poses"][0, 1] = 0
    directions = torch.nn.functional.normalize(setup["poses"], dim=-1)
    agree(invert(**setup, directions=directions), invert(**setup))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_many_starts_keep_the_best_of_each_element(family: str) -> None:
    setup = problem(6, m=4, n=4) | {"family": family, "sweeps": 30}
    first, seeded = invert(**setup), torch.Generator().manual_seed(5)
    found = invert(**setup, starts=8, generator=seeded)
    assert (found.elbo >= first.elbo).all() and (found.elbo > first.elbo + 1e-3).any()
    torch.testing.assert_close(found.trace[-1], found.elbo, rtol=0, atol=0)
    again = invert(**setup, starts=8, generator=torch.Generator().manual_seed(5))
    agree(again, found, rtol=0, atol=0)
    # The returned responsibilities belong to the returned beliefs.
    start = {"start_parents": (found.mean, found.covariance)} if family == "free" else {"start": found.responsibilities}
    further = invert(**setup | {"sweeps": 1}, **start)
    torch.testing.assert_close(further.responsibilities, found.responsibilities, rtol=0, atol=1e-3)


def test_learning_from_many_starts_keeps_the_best_as_a_whole() -> None:
    setup = problem(2, m=4, n=4) | {"learn": ("sigma",), "sweeps": 15}
    found = invert(**setup, starts=4, generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(1)
    runs = [invert(**setup)]
    for _ in range(3):
        shares = -torch.rand(2, 4, 4, generator=draws, dtype=D).log()
        start = (shares / shares.sum(1, keepdim=True)).mT
        runs.append(invert(**setup, start=start))
    best = max(runs, key=lambda run: run.elbo.sum().item())
    assert best is not runs[0] and best is not runs[-1]
    agree(found, best)
    assert found.sigma == best.sigma


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types(dtype: torch.dtype, family: str) -> None:
    """Half precision is computed in float32, from the values as they are rounded."""
    setup = problem(2) | {"family": family}
    poses, transforms = setup["poses"].to(dtype), setup["transforms"].float()
    found = invert(**setup | {"poses": poses, "transforms": transforms})
    wide = invert(**setup | {"poses": poses.to(D), "transforms": transforms.to(D)})
    for name in FIELDS:
        assert getattr(found, name).dtype == torch.float32
        torch.testing.assert_close(getattr(found, name).to(D), getattr(wide, name), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("learn", [(), ("sigma", "kappa", "log_prior")], ids=["held", "learned"])
@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("family", FAMILIES)
def test_zero_and_huge_poses(family: str, size: float, learn: tuple[str, ...]) -> None:
    for dtype in (torch.float32, D):
        setup = problem(3) | {"family": family, "learn": learn, "sparsity": float(family == "free")}
        setup |= {"poses": (size * setup["poses"]).to(dtype), "transforms": setup["transforms"].to(dtype)}
        found = invert(**setup)
        assert all(getattr(found, name).isfinite().all() for name in (*FIELDS, "sigma", "kappa"))
        torch.testing.assert_close(found.responsibilities.sum(-1), torch.ones(3, 5, dtype=dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_ties_between_huge_scores_are_shared(family: str) -> None:
    """Next to scores of 1e13 the logarithm of a sum is rounded away."""
    setup = problem(3, n=1) | {"family": family, "sweeps": 1}
    setup["poses"], setup["transforms"] = 1e6 * setup["poses"].float(), setup["transforms"].float().expand(5, 4, 3, 3)
    found = invert(**setup)
    torch.testing.assert_close(found.responsibilities, torch.full((3, 5, 4), 0.25))


def test_more_than_a_type_holds_is_refused() -> None:
    for family, size in itertools.product(FAMILIES, (1e20, 1e30)):
        setup = problem(2) | {"family": family}
        with pytest.raises(MereoError, match=r"poses up to .* torch\.float32"):
            invert(**setup | {"poses": (size * setup["poses"]).float()})


@pytest.mark.parametrize("family", FAMILIES)
def test_empty_batches(family: str) -> None:
    for batch in ((0,), (2, 0)):
        found = invert(**problem(*batch), family=family, starts=2, mask=torch.ones(*batch, 5) > 0, learn=("sigma",))
        assert found.elbo.shape == batch and found.trace.shape == (5, *batch)
        assert found.responsibilities.shape == (*batch, 5, 3) and found.sigma.item() == 0.5


def test_nothing_is_differentiated_and_nothing_is_written_to() -> None:
    setup = problem(2)
    poses, transforms = setup["poses"].requires_grad_(), setup["transforms"].requires_grad_()
    sigma = torch.tensor(0.5, requires_grad=True)
    before = poses.detach().clone(), transforms.detach().clone()
    found = invert(**setup | {"sigma": sigma}, learn=("sigma", "kappa"))
    assert not any(getattr(found, name).requires_grad for name in (*FIELDS, "sigma"))
    assert torch.equal(poses, before[0]) and torch.equal(transforms, before[1]) and sigma == 0.5


FEW = settings(max_examples=60, deadline=None, database=None, derandomize=True)
LEARNABLE = ("sigma", "kappa", "log_prior")


@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    scale=st.sampled_from([0.01, 1.0, 10.0]),
    learn=st.sets(st.sampled_from(LEARNABLE)),
    shape=st.sampled_from(["shared", "components", "pairs"]),
    sparsity=st.sampled_from([0.0, 0.0, 0.5, 20.0]),
    grouped=st.booleans(),
    lacking=st.booleans(),
)
@FEW
@pytest.mark.long
def test_the_bound_never_falls(
    family: Any, seed: int, sizes: tuple[int, int, int, int], scale: float, learn: set[str], shape: str,
    sparsity: float, grouped: bool, lacking: bool,
) -> None:  # fmt: skip
    """Any sizes, parameters held and learned in every shape, sparse or not, with absent children and directions."""
    draws, (m, n, d, e) = torch.Generator().manual_seed(seed), sizes
    if family == "sphere":
        e = min(d, e)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=D)

    transforms = normal(m, n, d, e)
    pairs = {"shared": (1, 1), "components": (1, n), "pairs": (m, n)}[shape]
    options: dict[str, Any] = {
        "transforms": transforms if family == "free" else torch.linalg.qr(transforms)[0], "family": family,
        "sigma": 0.1 + normal(*pairs).abs(), "kappa": 3 * normal(*pairs).abs(), "log_prior": normal(pairs[0], n),
        "learn": sorted(learn), "sweeps": 12, "owner": torch.arange(n) // 2 if grouped else None,
    }  # fmt: skip
    poses, parents = scale * normal(3, m, d), (n + 1) // 2 if grouped else n
    if family == "free":
        options |= {"prior": normal(parents, e), "prior_precision": 0.3 + normal(parents).abs(), "sparsity": sparsity}
    else:
        options["prior"] = 2 * normal(parents, e)
    if lacking:
        poses[0, 0] = 0
        options["mask"] = torch.rand(3, m, generator=draws) > 0.3
    found = invert(poses, start=normal(3, m, n).softmax(-1), **options)
    # What is learned is shared by the batch, whose bounds then rise together.
    trace = found.trace.sum(1) if learn else found.trace
    falls = trace[:-1] - trace[1:]
    assert (falls <= 1e-9 * trace[1:].abs().clamp(min=1)).all()
