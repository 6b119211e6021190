"""Inverted dot-product routing: worked numbers, loops, reductions, masks, convolutions, precision, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import InvertedDotProductRouting

D = torch.float64


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def some(senders: int = 6, receivers: int = 3, **options: Any) -> tuple[InvertedDotProductRouting, Tensor]:
    torch.manual_seed(0)
    module = InvertedDotProductRouting(senders, receivers, 4, **options).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module, torch.randn(2, senders, 4, dtype=D)


def normed(module: InvertedDotProductRouting, x: Tensor) -> Tensor:
    mean, variance = x.mean(), ((x - x.mean()) ** 2).mean()
    return (x - mean) / (variance + 1e-5).sqrt() * module.norm.weight + module.norm.bias


def by_loops(module: InvertedDotProductRouting, children: Tensor) -> Tensor:
    """The passes with indices, differentiable."""
    out = []
    (R, S), matrix = module.weight.shape[:2], module.rows > 1
    for image in children:
        vote = {}
        for s in range(S):
            for r in range(R):
                pose = image[s].view(2, 2) if matrix else image[s]
                vote[r, s] = (pose @ module.weight[r, s]).flatten()
        share = {key: torch.tensor(1 / R, dtype=D) for key in vote}
        for _ in range(module.steps):
            parents = [normed(module, sum(share[r, s] * vote[r, s] for s in range(S))) for r in range(R)]
            powers = {(r, s): (parents[r] @ v / len(v) ** 0.5).exp() for (r, s), v in vote.items()}
            share = {(r, s): power / sum(powers[j, s] for j in range(R)) for (r, s), power in powers.items()}
        out.append(torch.stack(parents))
    return torch.stack(out)


# One entry a child: its votes for the two parents.
VOTES = [[[1, 0, 0, 1], [0, 1, 1, 0]], [[1, 0.5, 0, 1], [0.5, -1, 1, 0]], [[0.8, -0.2, 0.1, 0.9], [-1, 0.3, 0, 0.2]]]


def worked(steps: int) -> InvertedDotProductRouting:
    """Children of one number, 1, whose transforms are the votes."""
    module = InvertedDotProductRouting(3, 2, 1, 4, steps=steps, pose="vector").double()
    module.weight.data = torch.tensor(VOTES, dtype=D).transpose(0, 1).unsqueeze(2).contiguous()
    return module


def test_worked_numbers() -> None:
    ones = torch.ones(1, 3, 1, dtype=D)
    close(
        worked(1)(ones)[0],
        [[0.960545, -0.922877, -1.073550, 1.035882], [-1.087831, -0.217566, 1.631746, -0.326349]],
    )
    close(
        worked(2)(ones)[0],
        [[0.959053, -0.943264, -1.054383, 1.038594], [-0.959010, -0.364833, 1.679436, -0.355593]],
    )
    module = worked(3)
    with record(module) as trace:
        module(ones)
    _, second, third = trace.steps("coupling")
    close(second[0, 0, 0], [0.572271, 0.528667, 0.601167])
    close(third[0, 0, 0], [0.584560, 0.495156, 0.623252])


@pytest.mark.parametrize("options", [{"steps": 1}, {"steps": 3}, {"steps": 2, "pose": "vector", "receiver_dim": 5}])
def test_equals_loops_with_gradients(options: dict[str, Any]) -> None:
    module, children = some(**options)
    inputs = (children.requires_grad_(), *module.parameters())
    fast, slow = module(children), by_loops(module, children)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(slow)
    for got, expected in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(got, expected)


def test_single_precision_streams_and_stays_close() -> None:
    module, children = some(40, 7)
    expected = by_loops(module, children)
    torch.testing.assert_close(module.float()(children.float()).double(), expected, rtol=1e-4, atol=1e-4)


def test_one_pass_is_the_norm_of_the_mean_vote() -> None:
    module, children = some(steps=1)
    plain = module(children)
    with record(module) as trace:
        torch.testing.assert_close(module(children), plain)
    torch.testing.assert_close(trace["coupling"], torch.full((2, 1, 3, 6), 1 / 3, dtype=D))
    sums = module.votes_of(children).dense().squeeze(1).sum(2) / 3
    torch.testing.assert_close(plain, module.norm(sums))


def test_couplings_sum_to_one_over_the_parents() -> None:
    module, children = some(steps=3)
    with record(module) as trace:
        module(children)
    for couplings in trace.steps("coupling"):
        torch.testing.assert_close(couplings.sum(2), torch.ones(2, 1, 6, dtype=D))


def test_one_parent_takes_everything_in_every_pass() -> None:
    poses = []
    for steps in (1, 2, 4):
        module, children = some(receivers=1, steps=steps)
        poses.append(module(children))
    torch.testing.assert_close(poses[0], poses[1])
    torch.testing.assert_close(poses[0], poses[2])


def test_one_child() -> None:
    module, children = some(1)
    torch.testing.assert_close(module(children), by_loops(module, children))


def test_equal_votes_are_divided_equally() -> None:
    module, children = some(steps=3)
    module.weight.data[:] = module.weight[:1, :1]
    same = children[:, :1].expand_as(children)
    with record(module) as trace:
        module(same)
    torch.testing.assert_close(trace["coupling"], torch.full((2, 1, 3, 6), 1 / 3, dtype=D))


def test_scaled_votes_leave_the_first_pass() -> None:
    module, children = some(steps=1)
    torch.testing.assert_close(module(100 * children), module(1000 * children), rtol=1e-4, atol=1e-4)


def test_huge_agreements_choose_one_parent() -> None:
    module, children = some(steps=3)
    with record(module) as trace:
        parents = module(1e6 * children)
    assert parents.isfinite().all()
    torch.testing.assert_close(trace["coupling"].amax(2), torch.ones(2, 1, 6, dtype=D))


def test_a_masked_child_has_no_vote() -> None:
    module, children = some()
    mask = torch.arange(6).expand(2, 6) != 2
    changed = children.index_fill(1, torch.tensor([2]), 9.0)
    torch.testing.assert_close(module(changed, mask), module(children, mask))
    torch.testing.assert_close(module(children, mask), module(children.index_fill(1, torch.tensor([2]), 0.0)))


def test_zeros_give_the_bias_and_finite_gradients() -> None:
    module, _ = some()
    children = torch.zeros(2, 6, 4, dtype=D, requires_grad=True)
    parents = module(children)
    parents.sum().backward()
    torch.testing.assert_close(parents, module.norm.bias.expand(2, 3, 4))
    assert children.grad is not None and children.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, children = some()
    expected = module(children)
    got = module.to(dtype)(children.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.1)


def test_children_that_change_from_pass_to_pass() -> None:
    module, children = some(steps=3)
    torch.testing.assert_close(module.over_passes([children, children]), module(children))
    other = torch.randn_like(children)
    votes = [module.votes_of(x) for x in (children, other)]
    expected = module.update(votes[1], module.update(votes[0], module.update(votes[0], None)))
    torch.testing.assert_close(module.over_passes([children, other]), expected)


def test_dropout_is_of_parents_in_training() -> None:
    module, children = some(dropout=0.5)
    assert not torch.equal(module(children), module(children))
    module.eval()
    assert torch.equal(module(children), module(children))


@torch.no_grad()
def test_a_first_pass_is_an_ordinary_convolution() -> None:
    layer = ConvCapsules(
        3, 4, 3, 2, in_pose=(2, 2), compete="window", routing="inverted_dot_product", routing_options={"steps": 1}
    )
    poses = torch.randn(2, 3, 2, 2, 7, 6)
    # The rows of a pose are samples, and its columns with the types the channels.
    rows = poses.transpose(1, 2).flatten(2, 3).flatten(0, 1)
    kernel = layer.weight.permute(0, 4, 2, 3, 1).flatten(2, 3).flatten(0, 1).unflatten(-1, (3, 3))
    sums = torch.nn.functional.conv2d(rows, kernel, stride=2).unflatten(0, (2, 2)).unflatten(2, (4, 2)) / 4
    expected = layer.routing.norm(sums.permute(0, 2, 4, 5, 1, 3).flatten(-2)).movedim(-1, 2).unflatten(2, (2, 2))
    parents = layer(poses)
    torch.testing.assert_close(parents.pose, expected, rtol=1e-4, atol=1e-5)
    assert (parents.activation == 1).all()


def test_a_window_of_a_convolution_is_the_dense_routing() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"in_pose": (2, 2), "compete": "window", "routing": "inverted_dot_product"}
    layer = ConvCapsules(3, 4, 3, **options, routing_options={"steps": 3}).double()
    poses = torch.randn(2, 3, 2, 2, 4, 5, dtype=D)
    dense = InvertedDotProductRouting(27, 4, 4, steps=3).double()
    dense.weight.data = layer.weight.flatten(1, 2)
    children = layer.windows(4, 5).gather(poses).flatten(2)
    expected = layer.windows(4, 5).place(dense(children)).unflatten(2, (2, 2))
    torch.testing.assert_close(layer(poses).pose, expected)


def test_start_of_the_transforms() -> None:
    torch.manual_seed(0)
    for module, inner in (
        (InvertedDotProductRouting(200, 30, 16), 4),
        (InvertedDotProductRouting(200, 30, 6, 8, pose="vector"), 6),
    ):
        assert module.weight.std().item() == pytest.approx((30 / (inner * 200)) ** 0.5, rel=0.02)
        assert (module.norm.weight == 1).all() and (module.norm.bias == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"receivers": 0}, "receivers is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"pose": "tensor"}, "pose is 'tensor'"),
        ({"receiver_dim": 9}, "receiver_dim is 9"),
        ({"dropout": 1.0}, "dropout is 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        some(**arguments)


def test_wrong_shapes() -> None:
    module, children = some()
    with pytest.raises(UsageError, match=r"children are \(2, 5, 4\)"):
        module(children[:, :5])
    with pytest.raises(UsageError, match="pose has 6 numbers"):
        InvertedDotProductRouting(2, 2, 6)


def test_poses_of_one_number_are_refused() -> None:
    with pytest.raises(UsageError, match="pose is 1"):
        ConvCapsules(2, 3, 2, in_pose=(5,), out_pose=(1,), pose="vector", routing="inverted_dot_product")
    with pytest.raises(UsageError, match="receiver_dim is 1"):
        InvertedDotProductRouting(2, 3, 4, 1, pose="vector")
