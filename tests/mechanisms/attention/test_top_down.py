"""Top-down attention: the worked numbers of its source, loops, the energy it descends, retrieval, masks, errors."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.attention import TopDownAttention, energy, retrieve, top_down_attention

PREDICTIONS = torch.tensor([(1.0, 0.0), (0.6, 0.8), (-1.0, 0.2)], dtype=torch.float64)
CHILD = torch.tensor([[0.5, 0.3]], dtype=torch.float64)


def example() -> tuple[Tensor, Tensor]:
    """Parents and transforms that make the predictions of the example: parent j is the unit vector e_j."""
    transforms = torch.zeros(1, 3, 2, 3, dtype=torch.float64)
    for j, prediction in enumerate(PREDICTIONS):
        transforms[0, j, :, j] = prediction
    return torch.eye(3, dtype=torch.float64), transforms


def explain(iterations: int, **arguments: float | bool) -> tuple[list[float], list[float]]:
    poses, couplings = top_down_attention(CHILD, *example(), iterations, **arguments)  # type: ignore[arg-type]
    return poses[0].tolist(), couplings[0].tolist()


@pytest.mark.parametrize(
    ("beta", "iterations", "pose", "couplings"),
    [
        (1.0, 1, (0.507460, 0.374582), (0.411279, 0.428064, 0.160657)),
        (1.0, 30, (0.511264, 0.386577), None),
        (8.0, 1, (0.767867, 0.463399), (0.420580, 0.579192, 0.000228)),
        (8.0, 30, (0.621857, 0.756253), (0.054677, 0.945315, 0.000009)),
    ],
)
def test_worked_numbers(
    beta: float, iterations: int, pose: tuple[float, ...], couplings: tuple[float, ...] | None
) -> None:
    found = explain(iterations, beta=beta)
    assert found[0] == pytest.approx(pose, abs=2e-6)
    if couplings is not None:
        assert found[1] == pytest.approx(couplings, abs=2e-6)


@pytest.mark.parametrize(("iterations", "pose"), [(2, (0.667792, 0.412208)), (10, (0.729228, 0.541542))])
def test_worked_numbers_of_accumulated_scores(iterations: int, pose: tuple[float, ...]) -> None:
    assert explain(iterations, beta=1.0, accumulate=True)[0] == pytest.approx(pose, abs=2e-6)


def by_loops(children: Tensor, parents: Tensor, transforms: Tensor, steps: int, beta: float, keep: bool) -> Tensor:
    m, n, d, e = transforms.shape
    out = children.clone()
    for b in range(len(children)):
        for i in range(m):
            predictions = [
                [sum(transforms[i, j, x, y] * parents[b, j, y] for y in range(e)) for x in range(d)] for j in range(n)
            ]
            pose, logits = children[b, i].tolist(), [0.0] * n
            for _ in range(steps):
                fits = [beta * sum(pose[x] * float(predictions[j][x]) for x in range(d)) for j in range(n)]
                logits = [a + f for a, f in zip(logits, fits, strict=True)] if keep else fits
                shares = [math.exp(x) for x in logits]
                shares = [x / sum(shares) for x in shares]
                pose = [sum(shares[j] * float(predictions[j][x]) for j in range(n)) for x in range(d)]
            out[b, i] = torch.tensor(pose)
    return out


@pytest.mark.parametrize("accumulate", [False, True])
def test_equals_the_equations_by_loops(accumulate: bool) -> None:
    torch.manual_seed(0)
    children, parents, transforms = (torch.randn(*s, dtype=torch.float64) for s in ((2, 4, 3), (2, 3, 5), (4, 3, 3, 5)))
    found, _ = top_down_attention(children, parents, transforms, 4, accumulate=accumulate)
    expected = by_loops(children, parents, transforms, 4, 3**-0.5, accumulate)
    torch.testing.assert_close(found, expected)
    layer = TopDownAttention(4, 3, 3, 5, iterations=4, accumulate=accumulate).double()
    with torch.no_grad():
        layer.weight.copy_(transforms.transpose(-1, -2))
    torch.testing.assert_close(layer(parents, children), expected)


def test_one_parent_determines_its_child() -> None:
    parents, transforms = torch.randn(2, 1, 5), torch.randn(4, 1, 3, 5)
    found, couplings = top_down_attention(torch.randn(2, 4, 3), parents, transforms)
    torch.testing.assert_close(found, torch.einsum("ide,be->bid", transforms[:, 0], parents[:, 0]))
    assert couplings.eq(1).all()


def test_a_large_beta_picks_one_prediction() -> None:
    pose, couplings = explain(1, beta=1e4)
    assert couplings == pytest.approx([0, 1, 0]) and pose == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("beta", [0.5, 1.0, 8.0])
def test_no_iteration_raises_the_energy(beta: float) -> None:
    torch.manual_seed(1)
    poses = [CHILD] + [torch.tensor([explain(k, beta=beta)[0]], dtype=torch.float64) for k in range(1, 12)]
    energies = [energy(p[None], PREDICTIONS[None], beta=beta).item() for p in poses]
    assert all(b <= a + 1e-12 for a, b in pairwise(energies))
    assert energies[-1] < energies[0]


def test_is_retrieval_from_the_predictions_of_one_child() -> None:
    out, weights = retrieve(CHILD[None], PREDICTIONS[None], beta=2.0, steps=5)
    pose, couplings = explain(5, beta=2.0)
    assert pose == pytest.approx(out[0, 0].tolist()) and couplings == pytest.approx(weights[0, 0].tolist())


def test_children_do_not_interact() -> None:
    torch.manual_seed(0)
    children, parents, transforms = torch.randn(2, 4, 3), torch.randn(2, 3, 5), torch.randn(4, 3, 3, 5)
    whole, _ = top_down_attention(children, parents, transforms, 3)
    alone, _ = top_down_attention(children[:, 1:2], parents, transforms[1:2], 3)
    torch.testing.assert_close(whole[:, 1:2], alone)


def test_absent_parents_have_no_effect() -> None:
    torch.manual_seed(0)
    children, parents, transforms = torch.randn(2, 4, 3), torch.randn(2, 3, 5), torch.randn(4, 3, 3, 5)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    found, couplings = top_down_attention(children, parents, transforms, 3, mask=mask)
    expected, _ = top_down_attention(children[:1], parents[:1, ::2], transforms[:, ::2], 3)
    torch.testing.assert_close(found[:1], expected)
    assert couplings[0, :, 1].eq(0).all() and couplings[1].eq(0).all()
    torch.testing.assert_close(found[1], children[1])


def test_any_batch_axes_are_allowed() -> None:
    children, parents, transforms = torch.randn(2, 3, 4, 3), torch.randn(2, 3, 2, 5), torch.randn(4, 2, 3, 5)
    found, couplings = top_down_attention(children, parents, transforms, 2)
    assert found.shape == children.shape and couplings.shape == (2, 3, 4, 2)
    one, _ = top_down_attention(children[1, 2], parents[1, 2], transforms, 2)
    torch.testing.assert_close(found[1, 2], one)


def test_couplings_are_recorded_and_accumulating_sharpens_them() -> None:
    torch.manual_seed(0)
    layer = TopDownAttention(6, 3, 4, 5, iterations=8, accumulate=True)
    with record(layer) as trace:
        layer(torch.randn(2, 3, 5), torch.randn(2, 6, 4))
    entropies = [-torch.special.xlogy(c, c).sum(-1).mean().item() for c in trace.steps("coupling")]
    assert len(entropies) == 8 and entropies[-1] < entropies[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "iterations is 0"),
        ({"iterations": 1.5}, "iterations is 1.5"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"mask": torch.ones(2, 3)}, "mask is torch.float32"),
        ({"mask": torch.ones(2, 2, dtype=torch.bool)}, "mask is torch.bool"),
        ({"transforms": torch.randn(4, 3, 5, 3)}, "transforms has shape"),
        ({"parents": torch.randn(3, 3, 5)}, "must agree"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    arguments = {
        "children": torch.randn(2, 4, 3),
        "parents": torch.randn(2, 3, 5),
        "transforms": torch.randn(4, 3, 3, 5),
    }
    with pytest.raises(UsageError, match=message):
        top_down_attention(**{**arguments, **change})  # type: ignore[arg-type]
