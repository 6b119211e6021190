"""Arguments that `invert` refuses, by name, and the shapes of the others."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.generative.inversion import invert

EYE = torch.eye(3)
GOOD: dict[str, Any] = {
    "poses": torch.ones(2, 5, 3), "transforms": EYE.expand(5, 4, 3, 3), "sigma": 0.5, "kappa": 1.0, "sweeps": 1,
}  # fmt: skip
NAN, INF = math.nan, math.inf
BOTH = ["free", "sphere"]
SHARES = torch.full((2, 5, 4), 0.25)


def refused(message: str, **changes: Any) -> None:
    with pytest.raises(UsageError, match=message):
        invert(**GOOD | changes)


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"poses": torch.ones(3)}, r"poses has shape \(3,\)"),
        ({"poses": torch.ones(2, 0, 3)}, r"poses has shape \(2, 0, 3\)"),
        ({"poses": torch.ones(2, 5, 0)}, r"poses has shape \(2, 5, 0\)"),
        ({"poses": torch.ones(2, 5, 3, dtype=torch.int64)}, r"poses has .* type torch\.int64"),
        ({"poses": torch.full((2, 5, 3), NAN)}, "poses has values"),
        ({"transforms": torch.ones(3, 3)}, r"transforms has shape \(3, 3\)"),
        ({"transforms": torch.ones(6, 4, 3, 3)}, r"transforms has shape \(6, 4, 3, 3\)"),
        ({"transforms": torch.ones(5, 4, 2, 3)}, r"transforms has shape \(5, 4, 2, 3\)"),
        ({"transforms": torch.ones(5, 0, 3, 3)}, r"transforms has shape \(5, 0, 3, 3\)"),
        ({"transforms": torch.full((4, 3, 3), INF)}, "transforms has values"),
        ({"sigma": 0.0}, r"sigma has a value of 0\.0"),
        ({"sigma": torch.tensor([0.5, 0.5, -1, 0.5])}, r"sigma has a value of -1\.0"),
        ({"sigma": NAN}, "sigma has a value of nan"),
        ({"sigma": torch.ones(3)}, r"sigma has shape \(3,\)"),
        ({"sigma": torch.ones(2, 5, 4)}, r"sigma has shape \(2, 5, 4\)"),
        ({"kappa": -0.5}, r"kappa has a value of -0\.5"),
        ({"kappa": INF}, "kappa has a value of inf"),
        ({"kappa": torch.ones(4, 5)}, r"kappa has shape \(4, 5\)"),
        ({"log_prior": torch.zeros(3)}, r"log_prior has shape \(3,\)"),
        ({"log_prior": torch.zeros(2, 5, 4)}, r"log_prior has shape \(2, 5, 4\)"),
        ({"log_prior": torch.full((4,), -INF)}, "log_prior is NaN"),
        ({"log_prior": torch.tensor([0.0, NAN, 0, 0])}, "log_prior is NaN"),
        ({"log_prior": torch.tensor([0.0, INF, 0, 0])}, "log_prior is NaN"),
        ({"owner": torch.tensor([0, 1, 1])}, r"owner .*\(3,\)"),
        ({"owner": torch.tensor([0.0, 1, 1, 0])}, r"owner .*torch\.float32"),
        ({"owner": torch.tensor([0, -1, 1, 0])}, "owner .*from 0"),
        ({"directions": torch.ones(5, 3)}, r"directions has shape \(5, 3\)"),
        ({"directions": torch.ones(2, 5, 3)}, r"directions has a row of length 1\.732"),
        ({"directions": torch.full((2, 5, 3), NAN)}, "directions has values"),
        ({"mask": torch.ones(2, 5)}, r"mask .*torch\.float32"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, r"mask has shape \(5,\)"),
        ({"prior": torch.zeros(3, 3)}, r"prior has shape \(3, 3\)"),
        ({"prior": torch.full((3,), NAN)}, "prior has values"),
        ({"start": SHARES[0]}, r"start has shape \(5, 4\)"),
        ({"start": 2 * SHARES}, "start has rows that are not shares"),
        ({"start": NAN * SHARES}, "start has rows that are not shares"),
        ({"start": SHARES, "log_prior": torch.tensor([0.0, -INF, 0, 0])}, "start gives a share to a component"),
        ({"start": SHARES, "starts": 3}, "starts is 3"),
        ({"sweeps": 0}, "sweeps is 0"),
        ({"sweeps": 1.5}, "sweeps is 1.5; it must be a whole number"),
        ({"starts": 0}, "starts is 0"),
        ({"starts": 2.5}, "starts is 2.5; it must be a whole number"),
        ({"learn": ("sigmas",)}, "learn is 'sigmas'.*Did you mean 'sigma'"),
        ({"learn": "kappa"}, "learn is 'kappa'; it must be a list"),
        ({"largest_kappa": 0.0}, r"largest_kappa is 0\.0"),
        ({"largest_kappa": INF}, "largest_kappa is inf"),
        ({"smallest_sigma": NAN}, "smallest_sigma is nan"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str, family: str) -> None:
    refused(message, family=family, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "sphera"}, "family is 'sphera'.*Did you mean 'sphere'"),
        ({"sparsity": -1.0}, r"sparsity is -1\.0"),
        ({"sparsity": NAN}, "sparsity is nan"),
        ({"prior_precision": 0.0}, "prior_precision is not symmetric and positive definite"),
        ({"prior_precision": NAN}, "prior_precision has values"),
        ({"prior_precision": torch.ones(3)}, r"prior_precision has shape \(3,\)"),
        ({"prior_precision": (EYE - 2).expand(4, 3, 3)}, "prior_precision is not symmetric and positive definite"),
        ({"prior_precision": (EYE + EYE[[1, 2, 0]]).expand(4, 3, 3)}, "prior_precision is not symmetric"),
        ({"start_parents": (torch.zeros(4, 3), EYE.expand(2, 4, 3, 3))}, r"start_parents has a shape \(4, 3\)"),
        ({"start_parents": (torch.zeros(2, 4, 3), EYE)}, r"start_parents has a shape \(3, 3\)"),
        ({"start_parents": (torch.full((2, 4, 3), NAN), EYE.expand(2, 4, 3, 3))}, "start_parents has values"),
        ({"start_parents": (torch.zeros(2, 4, 3), NAN * EYE.expand(2, 4, 3, 3))}, "start_parents has values"),
        ({"start_parents": (torch.zeros(2, 4, 3), -EYE.expand(2, 4, 3, 3))}, "start_parents is not symmetric and pos"),
        (
            {"start_parents": (torch.zeros(2, 4, 3), EYE.expand(2, 4, 3, 3)), "start": SHARES},
            "start and start_parents are both given",
        ),
        (
            {"start_parents": (torch.zeros(2, 4, 3), EYE.expand(2, 4, 3, 3)), "starts": 2},
            "starts is 2",
        ),
        ({"family": "sphere", "sparsity": 1.0}, "sparsity is given with family 'sphere'"),
        ({"family": "sphere", "prior_precision": 2.0}, "prior_precision is given with family 'sphere'"),
        (
            {"family": "sphere", "start_parents": (torch.zeros(2, 4, 3), EYE.expand(2, 4, 3, 3))},
            "start_parents is given with family 'sphere'",
        ),
        ({"family": "sphere", "transforms": 1.01 * EYE.expand(5, 4, 3, 3)}, "transforms are not orthogonal"),
        ({"family": "sphere", "transforms": torch.ones(4, 3, 4)}, "transforms are not orthogonal"),
    ],
)
def test_wrong_arguments_of_a_family(changes: dict[str, Any], message: str) -> None:
    refused(message, **changes)


@pytest.mark.parametrize("family", BOTH)
def test_a_parameter_in_any_shape_is_the_same_as_spread_out(family: str) -> None:
    poses, transforms = torch.randn(2, 5, 3), torch.linalg.qr(torch.randn(5, 4, 3, 3))[0]

    def run(sigma: Any, kappa: Any, log_prior: Tensor) -> Tensor:
        return invert(poses, transforms, sigma=sigma, kappa=kappa, log_prior=log_prior, family=family, sweeps=3).trace

    drawn = torch.rand(5, 4) + 0.5
    for value in (drawn, drawn[:1], drawn[:, :1], drawn[0], drawn[0, 0], drawn[0, 0].item()):
        spread = value.expand(5, 4) if isinstance(value, Tensor) else torch.full((5, 4), value)
        prior = drawn[:1] if isinstance(value, float) or value.shape[-1:] != (4,) else value
        torch.testing.assert_close(run(value, value, prior), run(spread, spread, prior.expand(5, 4)))


def test_priors_in_any_shape_are_the_same_as_spread_out() -> None:
    setup = GOOD | {"poses": torch.randn(2, 5, 3), "transforms": torch.randn(5, 4, 3, 3)}
    precision = torch.rand(4) + 0.5
    one, other, third = (
        invert(**setup | {"prior": torch.ones(3), "prior_precision": p}).trace
        for p in (precision, precision[:, None, None] * EYE, 1.0)
    )
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one, third)
    spread = invert(**setup | {"prior": torch.ones(4, 3)}).trace
    torch.testing.assert_close(spread, third)


def test_parameters_come_back_in_the_layout_in_which_they_are_given() -> None:
    found = invert(**GOOD | {"sigma": torch.rand(5, 4) + 0.1, "kappa": torch.rand(5, 1), "log_prior": torch.zeros(4)})
    assert found.sigma.shape == (5, 4) and found.kappa.shape == (5, 1) and found.log_prior.shape == (1, 4)
