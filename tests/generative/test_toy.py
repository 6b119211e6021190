"""The toy model: the table of its equilibria, from the conditions of a minimum and from a descent in plain Python."""

from itertools import product

import pytest
import torch

from mereo.errors import MereoError, UsageError
from mereo.generative.toy import toy_routing

A, Y = (-1.0, 5.0, 2.0), 2.0


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    return torch.linalg.solve(
        torch.tensor(matrix, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    ).tolist()


def quadratic_minimum(l2: float, tied: bool, slope: list[float], held: list[bool]) -> list[float]:
    """Where 2 (S - y) + 2 l2 x_i + slope_i + 2 (x_i - a_i if tied) = 0 for each unit that is not held at zero."""
    matrix = [[0.0 if held[i] else 2.0 for j in range(3)] for i in range(3)]
    right = [0.0 if held[i] else 2 * Y - slope[i] + (2 * A[i] if tied else 0) for i in range(3)]
    for i in range(3):
        matrix[i][i] += 1.0 if held[i] else 2 * l2 + (2 if tied else 0)
    return solve(matrix, right)


def minimum_with_l1(strength: float) -> list[float]:
    """The one minimum of the full energy with an L1 penalty: every pattern of signs is tried."""
    found = []
    for signs in product((-1, 0, 1), repeat=3):
        x = quadratic_minimum(0, True, [strength * s for s in signs], [s == 0 for s in signs])
        smooth = [2 * (sum(x) - Y) + 2 * (x[i] - A[i]) for i in range(3)]
        fits = all(x[i] * s > 0 if s else abs(smooth[i]) <= strength for i, s in enumerate(signs))
        found += [x] if fits else []
    assert len(found) == 1
    return found[0]


def descend(penalty: str, tied: bool, x: list[float], steps: int, lr: float) -> list[list[float]]:
    """The authors' descent, unit by unit; each of their losses carries the penalty."""
    times, path = (2 if tied else 1), [list(x)]
    for _ in range(steps):
        total, moved = sum(x), []
        for i in range(3):
            sign = (x[i] > 0) - (x[i] < 0)
            slope = {"none": 0.0, "l1": float(sign), "l2": 2 * x[i]}[penalty]
            gradient = 2 * (total - Y) + times * slope + (2 * (x[i] - A[i]) if tied else 0)
            moved.append(x[i] - lr * gradient)
        x = moved
        path.append(x)
    return path


@pytest.mark.parametrize("output_only", [True, False])
@pytest.mark.parametrize("penalty", ["none", "l1", "l2"])
def test_the_descent_is_the_authors(penalty, output_only):
    found = toy_routing(penalty, output_only)
    expected = torch.tensor(descend(penalty, not output_only, list(A), 500, 0.01), dtype=torch.float64)
    torch.testing.assert_close(found.trace, expected, rtol=0, atol=1e-9)
    assert torch.equal(found.x, found.trace[-1])


@pytest.mark.parametrize("method", ["sgd", "prox"])
@pytest.mark.parametrize(
    ("penalty", "output_only", "minimum", "energy"),
    [
        ("none", True, (-7 / 3, 11 / 3, 2 / 3), 0),
        ("l1", True, (0, 3 / 2, 0), 7 / 4),
        ("l2", True, (1 / 2, 1 / 2, 1 / 2), 1),
        ("none", False, (-2, 4, 1), 4),
        ("l1", False, (-3 / 4, 13 / 4, 1 / 4), 61 / 4),
        ("l2", False, (-1 / 3, 5 / 3, 2 / 3), 20),
    ],
)
def test_the_table(penalty, output_only, minimum, energy, method):
    found = toy_routing(penalty, output_only, method, steps=1500)
    # A subgradient step is of the size of lr however near zero is, so there sgd goes to and fro.
    close = 2e-2 if 0 in minimum and method == "sgd" else 2e-4
    torch.testing.assert_close(found.x, torch.tensor(minimum, dtype=torch.float64), rtol=0, atol=close)
    assert found.energy[-1].item() == pytest.approx(energy, abs=close)


def test_the_numbers_after_500_steps():
    torch.testing.assert_close(
        toy_routing("l1").x, torch.tensor([7.7e-7, 1.500001, 7.7e-7], dtype=torch.float64), rtol=0, atol=5e-7
    )
    torch.testing.assert_close(
        toy_routing("l2").x, torch.tensor([0.499877, 0.500123, 0.5], dtype=torch.float64), rtol=0, atol=5e-7
    )


def test_the_table_is_that_of_the_conditions_of_a_minimum():
    free, zero = [False] * 3, [0.0] * 3
    assert quadratic_minimum(0, True, zero, free) == pytest.approx([-2, 4, 1])
    assert quadratic_minimum(2, True, zero, free) == pytest.approx([-1 / 3, 5 / 3, 2 / 3])
    assert quadratic_minimum(1, False, zero, free) == pytest.approx([1 / 2] * 3)
    assert minimum_with_l1(2) == pytest.approx([-3 / 4, 13 / 4, 1 / 4])
    # Without a penalty the output's energy moves all units alike until they sum to y.
    assert [a + (Y - sum(A)) / 3 for a in A] == pytest.approx([-7 / 3, 11 / 3, 2 / 3])


@pytest.mark.parametrize("method", ["sgd", "prox"])
def test_the_penalty_counted_once(method):
    assert minimum_with_l1(1) == pytest.approx([-1.375, 3.625, 0.625])
    found = toy_routing("l1", False, method, weight=0.5)
    assert found.x.tolist() == pytest.approx([-1.375, 3.625, 0.625], abs=2e-4)


def test_prox_makes_zeros():
    assert toy_routing("l1", method="prox").x[[0, 2]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", ["sgd", "prox"])
@pytest.mark.parametrize("start", [(1, 1, 1), (0, 0, 0)])
def test_equal_units_end_equal(start, method):
    assert toy_routing("l1", method=method, start=start).x.tolist() == pytest.approx([0.5] * 3, abs=2e-4)


def test_the_energy_is_that_of_the_trace():
    found = toy_routing("l1", False, weight=0.3, inputs=(1, -2, 0.5, 3), target=-1, steps=3)
    for x, energy in zip(found.trace.tolist(), found.energy.tolist(), strict=True):
        own = sum((p - q) ** 2 for p, q in zip(x, (1, -2, 0.5, 3), strict=True))
        assert energy == pytest.approx((sum(x) + 1) ** 2 + own + 2 * 0.3 * sum(map(abs, x)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": "l3"}, "penalty is 'l3'"),
        ({"method": "adam"}, "method is 'adam'"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"lr": -1}, "lr is -1"),
        ({"weight": -1}, "weight is -1"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"start": (1, 2)}, "start has 2 entries"),
        ({"start": ()}, "start is"),
        ({"inputs": "abc"}, "inputs is 'abc'"),
        ({"inputs": (1, float("inf"))}, "inputs is"),
        ({"target": float("nan")}, "target is nan"),
    ],
    ids=str,
)
def test_wrong_use(arguments, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        toy_routing(**arguments)


@pytest.mark.parametrize("steps", [20, 2000])
def test_a_descent_that_diverges_is_an_error(steps):
    with pytest.raises(MereoError, match=r"lr 0\.9"):
        toy_routing("none", lr=0.9, steps=steps)
