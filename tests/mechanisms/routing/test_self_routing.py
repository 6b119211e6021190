"""Self-routing: worked numbers, loops, reductions, masks, gradients, precision, refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import SelfRouting

D = torch.float64


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def some(senders: int = 6, receivers: int = 3, dim: int = 4, out: int = 5) -> tuple[SelfRouting, Tensor, Tensor]:
    torch.manual_seed(0)
    module = SelfRouting(senders, receivers, dim, out).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module, torch.randn(2, senders, dim, dtype=D), 0.1 + 0.9 * torch.rand(2, senders, dtype=D)


def by_loops(module: SelfRouting, poses: Tensor, active: Tensor) -> Tensor:
    """The equations with indices, differentiable."""
    rows = []
    for u, a in zip(poses, active, strict=True):
        S, R = len(u), len(module.gate)
        total = sum(a[s] for s in range(S))
        shares = []
        for s in range(S):
            powers = [(torch.dot(module.gate[r, s], u[s]) + module.gate_bias[r, s]).exp() for r in range(R)]
            shares.append([power / sum(powers) for power in powers])
        for r in range(R):
            taken = sum(shares[s][r] * a[s] for s in range(S))
            pose = sum(shares[s][r] * a[s] / taken * (u[s] @ module.weight[r, s]) for s in range(S))
            rows.append(torch.cat((pose, (taken / total).view(1))))
    return torch.stack(rows).view(len(poses), len(module.gate), -1)


def worked() -> tuple[SelfRouting, Tensor, Tensor]:
    """Two children with gates (0, 0) and (ln 3, 0) of activations .9 and .5; votes are the children themselves."""
    module = SelfRouting(2, 2, 1, 1).double()
    with torch.no_grad():
        module.gate_bias[0, 1] = math.log(3)
        module.weight.fill_(1)
    return module, torch.eye(2, dtype=D)[:1].T.unsqueeze(0), torch.tensor([[0.9, 0.5]], dtype=D)


def test_worked_numbers() -> None:
    module, poses, active = worked()
    with record(module) as trace:
        parents = module.route(poses, active)
    close(parents.activation[0], [0.589286, 0.410714])
    # The pose weight of the first child, as its vote is 1 and the other's 0.
    close(parents.pose[0, :, 0], [0.545455, 0.782609])
    close(module.route(1 - poses, active).pose[0, :, 0], [0.454545, 0.217391])
    close(trace["coupling"][0, 0] * 1.4 / active, [[0.5, 0.75], [0.5, 0.25]])


def test_equals_loops_with_gradients() -> None:
    module, poses, active = some()
    weights = torch.randn(2, 3, 6, dtype=D)
    inputs = (poses.requires_grad_(), active.requires_grad_(), *module.parameters())
    fast, slow = module(poses, active), by_loops(module, poses, active)
    torch.testing.assert_close(fast, slow)
    for got, expected in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(got, expected)


def test_single_precision_streams_and_stays_close() -> None:
    module, poses, active = some(40, 7, 8, 8)
    expected = by_loops(module, poses, active)
    torch.testing.assert_close(module.float()(poses.float(), active.float()).double(), expected, rtol=1e-4, atol=1e-5)


def test_gates_of_zero_are_uniform() -> None:
    module = SelfRouting(6, 4, 3, 5)
    assert not module.gate.any() and not module.gate_bias.any()
    close(module.route(torch.randn(2, 6, 3), torch.rand(2, 6)).activation, [[0.25] * 4] * 2)


def test_activations_sum_to_one_and_only_ratios_count() -> None:
    module, poses, active = some()
    parents = module(poses, active)
    torch.testing.assert_close(parents[..., -1].sum(1), torch.ones(2, dtype=D))
    for factor in (1e-3, 1e6):
        torch.testing.assert_close(module(poses, factor * active), parents)


def test_an_inactive_child_can_be_removed() -> None:
    module, poses, active = some()
    inactive = active.index_fill(1, torch.tensor([2]), 0)
    smaller, keep = SelfRouting(5, 3, 4, 5).double(), [0, 1, 3, 4, 5]
    smaller.load_state_dict({name: p[:, keep] for name, p in module.state_dict().items()})
    expected = smaller(poses[:, keep], active[:, keep])
    torch.testing.assert_close(module(poses, inactive), expected)
    mask = torch.arange(6).expand(2, 6) != 2
    torch.testing.assert_close(module(poses, active, mask), expected)


def test_a_saturated_gate_sends_everything_to_one_parent() -> None:
    module, poses, active = some()
    with torch.no_grad():
        module.gate_bias[1] = 1e4
    parents = module.route(poses, active)
    close(parents.activation, [[0.0, 1.0, 0.0]] * 2)
    assert parents.pose.isfinite().all() and not parents.pose[:, ::2].any()


def test_one_child() -> None:
    module, poses, active = some(1)
    parents = module.route(poses, active)
    gates = torch.einsum("bsd,rsd->br", poses, module.gate) + module.gate_bias.squeeze(1)
    torch.testing.assert_close(parents.activation, gates.softmax(1))
    torch.testing.assert_close(parents.pose, torch.einsum("bsd,rsde->bre", poses, module.weight))


def test_one_parent_takes_everything() -> None:
    module, poses, active = some(receivers=1)
    close(module.route(poses, active).activation, [[1.0]] * 2)


def test_equal_votes_are_the_pose() -> None:
    module, poses, active = some()
    module.weight.data[:] = module.weight[:, :1]
    same = poses[:, :1].expand_as(poses)
    torch.testing.assert_close(
        module.route(same, active).pose, torch.einsum("bd,rde->bre", poses[:, 0], module.weight[:, 0])
    )


@pytest.mark.parametrize("out", [0, 5])
def test_no_active_child_gives_zeros_and_finite_gradients(out: int) -> None:
    module = SelfRouting(6, 3, 4, out)
    poses, active = torch.randn(2, 6, 4, requires_grad=True), torch.zeros(2, 6, requires_grad=True)
    parents = module(poses, active)
    parents.sum().backward()
    assert not parents.any()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (poses, active, *module.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, poses, active = some()
    expected = module(poses, active)
    got = module.to(dtype)(poses.to(dtype), active.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.05)


def test_parents_without_poses() -> None:
    module, poses, active = some()
    bare = SelfRouting(6, 3, 4, 0).double()
    bare.load_state_dict({name: p for name, p in module.state_dict().items() if name != "weight"})
    parents = bare.route(poses, active)
    assert parents.pose.shape == (2, 3, 0)
    torch.testing.assert_close(parents.activation, module.route(poses, active).activation)


def test_counts() -> None:
    head = SelfRouting(2048, 10, 16, 0)
    assert [p.numel() for p in head.parameters()] == [327_680, 20_480]
    assert SelfRouting(288, 32, 16, 16).weight.numel() == 288 * 32 * 16 * 16


def test_start_of_the_transforms() -> None:
    torch.manual_seed(0)
    # He's uniform distribution of (senders, receivers * receiver_dim, sender_dim), as in the authors' code.
    expected = torch.nn.init.kaiming_uniform_(torch.empty(50, 4 * 5, 3))
    got = SelfRouting(50, 4, 3, 5).weight
    assert got.abs().max().item() == pytest.approx((6 / (4 * 5 * 3)) ** 0.5, rel=0.01)
    assert got.std().item() == pytest.approx(expected.std().item(), rel=0.05)


@pytest.mark.parametrize(("arguments", "message"), [({"receivers": 0}, "receivers is 0"), ({"dim": 0}, "sender_dim")])
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        some(**arguments)
    with pytest.raises(UsageError, match="receiver_dim is -1"):
        SelfRouting(2, 2, 2, -1)


def test_wrong_shapes() -> None:
    module, poses, active = some()
    with pytest.raises(UsageError, match=r"poses are \(2, 6, 3\)"):
        module(poses[..., :3], active)
    with pytest.raises(UsageError, match=r"activation is \(2, 5\)"):
        module(poses, active[:, :5])


# --- convolutions of capsules ---------------------------------------------------------------------------------------


def conv(**options: Any) -> tuple[ConvCapsules, Tensor, Tensor]:
    torch.manual_seed(0)
    shape = {"pose": "vector", "in_pose": (4,), "compete": "window", "routing": "self_routing", **options}
    layer = ConvCapsules(2, 3, 3, 2, 1, **shape).double()
    for parameter in layer.routing.parameters():
        torch.nn.init.normal_(parameter)
    return layer, torch.randn(2, 2, *layer.in_pose, 5, 4, dtype=D), 0.1 + 0.9 * torch.rand(2, 2, 5, 4, dtype=D)


def test_a_convolution_equals_loops() -> None:
    layer, poses, active = conv()
    parents = layer(poses, active)
    for image, y, x in ((0, 0, 0), (1, 1, 0), (0, 2, 1)):
        taken, sums, total = torch.zeros(3, dtype=D), torch.zeros(3, 4, dtype=D), 0.0
        for o in range(9):
            row, column = 2 * y - 1 + o // 3, 2 * x - 1 + o % 3
            if not (0 <= row < 5 and 0 <= column < 4):
                continue
            for t in range(2):
                pose, a = poses[image, t, :, row, column], active[image, t, row, column]
                logits = layer.routing.gate[:, 2 * o + t] @ pose + layer.routing.gate_bias[:, 2 * o + t]
                share, total = a * logits.softmax(0), total + a
                taken = taken + share
                for r in range(3):
                    sums[r] = sums[r] + share[r] * (pose @ layer.weight[r, o, t])
        torch.testing.assert_close(parents.activation[image, :, y, x], taken / total)
        torch.testing.assert_close(parents.pose[image, :, :, y, x], sums / taken.unsqueeze(1))


def test_a_window_over_the_whole_map_is_the_dense_routing() -> None:
    layer, poses, active = conv()
    layer = ConvCapsules(2, 3, None, size=(5, 4), pose="vector", in_pose=(4,), routing="self_routing").double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    dense = SelfRouting(40, 3, 4, 4).double()
    gate = {name: getattr(layer.routing, name) for name in ("gate", "gate_bias")}
    dense.load_state_dict({**gate, "weight": layer.weight.flatten(1, 2)})
    parents, whole = layer(poses, active), layer.windows(5, 4)
    expected = dense.route(whole.gather(poses), whole.gather(active))
    torch.testing.assert_close(parents.pose.flatten(2), expected.pose)
    torch.testing.assert_close(parents.activation.flatten(1), expected.activation)


def test_a_window_of_one_child_gives_its_gate_and_its_vote_whatever_its_activation() -> None:
    shape: dict[str, Any] = {"pose": "vector", "in_pose": (4,), "compete": "window", "routing": "self_routing"}
    layer = ConvCapsules(1, 3, 1, **shape).double()
    torch.nn.init.normal_(layer.routing.gate)
    poses = torch.randn(2, 1, 4, 5, 6, dtype=D)
    gates = torch.einsum("bdyx,rd->bryx", poses[:, 0], layer.routing.gate[:, 0]).softmax(1)
    votes = torch.einsum("bdyx,rde->breyx", poses[:, 0], layer.weight[:, 0, 0])
    for active in (0.01, 1.0):
        parents = layer(poses, torch.full((2, 1, 5, 6), active, dtype=D))
        torch.testing.assert_close(parents.activation, gates)
        torch.testing.assert_close(parents.pose, votes)


def test_activations_of_a_convolution_sum_to_one_and_children_beyond_the_map_have_no_influence() -> None:
    layer, poses, active = conv()
    with record(layer) as trace:
        parents = layer(poses, active)
    torch.testing.assert_close(parents.activation.sum(1), torch.ones(2, 3, 2, dtype=D))
    # Receivers are types of parents over positions, senders types of children over cells.
    couplings = trace["routing.coupling"]
    assert couplings.shape == (2, 1, 18, 40)
    torch.testing.assert_close(couplings.sum(-1).squeeze(1).unflatten(1, (3, 3, 2)), parents.activation)


def test_no_active_child_in_a_window() -> None:
    layer, poses, active = conv()
    parents = layer(poses, active.index_fill(2, torch.tensor([0, 1]), 0))
    assert not parents.activation[:, :, 0].any() and not parents.pose[:, :, :, 0].any()
    assert parents.pose.isfinite().all()
